"""Every public function on small shapes, to be run under NVIDIA's compute-sanitizer: `make sanitize-gpu`, or

    compute-sanitizer --tool memcheck --error-exitcode 1 python tests/qp_kernels/sanitize.py
    compute-sanitizer --tool racecheck --error-exitcode 1 python tests/qp_kernels/sanitize.py

What is computed is compared with the oracle as well. torch's caching allocator is switched off first, so that a read or
write past the end of a tensor is one past the end of an allocation.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fuzz_cases  # noqa: E402
import torch  # noqa: E402

ALL = tuple(fuzz_cases.CALLS)
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
    parser.add_argument("--most", type=int, default=70_001, help="largest V")
    options = parser.parse_args()
    shapes = [shape for shape in SHAPES if shape[1] <= options.most]
    faults, batches = [], 0
    for i, (batch, vocab, dtype, layout, out) in enumerate(shapes):
        for j, (k, p, order, ties) in enumerate(LIMITS):
            case = fuzz_cases.Case(
                seed=1,
                index=len(LIMITS) * i + j,
                device=options.device,
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
                calls=ALL,
            )
            faults += fuzz_cases.check(case)
            batches += 1
            if options.device == "cuda":
                torch.cuda.synchronize()
    for fault in faults:
        print(f"DIFFERS: {fault.call} {fault.words}: {fault.case}")
    print(f"{batches} batches through {', '.join(ALL)}: {f'{len(faults)} differ' if faults else 'no difference'}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
