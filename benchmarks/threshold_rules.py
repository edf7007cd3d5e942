"""How often a Gaussian threshold hits on live rows, and what it leaves: by its delta, its margin and the temperature.

    python benchmarks/threshold_rules.py --record          about 1,000 rows, some minutes on two CPU cores
    python benchmarks/threshold_rules.py --rows 16         a look at it

Three ways to place t, in the words of qp_kernels/qrita/README.md:

    closed    delta_p = sigma - Q(p), margin in units of sigma
    bounded   the same with the minimum Q(1 - 256/V): what the kernels use
    paper     the delta of `bounded` with the paper's margin, t - margin |t|

`live_rows.py` records what `truncation` says of the same text at four temperatures; this script sorts each row once and
so looks at many thresholds. Moments are those of the kernels' sample. `--record` writes
data/results/threshold_rules.json.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time

import _live
import numpy as np
import torch

from qp_kernels import results
from qp_kernels.qrita import checks, threshold

TEMPERATURES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
PS = (0.5, 0.9, 0.99)
KS = (50, 1000, 5000)
MARGINS = (0.0, 0.1, 0.2, 0.3)
MARGIN = 0.2
RULES = ("closed", "bounded", "paper")


def main() -> int:
    options = parser().parse_args()
    start = time.monotonic()
    found = _live.capture(options.rows, options.device)
    print(f"{found!r}, {time.monotonic() - start:.0f} s", flush=True)
    stats = collections.defaultdict(list)
    for _, logits in _live.chunks(found, "float32", options.device):
        for case, outcome in outcomes(logits.float().cpu()):
            stats[case].append(outcome)
    records = list(map(record, stats.items()))
    for each in records:
        print(*(f"{name} {each[name]:g}" if isinstance(each[name], float) else each[name] for name in SHOWN), sep="  ")
    print(f"{len(found)} rows, {time.monotonic() - start:.0f} s")
    if options.record:
        about = {"rows": len(found), "candidate_buffer": threshold.CANDIDATE_BUFFER}
        about |= {key: found.meta[key] for key in ("model", "text", "compute_dtype", "head_dtype")}
        command = "python benchmarks/threshold_rules.py --record"
        path = results.write("threshold_rules", records, device=options.device, command=command, about=about)
        print(f"recorded in {path.name}")
    return 0


SHOWN = ("rule", "k", "p", "temperature", "margin", "hit_rate", "overflow_rate", "candidates_median")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="of the model")
    top.add_argument("--rows", type=int, default=1016)
    top.add_argument("--record", action="store_true")
    return top


def outcomes(logits: torch.Tensor):
    """((rule, k, p, temperature, margin), (kept, hit, std) of one row) for every case and row of logits [b, V]."""
    rows = -np.sort(-logits.numpy(), axis=-1)  # [b, V], descending
    for temperature in TEMPERATURES:
        heated = logits / temperature
        mean, std = threshold.finite_moments(threshold.sample_columns(heated))
        weights = np.exp((rows - rows[:, :1]).astype(np.float64) / temperature)
        mass = np.cumsum(weights, axis=-1)
        for case in cases(temperature):
            rule, k, p, _, margin = case
            values = place(mean, std, logits, rule, k, p, margin).float().numpy() * np.float32(temperature)
            for i, value in enumerate(values):
                kept = int(np.searchsorted(-rows[i], -value, side="right"))
                share = mass[i, kept - 1] / mass[i, -1] if kept else 0.0
                yield case, (kept, kept >= k if p is None else share >= p, float(std[i]))


def cases(temperature: float):
    for rule in RULES:
        for p in PS:
            yield rule, None, p, temperature, MARGIN
    if temperature == 1.0:
        for margin in MARGINS:
            for k in KS:
                yield "bounded", k, None, temperature, margin
            if margin != MARGIN:
                yield "bounded", None, 0.9, temperature, margin


def place(mean, std, logits, rule, k, p, margin) -> torch.Tensor:
    """t of each row, [b] float64, at the temperature of mean and std."""
    if rule == "closed":
        delta = std - torch.special.ndtri(torch.tensor(p, dtype=torch.float64))
    else:
        delta = threshold.quantile_distance(std, checks.limits(logits, k, p), logits.shape[-1])
    return threshold.threshold(mean, std, delta, margin, "paper" if rule == "paper" else "sigma")


def record(item) -> dict:
    (rule, k, p, temperature, margin), rows = item
    kept, hit, std = map(np.array, zip(*rows, strict=True))
    return {
        "rule": rule,
        "k": k,
        "p": p,
        "temperature": temperature,
        "margin": margin,
        "rows": len(kept),
        "hit_rate": float(hit.mean()),
        "overflow_rate": float((kept > threshold.CANDIDATE_BUFFER).mean()),
        "empty_rate": float((kept == 0).mean()),
        "std_median": float(np.median(std)),
    } | results.quantiles(kept, "candidates")


if __name__ == "__main__":
    sys.exit(main())
