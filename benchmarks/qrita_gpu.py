"""All cases of `python -m qp_kernels.bench`, with those on rows of the default model: about 1,000 distinct ones.

    python benchmarks/qrita_gpu.py --record bench       on a GPU: data/results/bench.json
    python benchmarks/qrita_gpu.py --rows 8             a look at it without one

--rows says how many rows of the model; all other arguments are those of `python -m qp_kernels.bench`. Cases of 1,024
rows use the first of the 1,016 rows twice. Cases of fewer columns than the model has take its first ones.
"""

from __future__ import annotations

import argparse
import sys
import time

import _live
import torch

from qp_kernels.bench.__main__ import main as bench

PROGRAM = "python benchmarks/qrita_gpu.py"


def main() -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    top.add_argument("--rows", type=int, default=1016 if device == "cuda" else 8)
    options, rest = top.parse_known_args()
    start = time.monotonic()
    found = _live.capture(options.rows, device)
    live = _live.float32(found, device)
    print(f"{found!r}, {time.monotonic() - start:.0f} s", flush=True)
    about = {key: found.meta[key] for key in ("model", "text", "compute_dtype", "head_dtype")}
    return bench(rest, live=live, about=about, program=PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
