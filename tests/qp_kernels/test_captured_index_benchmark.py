"""benchmarks/captured_index.py on small captures: what it times, what it records, and that wrong selections end it."""

import dataclasses
import types

import pytest
import scripts
import torch

from activations import load_capture, save_capture, synthetic
from qp_kernels import results
from qp_kernels.bench import index
from qp_kernels.bench.index import providers, rates

RATES = rates.Rates(1.0, 1.0, {"float32": 1.0})
SIZES = ["--topk", "16", "--budget", "32", "--repetitions", "2", "--device", "cpu"]


@pytest.fixture(scope="module")
def script():
    return scripts.load("captured_index")


@pytest.fixture
def files(tmp_path):
    made = [synthetic.index(18, 300, 3, 8, smoothness=0.9, seed=seed, dtype=torch.bfloat16) for seed in (1, 2)]
    made = [dataclasses.replace(one, meta={**one.meta, "layer": i}) for i, one in enumerate(made)]
    return [str(save_capture(one, tmp_path / f"{i}.safetensors")) for i, one in enumerate(made)]


def test_records_of_files(script, files, tmp_path, capsys):
    assert script.main(["--captures", *files, *SIZES, "--record", "--folder", str(tmp_path)]) == 0
    read = results.read("captured_index", folder=tmp_path)
    seen = [(r["layer"], r["inputs"], r["kind"], r["provider"]) for r in read.records]
    prefill, decode = ([(kind, name) for name in script.SELECTIONS] for kind in ("prefill", "decode"))
    decode.insert(0, ("decode", "floor_read"))
    each = [("select", "floor_read"), ("select", "torch_topk"), *2 * [*prefill, *decode]]
    named = ((0, "captured"), (1, "captured"), (None, "normal"))
    assert seen == [(*name, *one) for name in named for one in each]
    dtypes = ["float32"] * 2 + ["bfloat16"] * 7 + ["float8_e4m3fn"] * 7
    assert [r["dtype"] for r in read.records] == dtypes * 3
    first = read.records[2]
    assert (first["T"], first["L"], first["heads"], first["dim"], first["topk"]) == (16, 300, 3, 8, 16)
    assert first["checked_rows"] == 16 + 16 and first["wrong_rows"] == 0 and first["dtype"] == "bfloat16"
    assert read.records[0]["case"] == "index-select-captured-b1-t16-l300-float32"
    assert read.records[-16]["case"] == "index-select-gauss-b1-t16-l300-float32"
    last = read.records[15]
    assert (last["case"], last["provider"], last["T"], last["group"]) == (
        "index-decode-b1-t4-l300-float8_e4m3fn",
        "refine",
        4,
        4,
    )
    assert last["checked_rows"] == 4 + 4 and last["wrong_rows"] == 0
    assert read.command == (
        "python benchmarks/captured_index.py --captures 0.safetensors 1.safetensors --topk 16 --budget 32 "
        "--repetitions 2 --record captured_index"
    )
    assert "2.00 x dense" not in read.command and "16 queries, 300 keys" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["dense", "reuse", "refine"])
@pytest.mark.parametrize("kind", ["prefill", "decode"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_a_selection_that_is_wrong_on_captured_numbers_only_ends_it(
    script, files, tmp_path, monkeypatch, capsys, name, kind, dtype
):
    right = providers.selections

    def selections(case, guard):
        def off(inputs, backend):
            found = right(case, guard)[name](inputs, backend)
            values = inputs.q.float() if inputs.q_scale is None else inputs.q_scale
            if (case.kind, case.dtype) == (kind, dtype) and (8 * values).frac().any():  # no whole numbers as drawn
                found = found.clone()
                found[-4:, -1] = 299 - found[-4:, -1] % 2
            return found

        return {**right(case, guard), name: off}

    monkeypatch.setattr(providers, "selections", selections)
    assert script.main(["--captures", files[0], *SIZES, "--record", "--folder", str(tmp_path)]) == 1
    rows = {"prefill": 16, "decode": 4}[kind]
    words = f"index-{kind}-b1-t{rows}-l300-{dtype}, {name}: 4 of {2 * rows} rows differ from the reference; nothing is"
    assert words in capsys.readouterr().err and not list(tmp_path.glob("*.json"))


def test_float8_is_what_the_bench_measures(script, files):
    """A scale for each head and key; the captured numbers come back within half a step of three bits."""
    capture = load_capture(files[0])
    device = torch.device("cpu")
    captured, small = script.forms_of(script.inputs_of(capture, 4, device), RATES, device)
    assert small.q.dtype == small.k.dtype == torch.float8_e4m3fn and small.w is captured.w
    assert small.q_scale.shape == (16, 3) and small.k_scale.shape == (300,)
    for made, scale, wanted in ((small.q, small.q_scale, captured.q), (small.k, small.k_scale, captured.k)):
        back, wanted = made.float() * scale[..., None], wanted.float()
        least = scale[..., None] * 2.0**-9  # of the smallest steps
        assert ((back - wanted).abs() <= wanted.abs() / 16 + least).all() and back.ne(wanted).any()


def test_a_gpu_without_float8_products_is_measured_in_the_captured_dtype(script, files, capsys):
    capture = load_capture(files[0])
    captured = script.inputs_of(capture, 4, torch.device("cpu"))
    for known, forms in (({"bfloat16": 1.0}, 1), ({"bfloat16": 1.0, "float8_e4m3fn": 1.0}, 2)):
        assert len(script.forms_of(captured, dataclasses.replace(RATES, tflops=known), torch.device("cuda"))) == forms
    assert "this GPU multiplies no float8_e4m3fn: left out" in capsys.readouterr().out


def test_the_layers_of_a_model(script, tmp_path, monkeypatch):
    import transformers

    import activations

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 8,
    }
    config = transformers.LlamaConfig(vocab_size=300, num_key_value_heads=1, max_position_embeddings=512, **sizes)
    letters = types.SimpleNamespace(encode=lambda text: [ord(c) % 300 for c in text], decode=lambda ids: "")
    lm = activations.wrap(transformers.LlamaForCausalLM(config).eval(), letters, name="small")
    monkeypatch.setattr(activations, "load", lambda *_, **__: lm)
    line = [
        "--model",
        "small",
        "--tokens",
        "256",
        "--queries",
        "16",
        *SIZES,
        "--record",
        "x",
        "--folder",
        str(tmp_path),
    ]
    assert script.main(line) == 0
    read = results.read("x", folder=tmp_path)
    assert {r["layer"] for r in read.records} == {0, 1, None} and read.about["source"] == "attention"
    assert read.about["model"] == "small" and "pydoc" in read.about["text"]
    assert {(r["heads"], r["dim"], r["L"]) for r in read.records} == {(4, 8, 256)}


def test_what_cannot_be_measured(script, files, tmp_path, capsys):
    made = synthetic.index(16, 40, 3, 8, smoothness=0.9, seed=1)
    apart = dataclasses.replace(made, hi=made.hi - 1, positions=made.positions - 1)
    few = dataclasses.replace(
        synthetic.index(3, 300, 3, 8, smoothness=0.9, seed=1), meta={"model": "a few", "layer": 1, "source": "made up"}
    )
    for capture, words in (
        (made, "the first query sees 25 keys: more than budget, 32, must"),
        (apart, "the queries must be the last tokens of the text"),
        (few, "a few · layer 1 · made up · float32 · cpu · recorded: 3 queries are no group"),
    ):
        path = save_capture(capture, tmp_path / "other.safetensors")
        assert script.main(["--captures", str(path), *SIZES]) == 2
        assert words in capsys.readouterr().err
    assert script.main(["--captures", "openers", *SIZES]) == 2
    assert "these files hold logits" in capsys.readouterr().err
    assert script.main(["--captures", str(tmp_path / "none.safetensors")]) == 2


@pytest.mark.gpu
def test_on_a_gpu(script, files, tmp_path):
    line = ["--captures", files[0], *SIZES[:-2], "--device", "cuda", "--record", "--folder", str(tmp_path)]
    assert script.main(line) == 0
    read = results.read("captured_index", folder=tmp_path)
    assert {r["provider"] for r in read.records} == {"floor_read", "qp_kernels", "torch_topk", *script.SELECTIONS}
    assert {r["kind"] for r in read.records} == {"select", "scan", "prefill", "decode"}
    by_kind = {kind: {r["dtype"] for r in read.records if r["kind"] == kind} for kind in ("scan", "prefill", "decode")}
    assert all(dtypes >= {"bfloat16"} for dtypes in by_kind.values()) and len({*map(frozenset, by_kind.values())}) == 1
    assert {r["mode"] for r in read.records if r["kind"] == "decode"} == {"graph"}
    assert set(read.records[0]) >= {*index.FIELDS, "layer", "inputs"}
