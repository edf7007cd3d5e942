"""Measures the launch table of the Qrita kernels on this machine's GPU, and keeps it for that device: `make tune`.

    python -m qp_kernels.tune                                   every line; a quarter of an hour, mostly compiling
    python -m qp_kernels.tune --quick                           less of it
    python -m qp_kernels.tune --lines "k, then mass" --vocab 151936
    python -m qp_kernels.tune --dry-run                         only measure; --reset forgets what is kept

From the table that comes with this package one thing after another is varied: warps and programs per core, the block,
the search, the depth of queues, the limit of registers. Every candidate must give the same bits as that table before it
is timed, with a cold cache. It replaces what the table says only where that took at least 2 % longer when both were
timed again. The file goes to ~/.cache/qp_kernels/tuned, or $QP_TUNED; QP_TUNED=off ignores what is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch

from . import backend, timing, tuned
from .qrita import configs, top_k_top_p
from .qrita.configs import Config, Line
from .tune_space import STEPS, Card, variations
from .tuned import Tuned, read

__all__ = ["main", "read"]
# What a table is kept for: the default must take this much longer than what replaces it.
MARGIN = 1.02
VOCAB, BATCH = 128_256, 1_024
# Matrices that must fit into half of the memory that is free: rows, result, what it should be, and comparisons.
MATRICES = 6
REPETITIONS, QUICK_REPETITIONS = 20, 8
QUICK_STEPS = ("shape", "block")
FEW_ROWS_TRIED = (1, 2, 3, 4)
# Line -> (sigma, k, p) of calls that it is for.
CALLS = {
    "k": ((2.5, 50, None),),
    "k, then mass": ((2.5, 50, 0.9),),
    "mass": ((4.5, None, 0.9), (2.5, None, 0.5)),
    "many candidates": ((2.5, 1_000, None), (4.5, 1_000, 0.9)),
}


class Call(NamedTuple):
    """A representative call: rows [B, V], which limits, and how it is timed."""

    rows: torch.Tensor
    k: int | None
    p: float | None
    mode: str
    repetitions: int

    def run(self, out: torch.Tensor) -> None:
        top_k_top_p(self.rows, self.k, self.p, out=out)


Score = Callable[[Config], float]
Steps = Callable[[Config, str], list[Config]]


def main(arguments: list[str] | None = None) -> int:
    """Measure and keep; the exit status is 2 without a CUDA device, or for arguments that cannot be."""
    options = parser().parse_args(arguments)
    if not torch.cuda.is_available():
        print(f"no CUDA device ({backend.card_problem() or 'none here'}): there is nothing to tune", file=sys.stderr)
        return 2
    card = Card.of(torch.device("cuda"))
    if options.reset:
        print(f"{card.name}: {'forgotten' if tuned.remove(card.name) else 'nothing was kept'}")
        return 0
    if not options.dry_run and tuned.folder() is None:
        print('QP_TUNED is "off": there is no place to keep what is measured; --dry-run only measures', file=sys.stderr)
        return 2
    print(f"{card.name}: {card.cores} cores, {card.threads} threads and {card.registers:,} registers each", flush=True)
    timing.wake("cuda")
    start = tuned.kept(card.name)
    lines = dict(start.lines if start else configs.TABLE)
    for name in options.lines:
        lines[name] = Line(*(_tuned_side(name, side, card, options) for side in Line._fields))
    few_rows = _few_rows(lines, card, options)
    if options.dry_run:
        print("not written: --dry-run")
        return 0
    path = tuned.write(card.name, Tuned(lines, few_rows))
    configs.kept_for.cache_clear()
    print(f"written to {path}")
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m qp_kernels.tune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(configs.TABLE)
    top.add_argument("--lines", nargs="+", choices=names, default=names, metavar="LINE", help=f"of {names}")
    top.add_argument("--vocab", type=_size, nargs="+", default=[], help=f"sizes of your models, beside {VOCAB:,}")
    top.add_argument("--quick", action="store_true", help=f"vary {' and '.join(QUICK_STEPS)} only, few repetitions")
    top.add_argument("--dry-run", action="store_true", help="measure, and write nothing")
    top.add_argument("--reset", action="store_true", help="forget what is kept for this device, and end")
    return top


def _size(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError
    return value


def descend(default: Config, score: Score, steps: Steps, names: Iterable[str]) -> Config:
    """Vary one thing after another, each around the best so far; then the best or, within MARGIN, the default.

    Args:
        score: Time of a configuration, inf for one that is refused.
        steps: (configuration, name of a step) -> what to try. names: The steps.
    """
    times = {default: score(default)}
    best = default
    for name in names:
        for config in steps(best, name):
            if config not in times:
                times[config] = score(config)
        best = min(times, key=times.__getitem__)
    return choose(default, best, score)


def choose(default: Config, best: Config, score: Score) -> Config:
    """The best where the default takes at least MARGIN times as long, both timed anew: the least of many is lucky."""
    if best == default:
        return default
    return best if score(default) >= MARGIN * score(best) else default


def _tuned_side(name: str, side: str, card: Card, options: argparse.Namespace) -> Config:
    """The configuration of one side of a line, with a line of the report for each that was tried."""
    default = getattr(configs.TABLE[name], side)
    calls = list(_calls(name, side, card, options))
    wanted = [_result(call, configs.TABLE, _split(side)) for call in calls]
    print(f"\n{name}, {side} rows: {', '.join(_words(call) for call in calls)}", flush=True)
    first: list[float] = []

    def score(config: Config) -> float:
        table = dict(configs.TABLE)
        table[name] = table[name]._replace(**{side: config})
        times = []
        for call, want in zip(calls, wanted, strict=True):
            try:
                times.append(_time(call, want, table, _split(side)))
            except Refused as reason:
                print(f"  {describe(config):<70}{reason}", flush=True)
                return math.inf
        mean = _mean(times)
        first.append(mean)
        print(f"  {describe(config):<70}{mean:>9.1f} us{mean / first[0] - 1:>+8.1%}", flush=True)
        return mean

    steps = functools.partial(variations, default=default, side=side, card=card, crowd=name == "many candidates")
    chosen = descend(default, score, steps, QUICK_STEPS if options.quick else STEPS)
    print(f"  {'stays' if chosen == default else 'becomes'} {describe(chosen)}", flush=True)
    return chosen


class Refused(Exception):
    """A configuration that does not run here, or gives other bits."""


def _time(call: Call, want: torch.Tensor, table: dict[str, Line], few_rows: float) -> float:
    try:
        if not _same(_result(call, table, few_rows), want):
            raise Refused("other bits")
        with using(table, few_rows):
            out = torch.empty_like(call.rows)
            return timing.measure(
                lambda: call.run(out), device=call.rows.device, mode=call.mode, repetitions=call.repetitions
            ).median_us
    except (RuntimeError, *_triton_errors()) as error:
        raise Refused(str(error).partition("\n")[0][:60]) from error


def _triton_errors() -> tuple[type[Exception], ...]:
    from triton.errors import TritonError

    return (TritonError,)


def _result(call: Call, table: dict[str, Line], few_rows: float) -> torch.Tensor:
    out = torch.full_like(call.rows, math.nan)
    with using(table, few_rows):
        call.run(out)
    return out


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@contextlib.contextmanager
def using(table: dict[str, Line], few_rows: float) -> Iterator[None]:
    """Let launches go by another table, whatever is kept for the device."""
    before = configs.TABLE, configs.FEW_ROWS, configs.kept_for
    configs.TABLE, configs.FEW_ROWS, configs.kept_for = table, few_rows, lambda device_name: None
    try:
        yield
    finally:
        configs.TABLE, configs.FEW_ROWS, configs.kept_for = before


def _split(side: str) -> float:
    """Rows per core up to which rows are split, so that one side alone is measured."""
    return math.inf if side == "few" else 0


def _calls(name: str, side: str, card: Card, options: argparse.Namespace) -> Iterator[Call]:
    vocabs = list(dict.fromkeys([VOCAB, *options.vocab]))
    limits = CALLS[name][: 1 if options.quick else None]
    for vocab in vocabs:
        for sigma, k, p in limits:
            if k is not None and k >= vocab:
                continue
            batches = (1, 16, card.cores) if side == "few" else (BATCH,)
            for batch in batches:
                yield _call(batch, vocab, sigma, k, p, "graph" if side == "few" else "gpu", options)


def _call(
    batch: int, vocab: int, sigma: float, k: int | None, p: float | None, mode: str, options: argparse.Namespace
) -> Call:
    """A call on rows that are the same in every run; fewer where memory is short."""
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    batch = max(1, min(batch, free // 2 // (MATRICES * 4 * vocab)))
    generator = torch.Generator("cuda").manual_seed(0)
    rows = torch.randn(batch, vocab, generator=generator, device="cuda").mul_(sigma)
    return Call(rows, k, p, mode, QUICK_REPETITIONS if options.quick else REPETITIONS)


def _few_rows(lines: dict[str, Line], card: Card, options: argparse.Namespace) -> int:
    """Rows per core up to which splitting pays, from batches of that many times the cores."""
    print("\nrows per core, each split over programs and whole:", flush=True)
    times: dict[tuple[int, bool], float] = {}
    for rows in FEW_ROWS_TRIED:
        call = _call(rows * card.cores, VOCAB, 2.5, 50, 0.9, "graph", options)
        want = _result(call, configs.TABLE, 0)
        for is_split in (True, False):
            try:
                times[rows, is_split] = _time(call, want, lines, math.inf if is_split else 0)
            except Refused as reason:
                print(f"  {reason}", flush=True)
                times[rows, is_split] = math.inf
        print(f"  {rows}{times[rows, True]:>12.1f} us{times[rows, False]:>12.1f} us", flush=True)
    chosen = few_rows_of(times)
    print(f"  {'stays' if chosen == configs.FEW_ROWS else 'becomes'} {chosen}", flush=True)
    return chosen


def few_rows_of(times: dict[tuple[int, bool], float]) -> int:
    """The number of rows per core up to which rows are split that makes the mean of all times least.

    Args:
        times: (rows per core, whether they are split) -> time.
    """
    numbers = sorted({rows for rows, _ in times})
    means = {limit: _mean([times[rows, rows <= limit] for rows in numbers]) for limit in numbers}
    best = min(means, key=means.__getitem__)
    default = means.get(configs.FEW_ROWS, math.inf)
    return best if default >= MARGIN * means[best] else configs.FEW_ROWS


def _mean(times: list[float]) -> float:
    """The geometric mean: every call counts the same, however long it takes."""
    return math.exp(sum(map(math.log, times)) / len(times))


def describe(config: Config) -> str:
    """A configuration in a line.

    >>> describe(Config(8, 2_048, 512, 16, 4, 64))
    '8 warps, block 2048, search 512, depth 16, 4 a core, 64 registers'
    """
    registers = "any" if config.registers is None else config.registers
    search = f"search {config.search_block}"
    return (
        f"{config.warps} warps, block {config.block}, {search}, depth {config.depth}, "
        f"{config.per_core} a core, {registers} registers"
    )


def _words(call: Call) -> str:
    batch, vocab = call.rows.shape
    limits = [f"{name} = {value:g}" for name, value in (("k", call.k), ("p", call.p)) if value is not None]
    return f"{batch:,} × {vocab:,} {', '.join(limits)}"


if __name__ == "__main__":
    sys.exit(main())
