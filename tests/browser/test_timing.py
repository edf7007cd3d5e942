"""The lessons on time as a reader meets them. Where nothing was recorded, this CPU is measured."""

import pytest

from qp_kernels import results


@pytest.fixture(scope="class")
def sorting(lab):
    """Lesson 01, run in light theme."""
    lab.open_notebook("01_why_sorting_is_slow.ipynb", theme="light")
    lab.run_all(timeout_s=90)
    lab.wait_drawn()
    lab.kernel("explorer.wait(60)", 90)
    return lab


@pytest.fixture(scope="class")
def timing(lab):
    """Lesson 05, run in dark theme."""
    lab.open_notebook("05_gpu_timing.ipynb", theme="dark")
    lab.run_all(timeout_s=90)
    lab.wait_drawn()
    lab.kernel("explorer.wait(60)", 90)
    return lab


class TestSorting:
    def test_lesson_ends_quietly(self, sorting):
        sorting.was_quiet()
        assert sorting.page.evaluate("qp.figures().length") == 2
        sorting.fills_its_panel()
        sorting.looks_right()

    def test_every_way_has_a_dot_and_a_sort_is_right_of_the_floor(self, sorting):
        floor = sorting.trace("floor_read_write")["x"][0]
        assert all(len(sorting.trace(name)["x"]) == 1 for name in ("qp_kernels", "torch_topk"))
        assert sorting.trace("torch_sort")["x"][0] > floor

    def test_fewer_rows(self, sorting):
        with sorting.expect_change("qp_kernels", "label", timeout_s=30):
            sorting.press("B", "ArrowLeft")
        sorting.kernel("explorer.wait(60)", 90)
        sorting.switch_theme("dark")
        sorting.looks_right()

    def test_a_way_is_hidden(self, sorting):
        with sorting.expect_change("torch_sort"):
            sorting.tick("torch.sort", False)
        sorting.wait_for("() => !qp.summary().includes('torch.sort')")
        sorting.tick("torch.sort", True)

    def test_measured_here_and_a_line_on_run(self, sorting):
        if "bench_qrita" in results.names():
            sorting.choose("numbers", "measured on this CPU")
            sorting.kernel("explorer.wait(90)", 120)
        sorting.kernel("explorer.providers.value = ('qp_kernels', 'torch_topk'); explorer.wait(60)", 90)
        sorting.set_text("V", 4096)
        sorting.kernel("explorer.wait(60)", 90)
        sorting.wait_for("() => qp.summary().includes('V = 4,096')")
        sorting.choose("picture", "… over k")
        with sorting.expect_change("qp_kernels", timeout_s=60):
            sorting.click_button("Run")
        sorting.kernel("explorer.wait(90)", 120)
        sorting.wait_for("() => qp.trace('qp_kernels').x.length >= 4")
        sorting.looks_right()
        assert sorting.console_errors == []


class TestTiming:
    def test_lesson_ends_quietly(self, timing):
        timing.was_quiet()
        assert timing.page.evaluate("qp.figures().length") == 2
        assert "equal: True" in timing.text() and "@triton.jit" in timing.text()
        timing.looks_right()

    def test_light_theme(self, timing):
        timing.switch_theme("light")
        timing.looks_right()
