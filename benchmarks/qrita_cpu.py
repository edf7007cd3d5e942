"""Milliseconds of each Qrita function on the CPU of this machine, torch back-end.

    python benchmarks/qrita_cpu.py [--vocab 262144] [--repeats 21] [--threads 1]

Two kinds of rows: `gauss` (normal logits, sigma 2.5 with an outlying head, peaked as a model's) and `flat` (normal
logits, sigma 0.3, whose nucleus is most of the vocabulary). Median and 95th percentile of whole calls.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from qp_kernels import report
from qp_kernels.qrita import sample, select, top_k_top_p, truncation


def rows(kind: str, batch: int, vocab: int) -> torch.Tensor:
    """[B, V] float32."""
    noise = torch.randn(batch, vocab, generator=torch.Generator().manual_seed(0))
    if kind == "flat":
        return noise * 0.3
    noise *= 2.5
    noise[:, :64] += 12.0
    return noise


def calls(logits: torch.Tensor) -> dict[str, Callable[[], object]]:
    seeds = torch.arange(len(logits))
    out = torch.empty_like(logits)
    return {
        "top_k_top_p k=50": lambda: top_k_top_p(logits, 50),
        "top_k_top_p p=.9": lambda: top_k_top_p(logits, p=0.9),
        "top_k_top_p k=50 p=.9": lambda: top_k_top_p(logits, 50, 0.9),
        "top_k_top_p k=50 p=.9 out": lambda: top_k_top_p(logits, 50, 0.9, out=out),
        "top_k_top_p joint": lambda: top_k_top_p(logits, 50, 0.9, order="joint"),
        "select k=50 p=.9": lambda: select(logits, 50, 0.9),
        "select p=.9, 512 listed": lambda: select(logits, p=0.9, max_candidates=512),
        "sample": lambda: sample(logits, seeds=seeds),
        "sample k=50 p=.9 T=.7": lambda: sample(logits, 50, 0.9, temperature=0.7, seeds=seeds),
        "truncation k=50": lambda: truncation(logits, 50),
    }


def measure(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median and 95th percentile of one call, ms."""
    for _ in range(3):
        call()
    times_ms = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times_ms.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times_ms), statistics.quantiles(times_ms, n=20)[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=262_144)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch, per operation")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(report(), "\n")
    print(f"{'ms a call, V = ' + str(options.vocab):<28}{'logits':<8}{'B':>3}{'median':>10}{'p95':>10}{'a row':>10}")
    for kind in ("gauss", "flat"):
        for batch in (1, 8):
            for name, call in calls(rows(kind, batch, options.vocab)).items():
                median, p95 = measure(call, options.repeats)
                print(f"{name:<28}{kind:<8}{batch:>3}{median:>10.2f}{p95:>10.2f}{median / batch:>10.2f}")


if __name__ == "__main__":
    main()
