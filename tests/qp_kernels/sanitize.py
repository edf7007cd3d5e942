"""Every public function on small shapes, to be run under NVIDIA's compute-sanitizer: `make sanitize-gpu`, or

    compute-sanitizer --tool memcheck --error-exitcode 1 python tests/qp_kernels/sanitize.py
    compute-sanitizer --tool racecheck --error-exitcode 1 python tests/qp_kernels/sanitize.py

What is computed is compared with the oracle as well. torch's caching allocator is switched off first, so that a read or
write past the end of a tensor is one past the end of an allocation.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fuzz_cases  # noqa: E402
import fuzz_index_cases  # noqa: E402
import oracle_torch  # noqa: E402
import score_rows  # noqa: E402
import torch  # noqa: E402

from qp_kernels.attention import sparse_attention  # noqa: E402
from qp_kernels.qrita import configs, philox, sample, select, top_k_top_p, truncation  # noqa: E402
from qp_kernels.qrita.threshold import CANDIDATE_BUFFER  # noqa: E402

# (B, V, dtype, layout, out): a program's edges, one and several tiles, rows that several programs share, strides.
SHAPES = (
    (1, 1, "float32", "contiguous", "none"),
    (3, 7, "float16", "odd_offset", "in place"),
    (2, 512, "bfloat16", "contiguous", "padded_rows"),
    (3, 513, "float32", "transposed", "none"),
    (5, 2053, "float32", "padded_rows", "in place"),
    (2, 8193, "bfloat16", "every_second_column", "none"),
    (2, 20_011, "float32", "contiguous", "odd_offset"),
    (1, 70_001, "float32", "contiguous", "in place"),
)
FAMILIES = ("gaussian", "few_values", "sample_misleads", "nans")
# Index selection: (family, dtype, bounds, scales, T, N, H, D, topk): short rows, long ones that are marked, tables of
# bounds, heads in several products.
PROBLEMS = (
    ("uniform", "float32", "packed", "both", 9, 70, 3, 20, 6),
    ("uniform", "float8", "default", "keys", 6, 300, 64, 128, 40),
    ("sparse", "bfloat16", "default", "none", 4, 9_001, 8, 64, 300),
    ("uniform", "float16", "ragged", "none", 5, 9_001, 300, 16, 3_000),
)
# (family, columns, limit): what a threshold leaves is held in registers, in memory, too few or too many.
SCORES = (
    ("gaussian", 20_000, 2_048),
    ("gaussian", 20_000, 6_000),
    ("few_integers", 20_000, 5),
    ("mostly_nan", 9_001, 700),
)
# (T, Hq, Hkv, D, Dv, N, topk); Dv < 0: values are columns of the keys.
ATTENTION = ((4, 6, 2, 20, 9, 30, 70), (3, 16, 1, 48, -32, 200, 130))
# (k, p, order, ties)
LIMITS = (
    ("rows", "none", "k_then_p", "index"),
    ("none", "rows", "k_then_p", "index"),
    ("number", "number", "k_then_p", "index"),
    ("rows", "rows", "joint", "index"),
    ("rows", "rows", "k_then_p", "all"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--most", type=int, default=70_001, help="largest V, and number of keys")
    parser.add_argument("--what", choices=("all", "qrita", "index"), default="all")
    options = parser.parse_args()
    shapes = [shape for shape in SHAPES if shape[1] <= options.most and options.what != "index"]
    found, batches = [], 0
    for i, (batch, vocab, dtype, layout, out) in enumerate(shapes):
        configs.FEW_ROWS = 2 * (i % 2)  # rows whole and split in turn
        for j, (k, p, order, ties) in enumerate(LIMITS):
            case = fuzz_cases.Case(
                seed=1,
                index=len(LIMITS) * i + j,
                device="cpu",
                backend=options.backend,
                family=FAMILIES[(i + j) % len(FAMILIES)],
                dtype=dtype,
                batch=batch,
                vocab=vocab,
                layout=layout,
                k=k,
                p=p,
                order=order,
                ties=ties,
                out=out,
                calls=(),
            )
            found += [f"{call} {words}: {case}" for call, words in faults(case, options.device)]
            batches += 1
    selections, differ = index_faults(options) if options.what != "qrita" else (0, [])
    found += differ
    print("\n".join(f"DIFFERS: {line}" for line in found))
    print(f"{selections} calls of index selection and sparse attention")
    print(f"{batches} batches through the four functions: {f'{len(found)} differ' if found else 'no difference'}")
    return int(bool(found))


def faults(case: fuzz_cases.Case, device: str) -> list[tuple[str, str]]:
    """Call everything on the device with rows made on the CPU; what differs from the oracle, which runs on the CPU.

    Under the sanitizer every other kernel that is loaded costs seconds, so nothing else runs on the device.
    """
    batch = fuzz_cases.Batch(case)
    limits = {name: moved(value, device) for name, value in batch.limits.items()}
    draw = {name: moved(value, device) for name, value in batch.draw.items()}
    by = {"backend": case.backend}

    def rows() -> torch.Tensor:
        return in_place(batch.buffer, batch.logits, device)

    out = None
    if case.out not in ("none", "in place"):
        out = in_place(*fuzz_cases.guarded(case.out, case, batch.dtype), device)
    logits = rows()
    masked = top_k_top_p(
        logits, **limits, order=case.order, ties=case.ties, out=logits if case.out == "in place" else out, **by
    )
    by_index = top_k_top_p(rows(), **limits, order=case.order, **by)
    found = select(rows(), **limits, order=case.order, max_candidates=64, **by)
    tokens = sample(rows(), **limits, **draw, **by)
    stats = truncation(rows(), **limits, order=case.order, **by)
    if device == "cuda":
        torch.cuda.synchronize()
    kept = by_index.cpu() > -math.inf
    u, heat = philox.uniform(batch.draw["seeds"]), batch.draw["temperature"]
    stats = type(stats)(*(field.cpu() for field in stats))
    ordered = {**batch.limits, "order": case.order}
    codes = {
        "top_k_top_p": oracle_torch.check_mask(batch.logits, masked.cpu(), **ordered, ties=case.ties)[0],
        "select": oracle_torch.check_listed(batch.logits, kept, *(field.cpu() for field in found)),
        "sample": oracle_torch.check_token(batch.logits, tokens.cpu(), u, **batch.limits, temperature=heat),
        "truncation": oracle_torch.check_truncation(batch.logits, stats, **ordered, buffer=CANDIDATE_BUFFER),
    }
    return [(call, oracle_torch.REASONS[int(code.max())]) for call, code in codes.items() if code.any()]


def index_faults(options) -> tuple[int, list[str]]:
    """Index selection and attention over it: how many calls, and those that differ from the reference on the CPU."""
    device, by = options.device, options.backend
    calls, differ = 0, []
    for i, (family, dtype, bounds, scales, rows, keys, heads, width, topk) in enumerate(PROBLEMS):
        if keys > options.most:
            continue
        group = {"group": 3, "guard": False, "window": 5}
        budget = topk + 30
        settings = {
            "dense": {},
            "reuse": {**group, "mode": "reuse"},
            "refine": {**group, "budget": budget},
            "refine_decode": {**group, "phase": "decode", "budget": topk},
            "hisa": {"block": 16, "blocks": topk // 16 + 3},
            "misa": {"heads": 2, "block": 16, "rerank": topk + 3},
        }
        shape = {"rows": rows, "keys": keys, "heads": heads, "width": width, "topk": topk, "max_bytes": 1 << 29}
        kinds = {"family": family, "dtype": dtype, "bounds": bounds, "scales": scales}
        case = fuzz_index_cases.Case(seed=1, index=i, device="cpu", settings=settings, **kinds, **shape)
        for fault in fuzz_index_cases.check(case, by, device):
            differ.append(f"{fault.call}: {case}")
        calls += len(settings)
    for family, columns, limit in SCORES if by == "triton" else ():
        from qp_kernels.pivot import selection

        rng = torch.Generator().manual_seed(columns)
        scores = getattr(score_rows, family)(rng, 2, columns)
        got = selection.topk_of_scores(scores.to(device), limit).cpu()
        if not torch.equal(got, score_rows.sorted_best(scores, limit)):
            differ.append(f"topk_of_scores: {family} {columns} {limit}")
        calls += 1
    if by == "triton":  # a view whose last row ends before a whole tile does, at the end of its memory
        memory = torch.randn(2, 16_384, generator=torch.Generator().manual_seed(0))
        got = selection.topk_of_scores(memory.to(device)[:, 6_000:], 2_048).cpu()
        if not torch.equal(got, score_rows.sorted_best(memory[:, 6_000:], 2_048)):
            differ.append("topk_of_scores: a view")
        calls += 1
    for rows, heads, kv_heads, width, values, keys, topk in ATTENTION:
        rng = torch.Generator().manual_seed(keys)
        q, k = (torch.randn(shape, generator=rng) for shape in ((rows, heads, width), (keys, kv_heads, width)))
        v = k[..., :-values] if values < 0 else torch.randn(keys, kv_heads, values, generator=rng)
        indices = torch.randint(-1, keys, (rows, topk), generator=rng, dtype=torch.int32)
        there = k.to(device)
        v_there = there[..., :-values] if values < 0 else v.to(device)
        got = sparse_attention(q.to(device), there, v_there, indices.to(device), scale=0.2, backend=by).cpu()
        want = sparse_attention(q, k, v, indices, scale=0.2, backend="torch")
        if not torch.allclose(got, want, rtol=1e-4, atol=1e-4):
            differ.append(f"sparse_attention: q {list(q.shape)}, v {list(v.shape)}")
        calls += 1
    return calls, differ


def moved(value, device: str):
    return value.to(device) if isinstance(value, torch.Tensor) else value


def in_place(buffer: torch.Tensor, view: torch.Tensor, device: str) -> torch.Tensor:
    """The view of a copy of its buffer on the device."""
    copy = buffer.clone() if buffer.device.type == device else buffer.to(device)
    return copy.as_strided(view.size(), view.stride(), view.storage_offset())


if __name__ == "__main__":
    sys.exit(main())
