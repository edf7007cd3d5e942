"""What does each selection of keys cost a model, beside full attention: loss on passages, answers to generated tasks?

    python benchmarks/quality.py --lengths 1024 --topk 64 --samples 5 --systems dense refine reuse    minutes on a CPU
    python benchmarks/quality.py --record                                  2K to 32K, every system: for a GPU

The layers that see the whole text attend to selected keys only, in prefill and decode. The index is their own queries
and keys, or with `--source attention distilled` also the indexers that `make indexers` trained. A task counts only at
lengths where full attention answers 60 % of the same examples; else no other system is asked, and full attention looks
a little better than it is. In the record shares have Wilson intervals and means bootstrap intervals, of 95 %, and
differences from full attention are paired; what is printed at the end has those of `activations.quality_records`, which
hold for few samples too. Nothing else is chosen by what is measured here: the greedy pattern of IndexCache is found on
passages of another split. `--record` writes
data/results/quality.json after each answer; `--seconds` ends early, `--resume` goes on from there. One process leaves
a large GPU half idle: `--workers 8` share it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _quality_work as work  # noqa: E402

import activations  # noqa: E402
from activations import passages, quality, tasks, texts  # noqa: E402
from activations.indexer_file import digest_of, indexer_for  # noqa: E402
from activations.quality_records import KINDS, QualityRecords  # noqa: E402
from activations.selection import Selection, systems  # noqa: E402
from qp_kernels import results  # noqa: E402
from qp_kernels.pivot import index_cache_greedy  # noqa: E402

CALIBRATION = 4  # passages of each kind that the greedy pattern is found on
KEPT = 2  # layers that select in it
GREEDY = "index cache greedy"
# Options that change no number of the record, or that `about` tells better, and how many words follow each.
NOT_TOLD = {"--folder": 1, "--indexers": 1, "--seconds": 1, "--workers": 1, "--resume": 0}


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(given)
    lm = activations.load(options.model, device=options.device, dtype=options.dtype)
    layers = options.layers or activations.index_layers(lm)
    about = {"model": lm.name, "compute_dtype": str(lm.dtype).removeprefix("torch.")}
    about |= {"layers": " ".join(map(str, layers)), "samples": options.samples, "first_seed": options.seed}
    about |= {"level": 0.95, "counts_from": quality.COUNTS_FROM, "chunk": options.chunk, "texts": texts.PSF_LICENCE}
    chosen = all_chosen(lm, layers, options)
    if not chosen:
        raise SystemExit("every length is at most topk: there is nothing to select")
    if "distilled" in options.source:
        about["indexers"] = indexers_digest(lm, layers, options.indexers)
    patterns = {key: some[GREEDY].pattern for key, (some, _) in chosen.items() if GREEDY in some}
    about |= {f"greedy_pattern_{source}_{topk}": pattern for (source, topk), pattern in patterns.items()}
    records, about = earlier(options, about)
    origin = {"about": about, "device": options.device, "folder": options.folder}
    origin["command"] = f"python benchmarks/quality.py {' '.join(told(given))}".strip()
    end = time.monotonic() + (options.seconds or float("inf"))
    with ExitStack() as stack:
        if options.workers > 1:
            pool = work.pool_of(options.workers, asker_of, (layers, options, patterns, end))
            ask = work.in_processes(stack.enter_context(pool))
        else:
            ask = work.here(work.Asker(lm, chosen, options.seed, options.samples, end))
        went_on = True
        for record in fill(records, chosen, ask, options):
            went_on &= record is not None
            if options.record and record is not None:
                results.write(options.record, in_order(records, chosen, options), **origin)
    if not went_on:
        print(f"{options.seconds:g} seconds are over: --resume goes on from here")
    found = in_order(records, chosen, options)
    for source, topk in chosen:
        print(averages(found, source, topk), flush=True)
    return 0


def fill(records: list[dict], chosen: dict, ask: work.Ask, options) -> Iterator[dict | None]:
    """Add what is not known yet to the records, and yield each; None for what time did not suffice for.

    Full attention first, once for all sources and topk; then system by system, so that what an early end leaves can be
    compared.
    """
    whole = list(itertools.product(options.lengths, named(options)))
    parts = [{"kind": kind, "name": name, "length": length} for length, (kind, name) in whole]
    parts = [what for what in parts if any(topk < what["length"] for _, topk in chosen)]
    begun = []
    for (what, _), found in ask("full", [(what, one_of(records, {**what, "system": "full"})) for what in parts]):
        if found is None:
            yield None
            continue
        items, full = found
        full["counts"] = what["kind"] == "passage" or full["accuracy"] >= quality.COUNTS_FROM
        for source, topk in chosen:
            this = {**what, "topk": topk, "source": source, "system": "full"}
            if topk < what["length"] and one_of(records, this) is None:
                yield added(records, {**full, **this, "label": "full"})
        if full["counts"]:
            begun.append((what, items, full))
        else:
            print(f"{what['name']} at {what['length']:,} tokens does not count: full attention answers too few")
    begun.sort(key=lambda one: parts.index(one[0]))
    calls = [
        (what, key, system, items, full)
        for system in dict.fromkeys(name for some, _ in chosen.values() for name in some if name != "full")
        for what, items, full in begun
        for key in chosen
        if key[1] < what["length"]  # else every key is kept
        and one_of(records, {**what, "source": key[0], "topk": key[1], "system": system}) is None
    ]
    for (what, key, system, _, _), scores in ask("other", calls):
        if scores is None:
            yield None
            continue
        this = {**what, "topk": key[1], "source": key[0], "system": system, "label": chosen[key][0][system].label}
        yield added(records, {**this, **scores, "counts": True})


def added(records: list[dict], record: dict) -> dict:
    print(line(record), flush=True)
    records.append(record)
    return record


def all_chosen(lm, layers: list[int], options, patterns: dict | None = None) -> dict[work.Key, tuple[dict, dict]]:
    """(source, topk) -> the systems by name, and what they share; patterns: IndexCache's greedy ones, once found."""
    chosen, indexers = {}, {"attention": None}
    if "distilled" in options.source:
        indexers["distilled"] = activations.distilled_indexers(lm, layers, options.indexers)
    for key in itertools.product(options.source, options.topk):
        if lengths := [length for length in options.lengths if length > key[1]]:
            shared = {"layers": layers, "indexers": indexers[key[0]], "chunk": options.chunk}
            pattern = (patterns or {}).get(key)
            chosen[key] = (chosen_systems(lm, shared, key[1], min(lengths), options, pattern), shared)
    return chosen


def indexers_digest(lm, layers: list[int], given: str | None) -> str:
    """The beginning of the sha256 of their weights: records of other ones do not belong together."""
    states = {layer: indexer_for(lm, layer, given).state_dict() for layer in layers}
    return digest_of({f"{layer} {name}": part for layer, state in states.items() for name, part in state.items()})[:16]


def asker_of(layers: list[int], options, patterns: dict, end: float) -> work.Asker:
    """In a process of its own, with a model of its own."""
    torch.set_num_threads(1)
    lm = activations.load(options.model, device=options.device, dtype=options.dtype)
    return work.Asker(lm, all_chosen(lm, layers, options, patterns), options.seed, options.samples, end)


def in_order(records: list[dict], chosen: dict, options) -> list[dict]:
    """By length, name, source, topk and system as they are asked for, whichever was ready first; others in front."""
    orders = {"length": options.lengths, "name": [name for _, name in named(options)]}
    orders |= {"source": options.source, "topk": options.topk}
    orders["system"] = [*systems(1, len(next(iter(chosen.values()))[1]["layers"])), GREEDY]

    def place(record: dict) -> tuple:
        return tuple(order.index(record[key]) if record[key] in order else -1 for key, order in orders.items())

    return sorted(records, key=place)


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
    top.add_argument("--systems", nargs="+", metavar="NAME", help="instead of all; asked in this order, 'full' first")
    top.add_argument("--tasks", nargs="*", default=list(tasks.TASKS), choices=tasks.TASKS)
    top.add_argument("--passages", nargs="*", default=list(passages.KINDS), choices=passages.KINDS)
    top.add_argument("--samples", type=int, default=20, help="of each task, and of each kind of passage")
    top.add_argument("--seed", type=int, default=0, help="of the first sample; the next ones follow")
    top.add_argument("--chunk", type=int, default=4096 if cuda else 512, help="tokens read at once")
    top.add_argument("--workers", type=int, default=1, help="processes that share the device, each with the model")
    top.add_argument("--seconds", type=float, help="after which nothing new is begun")
    top.add_argument("--resume", action="store_true", help="keep what the record has of the same model and samples")
    top.add_argument("--record", nargs="?", const="quality", metavar="NAME", help="write data/results/NAME.json")
    top.add_argument("--folder", help="of the file instead of data/results")
    return top


def told(given: list[str]) -> list[str]:
    """The arguments as others can use them: quoted, and without a place or the patience of this machine."""
    found, leave = [], 0
    for word in given:
        name, _, value = word.partition("=")
        if name in NOT_TOLD:
            leave = 0 if value else NOT_TOLD[name]
        elif leave:
            leave -= 1
        else:
            found.append(f"'{word}'" if " " in word else word)
    return found


def earlier(options, about: dict) -> tuple[list[dict], dict]:
    """Records to go on from, and what holds for all of them."""
    if not options.resume:
        return [], about
    if not options.record:
        raise SystemExit("--resume goes on from a record: say --record too")
    if options.record not in results.names(folder=options.folder):
        return [], about
    there = results.read(options.record, folder=options.folder)
    new = {name for name in about if name not in there.about and name.startswith("greedy_pattern")}
    if differs := [name for name, value in about.items() if name not in new and there.about.get(name) != value]:
        raise SystemExit(f"{options.record} was made with another {', '.join(differs)}: record under another name")
    return there.records, {**there.about, **about}


def chosen_systems(lm, shared: dict, topk: int, length: int, options, pattern: str | None) -> dict[str, Selection]:
    """The systems asked for, full attention first; the greedy pattern is found only if asked for and not known."""
    known = systems(topk, len(shared["layers"]))
    asked = options.systems or [*known, *[GREEDY] * (len(shared["layers"]) > KEPT)]
    if unknown := set(asked) - {*known, GREEDY}:
        raise SystemExit(f"there is no system {sorted(unknown)[0]!r}; there are {', '.join([*known, GREEDY])}")
    if GREEDY in asked:
        known = systems(topk, len(shared["layers"]), greedy=pattern or greedy_pattern(lm, shared, topk, length))
    return {name: known[name] for name in dict.fromkeys(["full", *asked])}


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


def one_of(records: list[dict], what: dict) -> dict | None:
    """The first record of these fields; those that are None may be anything."""
    keys = [key for key, value in what.items() if value is not None]
    return next((record for record in records if all(record[key] == what[key] for key in keys)), None)


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
    """By system and length: the mean over tasks that count, and the mean of what passages lose; with intervals.

    Systems are averaged over the same: what time did not suffice for is left out.
    """
    table, here = QualityRecords(records), {"source": source, "topk": topk}
    lines = [f"{source}, topk {topk:,}: tasks in %, and nats that passages lose, with 95 % intervals"]
    names = table.systems(**here)
    for length in table.values("length", **here):
        found = {kind: table.asked(names, kind=kind, length=length, **here) for kind in KINDS}
        for system in names if any(found.values()) else []:
            words = [f"{length:>6,}", f"{system:<20}"]
            if found["task"]:
                got = table.level(system, found["task"])
                words.append(f"{100 * got.value:5.1f} [{100 * got.low:.0f}, {100 * got.high:.0f}]")
            if found["passage"]:
                got = table.level(system, found["passage"])
                words.append(f"{got.value:+.4f} [{got.low:+.4f}, {got.high:+.4f}]")
            lines.append("  ".join(words))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
