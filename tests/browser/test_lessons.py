"""The first lessons as a reader meets them: run, slide, type, mistype, in light and in dark."""

import re

import pytest

V = 262_144


@pytest.fixture(scope="module")
def lesson(lab):
    """The start lesson, run in light theme, on whatever model is at hand (else on the recorded rows)."""
    lab.open_notebook("00_tokens_and_cuts.ipynb", theme="light")
    lab.run_all(timeout_s=90)
    lab.wait_drawn()
    return lab


@pytest.fixture(scope="module")
def live(lesson):
    """The same lesson where a model reads what is typed; an error, not a skip, when the model did not come."""
    assert lesson.value("text"), "the panel has no text box: the lesson runs on recorded rows"
    return lesson


@pytest.fixture
def reset(lesson):
    """k = 50, p off, T = 1, and no error from the test before."""
    for label, value in (("k", 50), ("p", 1), ("T", 1)):
        lesson.set_text(label, value)
    lesson.wait_for("() => /^k = 50, p off, T = 1:/.test(qp.summary()) && qp.error() === ''")
    return lesson


def kept_in(summary):
    return int(re.search(r"([\d,]+) of ([\d,]+) tokens kept", summary)[1].replace(",", ""))


def drawn_kept(lab):
    """Tokens in the green part of the histogram; a few can lie outside the drawn range."""
    return sum(lab.trace("kept")["y"])


def test_run_all_ends_quietly_with_a_figure(lesson):
    lesson.was_quiet()
    assert lesson.error == ""
    assert lesson.first_figure_s < 60  # at rest 20 s: benchmarks/panel_latency.py --check
    assert f"of {V:,} tokens kept" in lesson.summary
    assert {"kept", "dropped", "normal", "cut", "before", "after"} <= {trace["name"] for trace in lesson.plot_data()}
    drawn = sum(lesson.trace("dropped")["y"]) + sum(lesson.trace("kept")["y"])
    assert drawn == pytest.approx(V, rel=1e-3)


def test_figure_fills_its_panel_and_no_label_is_cut(lesson):
    lesson.fills_its_panel()
    assert lesson.clipped_texts() == []


def test_k_slider_moves_the_cut(reset):
    with reset.expect_change("kept", "after", "cut"):
        reset.press("k", "ArrowLeft", times=3)
    reset.wait_for("() => !/^k = 50,/.test(qp.summary())")
    k = int(reset.value("k"))
    assert 30 < k < 50
    reset.wait_for(f"() => qp.summary().startsWith('k = {k},') && qp.trace('kept').y.reduce((a, b) => a + b) === {k}")


def test_exact_k(reset):
    with reset.expect_change("kept", "after"):
        reset.set_text("k", 7)
    reset.wait_for("() => qp.summary().startsWith('k = 7,')")
    assert kept_in(reset.summary) == drawn_kept(reset) == 7
    assert sum(x > 0 for x in reset.trace("after")["x"]) == 7
    assert sum(reset.trace("after")["x"]) == pytest.approx(1)


def test_p_slider_and_off(reset):
    reset.set_text("T", 2)  # so that no single token holds the mass
    reset.set_text("k", 0)
    reset.wait_for(f"() => qp.summary().includes('T = 2: {V:,} of {V:,} tokens kept')")
    with reset.expect_change("kept"):
        reset.set_text("p", 0.9)
    reset.wait_for("() => qp.summary().startsWith('k off, p = 0.9,')")
    wide = kept_in(reset.summary)
    with reset.expect_change("after"):
        reset.press("p", "PageDown")
    reset.wait_for("() => !qp.summary().startsWith('k off, p = 0.9,')")
    assert kept_in(reset.summary) < wide


def test_temperature_spreads_the_probability(reset):
    sharp = max(reset.trace("before")["x"])
    with reset.expect_change("before"):
        reset.press("T", "ArrowRight", times=5)
    reset.wait_for("() => /T = 1.25:/.test(qp.summary())")
    assert max(reset.trace("before")["x"]) < sharp


def test_position_shows_another_row(reset):
    with reset.expect_change("before", "dropped", "normal"):
        reset.press("position", "ArrowLeft")


def test_sample_draws_a_kept_token(reset):
    with reset.expect_change("drawn"):
        reset.click_button("Sample")
    reset.wait_for("() => qp.summary().includes('drawn: ')")
    # Bars show the top and the cut; a token from between has no bar, and then no diamond.
    after = dict(zip(reset.trace("after")["y"], reset.trace("after")["x"]))
    assert all(after[row] > 0 for row in reset.trace("drawn")["y"])
    assert sum(reset.trace("drawn")["x"]) in (0, 1)


@pytest.mark.parametrize("label, wrong", [("k", V + 1), ("k", -1), ("p", 1.5), ("T", -1)])
def test_a_number_out_of_range_is_explained_and_nothing_breaks(reset, label, wrong):
    before = reset.value(label)
    reset.set_text(label, wrong)
    reset.wait_for("() => qp.error() !== ''")
    assert reset.error.startswith(f"{label} must be") and str(wrong) in reset.error
    assert reset.value(label) == before
    with reset.expect_change("kept"):
        reset.set_text("k", 9)
    reset.wait_for("() => qp.error() === ''")


@pytest.mark.model
def test_another_sentence_is_read_by_the_model(live, reset):
    with live.expect_change("before", "dropped", timeout_s=30):
        live.set_text("text", "Roses are red, violets are")
    live.wait_for("() => qp.tokens().at(-1) === '␣are'", 30)
    live.wait_for("() => qp.figure(0).layout.yaxis.ticktext[0].includes('blue')", 30)
    assert "".join(live.tokens).endswith("␣red,␣violets␣are")
    assert live.error == ""


@pytest.mark.model
def test_empty_text_is_explained_and_the_panel_works_afterwards(live, reset):
    shown = live.trace("before")
    live.set_text("text", "")
    live.wait_for("() => qp.error() !== ''", 30)
    assert "text" in live.error.lower()
    assert live.trace("before") == shown
    with live.expect_change("before", timeout_s=30):
        live.set_text("text", "To be, or not to be, that is the")
    live.wait_for("() => qp.error() === '' && qp.figure(0).layout.yaxis.ticktext[0].includes('question')", 30)


@pytest.mark.model
def test_markup_in_a_text_stays_text(live, reset):
    live.set_text("text", "<b>bold</b> & <table>")
    live.wait_for("() => qp.tokens().join('').includes('<b>bold</b>')", 30)
    assert (
        live.page.evaluate("document.querySelectorAll('.qp-panel .qp-tokens b, .qp-panel .qp-tokens table').length")
        == 0
    )


def test_readable_in_light_and_after_a_switch_to_dark(lesson):
    assert lesson.contrast_offenders() == []
    lesson.switch_theme("dark")
    try:
        assert lesson.contrast_offenders() == []
        with lesson.expect_change("kept"):
            lesson.press("k", "ArrowRight")
        assert lesson.contrast_offenders() == []
    finally:
        lesson.switch_theme("light")


def test_still_quiet_after_all_that(lesson):
    lesson.was_quiet()
    assert lesson.broken_widgets() == []


def test_bell_curve_lesson_in_dark(lab):
    lab.open_notebook("02_bell_curve.ipynb", theme="dark")
    lab.run_all(timeout_s=90)
    lab.wait_drawn()
    with lab.expect_change("dropped", "normal", "qq"):
        lab.press("position", "ArrowRight")
    lab.looks_right()
    lab.was_quiet()


def test_indexer_lesson(lab):
    lab.open_notebook("06_queries_keys_indexer.ipynb", theme="light")
    lab.run_all(timeout_s=90)
    lab.wait_drawn()
    lab.wait_for("() => qp.summary().includes(\"query 18 ' the' keeps 4 of 19 keys\")", 30)
    lab.looks_right()
    lab.was_quiet()
    with lab.expect_change("kept", "dropped", "cut", "mass_kept"):
        lab.press("k", "ArrowRight")
    lab.wait_for("() => qp.summary().includes('keeps 5 of 19 keys')")
    with lab.expect_change("kept", "zero", "mass_dropped"):
        lab.page.locator(".qp-token", has_text="fox").first.click()
    lab.wait_for("() => qp.summary().includes(\"query 3 ' fox' keeps 4 of 4 keys\")")
    with lab.expect_change("kept", "mass_kept"):
        lab.choose("layer", "17")
    lab.set_text("k", 0)
    lab.wait_for("() => qp.error().startsWith('k must be a whole number from 1 to 19')")
    lab.set_text("k", 2)
    lab.wait_for("() => qp.error() === '' && qp.summary().startsWith('layer 17') && qp.summary().includes('keeps 2')")
    lab.switch_theme("dark")
    lab.looks_right()
    lab.was_quiet()


@pytest.mark.model
def test_indexer_lesson_reads_what_is_typed(lab):
    with lab.expect_change("kept", "mass_kept", timeout_s=30):
        lab.set_text("text", "<b>one</b> two")
    lab.wait_for("() => qp.tokens().at(-1) === '␣two' && qp.summary().includes(\"' two' keeps 2 of\")", 30)
    assert "".join(lab.tokens).startswith("<bos><b>one</b>")
    lab.set_text("text", "")
    lab.wait_for("() => qp.error().includes('empty')", 30)
    lab.set_text("text", "again and again")
    lab.wait_for("() => qp.error() === '' && qp.tokens().at(-1) === '␣again'", 30)
    lab.looks_right()
    lab.was_quiet()


def test_overlap_lesson_in_dark(lab):
    lab.open_notebook("07_query_overlap.ipynb", theme="dark")
    lab.run_all(timeout_s=90)
    lab.wait_drawn()
    lab.wait_for(
        "() => qp.summary().startsWith('layer 11, k = 512') && qp.trace('layers').x.every(x => x !== null)", 30
    )
    lab.looks_right()
    lab.was_quiet()
    with lab.expect_change("groups", "union_now", "joint_now"):
        lab.press("g", "ArrowRight")
    lab.click_plot(0.6, 0.17, subplot="x6y6")
    lab.set_text("k", 64)
    lab.wait_for("() => qp.summary().includes('k = 64 of up to 8,192 keys')")
    lab.looks_right()
    lab.was_quiet()


def test_pivot_lesson(lab):
    lab.open_notebook("08_pivot.ipynb", theme="light")
    lab.run_all(timeout_s=120)
    lab.wait_drawn()
    lab.wait_for("() => qp.summary().includes('groups of 4 search once')", 60)
    lab.looks_right()
    lab.was_quiet()
    with lab.expect_change("refine_c", timeout_s=30):
        lab.press("g", "ArrowRight")
    lab.wait_for("() => qp.summary().includes('groups of 5 search once')", 30)
    lab.switch_theme("dark")
    lab.looks_right()
    lab.was_quiet()


def test_quality_lesson(lab):
    lab.open_notebook("09_rivals_and_quality.ipynb", theme="dark")
    lab.run_all(timeout_s=120)
    lab.wait_drawn()
    lab.kernel("explorer.wait(60)", 60)
    lab.looks_right()
    lab.was_quiet()
