"""The recorded index of the default model's global layers: small, whole, and with the numbers of live captures."""

import dataclasses
import json

import pytest
import torch

from activations import IndexCapture, capture_index, load_capture, record, recorded, recorded_names, texts
from activations.recorded import FOLDER
from qp_kernels import index_metrics as metrics
from qp_kernels import results
from qp_kernels.pivot import dense_topk, pivot_topk

N, ROWS, TOPK = 8192, 64, 512
LAYERS = (5, 11, 17)


@pytest.fixture(scope="module", params=LAYERS)
def capture(request):
    return recorded(f"index_layer_{request.param}")


def test_the_files_are_small_and_in_order_of_layers():
    names = [name for name in recorded_names() if name.startswith("index_")]
    assert names == [f"index_layer_{layer}" for layer in LAYERS]
    sizes = [(FOLDER / f"{name}.safetensors").stat().st_size for name in names]
    assert max(sizes) < 7e6 and sum(sizes) < 16 << 20


def test_the_text_carries_its_licence():
    for layer in LAYERS:
        provenance = json.loads((FOLDER / f"index_layer_{layer}.json").read_text("utf-8"))
        assert provenance["texts_licence"] == texts.PSF_LICENCE and provenance["python"].startswith("3.11")
    assert "PSF_LICENSE.txt" in (FOLDER / "NOTICE").read_text("utf-8")
    licence = " ".join((FOLDER / "PSF_LICENSE.txt").read_text("utf-8").split())
    assert "provided, however, that PSF's License Agreement and PSF's notice of copyright" in licence


def test_what_is_inside(capture):
    assert isinstance(capture, IndexCapture) and capture.meta["layer"] in LAYERS
    assert (capture.q.shape, capture.k.shape, capture.mass.shape) == ((ROWS, 4, 256), (N, 256), (ROWS, N))
    assert (capture.q.dtype, capture.mass.dtype) == (torch.bfloat16, torch.float16)
    assert capture.positions.tolist() == list(range(N - ROWS, N))
    assert capture.hi.equal(capture.positions + 1) and not capture.lo.any()
    assert capture.meta["source"] == "attention" and capture.meta["rope"] == "post"
    assert (capture.w == 1 / 64).all()  # the mean of four heads, scaled by 1 / 16


def test_the_layers_read_one_text():
    captures = [recorded(f"index_layer_{layer}") for layer in LAYERS]
    assert all(one.ids.equal(captures[0].ids) and one.tokens == captures[0].tokens for one in captures)
    assert captures[0].tokens[0] == "<bos>" and "assert_stmt ::=" in "".join(captures[0].tokens)


def test_the_queries_read_what_stands_in_the_text_before(capture):
    ids = capture.ids
    assert ids[-ROWS:].equal(ids[-ROWS - 5926 : -5926])
    assert "Unlike normal assignments, augmented assignments evaluate" in "".join(capture.tokens[-ROWS:])


def test_each_row_of_mass_is_whole_and_causal(capture):
    mass = capture.mass.double()
    assert ((mass.sum(1) - 1).abs() < 3e-4).all() and (mass >= 0).all()
    assert not mass[torch.arange(N) >= capture.hi[:, None]].any()


def test_the_mass_is_the_attention_of_these_queries_and_keys(capture):
    logits = torch.einsum("thd,nd->thn", capture.q.float(), capture.k.float()) * capture.meta["scale"]
    logits.masked_fill_((torch.arange(N) >= capture.hi[:, None])[:, None], -torch.inf)
    torch.testing.assert_close(capture.mass.float(), logits.softmax(-1).mean(1), rtol=2**-11, atol=4e-8)


def test_a_round_trip_keeps_every_bit(capture, tmp_path):
    again = load_capture(record.save_capture(capture, tmp_path / "again.safetensors"))
    for name in ("q", "k", "w", "lo", "hi", "positions", "ids", "mass"):
        kept, read = getattr(capture, name), getattr(again, name)
        assert read.dtype is kept.dtype and read.view(torch.uint8).equal(kept.view(torch.uint8))


def test_the_numbers_are_those_of_a_live_capture(capture):
    """64 neighbours against 512 queries over half of the text, so within an eighth."""
    live = next(
        one
        for one in results.read("index_captures").records
        if one["kind"] == "selection" and (one["tokens"], one["layer"]) == (N, capture.meta["layer"])
    )
    given = (capture.q, capture.k, capture.w, TOPK)
    dense = dense_topk(*given)
    reuse = pivot_topk(*given, group=4, mode="reuse")
    refine = pivot_topk(*given, group=4, mode="refine", budget=2 * TOPK)
    joint, union = metrics.joint_and_union(dense, 4)
    found = {
        "adjacent_overlap": metrics.overlap(dense[:-1], dense[1:]),
        "union_over_k": union,
        "joint": joint,
        "recall_reuse": metrics.recall(reuse, dense),
        "recall_refine": metrics.recall(refine, dense),
        "mass_dense": metrics.captured(capture.mass, dense),
        "mass_reuse": metrics.captured(capture.mass, reuse),
        "mass_refine": metrics.captured(capture.mass, refine),
    }
    assert {name: pytest.approx(values.mean().item(), rel=0.125) for name, values in found.items()} == {
        name: live[name] for name in found
    }


@pytest.mark.model
def test_the_model_makes_them_again(capture, gemma_lm):
    """On the text's beginning, up to what bf16 leaves of the keys: the model here may compute in another type."""
    live = capture_index(gemma_lm, capture.ids[:512], layer=capture.meta["layer"], positions=[-1], mass=False)
    apart = (live.k.float() - capture.k[:512].float()).norm(dim=1) / capture.k[:512].float().norm(dim=1)
    assert apart.median() < 0.04


def test_a_model_of_ones_own(tiny, tmp_path):
    lm = tiny("qwen3")
    paths = record.record_index(lm, tmp_path, text="zen", tokens=24, queries=8, layers=[1], kv_head=1)
    assert [path.name for path in paths] == ["index_layer_1.safetensors"]
    back = load_capture(paths[0])
    assert (len(back), len(back.k), back.mass.dtype) == (8, 24, torch.float16)
    assert back.meta["derived"] == "Activations of tiny-qwen3"
    direct = capture_index(lm, back.ids, layer=1, kv_head=1, positions=range(-8, 0), mass=True)
    assert back.q.equal(direct.q) and back.k.equal(direct.k) and back.mass.equal(direct.mass.half())
    provenance = json.loads(paths[0].with_suffix(".json").read_text("utf-8"))
    assert provenance["notice"] == "data/captures/NOTICE of the repository"
    assert provenance["licence"] == "that of the model" and provenance["meta"]["layer"] == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queries": 0}, "queries must be from 1 to the 24 tokens, got 0"),
        ({"queries": 25}, "queries must be from 1 to the 24 tokens, got 25"),
        ({"text": "zen", "tokens": 1000}, "the text 'zen' has .* tokens, 1,000 are wanted"),
        ({"source": "native"}, "no layer of .* has an index of source 'native'"),
    ],
)
def test_what_cannot_be_recorded(tiny, tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        record.record_index(tiny(), tmp_path, **{"text": "zen", "tokens": 24, "queries": 8, **options})
    assert not list(tmp_path.iterdir())


def test_other_options_do_not_go_where_the_standard_files_are(capsys):
    with pytest.raises(SystemExit):
        record.main(["index", "--tokens", "32768", "--layers", "5", "11"])
    assert "with --tokens 32768 --layers 5 11 say where the files go: --folder" in capsys.readouterr().err


def test_a_file_can_be_the_text(tiny, tmp_path):
    (tmp_path / "mine.txt").write_text("a b c d e f g h " * 20, "utf-8")
    paths = record.record_index(tiny(), tmp_path / "out", text=str(tmp_path / "mine.txt"), tokens=24, queries=8)
    meta = load_capture(paths[0]).meta
    assert len(paths) > 1 and meta["text"] == "the first 24 tokens of mine.txt"
    assert dataclasses.asdict(load_capture(paths[0]))["meta"]["mass"].endswith("rounded to float16")


@pytest.mark.parametrize("layer", LAYERS)
def test_the_sentence_is_whole_and_small(layer):
    capture = recorded(f"sentence_layer_{layer}")
    assert "".join(capture.tokens) == f"<bos>{record.SENTENCE}" and capture.meta["layer"] == layer
    count = len(capture.tokens)
    assert capture.positions.tolist() == list(range(count)) and capture.q.dtype == torch.float32
    logits = torch.einsum("thd,nd->thn", capture.q, capture.k) * capture.meta["scale"]
    logits.masked_fill_((torch.arange(count) >= capture.hi[:, None])[:, None], -torch.inf)
    torch.testing.assert_close(capture.mass.float(), logits.softmax(-1).mean(1), rtol=2**-10, atol=4e-8)
    assert (FOLDER / f"sentence_layer_{layer}.safetensors").stat().st_size < 110_000
