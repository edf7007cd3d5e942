"""The bar of the console, on a terminal and in a log."""

import io

from activations.progress import ConsoleBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(stream):
    bar = ConsoleBar(stream, width=10)
    bar(0, 0, "Looking")
    for done in range(0, 1001):
        bar(done, 1000, "Converting")
    bar(0, 0, "Checking")
    bar.close()
    return stream.getvalue()


def test_a_log_gets_one_line_a_step():
    assert run(io.StringIO()) == "Looking\nConverting\nChecking\n"


def test_a_terminal_sees_start_and_end_and_not_every_step():
    seen = run(Terminal())
    assert seen.startswith("Looking\n\rConverting ░░░░░░░░░░   0 %")
    assert "\rConverting ██████████ 100 %\nChecking\n" in seen
    assert seen.count("\r") < 20
