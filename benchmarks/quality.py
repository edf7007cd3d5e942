"""What does each selection of keys cost a model, beside full attention: loss on passages, answers to generated tasks?

    python benchmarks/quality.py --lengths 1024 --topk 64 --samples 5 --systems dense refine reuse    minutes on a CPU
    python benchmarks/quality.py --record                                  2K to 32K, every system: for a GPU

The layers that see the whole text attend to selected keys only, in prefill and decode. The index is their own queries
and keys, or with `--source attention distilled` also the indexers that `make indexers` trained. A task counts only at
lengths where full attention answers 60 % of the examples; else no other system is asked. Shares have Wilson intervals,
means bootstrap intervals, both of 95 %; differences from full attention are paired. Nothing is chosen by what is
measured here: the greedy pattern of IndexCache is found on passages of another split. `--record` writes
data/results/quality.json after each task and kind of passage; `--seconds` ends early, `--resume` goes on from there.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator

import torch

import activations
from activations import passages, quality, tasks, texts
from activations.selection import Selection, systems
from qp_kernels import results
from qp_kernels.intervals import bootstrap, wilson
from qp_kernels.pivot import index_cache_greedy

CALIBRATION = 4  # passages of each kind that the greedy pattern is found on
KEPT = 2  # layers that select in it
GREEDY = "index cache greedy"


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(given)
    lm = activations.load(options.model, device=options.device, dtype=options.dtype)
    layers = options.layers or activations.index_layers(lm)
    about = {"model": lm.name, "compute_dtype": str(lm.dtype).removeprefix("torch.")}
    about |= {"layers": " ".join(map(str, layers)), "samples": options.samples, "first_seed": options.seed}
    about |= {"level": 0.95, "counts_from": quality.COUNTS_FROM, "chunk": options.chunk, "texts": texts.PSF_LICENCE}
    chosen, indexers = {}, {"attention": None}
    if "distilled" in options.source:
        indexers["distilled"] = activations.distilled_indexers(lm, layers, options.indexers)
    for source, topk in itertools.product(options.source, options.topk):
        if lengths := [length for length in options.lengths if length > topk]:
            shared = {"layers": layers, "indexers": indexers[source], "chunk": options.chunk}
            some = chosen_systems(lm, shared, topk, min(lengths), options)
            chosen[source, topk] = (some, shared)
            if GREEDY in some:
                about[f"greedy_pattern_{source}_{topk}"] = some[GREEDY].pattern
    command = f"python benchmarks/quality.py {' '.join(told(given))}".strip()
    records = earlier(options, about)
    end = time.monotonic() + (options.seconds or float("inf"))
    for length, (kind, name) in itertools.product(options.lengths, named(options)):
        went_on = fill(records, lm, chosen, {"kind": kind, "name": name, "length": length}, end, options)
        if records and options.record:
            origin = {"about": about, "device": options.device, "command": command}
            results.write(options.record, records, folder=options.folder, **origin)
        if not went_on:
            print(f"{options.seconds:g} seconds are over: --resume goes on from here")
            break
    for source, topk in chosen:
        print(averages(records, source, topk), flush=True)
    return 0


def fill(records: list[dict], lm, chosen: dict, what: dict, end: float, options) -> bool:
    """Add the records of a task or kind of passage at a length; False where time was over before all were begun."""
    items = None
    for (source, topk), (some, shared) in chosen.items():
        if topk >= what["length"]:  # every key
            continue
        if time.monotonic() > end:
            return False
        items = items or samples(lm, what["kind"], what["name"], what["length"], options)
        for record in compared(lm, some, shared, {**what, "topk": topk, "source": source}, items, records):
            records.append(record)
            if time.monotonic() > end:
                break
    return True


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    top.add_argument("--model", default=activations.models.gemma.NAME)
    top.add_argument("--device", default="cuda" if cuda else "cpu")
    top.add_argument("--dtype", default="auto")
    top.add_argument("--layers", type=int, nargs="+", help="instead of all that see the whole text")
    top.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192, 16384, 32768], help="in tokens")
    top.add_argument("--topk", type=int, nargs="+", default=[256, 512, 2048])
    top.add_argument(
        "--source", nargs="+", choices=("attention", "distilled"), default=["attention"], help="of the index"
    )
    top.add_argument("--indexers", help="folder of distilled ones, instead of data/indexers")
    top.add_argument("--systems", nargs="+", metavar="NAME", help="instead of all; always with 'full'")
    top.add_argument("--tasks", nargs="*", default=list(tasks.TASKS), choices=tasks.TASKS)
    top.add_argument("--passages", nargs="*", default=list(passages.KINDS), choices=passages.KINDS)
    top.add_argument("--samples", type=int, default=20, help="of each task, and of each kind of passage")
    top.add_argument("--seed", type=int, default=0, help="of the first sample; the next ones follow")
    top.add_argument("--chunk", type=int, default=4096 if cuda else 512, help="tokens read at once")
    top.add_argument("--seconds", type=float, help="after which nothing new is begun")
    top.add_argument("--resume", action="store_true", help="keep what the record has of the same model and samples")
    top.add_argument("--record", nargs="?", const="quality", metavar="NAME", help="write data/results/NAME.json")
    top.add_argument("--folder", help="of the file instead of data/results")
    return top


def told(given: list[str]) -> list[str]:
    """The arguments as others can use them: quoted, and without a place or the patience of this machine."""
    found = list(given)
    for name, values in (("--folder", 1), ("--indexers", 1), ("--seconds", 1), ("--resume", 0)):
        if name in found:
            at = found.index(name)
            del found[at : at + 1 + values]
    return [f"'{word}'" if " " in word else word for word in found]


def earlier(options, about: dict) -> list[dict]:
    """Records to go on from."""
    if not options.resume:
        return []
    if not options.record:
        raise SystemExit("--resume goes on from a record: say --record too")
    if options.record not in results.names(folder=options.folder):
        return []
    there = results.read(options.record, folder=options.folder)
    if differs := [name for name, value in about.items() if there.about.get(name) != value]:
        raise SystemExit(f"{options.record} was made with another {', '.join(differs)}: record under another name")
    return there.records


def chosen_systems(lm, shared: dict, topk: int, length: int, options) -> dict[str, Selection]:
    """The systems asked for, full attention first; the greedy pattern is found only if its system is among them."""
    known = systems(topk, len(shared["layers"]))
    asked = options.systems or [*known, *[GREEDY] * (len(shared["layers"]) > KEPT)]
    if unknown := set(asked) - {*known, GREEDY}:
        raise SystemExit(f"there is no system {sorted(unknown)[0]!r}; there are {', '.join([*known, GREEDY])}")
    if GREEDY in asked:
        known = systems(topk, len(shared["layers"]), greedy=greedy_pattern(lm, shared, topk, length))
    return {name: one for name, one in known.items() if name == "full" or name in asked}


def greedy_pattern(lm, shared: dict, topk: int, length: int) -> str:
    """IndexCache's pattern by loss on the training split, at the shortest length at which something is selected."""
    seeds = range(CALIBRATION)
    given = [
        passages.passage(lm.encode, kind, length, seed, split="training")
        for kind in ("prose", "few-shot")
        for seed in seeds
    ]

    def loss(pattern: str) -> float:
        selection = Selection("dense", topk, pattern=pattern)
        losses = quality.passage_losses(lm, given, selection, **shared)
        return sum(losses) / len(losses)

    count = len(shared["layers"])
    return index_cache_greedy(loss, count, min(KEPT, count))


def named(options) -> list[tuple[str, str]]:
    """("task" or "passage", its name) of everything that is asked at a length."""
    return [("task", name) for name in options.tasks] + [("passage", name) for name in options.passages]


def samples(lm, kind: str, name: str, length: int, options) -> list:
    make = tasks.example if kind == "task" else passages.passage
    return [make(lm.encode, name, length, seed) for seed in range(options.seed, options.seed + options.samples)]


def compared(lm, chosen: dict, shared: dict, what: dict, items: list, records: list[dict]) -> Iterator[dict]:
    """New records of the systems, full attention first. It is asked once for all sources and topk."""
    kind, full = what["kind"], None
    ask, scores = (quality.answers, task_scores) if kind == "task" else (quality.passage_losses, passage_scores)
    for system, selection in chosen.items():
        this = {**what, "system": system, "label": selection.label}
        known = one_of(records, this)
        same = one_of(records, {**this, "topk": None, "source": None}) if system == "full" else None
        record = known or {**(same or {}), **this}
        if "loss" not in record:
            start = time.monotonic()
            given = ask(lm, items, selection, **shared)
            record |= {**scores(given, full), "seconds": time.monotonic() - start}
        full = full or record
        record["counts"] = kind == "passage" or full["accuracy"] >= quality.COUNTS_FROM
        if known is None:
            print(line(record), flush=True)
            yield record
        if not record["counts"]:
            print(f"{what['name']} at {what['length']:,} tokens does not count: full attention answers too few")
            break


def one_of(records: list[dict], what: dict) -> dict | None:
    """The first record of these fields; those that are None may be anything."""
    keys = [key for key, value in what.items() if value is not None]
    return next((record for record in records if all(record[key] == what[key] for key in keys)), None)


def task_scores(given: list[quality.Answer], full: dict | None) -> dict:
    right = [int(answer.right) for answer in given]
    low, high = wilson(sum(right), len(right))
    scores = {"samples": len(right), "right": sum(right), "accuracy": sum(right) / len(right)}
    scores |= {"accuracy_low": low, "accuracy_high": high, "each": " ".join(map(str, right))}
    return {**scores, **losses_of([answer.loss for answer in given], full)}


def passage_scores(given: list[float], full: dict | None) -> dict:
    return {"samples": len(given), **losses_of(given, full)}


def losses_of(losses: list[float], full: dict | None) -> dict:
    """Mean loss with its interval, and how much more than with full attention on the same samples."""
    low, high = bootstrap([losses])
    scores = {"loss": mean(losses), "loss_low": low, "loss_high": high}
    scores["each_loss"] = " ".join(f"{loss:.6f}" for loss in losses)
    if full is None:
        return {**scores, "more": 0.0, "more_low": 0.0, "more_high": 0.0}
    before = [float(loss) for loss in full["each_loss"].split()]
    more = [ours - theirs for ours, theirs in zip(losses, before, strict=True)]
    low, high = bootstrap([more])
    return {**scores, "more": mean(more), "more_low": low, "more_high": high}


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def line(record: dict) -> str:
    words = [f"{record['length']:>6,}", f"{record['name']:<17}", f"{record['system']:<20}"]
    if record["kind"] == "task":
        share = [f"{100 * record[key]:.0f}" for key in ("accuracy", "accuracy_low", "accuracy_high")]
        words.append(f"{share[0]:>3} % [{share[1]}, {share[2]}]")
    words.append(f"loss {record['loss']:.3f}")
    if record["system"] != "full":
        words.append(f"{record['more']:+.3f} [{record['more_low']:+.3f}, {record['more_high']:+.3f}]")
    return "  ".join(words)


def averages(records: list[dict], source: str, topk: int) -> str:
    """By system and length: the mean over tasks that count, and the mean of what passages lose; with intervals."""
    here = [
        record for record in records if (record["source"], record["topk"], record["counts"]) == (source, topk, True)
    ]
    lines = [f"{source}, topk {topk:,}: tasks in %, and nats that passages lose, with 95 % intervals"]
    names = list(dict.fromkeys(record["system"] for record in here))
    # Systems are averaged over the same: what time did not suffice for is left out.
    asked = Counter((record["length"], record["name"]) for record in here)
    here = [record for record in here if asked[record["length"], record["name"]] == len(names)]
    for length in sorted({record["length"] for record in here}):
        for system in names:
            mine = [record for record in here if (record["length"], record["system"]) == (length, system)]
            words = [f"{length:>6,}", f"{system:<20}"]
            right = [[int(one) for one in r["each"].split()] for r in mine if r["kind"] == "task"]
            if right:
                low, high = bootstrap(right)
                words.append(f"{100 * mean([mean(one) for one in right]):5.1f} [{100 * low:.0f}, {100 * high:.0f}]")
            more = [gains(record, records) for record in mine if record["kind"] == "passage"]
            if more:
                low, high = bootstrap(more)
                words.append(f"{mean([mean(one) for one in more]):+.4f} [{low:+.4f}, {high:+.4f}]")
            lines.append("  ".join(words))
    return "\n".join(lines)


def gains(record: dict, records: list[dict]) -> list[float]:
    """How much more loss each passage has than with full attention."""
    full = one_of(
        records, {key: record[key] for key in ("kind", "name", "length", "topk", "source")} | {"system": "full"}
    )
    pairs = zip(record["each_loss"].split(), full["each_loss"].split(), strict=True)
    return [float(ours) - float(theirs) for ours, theirs in pairs]


if __name__ == "__main__":
    sys.exit(main())
