"""Times of index selection on queries and keys of a live model, beside normal numbers of the same shapes.

    python benchmarks/captured_index.py --record          on a GPU: the default model's global layers, 32,768 tokens
    python benchmarks/captured_index.py                   without one: the recorded captures, 8,192 tokens, minutes
    python benchmarks/captured_index.py --captures FILE … captures of `activations.record index` instead

Of each layer: the top-k of its scores alone, the scan alone (on a GPU), and dense selection, PIVOT-Reuse and
PIVOT-Refine: in prefill of all its queries, which are the last ones of the text, and in decode of its last group. The
same but top-k in float8 with a scale for each head of a query and each key, where the device multiplies float8. Checked
first: on whole numbers of the same shapes against the reference, where a selection is unique, and on the captured
numbers in float64, within the contract's eps; where something is wrong nothing is timed or written, and the exit status
is 1. `--record` writes data/results/captured_index.json.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "qp_kernels"))

import oracle_index_floats as oracle  # noqa: E402

import activations  # noqa: E402
from activations import texts  # noqa: E402
from qp_kernels import backend, index_metrics, results, timing  # noqa: E402
from qp_kernels.bench import WrongResult, index  # noqa: E402
from qp_kernels.bench.index import providers, rates, table  # noqa: E402
from qp_kernels.bench.index.cases import FP8  # noqa: E402
from qp_kernels.bench.index.inputs import Inputs, quantised  # noqa: E402

NAME = "captured_index"
SELECTIONS = ("dense", "reuse", "refine")
CHARACTERS_A_TOKEN = 10  # more than the text has


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    device = torch.device(options.device)
    print(f"{device}: {backend.resolve(device)}", flush=True)
    try:
        records, about = measured(captures(options, device), options, device)
    except WrongResult as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.record:
        shared = {"device": device, "command": command(options), "folder": options.folder}
        print(f"recorded in {results.write(options.record, records, about=about, **shared).name}")
    return 0


def parser() -> argparse.ArgumentParser:
    on_gpu = torch.cuda.is_available()
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--captures", nargs="+", metavar="FILE", help="captures, or names of recorded ones, not a model")
    top.add_argument("--model", help="instead of the default one")
    top.add_argument("--device", default="cuda" if on_gpu else "cpu")
    top.add_argument("--tokens", type=int, default=32_768, help="of a model's text (default: %(default)s)")
    top.add_argument("--queries", type=int, default=1024, help="of a model's text, the last (default: %(default)s)")
    top.add_argument("--layers", type=int, nargs="+", help="of a model, instead of all that see the whole text")
    top.add_argument("--topk", type=int, help="default: a sixteenth of the keys, at most 2,048")
    top.add_argument("--budget", type=int, help="default: twice topk")
    top.add_argument("--group", type=int, default=4)
    top.add_argument("--repetitions", type=int, default=30 if on_gpu else 5)
    top.add_argument("--record", nargs="?", const=NAME, metavar="NAME", help="write data/results/NAME.json")
    top.add_argument("--folder", help="of the file instead of data/results")
    return top


def captures(options: argparse.Namespace, device: torch.device) -> list[activations.IndexCapture]:
    """One a layer: of files, of a model, or on a CPU the recorded ones.

    Raises:
        ValueError, OSError, ImportError: what cannot be opened or captured.
    """
    known = activations.recorded_names()
    names = options.captures
    if names is None and options.model is None and device.type != "cuda":
        names = [name for name in known if name.startswith("index_")]
    if names is not None:
        opened = [activations.recorded(name) if name in known else activations.load_capture(name) for name in names]
        if not all(isinstance(one, activations.IndexCapture) for one in opened):
            raise ValueError("these files hold logits, and no queries and keys of an indexer")
        return opened
    lm = activations.load(options.model or activations.models.gemma.NAME, device=device)
    ids = lm.encode(texts.builtin_text("pydoc", CHARACTERS_A_TOKEN * options.tokens))[: options.tokens]
    if len(ids) < options.tokens:
        raise ValueError(f"the text has {len(ids):,} tokens only")
    layers = options.layers or activations.index_layers(lm, n_tokens=len(ids))
    return activations.capture_index(lm, ids, layer=layers, positions=range(-options.queries, 0), mass=False)


def inputs_of(capture: activations.IndexCapture, group: int, device: torch.device) -> Inputs:
    """Queries in whole groups, with the bounds that selections have by default.

    Raises:
        ValueError: the queries are not the last tokens of the text, or fewer than a group.
    """
    rows, keys = len(capture), len(capture.k)
    if capture.lo.any() or not capture.hi.equal(torch.arange(keys - rows + 1, keys + 1)):
        raise ValueError(f"{capture.caption}: the queries must be the last tokens of the text, one after the other")
    if rows < group:
        raise ValueError(f"{capture.caption}: {rows} queries are no group of {group}")
    whole = slice(rows % group, rows)
    return Inputs(capture.q[whole].to(device), capture.k.to(device), capture.w[whole].to(device))


def measured(found: list[activations.IndexCapture], options: argparse.Namespace, device: torch.device):
    """(records, what holds for all of them).

    Raises:
        WrongResult: a selection is not what the contract allows. ValueError: captures or sizes that cannot be.
    """
    timing.wake(device)
    machine = rates.measured(device, min(10, options.repetitions))
    run = index.Run(device, machine, options.repetitions, functools.partial(print, flush=True))
    records, drawn = [], {}
    for capture in found:
        captured = inputs_of(capture, options.group, device)
        print(f"{capture.caption}: {len(captured.q):,} queries, {len(captured.k):,} keys", flush=True)
        for inputs in forms_of(captured, machine, device):
            zeros = float(index_metrics.zero_share(providers.scores_of(inputs), *inputs.bounds).mean())
            named = {"layer": capture.meta.get("layer"), "inputs": "captured", "zero_scores": zeros}
            print(f"  {dtype_of(inputs)}, {zeros:.1%} of scores are 0")
            for case in cases_of(inputs, options, device):
                drawn[case] = case._replace(scores="gauss" if case.kind == "select" else None)
                asked = inputs.rows(slice(-case.T, None))
                given = index.Given(asked, checks_of(asked, case))
                records += shown(named, index.run_case(case, run, given=given))
    print("normal numbers of the same shapes")
    for case in drawn.values():
        made = index.run_case(case, run)
        some = [one for one in made if case.kind != "prefill" or one["provider"] in SELECTIONS]
        records += shown({"layer": None, "inputs": "normal", "zero_scores": None}, some)
    meta = found[0].meta
    about = {**machine.about(), "backend": backend.resolve(device).name, "model": meta.get("model")}
    about |= {name: meta.get(name) for name in ("source", "compute_dtype", "text")}
    if about["text"] is None and options.captures is None:  # a model has just read it
        about["text"] = f"the beginning of pydoc's topics ({texts.PSF_LICENCE})"
    return records, about


def forms_of(captured: Inputs, machine: rates.Rates, device: torch.device) -> list[Inputs]:
    """Queries and keys as they were captured, and in float8 with scales; a GPU that multiplies none has the first."""
    if device.type == "cuda" and FP8 not in machine.tflops:
        print(f"this GPU multiplies no {FP8}: left out")
        return [captured]
    (q, q_scale), (k, k_scale) = (quantised(values.float()) for values in (captured.q, captured.k))
    return [captured, Inputs(q, k, captured.w, q_scale, k_scale)]


def cases_of(inputs: Inputs, options: argparse.Namespace, device: torch.device) -> list[index.Case]:
    """What is timed of a layer in one dtype; all queries in prefill, the last group in decode."""
    (rows, heads, width), keys = inputs.q.shape, len(inputs.k)
    topk = options.topk or max(1, min(2048, keys // 16))
    sizes = {"heads": heads, "dim": width, "topk": topk, "budget": options.budget or 2 * topk, "group": options.group}
    if keys - rows < sizes["budget"]:
        raise ValueError(f"the first query sees {keys - rows + 1:,} keys: more than budget, {sizes['budget']:,}, must")
    scan, prefill = (index.Case(kind, rows, keys, dtype_of(inputs), **sizes) for kind in ("scan", "prefill"))
    found = [prefill, prefill._replace(kind="decode", T=options.group)]
    if device.type == "cuda":
        found.insert(0, scan)
    if inputs.q_scale is None:  # float8 has float32 scores as well, of which the top-k is the same work
        found.insert(0, index.Case("select", rows, keys, "float32", scores="captured", **sizes))
    return found


def dtype_of(inputs: Inputs) -> str:
    return str(inputs.q.dtype).removeprefix("torch.")


def checks_of(inputs: Inputs, case: index.Case) -> dict:
    """Which rows of a selection of these inputs the contract does not allow, by what is timed."""
    rows = oracle.Rows(inputs.q, inputs.k, inputs.w, *inputs.bounds, inputs.q_scale, inputs.k_scale)
    window, phase = case.group, "decode" if case.kind == "decode" else "prefill"
    judges = (
        lambda found: oracle.dense(found, rows, case.topk),
        lambda found: oracle.reuse(found, rows, case.topk, case.group),
        lambda found: oracle.refine(found, rows, case.topk, case.group, case.budget, window, phase),
    )
    return dict(zip(SELECTIONS, judges, strict=True))


def shown(named: dict, records: list[dict]) -> list[dict]:
    """The records with what they were measured on, after they were printed."""
    for record, line in zip(records, table.lines_of(records)):
        print(f"    {record['kind']:<8} {record['dtype']:<14} {line}", flush=True)
    return [{**named, **record} for record in records]


def command(options: argparse.Namespace) -> str:
    """How to make the numbers again, without places of this machine."""
    standard, parts = vars(parser().parse_args([])), [f"python benchmarks/{NAME}.py"]
    for name in (
        "captures",
        "model",
        "tokens",
        "queries",
        "layers",
        "topk",
        "budget",
        "group",
        "repetitions",
        "record",
    ):
        value = getattr(options, name)
        if value != standard[name]:
            values = value if isinstance(value, list) else [value]
            parts += [f"--{name}", *(Path(one).name if name == "captures" else str(one) for one in values)]
    return " ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
