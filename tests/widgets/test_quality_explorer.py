"""QualityExplorer on made-up records: what is drawn and said is what they hold, finished or not."""

import functools
import threading

import made_quality
import numpy as np
import plotly.graph_objects as go
import pytest

from activations.quality_records import QualityRecords
from qp_kernels import results
from widgets import QualityExplorer
from widgets.quality_figure import quality_figure
from widgets.quality_paper import RULER, SCORES

LENGTHS = (2048, 8192, 32768)


@pytest.fixture(scope="module")
def records():
    return made_quality.records()


@pytest.fixture(scope="module")
def folder(records, tmp_path_factory):
    return made_quality.write(tmp_path_factory.mktemp("quality"), records)


@pytest.fixture
def make(open_panel):
    return functools.partial(open_panel, QualityExplorer)


@pytest.fixture
def opened(make, tmp_path):
    """opened(records, ...): the panel on these records."""
    return lambda found, **more: make(made_quality.write(tmp_path, found), **more)


def choose(panel, **values):
    for name, value in values.items():
        getattr(panel, name).value = value
    panel.wait(30)
    assert panel.status == ""


def test_lengths_are_drawn_as_the_records_say(make, folder, records, trace_of):
    panel, table = make(folder), QualityRecords(records)
    for series, drawn in (("full", "full"), ("dense", "dense"), ("reuse", "reuse"), ("refine", "refine")):
        trace = trace_of(panel, drawn)
        for i, length in enumerate(LENGTHS):
            asked = table.asked([series], source="attention", topk=512, kind="task", length=length)
            assert len(asked) == (4 if length < 20_000 else 3)  # copying does not count at the longest
            asked = [one for one in asked if one.name != "copying"]  # so that a line is of the same tasks
            level = table.level(series, asked)
            assert trace.y[i] == 100 * level.value and round(trace.x[i]) == i
            assert trace.y[i] + trace.error_y.array[i] == pytest.approx(100 * level.high)
            assert trace.y[i] - trace.error_y.arrayminus[i] == pytest.approx(100 * level.low)
        assert trace.error_y.visible and not trace.error_x.visible and trace.mode == "lines+markers"
    assert (
        "mean of needle, multi-key needle and variable tracking, the only tasks that every length has" in panel.caption
    )
    assert list(panel.figure.layout.xaxis.ticktext) == [f"{length:,}" for length in LENGTHS]
    assert list(trace_of(panel, "paper").y) == [90.45, 86.46, 90.63]
    assert "copying at 32,768" in panel.caption and "made-up" in panel.caption and "2607.24593" in panel.caption


def test_the_sentence_claims_what_the_intervals_carry(make, folder, records):
    panel, table = make(folder), QualityRecords(records)
    assert panel.summary.startswith("32,768 tokens, topk = 512, 60 answers to 3 tasks: full attention answers ")
    asked = table.asked(["reuse", "refine"], source="attention", topk=512, kind="task", length=32768)
    lost = table.difference("reuse", "dense", asked)
    assert lost.verdict == "less"
    words = f"Reuse by {-100 * lost.value:.1f} [{-100 * lost.high:.1f}, {-100 * lost.low:.1f}]"
    assert f"Worse than dense selection (points): {words}" in panel.summary
    assert table.difference("refine", "dense", asked).verdict == "open"
    assert "No difference from dense selection is shown for Refine [" in panel.summary
    assert "Better than Reuse (points): Refine by " in panel.summary
    here = {"source": "attention", "topk": 512, "kind": "task"}
    lost = {n: table.difference("reuse", "dense", table.asked(["reuse"], length=n, **here)) for n in LENGTHS}
    worse = [f"{n:,}" for n in LENGTHS if lost[n].verdict == "less"]
    assert len(worse) == 2
    said = f"Of 3 lengths shown to be worse than dense selection on average: Reuse at {' and '.join(worse)}"
    assert panel.summary.endswith(f"{said}; no loss to dense selection is shown on average at any for Refine")
    choose(panel, measure="passage")
    lost = table.difference(
        "refine", "dense", table.asked(["refine"], source="attention", topk=512, kind="passage", length=32768)
    )
    assert f"Refine by {lost.value:.4f} [{lost.low:.4f}, {lost.high:.4f}]" in panel.summary and lost.verdict == "more"


def test_rivals_have_a_row_each_with_the_paper_in_the_same_row(make, folder, trace_of):
    panel = make(folder, question="rivals")
    names = list(panel.figure.layout.yaxis.ticktext)
    assert names[:4] == ["dense selection", "Reuse", "Refine", "HISA"] and len(names) == 9
    paper = trace_of(panel, "paper")
    assert dict(zip([names[int(y)] for y in paper.y], paper.x, strict=True)) == {
        "dense selection": RULER["dense"],
        "Reuse": RULER["reuse"],
        "Refine": RULER["refine"],
        "HISA": RULER["hisa"],
        "MISA": RULER["misa"],
        "IndexCache": RULER["index cache"],
    }
    frame = panel.to_frame().set_index("system")
    rivals = trace_of(panel, "rivals")
    for x, y, symbol in zip(rivals.x, rivals.y, rivals.marker.symbol, strict=True):
        row = frame.loc[names[int(y)]]
        assert x == row["answered %"] and symbol.endswith("-open") != row["shown"].startswith(("worse", "better"))
    assert rivals.error_x.visible and not rivals.error_y.visible
    full = trace_of(panel, "full")
    assert set(full.x) == {frame.loc["full attention", "answered %"]} and len(trace_of(panel, "full_interval").x) == 4


@pytest.mark.parametrize(
    "question, places, words",
    [
        ("group", [1, 2, 4, 8, 16], "Refine g = 16"),
        ("budget", [519, 768, 1024, 2048], "Refine c = 519"),
    ],
)
def test_g_and_c_come_from_the_labels(make, folder, trace_of, question, places, words):
    panel = make(folder, question=question)
    assert [text.split(" = ")[0] for text in panel.figure.layout.xaxis.ticktext] == [f"{n:,}" for n in places]
    assert len(trace_of(panel, "refine").x) == len(places) and words in panel.summary
    assert len(trace_of(panel, "dense").x) == 2, "a line to compare with"
    marked = trace_of(panel, "paper_mark")
    assert [round(x, 6) for x in marked.x] == ([] if question == "group" else [1.0] * 3)  # 1.5 topk
    assert len(trace_of(panel, "paper").x) == (question == "group")


def test_proxies_are_compared_with_the_mean(make, folder):
    panel = make(folder, question="proxy")
    assert "than the mean proxy (points): proxy first by" in panel.summary
    assert list(panel.figure.layout.yaxis.ticktext) == ["dense selection", "proxy mean", "proxy first", "proxy last"]
    assert list(panel.to_frame()["paper %"])[2:] == list(SCORES["proxy"].values())


def test_one_task_one_length_and_all_lengths(make, folder):
    panel = make(folder, question="rivals")
    choose(panel, only="needle")
    assert "20 answers to needle" in panel.summary
    choose(panel, length="all")
    assert "3 lengths to 32,768 tokens" in panel.summary and "60 answers to needle" in panel.summary
    choose(panel, only="copying", length="longest")
    assert panel.summary.startswith("8,192 tokens"), "it does not count beyond"
    choose(panel, length=2048, topk=256, index="distilled")
    assert panel.summary.startswith("2,048 tokens, topk = 256") and "distilled" in panel.caption
    choose(panel, measure="passage")
    names = [value for _, value in panel.only.options]
    assert panel.only.value == "all" and names == ["all", "prose", "code", "few-shot", "documents"]


def test_another_question_is_answered_without_opening_it(make, folder):
    panel = make(folder)
    shown = panel.summary
    text, frame = panel.answer("rivals", measure="passage"), panel.to_frame("rivals", measure="passage")
    choose(panel, question="rivals", measure="passage")
    assert panel.summary == text != shown and panel.to_frame().equals(frame)
    with pytest.raises(ValueError, match="question must be one of 'length'"):
        panel.answer("speed")


def test_code_gives_what_is_seen(make, folder):
    for question in ("length", "budget"):
        panel, scope = make(folder, question=question), {}
        exec(panel.code(), scope)
        levels = scope["levels"][LENGTHS[-1]] if question == "length" else scope["levels"]
        shares = [100 * one.value for one in levels.values()]
        assert sorted(shares) == sorted(list(panel.to_frame()["answered %"])[-len(shares) :])


# Records that are not as one would wish


def test_without_a_record_it_says_how_to_make_one(make, monkeypatch, tmp_path):
    monkeypatch.setattr(results, "_folder", lambda _: tmp_path)
    panel = make()
    assert "was recorded here: make bench" in panel.summary and panel.status == ""
    assert panel.to_frame("rivals").empty and panel.answer("proxy") == panel.summary
    choose(panel, question="rivals")


def test_a_run_that_was_cut_off_among_tasks(opened, records, trace_of):
    """It ended among the systems of the second task at the longest length."""
    cut = next(
        i
        for i, r in enumerate(records)
        if (r["length"], r["name"], r["system"], r["topk"]) == (32768, "multi-key needle", "dense", 512)
    )
    panel = opened(records[: cut + 1])
    assert panel.summary.startswith("32,768 tokens, topk = 512, 20 answers to needle")
    assert len(trace_of(panel, "refine").x) == 3
    choose(panel, question="rivals")
    assert "20 answers to needle" in panel.summary and len(panel.to_frame()) == 10
    choose(panel, measure="passage")
    assert panel.summary.startswith("8,192 tokens")
    choose(panel, index="distilled", measure="task")
    assert panel.summary.startswith("32,768 tokens") and "60 answers" not in panel.summary


def test_a_run_that_was_cut_off_among_systems(opened, records, trace_of):
    """HISA had been asked one task at the longest length, MISA nothing: both are left out there, no task is."""
    kept = [
        r
        for r in records
        if r["system"] not in ("hisa", "misa")
        or (r["system"] == "hisa" and (r["length"] < 32768 or r["name"] == "needle"))
    ]
    panel = opened(kept, question="rivals")
    assert (
        panel.summary.startswith("32,768 tokens, topk = 512, 60 answers to 3 tasks") and "HISA by" not in panel.summary
    )
    assert panel.summary.endswith(". Not asked, or too little to be compared: HISA and MISA")
    assert "asked too little to be compared, and left out: HISA" in panel.caption and len(panel.to_frame()) == 8
    choose(panel, length=8192)
    assert "HISA by" in panel.summary and "left out" not in panel.caption
    choose(panel, only="needle", length="longest")
    assert panel.summary.startswith("32,768 tokens") and "HISA by" in panel.summary


def test_systems_that_share_nothing_with_dense_selection_are_told(opened, records):
    kept = [r for r in records if r["length"] < 32768 or (r["name"] == "needle") == (r["system"] in ("full", "dense"))]
    panel = opened(kept)
    assert (
        panel.summary.startswith("8,192 tokens") and "left out: Reuse at 32,768 and Refine at 32,768" in panel.caption
    )


@pytest.mark.parametrize("names", [("full",), ("full", "dense"), ("full", "hisa")])
def test_few_systems(opened, names):
    panel = opened(made_quality.records(names=names))
    for question in ("length", "proxy", "group", "budget", "rivals"):
        for measure in ("task", "passage"):
            choose(panel, question=question, measure=measure)
            drawn = {name for name in ("dense", "hisa") if name in names and (name == "dense" or question == "rivals")}
            assert len(panel.to_frame()) == (1 + len(drawn)) * (3 if question == "length" else 1)
            assert "32,768 tokens" in panel.summary and ("HISA by" in panel.summary) <= (question == "rivals")
            if question != "length" and not drawn - {"dense"}:
                assert "No system of this question was asked the same. Not asked, or too little to be " in panel.summary


def test_without_full_attention_there_are_answers_and_no_losses(opened, records):
    panel = opened([r for r in records if r["system"] != "full"])
    assert "dense selection answers" in panel.summary and "full attention answers" not in panel.summary
    assert panel.summary.endswith("to be compared: full attention")
    choose(panel, measure="passage")
    assert "nothing was asked of all these systems" in panel.summary and not panel.figure.layout.xaxis.visible
    choose(panel, measure="task")
    assert panel.figure.layout.xaxis.visible


def test_a_source_that_is_missing_is_refused_and_the_other_opens(opened, records, tmp_path):
    panel = opened([r for r in records if r["source"] == "distilled"])
    assert panel.index.value == "distilled" and "distilled indexers" in panel.caption
    with pytest.raises(ValueError, match="index must be one of 'distilled', got 'attention'"):
        QualityExplorer(tmp_path, index="attention")


def test_equal_samples_make_no_claim(opened, trace_of):
    """All answers right, all losses the same: intervals of differences have no width."""
    base, what = np.full(20, 2.0), {"length": 2048, "topk": 64, "source": "attention"}
    found = [
        made_quality.record({"kind": kind, "name": name, **what}, system, label, [1] * 20, base, base)
        for kind, name in (("task", "needle"), ("task", "copying"), ("passage", "code"))
        for system, label in (("full", "full"), ("dense", "dense"), ("refine", "refine g4 c128"), ("reuse", "reuse g4"))
    ]
    panel = opened(found)
    assert "Right on the same samples as dense selection: Refine and Reuse" in panel.summary
    assert set(panel.to_frame()["shown"]) == {"", "right on the same samples"}
    names, (low, high) = trace_of(panel, "name"), panel.figure.layout.yaxis.range
    assert len(names.y) == 4 and low < min(names.y) and max(names.y) < high, "all lines end at 100 %, all are named"
    assert min(np.diff(sorted(names.y))) > 0.05 * (high - low)
    assert "orse" not in panel.summary and (panel.to_frame()["low"] < 100).all()
    for question in ("length", "rivals"):
        choose(panel, question=question, measure="passage")
        low, high = panel.figure.layout["yaxis" if question == "length" else "xaxis"].range
        assert low < 0 < high and "The same as" in panel.summary


def test_means_of_different_tasks_are_not_connected(opened, records, trace_of):
    """At each length another task: a line would show a change that is none."""
    task = {2048: "needle", 8192: "copying", 32768: "multi-key needle"}
    panel = opened([one for one in records if one["kind"] == "passage" or one["name"] == task[one["length"]]])
    assert len(trace_of(panel, "dense").x) == 3 and trace_of(panel, "dense").mode == "markers"
    said = "no line, as each length has other tasks: 2,048: needle; 8,192: copying; 32,768: multi-key needle"
    assert said in panel.caption
    choose(panel, measure="passage")
    assert trace_of(panel, "dense").mode == "lines+markers" and "no line" not in panel.caption


@pytest.fixture
def contrary():
    """Dense selection gains on few-shot patterns what it loses ten times less on prose and code, on every sample."""
    what, random = {"length": 2048, "topk": 64, "source": "attention"}, np.random.default_rng(0)
    found = []
    for name, more in (("prose", 0.04), ("code", 0.03), ("few-shot", -0.4)):
        base = random.normal(2, 0.3, 12)
        lost = {"full": 0 * base, "dense": random.normal(more, 0.1 * abs(more), 12)}
        lost["refine"] = lost["dense"] + random.normal(0.02, 0.002, 12)
        for system, one in lost.items():
            at = {"kind": "passage", "name": name, **what}
            found.append(made_quality.record(at, system, f"{system} g4 c128", [1] * 12, base + one, base))
    return found


def test_a_mean_over_kinds_that_contradict_each_other_is_told_with_them(opened, contrary, trace_of):
    panel = opened(contrary)
    said = "Against full attention it depends on the kind of passage: dense selection is better on few-shot and worse "
    assert f"{said}on prose and code (mean: better by 0.1" in panel.summary
    assert "Better than full attention" not in panel.summary
    assert "Worse than dense selection (nats a token): Refine by 0.0" in panel.summary, "here all kinds agree"
    frame = panel.to_frame("rivals").set_index("system")
    assert frame.loc["dense selection", "shown"] == "better on few-shot and worse on prose and code"
    choose(panel, only="few-shot")
    assert "Better than full attention (nats a token): dense selection by 0.38" in panel.summary


def test_it_says_what_was_asked_and_what_was_not(opened, records):
    names = ("full", "dense", "refine", "refine g8", "refine last")
    kept = [one for one in records if one["system"] in names]
    panel = opened(kept)
    said = panel.asked()
    assert said.startswith("20 samples each, topk 256 and 512; 2,048, 8,192 and 32,768 tokens; tasks: needle, ")
    assert said.endswith("systems: full attention, dense selection, Refine, Refine (proxy last) and Refine g8")
    absent = {
        "length": "Reuse",
        "proxy": "proxy first",
        "group": "Reuse g = 1, 2, 4, 8 and 16 and Refine g = 1, 2 and 16",
        "budget": "Refine c = 519, 768 and 2,048",
        "rivals": "Reuse, HISA, MISA, MISA re-ranked, IndexCache, Refine + IndexCache and IndexCache greedy",
    }
    for question, listed in absent.items():
        assert panel.answer(question).endswith(f". Not asked, or too little to be compared: {listed}"), question
    panel = opened(records)
    assert not any("Not asked" in panel.answer(question) for question in absent)


def test_nothing_counts(opened):
    found = made_quality.records(lengths=(2048,), names=("full",))
    for one in found:
        one["counts"] = False
    panel = opened(found)
    assert "no task counts" in panel.summary and panel.to_frame().empty


@pytest.mark.parametrize(
    ("source", "error"),
    [("nothing", ValueError), ("nothing.json", FileNotFoundError), (3, TypeError), ("fuzz", ValueError)],
)
def test_a_record_that_cannot_be_used_is_refused(source, error):
    before = threading.active_count()
    with pytest.raises(error):
        QualityExplorer(source)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    "arguments",
    [{"question": "speed"}, {"topk": 3}, {"measure": "bits"}, {"only": "x"}, {"length": 77}, {"index": "x"}],
)
def test_bad_arguments_say_what_is_accepted(folder, arguments, widgets_alive):
    before = widgets_alive()
    with pytest.raises(ValueError, match="must be one of .*, got "):
        QualityExplorer(folder, **arguments)
    assert widgets_alive() == before


def test_names_of_traces_stay_and_close_leaves_nothing(folder, widgets_alive, tmp_path):
    before = widgets_alive()
    panel = QualityExplorer(folder)
    panel.wait(30)
    for question in ("rivals", "budget"):
        panel.question.value = question
        panel.wait(30)
        assert [trace.name for trace in panel.figure.data] == [trace.name for trace in quality_figure().data]
    still = panel.snapshot()
    assert isinstance(still, go.Figure) and not isinstance(still, go.FigureWidget)
    text = panel.export_html(tmp_path / "view.html").read_text("utf-8")
    assert "Refine c = 519" in text and 'src="http' not in text
    assert max(panel.computed_ms) < 1000
    panel.close()
    assert widgets_alive() == before and not panel._worker.alive and panel._view is None
