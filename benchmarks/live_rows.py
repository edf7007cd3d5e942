"""The contract, and the hits of the Gaussian threshold, on live rows of the default model.

    python benchmarks/live_rows.py --backend triton --record          about 1,000 rows, minutes on a data-centre GPU
    python benchmarks/live_rows.py --device cpu --rows 4 --few        a look at it without one

For temperatures 1, .6, .4 and 1.5 every k, every p and every pair of them is cut by `top_k_top_p` from logits / T and
compared with the float64 oracle of the tests; `sample` is checked with the temperature as its own argument; and
`truncation` tells how often its threshold hits and how many candidates it leaves, by rule. `--record` writes
data/results/live_contract.json and data/results/truncation_hits.json. The exit status is 1 where a row breaks the
contract.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "qp_kernels"))

import _live  # noqa: E402
import oracle_torch  # noqa: E402

from qp_kernels import backend, results  # noqa: E402
from qp_kernels.qrita import philox, sample, threshold, top_k_top_p, truncation  # noqa: E402

TEMPERATURES = (1.0, 0.6, 0.4, 1.5)
KS = (1, 10, 50, 200, 1000, 5000)
PS = (0.5, 0.9, 0.95, 0.99, 0.999)
RULES = ("sigma", "paper")
MARGIN = 0.2
SAMPLED = ((None, None), (50, None), (None, 0.9), (200, 0.95), (1000, 0.999))
JOINT = ((50, 0.9), (200, 0.95), (1000, 0.99))


def main() -> int:
    options = parser().parse_args()
    start = time.monotonic()
    print(f"{options.device}: {backend.resolve(options.device, options.backend)}", flush=True)
    found = _live.capture(options.rows, options.device)
    print(f"{found!r}, {time.monotonic() - start:.0f} s", flush=True)
    survey = Survey(options)
    for dtype in options.logits:
        for _, logits in _live.chunks(found, dtype, options.device):
            for temperature in options.temperatures:
                survey.rows(logits, dtype, temperature)
        print(f"{dtype}: {time.monotonic() - start:.0f} s", flush=True)
    broken = sum(record["broken"] for record in survey.contract())
    print(survey.table())
    cases = len(survey.contract())
    print(f"{len(found)} rows, {cases} cases: {broken} rows break the contract; {time.monotonic() - start:.0f} s")
    if options.record:
        about = {"backend": backend.resolve(options.device, options.backend).name, "rows": len(found)}
        about |= {key: found.meta[key] for key in ("model", "text", "compute_dtype", "head_dtype")}
        write(survey, options, about)
    return int(broken > 0)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    top.add_argument("--backend", default="auto", choices=backend.BACKENDS)
    top.add_argument("--rows", type=int, default=1016)
    top.add_argument("--few", action="store_true", help="two values of k and p only")
    top.add_argument("--temperatures", type=float, nargs="+", default=TEMPERATURES)
    top.add_argument("--logits", nargs="+", default=["float32", "model"], help="of a float32 head, of the model's own")
    top.add_argument("--record", action="store_true")
    top.add_argument("--folder", help="of the files instead of data/results")
    return top


class Survey:
    """Counts by case, over all chunks of rows."""

    def __init__(self, options):
        self.options = options
        self.ks, self.ps = ((50, 1000), (0.9, 0.99)) if options.few else (KS, PS)
        self.broken = collections.defaultdict(collections.Counter)  # case -> reasons
        self.stats = collections.defaultdict(list)  # case -> [(kept, hit, overflow)]

    def rows(self, logits: torch.Tensor, dtype: str, temperature: float) -> None:
        by = self.options.backend
        heated = logits if temperature == 1 else (logits.float() / temperature).to(logits.dtype)
        for k, p in itertools.product((None, *self.ks), (None, *self.ps)):
            if k is None and p is None:
                continue
            out = top_k_top_p(heated, k, p, backend=by)
            code, _ = oracle_torch.check_mask(heated, out, k, p)
            self.count(("mask", dtype, temperature, k, p), code)
        self.mixed(heated, dtype, temperature)
        seeds = torch.arange(len(logits), device=logits.device) * 7919 + int(temperature * 100)
        for k, p in SAMPLED[:2] if self.options.few else SAMPLED:
            token = sample(logits, k, p, temperature=temperature, seeds=seeds, backend=by)
            code = oracle_torch.check_token(logits, token, philox.uniform(seeds), k, p, temperature)
            self.count(("sample", dtype, temperature, k, p), code)
        if dtype == "float32":
            self.hits(heated, temperature)

    def mixed(self, heated: torch.Tensor, dtype: str, temperature: float) -> None:
        """k and p of every row its own, as in a batch of requests."""
        k = torch.tensor((0, *self.ks), device=heated.device).repeat(len(heated))[: len(heated)]
        p = torch.tensor((1.0, *self.ps), device=heated.device).repeat_interleave(2).repeat(len(heated))[: len(heated)]
        code, _ = oracle_torch.check_mask(heated, top_k_top_p(heated, k, p, backend=self.options.backend), k, p)
        self.count(("mask, k and p per row", dtype, temperature, None, None), code)

    def hits(self, heated: torch.Tensor, temperature: float) -> None:
        alone = [(k, None, "k_then_p") for k in self.ks] + [(None, p, "k_then_p") for p in self.ps]
        for (k, p, order), rule in itertools.product([*alone, *((k, p, "joint") for k, p in JOINT)], RULES):
            limits = {"k": k, "p": p, "order": order, "rule": rule, "margin": MARGIN}
            stats = truncation(heated, **limits, backend=self.options.backend)
            code = oracle_torch.check_truncation(heated, stats, **limits, buffer=threshold.CANDIDATE_BUFFER)
            self.count(("truncation", "float32", temperature, k, p), code)
            self.stats[rule, order, k, p, temperature].append(
                tuple(field.cpu() for field in (stats.kept, stats.hit, stats.overflow))
            )

    def count(self, case: tuple, code: torch.Tensor) -> None:
        reasons = collections.Counter(oracle_torch.REASONS[i] for i in code.tolist())
        self.broken[case].update(reasons)

    def contract(self) -> list[dict]:
        records = []
        for (call, dtype, temperature, k, p), reasons in self.broken.items():
            record = {"call": call, "logits": dtype, "temperature": temperature, "k": k, "p": p}
            bad = {words: count for words, count in reasons.items() if words}
            why = "; ".join(f"{words}: {count}" for words, count in bad.items())
            records.append({**record, "rows": reasons.total(), "broken": sum(bad.values()), "why": why})
        return records

    def truncations(self) -> list[dict]:
        records = []
        for (rule, order, k, p, temperature), parts in self.stats.items():
            kept, hit, overflow = (torch.cat(field) for field in zip(*parts))
            record = {"rule": rule, "order": order, "k": k, "p": p, "temperature": temperature, "rows": len(kept)}
            record |= {"hit_rate": hit.double().mean().item(), "overflow_rate": overflow.double().mean().item()}
            records.append(record | results.quantiles(kept.numpy(), "candidates"))
        return records

    def table(self) -> str:
        lines = [
            f"{'T':>4}{'k':>6}{'p':>7}{'order':>10}" + "".join(f"{rule + ' hit':>11}{'median':>9}" for rule in RULES)
        ]
        rows = {(r["temperature"], r["k"], r["p"], r["order"], r["rule"]): r for r in self.truncations()}
        for temperature, k, p, order in dict.fromkeys(key[:4] for key in rows):
            line = f"{temperature:>4}{k or '-':>6}{p or '-':>7}{order:>10}"
            for rule in RULES:
                row = rows[temperature, k, p, order, rule]
                line += f"{row['hit_rate']:>11.1%}{row['candidates_median']:>9,.0f}"
            lines.append(line)
        bad = [record for record in self.contract() if record["broken"]]
        return "\n".join(lines + [f"BROKEN {record}" for record in bad])


def write(survey: Survey, options, about: dict) -> None:
    command = f"python benchmarks/live_rows.py --backend {options.backend} --record"
    shared = {"device": options.device, "command": command, "folder": options.folder}
    hits = {**about, "margin": MARGIN, "candidate_buffer": threshold.CANDIDATE_BUFFER}
    for name, records, more in (
        ("live_contract", survey.contract(), about),
        ("truncation_hits", survey.truncations(), hits),
    ):
        print(f"recorded in {results.write(name, records, about=more, **shared).name}")


if __name__ == "__main__":
    sys.exit(main())
