"""What the lessons on time show beside the panel: the ablation, time against bytes, a kernel's source with notes."""

import numpy as np
import pytest

from qp_kernels import results
from qp_kernels.qrita.ablation import RUN_NAMES
from widgets.timing_ablation import RUNS, ablation_figure
from widgets.timing_roofline import roofline_figure
from widgets.timing_source import read_together, source_of

MODULE = "qp_kernels.bench.floor_kernels"


def made_ablation():
    for i, run in enumerate(RUNS):
        for kind, factor in (("gauss", 1.0), ("live", 1.5)):
            us = factor * 100.0 * (i + 1)
            yield {
                **{"run": run, "label": RUN_NAMES.get(run, run), "rows": kind, "exact": run != "C", "hits": 1024},
                **{"batch": 1024, "vocab": 128_256, "k": 50, "p": 0.9, "times_floor": us / 300},
                **{"median_us": us, "p20_us": 0.9 * us, "p80_us": 1.1 * us},
                "paper_ms": None if run in ("H", "ours") else 0.2 * (i + 1),
            }


@pytest.fixture
def ablation(tmp_path):
    results.write("ablation", made_ablation(), folder=tmp_path)
    return tmp_path


def test_every_run_stands_beside_the_paper_in_its_order(ablation, trace_of):
    figure = ablation_figure(folder=ablation)
    assert figure.to_json() == ablation_figure(results.read("ablation", folder=ablation)).to_json()
    assert [text.split()[0] for text in figure.layout.yaxis.ticktext] == [*"ABCDEFGHIJ", "top_k_top_p"]
    for kind, factor in (("gauss", 1.0), ("live", 1.5)):
        assert list(trace_of(figure, kind).x) == [factor * 100.0 * (i + 1) for i in range(len(RUNS))]
        assert [round(y) for y in trace_of(figure, kind).y] == list(range(len(RUNS)))
    paper = [i for i, run in enumerate(RUNS) if run not in ("H", "ours")]
    assert list(trace_of(figure, "paper").y) == paper
    assert np.allclose(trace_of(figure, "paper").x, [200.0 * (i + 1) for i in paper])
    assert [
        name for name, symbol in zip(RUNS, trace_of(figure, "gauss").marker.symbol, strict=True) if "open" in symbol
    ] == ["C"]
    words = trace_of(figure, "label").text
    assert "100 µs and 150 µs" in words[0] and "paper 200 µs" in words[0] and "paper" not in words[RUNS.index("H")]
    assert "H100" in figure.layout.annotations[0].text and results.read("ablation", folder=ablation).caption in (
        figure.layout.annotations[0].text
    )


def test_without_a_record_the_figure_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "_folder", lambda _: tmp_path)
    assert "was not recorded here" in ablation_figure().layout.annotations[0].text


def test_other_results_are_no_ablation():
    with pytest.raises(ValueError, match="hold no ablation: they lack"):
        ablation_figure("fuzz")


def test_the_roofline_is_the_best_bandwidth_of_the_first_curve(trace_of):
    x = [1e3, 1e6, 1e9]
    figure = roofline_figure(x, {"copy": [1.0, 2.0, 1000.0], "sort": [5.0, 50.0, 50_000.0]})
    assert list(trace_of(figure, "limit").y) == pytest.approx([n / 1e9 * 1000.0 for n in x])
    assert list(trace_of(figure, "sort").y) == [5.0, 50.0, 50_000.0]
    assert "1 TB/s" in " ".join(note.text for note in figure.layout.annotations)
    for curves in ({}, {"copy": [1.0]}, {str(i): [1.0] * 3 for i in range(7)}):
        with pytest.raises(ValueError, match="curves of 3 times"):
            roofline_figure(x, curves)


def test_a_source_is_shown_whole_with_its_notes():
    lines = source_of(MODULE, "copy_kernel")
    assert lines[0] == "@triton.jit" and lines[1].startswith("def copy_kernel(")
    shown = read_together(MODULE, "copy_kernel", {"def copy": "first <note>", "store": "second"}).data
    assert shown.count("<tr>") == len(lines)
    assert shown.index("first &lt;note&gt;") < shown.index("second") and "first <note>" not in shown


def test_a_note_on_a_line_that_has_gone_is_an_error():
    with pytest.raises(ValueError, match="holds 'tl.dot'"):
        read_together(MODULE, "copy_kernel", {"tl.dot": "nowhere"})
    with pytest.raises(ValueError, match="no function 'nothing'"):
        read_together(MODULE, "nothing", {})
    with pytest.raises(ValueError, match="no module"):
        read_together("qp_kernels.nothing", "f", {})
