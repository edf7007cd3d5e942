"""Distillation of small models: it learns, goes on where it stopped, and leaves everything else as it was."""

import threading

import pytest
import torch

from activations import capture_index, distil
from activations import distil_data as data_module
from activations import distil_training as training_module
from activations.distil_data import Pieces, read_attention
from activations.index_quality import index_report
from activations.indexer import IndexerShape, divergence, index_scores

SMALL = {"heads": 4, "dim": 16, "rope_dim": 8, "rows": None, "learning_rate": 5e-3}
LENGTHS = (24, 60)


def ids_of(n, seed):
    return torch.randint(3, 90, (n,), generator=torch.Generator().manual_seed(seed))


TEXTS = [ids_of(400, 1), ids_of(300, 2)]


@pytest.fixture
def small(tiny):
    """Weights are large, so that attention is far from even."""
    return lambda name="llama", **more: tiny(name, **{"initializer_range": 0.4, **more})


def distilled(lm, layers=1, **options):
    return distil(lm, layers, **{"texts": TEXTS, "lengths": LENGTHS, "steps": 6, **SMALL, **options})


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_it_learns_what_the_attention_looks_at(small, name):
    lm, unseen = small(name), ids_of(60, 9)
    options = {"texts": [ids_of(4000, 1)], "heads": 8, "dim": 32, "measure_on": unseen}
    first = distilled(lm, [0, 1], steps=1, **{**options, "learning_rate": 1e-6})
    found = distilled(lm, [0, 1], steps=200, **{**options, "learning_rate": 1e-2})
    assert found.losses.shape == (200, 2, 2) and found.losses.dtype == torch.float64
    assert (found.losses[-20:].mean(0) < 0.9 * found.losses[:2].mean(0)).all()
    assert [(one["tokens"], one["layer"]) for one in found.report] == [(24, 0), (24, 1), (60, 0), (60, 1)]
    for before, after in zip(first.report, found.report, strict=True):
        assert after["kl"] < 0.9 * before["kl"]
    for measure, factor in (("recall_attention", 3), ("mass_dense", 1.4)):
        before, after = (sum(one[measure] for one in run.report) for run in (first, found))
        assert factor * before < after


def test_the_report_measures_what_a_capture_gives(small):
    lm, unseen = small(), ids_of(60, 9)
    found = distilled(lm, [2], measure_on=unseen)
    (report,) = index_report(lm, found.indexers, unseen, lengths=[60, 61], topk=5)
    assert report["topk"] == 5 and report["tokens"] == 60 and report["queries"] == 30
    capture = capture_index(lm, unseen, layer=2, source="distilled", indexers=found.indexers, mass=True)
    rows = range(30, 60)
    scores = index_scores(capture.q, capture.k, capture.w)
    best = [set(scores[t, : t + 1].topk(5).indices.tolist()) for t in rows]
    true = [set(capture.mass[t].topk(5).indices.tolist()) for t in rows]
    recall = sum(len(a & b) / 5 for a, b in zip(best, true)) / len(rows)
    assert report["recall_attention"] == pytest.approx(recall)
    mass = sum(capture.mass[t][list(keys)].sum().item() for t, keys in zip(rows, best)) / len(rows)
    assert report["mass_dense"] == pytest.approx(mass, rel=1e-5)
    kl = divergence(capture.mass, scores, capture.hi)[30:].mean().item()
    assert report["kl"] == pytest.approx(kl, rel=1e-5)
    assert found.indexers[2].meta["quality"] == found.report[:2] and found.report[0]["tokens"] == 24


def test_a_resumed_run_ends_as_one_without_a_stop(small, tmp_path):
    lm, path = small(), tmp_path / "some" / "checkpoint.safetensors"
    whole = distilled(lm, [0, 2], rows=10, steps=7)

    def stop(done, total, what):
        if done == 4 and "Distilling" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distilled(lm, [0, 2], rows=10, steps=7, checkpoint=path, checkpoint_every=3, progress=stop)
    assert [one.name for one in path.parent.iterdir()] == ["checkpoint.safetensors"]
    seen = []
    again = distilled(lm, [0, 2], rows=10, steps=7, checkpoint=path, progress=lambda done, *_: seen.append(done))
    assert sorted(set(seen)) == [0, 4, 5, 6, 7]
    assert again.losses.equal(whole.losses)
    assert all(same(again.indexers[layer], whole.indexers[layer]) for layer in (0, 2))
    assert not same(whole.indexers[0], whole.indexers[2])
    ended = distilled(lm, [0, 2], rows=10, steps=7, checkpoint=path)
    assert ended.losses.equal(whole.losses) and same(ended.indexers[2], whole.indexers[2])


def test_a_stop_in_the_middle_of_a_step_keeps_the_last_whole_one(small, tmp_path, monkeypatch):
    lm, path, calls = small(), tmp_path / "checkpoint.safetensors", []
    monkeypatch.setattr(training_module, "_SCORE_BYTES", 4 * 4 * 60 * 7)
    whole = distilled(lm, steps=4)

    def stop(done, total, what):
        calls.append(done)
        if calls.count(2) == 6:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        distilled(lm, steps=4, checkpoint=path, checkpoint_every=100, progress=stop)
    again = distilled(lm, steps=4, checkpoint=path)
    assert again.losses.equal(whole.losses) and same(again.indexers[1], whole.indexers[1])


def test_a_stop_before_the_first_step_leaves_nothing(small, tmp_path):
    def stop(done, total, what):
        if "Distilling" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distilled(small(), checkpoint=tmp_path / "checkpoint.safetensors", progress=stop)
    assert not list(tmp_path.iterdir())


def test_a_stop_within_an_update_keeps_the_checkpoint_before(small, tmp_path, monkeypatch):
    lm, path, own = small(), tmp_path / "checkpoint.safetensors", torch.optim.Adam.step
    whole, calls = distilled(lm, steps=5), []

    def half(optimizer):
        calls.append(optimizer)
        if len(calls) == 4:
            with torch.no_grad():
                optimizer.param_groups[0]["params"][0].add_(1.0)
            raise KeyboardInterrupt
        return own(optimizer)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", half)
        with pytest.raises(KeyboardInterrupt):
            distilled(lm, steps=5, checkpoint=path, checkpoint_every=2)
    again = distilled(lm, steps=5, checkpoint=path)
    assert again.losses.equal(whole.losses) and same(again.indexers[1], whole.indexers[1])


def test_a_stop_is_heard_before_each_text(small):
    def stop(done, total, what):
        heard.append(what)
        if len(heard) == 2:
            raise KeyboardInterrupt

    heard = []
    with pytest.raises(KeyboardInterrupt):
        distilled(small(), progress=stop)
    assert heard == ["Reading the texts"] * 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 5}, "it is of another distillation: its recipe has steps 3, not 5"),
        ({"seed": 1}, "its recipe has seed 0, not 1"),
        ({"layers": 2}, r"it is of layers \[1\], not \[2\]"),
        ({"texts": [ids_of(700, 5)]}, "its text has sha256"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(small, tmp_path, change, words):
    path = tmp_path / "checkpoint.safetensors"
    distilled(small(), steps=3, checkpoint=path, checkpoint_every=1)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=words):
        distilled(small(), checkpoint=path, **{"steps": 3, **change})
    with pytest.raises(ValueError, match="the weights of tiny-llama are not those"):
        distilled(small(seed=4), steps=3, checkpoint=path)
    with pytest.raises(ValueError, match="its model is tiny-llama, not tiny-qwen3"):
        distilled(small("qwen3"), steps=3, checkpoint=path)
    assert path.read_bytes() == before


def test_a_damaged_checkpoint_is_refused(small, tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    distilled(small(), steps=3, checkpoint=path, checkpoint_every=1)
    whole = path.read_bytes()
    for place in (-1, len(whole) // 2):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="checkpoint.safetensors is damaged"):
            distilled(small(), steps=3, checkpoint=path)
    path.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        distilled(small(), steps=3, checkpoint=path)


def test_the_model_and_the_caller_stay_as_they_were(small):
    lm = small()
    lm.model.train()
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    with torch.inference_mode():  # as a panel's worker is
        found = distilled(lm, steps=2)
    assert lm.model.training and all(tensor.equal(before[name]) for name, tensor in lm.model.state_dict().items())
    assert all(parameter.grad is None for parameter in lm.model.parameters())
    assert not any(module._forward_pre_hooks for module in lm.model.modules())
    indexer = found.indexers[1]
    assert not any(parameter.requires_grad or parameter.is_inference() for parameter in indexer.parameters())
    assert not indexer.training and lm.lock.acquire(blocking=False)
    lm.lock.release()


def test_another_thread_may_use_the_model_meanwhile(small):
    lm, expected, found = small(), capture_index(small(), TEXTS[0][:60], layer=1), []
    thread = threading.Thread(target=lambda: found.extend(capture_index(lm, TEXTS[0][:60], layer=1) for _ in range(4)))
    thread.start()
    whole = distilled(lm)
    thread.join()
    assert all(one.q.equal(expected.q) for one in found) and len(found) == 4
    assert same(whole.indexers[1], distilled(lm).indexers[1])


@pytest.mark.parametrize("given", [[0, 1], None])
def test_layers_and_their_rotation(small, given):
    lm = small(rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    found = distilled(lm, given, steps=1)
    assert list(found.indexers) == ([0, 1] if given else [0, 1, 2])
    assert found.indexers[0].shape == IndexerShape(32, 4, 16, 8, 5e5, found.indexers[0].shape.input_scale)
    hidden = read_attention(lm, min(Pieces(lm, TEXTS, LENGTHS, 0).at(0), key=len), [0], lambda: None)[0].hidden
    assert (hidden * found.indexers[0].shape.input_scale).square().mean().item() == pytest.approx(1, rel=1e-4)


def test_layers_of_mixed_models_have_their_own_rotation(small):
    parameters = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    }
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    lm = small("gemma3", layer_types=kinds, rope_parameters=parameters)
    assert distilled(lm, None, steps=1).indexers[2].shape.rope_theta == 1e6
    assert list(distilled(lm, None, steps=1, lengths=[8]).indexers) == [2]
    assert distilled(lm, 1, steps=1, lengths=[8]).indexers[1].shape.rope_theta == 1e4
    narrow = small("mistral", sliding_window=8)  # all there is
    assert list(distilled(narrow, None, steps=1, lengths=[8]).indexers) == [0, 1, 2]
    with pytest.raises(ValueError, match=r"layer 1 attends to 8 neighbouring tokens only, of 60 .* layers \[2\]"):
        distilled(lm, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": 3}, r"layer must be an int in \[0, 2\], got 3"),
        ({"layers": []}, "name one or more different layers that see 60 tokens, got"),
        ({"layers": [1, 1]}, "name one or more different layers"),
        ({"lengths": []}, "lengths must be one or more different ints"),
        ({"lengths": [24, 24]}, "lengths must be one or more different ints"),
        ({"lengths": [1]}, "a length must be an int of at least 2, got 1"),
        ({"lengths": [300]}, "a length is 300 tokens, tiny-llama reads at most 256"),
        ({"texts": [ids_of(59, 1)]}, "the texts have 59 tokens, pieces of 60 are wanted"),
        ({"texts": []}, "the texts have 0 tokens"),
        ({"steps": 0}, "steps must be an int of at least 1, got 0"),
        ({"rows": 0}, "rows must be an int of at least 1, got 0"),
        ({"seed": -1}, "seed must be an int of at least 0, got -1"),
        ({"checkpoint_every": 0}, "checkpoint_every must be an int of at least 1"),
        ({"learning_rate": 0}, r"learning_rate must be in \(0, 1\), got 0"),
        ({"learning_rate": float("nan")}, r"learning_rate must be in \(0, 1\), got nan"),
        ({"rope_dim": 7}, "rope_dim must be even"),
    ],
)
def test_what_is_refused(small, options, words):
    layers = options.pop("layers", 1)
    with pytest.raises(ValueError, match=words):
        distilled(small(), layers, **options)


@pytest.mark.gpu
def test_on_a_gpu_in_bf16(small, tmp_path, monkeypatch):
    """Indexers are trained in float32 beside a model in bf16; the losses are those of a CPU up to that rounding."""
    monkeypatch.setattr(data_module, "_CHUNK_ON_GPU", 16)
    options = {"steps": 5, "rows": 20, "measure_on": ids_of(60, 9)}
    lm, expected = small("qwen3"), distilled(small("qwen3"), [0, 2], **options)
    lm.model.to("cuda", torch.bfloat16)
    found = distilled(lm, [0, 2], **options)
    torch.testing.assert_close(found.losses, expected.losses, rtol=0.1, atol=0.02)
    assert all(parameter.dtype == torch.float32 for one in found.indexers.values() for parameter in one.parameters())
    (path, _) = found.save(tmp_path)
    capture = capture_index(lm, ids_of(60, 9), layer=0, source="distilled", indexers=path)
    assert capture.q.device.type == "cuda" and capture.q.dtype == capture.k.dtype == torch.bfloat16
    assert capture.w.dtype == torch.float32 and capture.w.device.type == "cuda"
    for ours, theirs in zip(found.report, expected.report, strict=True):
        assert ours["kl"] == pytest.approx(theirs["kl"], rel=0.2)

    def stop(done, total, what):
        if done == 3 and "Distilling" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distilled(lm, [0, 2], checkpoint=tmp_path / "checkpoint.safetensors", progress=stop, **options)
    again = distilled(lm, [0, 2], checkpoint=tmp_path / "checkpoint.safetensors", **options)
    assert again.losses.equal(found.losses) and same(again.indexers[2], found.indexers[2])
