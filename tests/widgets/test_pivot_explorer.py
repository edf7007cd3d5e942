"""PivotExplorer driven as code drives it: what is drawn is what the public functions of `qp_kernels.pivot` select."""

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from index_cases import N, made
from pivot_cases import RIVALS, given, set_all, shown, with_mass

from activations import save_capture
from qp_kernels import index_metrics
from qp_kernels.pivot import dense_topk, hisa_topk, misa_topk, pivot_topk
from widgets import PivotExplorer
from widgets.index_view import STRETCH


@pytest.fixture
def make(open_panel):
    return functools.partial(open_panel, PivotExplorer)


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_shown_is_what_pivot_selects(make, capture, packed):
    one = replace(capture, lo=torch.where(torch.arange(32) < 13, 0, 400)) if packed else capture
    panel = make(one, k=20)
    tensors, bounds = given(one)
    ways = itertools.product(("refine", "reuse"), ("mean", "first", "last"), (True, False), ("prefill", "decode"))
    sizes = itertools.cycle([(4, 0, 60), (3, 9, 41), (1, 0, 50), (8, 8, 199), (40, 64, 600)])
    for (mode, proxy, guard, phase), (g, window, c) in zip(ways, sizes):
        set_all(panel, mode=mode, proxy=proxy, guard=guard, phase=phase, g=g, window=window, c=c)
        for k in (20, 7):
            set_all(panel, k=k)
            at, rule = panel._view.at, panel._view.rule
            assert (at.mode, at.proxy, at.guard, at.phase, at.g, at.k) == (mode, proxy, guard, phase, g, k)
            options = {"group": g, "proxy": proxy, "guard": guard, "phase": phase, "window": rule.window}
            for name in ("refine", "reuse"):
                budget = rule.budget if name == "refine" else None
                expected = pivot_topk(*tensors, k, mode=name, budget=budget, **options, **bounds)
                assert shown(panel, name).equal(expected), (name, options, k, rule)
            assert shown(panel, "dense").equal(dense_topk(*tensors, k, **bounds))
            assert rule.budget == (max(c, k + rule.window + g - 1) if phase == "prefill" else c)


def test_shares_are_those_of_the_metrics(make, capture, trace_of):
    one = with_mass(capture)
    panel = make(one, k=20, g=4, c=60)
    tensors, bounds = given(one)
    dense = dense_topk(*tensors, 20, **bounds)
    best = one.mass.topk(20, dim=1).values.sum(1).double().mean()
    assert panel._view.mass == pytest.approx((float(index_metrics.captured(one.mass, dense).mean()), float(best)))
    frame, over_c = panel.to_frame("g"), panel.to_frame("c")
    assert frame["g"].tolist() == [1, 2, 4, 8, 16, 32] and over_c["c"].tolist()[0] == 20 + 4 + 4 - 1
    for kind, values in (("g", frame), ("c", over_c)):
        for row in values.itertuples():
            g, c = (row.g, 60) if kind == "g" else (4, row.c)
            found = {"reuse": pivot_topk(*tensors, 20, group=g, mode="reuse", **bounds)} if kind == "g" else {}
            if c >= 20 + 2 * g - 1:
                found["refine"] = pivot_topk(*tensors, 20, group=g, budget=c, **bounds)
            else:
                assert np.isnan(row.refine)
            for name, indices in found.items():
                assert getattr(row, name) == pytest.approx(float(index_metrics.recall(indices, dense).mean()))
                attention = float(index_metrics.captured(one.mass, indices).mean())
                assert getattr(row, f"{name}_attention") == pytest.approx(attention)
    assert list(trace_of(panel, "refine_g").y)[:4] == frame["refine"].tolist()[:4]
    assert list(trace_of(panel, "refine_c").y) == over_c["refine"].tolist()
    assert list(trace_of(panel, "now_g").x) == [4, 4] and list(trace_of(panel, "now_c").x) == [60]
    assert trace_of(panel, "now_g").y[0] == trace_of(panel, "now_c").y[0] == frame["refine"][2]
    assert trace_of(panel, "systems").x[1] == pytest.approx(frame["refine"][2])
    assert trace_of(panel, "systems_mass").x[1] == pytest.approx(frame["refine_attention"][2])


def test_lines_follow_k_up_and_down(make, capture):
    """What a lane has gathered for one k serves smaller ones and grows for larger ones, up to all keys."""
    one = with_mass(capture)
    panel = make(one, k=20, g=4, c=580, guard=False)
    tensors, bounds = given(one)
    for k in (20, 300, 7, 560, 90):
        set_all(panel, k=k)
        dense, frame = dense_topk(*tensors, k, **bounds), panel.to_frame("g").set_index("g")
        for g, mode in ((2, "refine"), (8, "refine"), (2, "reuse"), (8, "reuse")):
            options = {"group": g, "mode": mode, "guard": False, "budget": 580 if mode == "refine" else None}
            found = pivot_topk(*tensors, k, **options, **bounds)
            assert frame.loc[g, mode] == pytest.approx(float(index_metrics.recall(found, dense).mean())), (k, g, mode)
            attention = float(index_metrics.captured(one.mass, found).mean())
            assert frame.loc[g, f"{mode}_attention"] == pytest.approx(attention), (k, g, mode)


def test_rivals_are_those_of_the_public_functions(make, layers, trace_of):
    heads = {n: made(n, H=8, smoothness=0.9) for n in layers}
    panel = make(heads, k=20, c=70, layer=17, rivals=RIVALS, pattern="FFS")
    tensors, bounds = given(heads[17])
    for k, c, g in ((20, 70, 4), (55, 180, 2), (3, 40, 8)):
        set_all(panel, k=k, c=c, g=g)
        assert panel.status == "" and panel._view.missing == {}
        blocks = max(2, -(-k // 2) + 1, c // 2)
        assert shown(panel, "hisa").equal(hisa_topk(*tensors, k, block=2, blocks=blocks, **bounds))
        router = {"heads": 1, "block": 37}
        assert shown(panel, "misa").equal(misa_topk(*tensors, k, **router, **bounds))
        assert shown(panel, "misa_rerank").equal(misa_topk(*tensors, k, **router, rerank=c, **bounds))
        earlier, same = given(heads[11])
        assert shown(panel, "index_cache").equal(dense_topk(*earlier, k, **same))
        assert shown(panel, "pivot_cache").equal(pivot_topk(*earlier, k, group=g, budget=c, **same))
    frame = panel.to_frame("systems").set_index("system")
    dense = dense_topk(*tensors, 3, **bounds)
    for name in ("refine", "reuse", *RIVALS):
        expected = float(index_metrics.recall(shown(panel, name), dense).mean())
        assert frame["recall"][name] == pytest.approx(expected)
    assert list(trace_of(panel, "systems").y) == list(range(8)) and frame["times_fewer"]["index_cache"] == np.inf
    assert "IndexCache of layer 11" in panel.table.value and "HISA: 20 blocks of 2 keys" in panel.costs.value
    set_all(panel, pattern="FSS")
    earlier, same = given(heads[5])
    assert shown(panel, "index_cache").equal(dense_topk(*earlier, 3, **same))
    set_all(panel, layer="5")
    assert panel._view.missing.keys() == {"index_cache", "pivot_cache"}
    assert "IndexCache: layer 5 searches itself (F in FSS)" in panel.summary


def test_code_gives_what_is_shown(make, layers, tmp_path):
    heads = {n: made(n, H=8, smoothness=0.9) for n in layers}
    panel = make(heads, k=20, c=70, layer=17, rivals=RIVALS, g=3, window=9, guard=False)
    for settings in ({}, {"mode": "reuse", "proxy": "last"}, {"phase": "decode", "mode": "refine", "c": 11}):
        set_all(panel, **settings)
        scope = {"given": heads}
        exec(panel.code().replace("captures = ...", "captures = given"), scope)
        assert scope["indices"].equal(shown(panel))
        for name in ("dense", *RIVALS):
            assert scope[name].equal(shown(panel, name)), name
        assert float(scope["recall"]) == pytest.approx(panel._view.share(panel.mode.value))
    save_capture(heads[5], tmp_path / "one.safetensors")
    np.savez(tmp_path / "one.npz", q=heads[5].q, k=heads[5].k, w=heads[5].w)
    for source in (tmp_path / "one.safetensors", tmp_path / "one.npz"):
        panel = make(source, k=20)
        scope = {}
        exec(panel.code(), scope)
        assert scope["indices"].equal(shown(panel))


def test_a_window_of_many_queries(make):
    many = made(T=150)
    panel = make(many, k=30, g=4, query=70)
    assert "queries 64 to 127 of 150" in panel.caption
    scope = {"given": many}
    exec(panel.code().replace("capture = ...", "capture = given"), scope)
    assert scope["indices"].equal(shown(panel)) and len(scope["indices"]) == 64


def test_the_open_querys_keys_on_the_axis_and_in_the_text(make, capture, trace_of):
    tokens = [f"<b>{i}</b>" for i in range(N)]
    panel = make(replace(capture, tokens=tokens), k=50, c=70, g=8, query=12)
    tensors, bounds = given(capture)
    mine = set(dense_topk(*tensors, 50, **bounds)[12].tolist())
    found = set(pivot_topk(*tensors, 50, group=8, budget=70, **bounds)[12].tolist())
    frame = panel.to_frame("keys")
    states = {name: set(frame["position"][frame["state"] == name]) for name in ("kept", "lost", "gained")}
    assert states == {"kept": mine & found, "lost": mine - found, "gained": found - mine} and states["lost"]
    assert (frame["own_rank"] < 50).equals(frame["state"] != "gained")
    for name, keys in states.items():
        trace = trace_of(panel, name)
        assert (trace.y * trace.width).sum() == pytest.approx(len(keys))
    start = int(panel.strip.tokens[0].strip("</b>"))
    here = {start + i for i in range(STRETCH)}
    for trait, name in (("kept", "kept"), ("new", "lost"), ("gained", "gained")):
        assert {start + i for i in getattr(panel.strip, trait)} == states[name] & here
    assert f"loses {len(states['lost'])} of its 50 keys" in panel.summary
    assert "&lt;b&gt;580&lt;/b&gt;" in panel.legend.value and "<b>580" not in panel.legend.value
    texts = [note.text for note in panel.figure.layout.annotations]
    assert "&lt;b&gt;580" in texts[5] and not any("<b>580" in text for text in texts)


def test_members(make, capture, trace_of):
    panel = make(capture, k=50, c=70, g=8, query=12)
    tensors, bounds = given(capture)
    dense, found = dense_topk(*tensors, 50, **bounds), pivot_topk(*tensors, 50, group=8, budget=70, **bounds)
    members = panel.to_frame("members")
    lost = 1 - index_metrics.by_member(index_metrics.recall(found, dense), 8)
    scores = torch.from_numpy(panel._view.ranked.scores).nan_to_num(nan=0.0)
    regret = index_metrics.by_member(index_metrics.regret(scores, found, dense), 8)
    assert members["lost"].tolist() == pytest.approx(lost.tolist())
    assert members["regret"].tolist() == pytest.approx(regret.tolist(), abs=1e-9)
    kept = index_metrics.own_kept(found, capture.positions).double()
    assert members["own_kept"].tolist() == index_metrics.by_member(kept, 8).tolist()
    assert trace_of(panel, "members").y.tolist() == members["lost"].tolist()
    queries = panel.to_frame()
    assert queries["member"].tolist() == list(range(8)) * 4 and queries["group"].tolist() == sorted([0, 1, 2, 3] * 8)
    assert trace_of(panel, "group").y.tolist() == (1 - queries["recall"][8:16]).tolist()
    set_all(panel, g=5, query=31)
    assert len(trace_of(panel, "members").x) == 5 and len(trace_of(panel, "group").x) == 2, "a rest of two"


def test_the_score_tail(make, capture, trace_of):
    panel = make(with_mass(capture), k=50, c=100, query=3)
    scores = torch.from_numpy(panel._view.ranked.scores[3]).nan_to_num(nan=0.0)
    curve = index_metrics.mass_curve(scores[None])[0]
    ranks, line = trace_of(panel, "scores").x, trace_of(panel, "so_far")
    assert ranks[0] == 1 and ranks[-1] == capture.hi[3]
    np.testing.assert_allclose(line.y, curve[ranks - 1])
    np.testing.assert_allclose(
        trace_of(panel, "scores").y, (scores.sort(descending=True).values / scores.max())[ranks - 1]
    )
    assert set(trace_of(panel, "k_cut").x) == {50} and trace_of(panel, "c_cut").text[-1] == " c = 2k"
    text = panel.figure.layout.annotations[3].text
    assert f"best 50 hold {100 * float(curve[49]):.0f} %, " in text and "of attention" in text
    set_all(panel, k=590, c=600)
    assert len(trace_of(panel, "k_cut").x) == 0, "query 3 sees 572 keys"


def test_costs(make, capture):
    panel = make(capture, k=20, g=4, c=60)
    frame = panel.to_frame("systems").set_index("system")
    one = 2 * (16 + 1)
    assert frame["operations"]["dense"] == one * int(capture.hi.sum())
    assert frame["rescore"]["refine"] == one * 32 * 60
    assert frame["scan"]["refine"] == one * int((capture.hi[::4] - 4).sum())
    assert f"{frame['times_fewer']['refine']:.2f} × fewer multiply-adds than dense" in panel.summary
    speed = index_metrics.speed_up(600, group=4, budget=60, r=3.0)
    assert f"4 · 600 / (600 + 3 · 4 · 60) = <b>{speed:.2f} ×</b>" in panel.costs.value
    set_all(panel, c=600, guard=False)
    assert "1.25 × as many multiply-adds as dense" in panel.summary, "a quarter of the scans, and all keys once more"
    set_all(panel, c=60)
    panel.r.value = 1
    panel.wait()
    assert f"= <b>{index_metrics.speed_up(600, group=4, budget=60, r=1.0):.2f} ×</b>" in panel.costs.value


def test_one_query(make, trace_of):
    panel = make(made(T=1), k=7)
    assert "1 of 1 queries are on the dense path: they have no neighbours" in panel.summary
    assert "loses 0 of its 7 keys" in panel.summary and trace_of(panel, "systems").x == (1, 1, 1)
    assert panel.to_frame("members").empty and panel.to_frame("g")["g"].tolist() == [1, 4]
    set_all(panel, g=1)
    assert panel.to_frame("members")["lost"].tolist() == [0]
    make(made(T=1, n_keys=1))


def test_k_beyond_the_context_wants_all(make, capture, trace_of):
    panel = make(capture, k=5000, rivals=("hisa", "misa", "misa_rerank"))
    assert panel.k.value == N and "32 of 32 queries have no more than k keys and want them all" in panel.summary
    tensors, bounds = given(capture)
    assert shown(panel).equal(pivot_topk(*tensors, N, group=4, budget=N + 7, **bounds))
    assert trace_of(panel, "systems").x[1] == 1
    small = made(T=4, n_keys=6)
    panel = make(small, k=2048, g=2, guard=False)
    tensors, bounds = given(small)
    assert shown(panel, "reuse").equal(pivot_topk(*tensors, 6, group=2, mode="reuse", guard=False, **bounds))


def test_equal_scores_and_nan(make, capture):
    panel = make(replace(capture, q=torch.zeros_like(capture.q)), k=10)
    assert "32 of 32 queries score all keys alike: the lowest positions are taken" in panel.summary
    q = capture.q.clone()
    q[[3, 31]] = torch.nan
    one = replace(capture, q=q)
    tensors, bounds = given(one)
    panel = make(one, k=10, rivals=("hisa", "misa", "misa_rerank"))
    assert "2 of 32 queries select nothing" in panel.summary and "selects no key" in panel.summary
    assert shown(panel).equal(pivot_topk(*tensors, 10, group=4, budget=panel._view.rule.budget, **bounds))
    dense = dense_topk(*tensors, 10, **bounds)
    some = index_metrics.size(dense) > 0
    expected = index_metrics.recall(shown(panel), dense)[some].mean()
    assert panel._view.share("refine") == pytest.approx(float(expected)) and panel._view.share("refine") < 1
    panel = make(replace(capture, q=torch.full_like(q, torch.nan)), k=10, rivals=("hisa", "misa"))
    assert "no query selects a key" in panel.summary and panel.status == ""


def test_a_group_larger_than_the_window(make, capture):
    panel = make(capture, k=20, g=64)
    tensors, bounds = given(capture)
    assert shown(panel).equal(pivot_topk(*tensors, 20, group=64, budget=panel._view.rule.budget, **bounds))
    assert panel._view.group == range(32) and panel.to_frame("members").empty


def test_queries_that_lie_apart(make, capture):
    positions = torch.arange(32) * 18
    panel = make(replace(capture, positions=positions, hi=positions + 1), k=10)
    assert "queries are on the dense path: they have no neighbours" in panel.summary


def test_without_mass_and_tokens(make, capture, trace_of):
    panel = make((capture.q, capture.k, capture.w), k=20)
    assert panel._view.mass is None and "attention" not in panel.summary and "attention" not in panel.table.value
    assert len(trace_of(panel, "refine_mass_g").y) == len(trace_of(panel, "refine_g").y)
    assert set(trace_of(panel, "refine_mass_g").y) == {None} and len(trace_of(panel, "systems_mass").x) == 0
    assert panel.strip.tokens == [] and panel.place.layout.display == "none"


def test_layers_of_unequal_length(make):
    panel = make({1: made(1), 2: made(2, T=40, n_keys=900)}, k=20, layer=2, rivals=RIVALS)
    assert "IndexCache: layer 1 has other queries or keys" in panel.summary and panel.k.grid[-1] == 900
    set_all(panel, k=900)
    set_all(panel, layer="1")
    tensors, bounds = given(made(1))
    assert shown(panel).equal(pivot_topk(*tensors, 900, group=4, budget=panel._view.rule.budget, **bounds))
    panel = make(made(1), k=20, rivals=("index_cache",))
    assert "IndexCache: needs more than one layer" in panel.summary
