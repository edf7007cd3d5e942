"""Each rule of `lesson_rules` lets a good lesson pass and finds what is planted against it."""

import lesson_rules as rules
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook


def lesson(*code, headings=rules.SECTIONS):
    cells = [new_code_cell("from qp_kernels import report\n\nreport()")]
    cells += [new_markdown_cell(f"Some text.\n\n## {heading}") for heading in headings]
    return new_notebook(cells=cells + [new_code_cell(source) for source in code])


def problems(notebook):
    return [problem for rule in rules.RULES for problem in rule(notebook)]


def test_a_good_lesson_passes():
    good = "%time x = 1\nf = lambda a: a\ndef two(a):\n    return 2 * a\n\ntwo(f(3))"
    assert problems(lesson(good, "\n".join("abcdefghijkl"))) == []
    assert problems(lesson(headings=["Intro", "Question", "Predict: how many?", *rules.SECTIONS[2:], "Sources"])) == []


@pytest.mark.parametrize("missing", rules.SECTIONS)
def test_a_missing_section_is_found(missing):
    headings = [heading for heading in rules.SECTIONS if heading != missing]
    assert missing in problems(lesson(headings=headings))[0]


def test_sections_out_of_order_are_found():
    assert "'Why'" in problems(lesson(headings=["Question", "Predict", "Why", "Run", "What happened", "Try"]))[0]


def test_a_heading_in_a_code_fence_does_not_count():
    notebook = lesson(headings=rules.SECTIONS[:-1])
    notebook.cells.append(new_markdown_cell("```\n## Try\n```"))
    assert "'Try'" in problems(notebook)[0]


@pytest.mark.parametrize(
    "source, said",
    [
        ("\n".join("abcdefghijklm"), "13 statements"),
        ("for a in range(3):\n" + "\n".join(f"    b{i} = a" for i in range(12)), "13 statements"),
        ("def f(a):\n    a += 1\n    a *= 2\n    return a", "def f has 4 lines"),
        ("class A:\n    pass", "class A"),
        ("import widgets", "from widgets import"),
        ("import widgets.figures as figures", "from widgets import"),
    ],
)
def test_a_cell_that_does_more_than_call_is_found(source, said):
    assert said in problems(lesson(source))[0]


def test_a_lesson_without_a_report_is_found():
    notebook = lesson()
    notebook.cells[0].source = "report = 'a word'"
    assert problems(notebook) == ["the first code cell does not call report()"]
    assert "report()" in problems(new_notebook(cells=notebook.cells[1:]))[0]
