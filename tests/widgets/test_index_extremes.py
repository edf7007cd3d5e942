"""What no one would choose to look at, in every panel on an indexer: no number is wrong, no error is unclear."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from activations import IndexCapture, synthetic
from qp_kernels import index_metrics
from widgets import IndexerExplorer, LogitExplorer, OverlapExplorer, PivotExplorer

PANELS = (OverlapExplorer, PivotExplorer, IndexerExplorer)
T, N = 8, 40
NAN, INF = math.nan, math.inf


def made(queries: int = T, n_keys: int = N) -> IndexCapture:
    capture = synthetic.index(queries, n_keys, 2, 4, seed=1, smoothness=0.9)
    mass = torch.rand(queries, n_keys, generator=torch.Generator().manual_seed(1))
    return replace(capture, mass=mass / mass.sum(1, keepdim=True))


def put(tensor: torch.Tensor, place, value: float) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


def packed(capture: IndexCapture, hi: list[int]) -> IndexCapture:
    """Two sequences, the second from key 20 on."""
    hi = torch.tensor(hi)
    return replace(capture, lo=torch.tensor([0] * 4 + [20] * 4), hi=hi, positions=(hi - 1).clamp(min=0))


def extremes() -> dict[str, IndexCapture]:
    one = made()
    return {
        "a NaN query": replace(one, q=put(one.q, 3, NAN)),
        "the last query NaN": replace(one, q=put(one.q, -1, NAN)),
        "NaN alone": replace(one, q=put(one.q, slice(None), NAN)),
        "NaN keys": replace(one, k=put(one.k, [5, 20], NAN)),
        "infinite keys": replace(one, k=put(put(one.k, 5, INF), 20, -INF)),
        "an infinite weight": replace(one, w=put(one.w, 7, INF)),
        "a NaN weight": replace(one, w=put(one.w, 7, NAN)),
        "scores beyond float32": replace(one, q=one.q * 1e20, k=one.k * 1e20),
        "NaN attention": replace(one, mass=put(one.mass, 7, NAN)),
        "no keys": replace(one, hi=torch.zeros(T, dtype=torch.int64)),
        "two sequences": packed(one, [5, 6, 7, 8, 25, 26, 27, 28]),
        "a sequence without keys": packed(one, [0, 0, 0, 0, 25, 26, 27, 28]),
    }


def unsendable(found, path="figure") -> list[str]:
    """Numbers that JSON has no word for, where plotly would send JSON: only columns of numbers travel as bytes."""
    if isinstance(found, dict):
        return [bad for name, one in found.items() for bad in unsendable(one, f"{path}.{name}")]
    if isinstance(found, np.ndarray):
        found = [] if found.ndim == 1 and found.dtype.kind in "iuf" else found.tolist()
    if isinstance(found, (list, tuple)):
        return [bad for one in found for bad in unsendable(one, f"{path}[]")]
    return [path] if isinstance(found, (float, np.floating)) and not math.isfinite(found) else []


def ran(panel, capture) -> dict:
    """What the panel's code defines."""
    scope = {"given": capture}
    exec(re.sub(r"captures? = \.\.\.", "capture = given", panel.code()), scope)
    return scope


@pytest.mark.parametrize("name", extremes())
@pytest.mark.parametrize("kind", PANELS)
def test_what_is_sent_and_said_has_no_nan(open_panel, kind, name):
    panel = open_panel(kind, extremes()[name], k=3)
    for query in (7, 3, 0):
        panel.query.value = query
        panel.wait()
        assert unsendable(panel.figure.to_dict()) == [] and panel.status == ""
        tables = panel.table.value + panel.costs.value if kind is PivotExplorer else ""
        words = panel.summary + tables + "".join(note.text for note in panel.figure.layout.annotations)
        assert not re.search(r"\bnan\b", words) and not re.search(r"\binf\b", tables)


def test_nan_that_plotly_would_send_is_found():
    assert unsendable({"z": np.array([[1, NAN]]), "x": np.array([NAN]), "range": [0, INF]}) == [
        "figure.z[][]",
        "figure.range[]",
    ]


@pytest.mark.parametrize("name", extremes())
def test_code_of_overlap_makes_its_numbers(open_panel, name):
    capture = extremes()[name]
    panel = open_panel(OverlapExplorer, capture, k=3)
    for g in (4, 3, 1):
        panel.g.value = g
        panel.wait()
        scope, row = ran(panel, capture), panel.to_frame("layers").iloc[0]
        for number in ("adjacent", "joint", "union"):
            assert row[number] == pytest.approx(float(scope[number]), nan_ok=True), (g, number)


# Beyond float32 the order of additions decides what is infinite, and what NaN.
@pytest.mark.parametrize("name", sorted(extremes().keys() - {"scores beyond float32"}))
def test_code_of_pivot_and_indexer_makes_what_they_show(open_panel, name):
    capture = extremes()[name]
    panel = open_panel(PivotExplorer, capture, k=3, g=2, c=10)
    systems = panel.to_frame("systems").set_index("system")
    assert systems.recall["refine"] == pytest.approx(float(ran(panel, capture)["recall"]), nan_ok=True)
    panel = open_panel(IndexerExplorer, capture, k=3)
    table, kept = panel.to_frame(), ran(panel, capture)["indices"][0]
    assert table.position[table.kept].tolist() == kept[kept >= 0].tolist()


def test_attention_that_is_nan_is_unknown(open_panel):
    panel = open_panel(IndexerExplorer, extremes()["NaN attention"], k=3, query=7)
    assert "attention" not in panel.summary and panel.figure.layout.annotations[3].text.endswith(
        "not known for this capture"
    )
    panel.query.value = 2
    panel.wait()
    assert "attention gives them" in panel.summary


@pytest.mark.parametrize("kind", PANELS)
def test_a_slider_over_queries_where_the_last_windows_overlap(open_panel, kind, tmp_path):
    panel = open_panel(kind, made(queries=70, n_keys=100), k=3)
    text = panel.export_html(tmp_path / "view.html", slider="query", steps=5).read_text(encoding="utf-8")
    assert "query = 64" in text and "query = 69" in text and "query = 63" not in text


@pytest.mark.parametrize("kind", PANELS)
def test_arrays_of_numpy_also_backwards(open_panel, kind):
    one = made()
    arrays = [part.flip(0).numpy()[::-1] for part in (one.q, one.k, one.w)]
    panel = open_panel(kind, arrays, k=3)
    scope = {"given": arrays}
    exec(panel.code().replace("q, k, w = ...", "q, k, w = given"), scope)
    found = panel._view.ranked.rank[-1] < 3
    assert np.flatnonzero(found).tolist() == scope["indices"][-1].tolist()
    assert torch.equal(scope["q"], one.q)


@pytest.mark.parametrize("kind", PANELS)
def test_a_layer_that_is_refused_is_named(kind):
    one = made()
    with pytest.raises(FileNotFoundError, match="layer 11: no file at nowhere.npz"):
        kind({5: one, 11: "nowhere.npz"})
    with pytest.raises(ValueError, match=r"layer 1: k must be \[N, D\]"):
        kind([one, (one.q, one.k[:, :2], one.w)])
    for heads, width in ((0, 4), (2, 0), (2, 300)):
        tensors = torch.zeros(T, heads, width), torch.zeros(N, width), torch.zeros(T, heads)
        with pytest.raises(ValueError, match=f"at least one head, of 1 to 256 numbers, got {heads} of {width}"):
            kind(tensors)


@pytest.mark.parametrize("kind", PANELS)
def test_choices_say_what_they_accept(open_panel, kind):
    panel = open_panel(kind, {5: made(), 11: made()}, layer=11)
    panel.layer.value = 5  # as the argument takes it
    panel.wait()
    assert panel.layer.value == "5" and panel.summary.startswith("layer 5, ")
    for value in (6, None, True, [5]):
        with pytest.raises(ValueError, match=r"layer must be one of '5', '11', got "):
            panel.layer.value = value
    panel.wait()
    assert panel.layer.value == "5" and panel.status == ""


def test_a_guard_of_one_key_is_no_guard_that_is_on(open_panel):
    panel = open_panel(PivotExplorer, made(), k=3, guard=1)
    assert panel.guard.value is not True and panel.guard.value == 1
    with pytest.raises(ValueError, match="guard must be one of True, False, 1, got 7"):
        panel.guard.value = 7
    assert open_panel(PivotExplorer, made(), k=3, rivals="hisa").rivals.value == ("hisa",)


@pytest.mark.parametrize("kind", PANELS)
def test_a_closed_panel_says_so(open_panel, kind):
    panel = open_panel(kind, made(), k=3)
    panel.close()
    for late in (panel.wait, panel.to_frame, panel.code):
        with pytest.raises(RuntimeError, match="this panel is closed; make a new one"):
            late()


def test_as_many_operations_are_not_fewer(open_panel):
    assert "Refine makes as many multiply-adds as dense" in open_panel(PivotExplorer, made(1, 10), k=3).summary


def test_neighbours_count_where_both_select(open_panel):
    one = made()
    capture = replace(one, q=put(one.q, 3, NAN))
    panel = open_panel(OverlapExplorer, capture, k=3, g=2)
    indices = ran(panel, capture)["indices"]
    pairs = [0, 1, 4, 5, 6]
    shared = [len({*indices[t].tolist()} & {*indices[t + 1].tolist()}) / 3 for t in pairs]
    assert panel.to_frame("layers").adjacent[0] == pytest.approx(np.mean(shared))
    joint, union = index_metrics.joint_and_union(indices[[0, 1, 4, 5, 6, 7]], 2)
    assert panel.to_frame("layers").union[0] == pytest.approx(float(union.mean()))


def test_files_that_are_not_sound_are_named(tmp_path):
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "words.npz").write_text("hello")
    np.savez(tmp_path / "objects.npz", q=np.array([{}], dtype=object), k=np.zeros((3, 2)), w=np.zeros(3))
    for name in ("damaged", "words", "objects"):
        for kind in (OverlapExplorer, LogitExplorer):
            source = tmp_path / f"{name}.npz"
            if kind is LogitExplorer:
                source = source.rename(tmp_path / f"{name}_logits.npz")
                if name == "objects":
                    np.savez(source, logits=np.array([{}], dtype=object))
            with pytest.raises(ValueError, match=f"{source.name} is no sound file of arrays without pickled objects"):
                kind(source)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(ValueError, match="holds a single array; it needs q, k and w"):
        OverlapExplorer((tmp_path / "one.npy").rename(tmp_path / "one.npz"))


@pytest.mark.parametrize("kind", PANELS)
def test_a_change_that_cancel_drops_is_told(open_panel, kind):
    panel = open_panel(kind, made(), k=3)
    panel.updates_per_s = 1
    panel.k.value = 5
    panel.wait()
    panel.k.value = 7  # waits for its second
    panel.cancel()
    assert panel.status == "cancelled: the last change is not drawn"
    panel.k.value = 6
    panel.wait()
    assert panel.status == ""
