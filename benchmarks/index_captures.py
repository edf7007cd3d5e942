"""How alike the queries of the default model choose, what Reuse and Refine keep, and what a capture costs.

    python benchmarks/index_captures.py                         8,192 tokens, two minutes on two cores
    python benchmarks/index_captures.py --tokens 8192 32768 --record                    and 32,768: seconds on a GPU

The index is the attention of the layers that see the whole text (`source="attention"`). Queries are runs of 16
neighbours, spread over the second half of the text; topk is a sixteenth of the tokens and Refine's budget twice that,
unless told. `--record` writes data/results/index_captures.json, from a GPU index_captures_gpu.json.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

import activations
from activations import texts
from activations.index_quality import measured, spread_queries
from qp_kernels import results

CHARACTERS_A_TOKEN = 5


def main() -> int:
    options = parser().parse_args()
    lm = activations.load(options.model, device=options.device)
    layers = options.layers or activations.index_layers(lm)
    warm_up(lm, layers)
    records = []
    for n_tokens in options.tokens:
        ids = lm.encode(texts.builtin_text("pydoc", CHARACTERS_A_TOKEN * n_tokens))[:n_tokens]
        if len(ids) < n_tokens:
            raise SystemExit(f"the text has {len(ids):,} tokens only")
        record, _ = captured(lm, ids, layers[-1:], device=options.device)
        records.append(record)
        print(line(record), flush=True)
        positions = spread_queries(n_tokens, options.queries)
        record, captures = captured(lm, ids, layers, device=options.device, positions=positions, mass=True)
        records.append(record)
        print(line(record), flush=True)
        topk = options.topk or n_tokens // 16
        for capture in captures:
            records.append(measured(capture, topk, options.budget or 2 * topk, options.group))
            print(line(records[-1]), flush=True)
    if options.record:
        about = {"model": lm.name, "compute_dtype": str(lm.dtype).removeprefix("torch."), "source": "attention"}
        about |= {"text": f"the beginning of pydoc's topics ({texts.PSF_LICENCE})"}
        command = f"python benchmarks/index_captures.py --tokens {' '.join(map(str, options.tokens))} --record"
        shared = {"device": options.device, "command": command, "folder": options.folder}
        name = "index_captures_gpu" if torch.device(options.device).type == "cuda" else "index_captures"
        print(f"recorded in {results.write(name, records, about=about, **shared).name}")
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--model", default=activations.models.gemma.NAME)
    top.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    top.add_argument("--tokens", type=int, nargs="+", default=[8192])
    top.add_argument("--layers", type=int, nargs="+", help="instead of all that see the whole text")
    top.add_argument("--queries", type=int, default=512)
    top.add_argument("--topk", type=int)
    top.add_argument("--budget", type=int)
    top.add_argument("--group", type=int, default=4)
    top.add_argument("--record", action="store_true")
    top.add_argument("--folder", help="of the file instead of data/results")
    return top


def warm_up(lm, layers: list[int]) -> None:
    """Let a GPU load what it loads once: its libraries for products and attention."""
    ids = lm.encode(texts.builtin_text("pydoc", CHARACTERS_A_TOKEN * 1024))[:1024]
    activations.capture_index(lm, ids, layer=layers[-1:], mass=True)


def captured(lm, ids: torch.Tensor, layers: list[int], *, device: str, **options) -> tuple[dict, list]:
    """Captures of one run, and what it took."""
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    start = time.monotonic()
    found = activations.capture_index(lm, ids, layer=layers, **options)
    if cuda:
        torch.cuda.synchronize()
    seconds = time.monotonic() - start
    peak = torch.cuda.max_memory_allocated() if cuda else process_peak_bytes()
    record = {"kind": "capture", "tokens": len(ids), "layers": " ".join(map(str, layers)), "queries": len(found[0])}
    record |= {"mass": found[0].mass is not None, "capture_s": seconds, "peak_bytes": peak}
    return record, found


def process_peak_bytes() -> int | None:
    """Of the whole process so far, model and libraries included."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def line(record: dict) -> str:
    parts = [f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}" for name, value in record.items()]
    return " · ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
