"""What `quality.py` asks a model, one part at a time, in this process or in several that share a device."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait

import torch

from activations import passages, quality, tasks
from qp_kernels.intervals import bootstrap, wilson

Key = tuple[str, int]  # source of the index, topk
Ask = Callable[[str, Iterable[tuple]], Iterator[tuple[tuple, object]]]


class Asker:
    """Asks full attention and the systems about the samples of a task, or of a kind of passage.

    Args:
        chosen: (source, topk) -> the systems by name, and what they share: layers, indexers, chunk.
        first_seed, samples: Which samples. end: On the clock `time.monotonic`; nothing is begun later.
    """

    def __init__(self, lm, chosen: dict[Key, tuple[dict, dict]], first_seed: int, samples: int, end: float):
        self.lm, self.chosen, self.end = lm, chosen, end
        self._seeds = range(first_seed, first_seed + samples)

    def full(self, what: dict, known: dict | None) -> tuple[bytes, dict] | None:
        """The samples, made once and pickled, and full attention's scores, if they are not known; None: time is over.

        Args:
            what: kind ("task" or "passage"), name and length.
        """
        if time.monotonic() > self.end:
            return None
        make = tasks.example if what["kind"] == "task" else passages.passage
        items = [make(self.lm.encode, what["name"], what["length"], seed) for seed in self._seeds]
        if known is None:
            some, shared = next(iter(self.chosen.values()))
            known = self._scores(what["kind"], items, some["full"], shared, None)
        return pickle.dumps(items), known

    def other(self, what: dict, key: Key, system: str, items: bytes, full: dict) -> dict | None:
        """A system's scores beside those of full attention; None: time is over."""
        if time.monotonic() > self.end:
            return None
        some, shared = self.chosen[key]
        return self._scores(what["kind"], pickle.loads(items), some[system], shared, full)

    def _scores(self, kind: str, items: list, selection, shared: dict, full: dict | None) -> dict:
        ask, scores = (quality.answers, task_scores) if kind == "task" else (quality.passage_losses, passage_scores)
        start = time.monotonic()
        given = ask(self.lm, items, selection, **shared)
        return {**scores(given, full), "seconds": time.monotonic() - start}


def here(asker: Asker) -> Ask:
    """Calls of a method of an asker, with what each gave, one after the other."""

    def ask(method: str, calls: Iterable[tuple]) -> Iterator[tuple[tuple, object]]:
        return ((call, getattr(asker, method)(*call)) for call in calls)

    return ask


def in_processes(pool: ProcessPoolExecutor) -> Ask:
    """The same in the processes of a `pool_of`, begun in order and given as they are ready.

    Where one raises, what is done by then is given, nothing new is begun, and the error raised.
    """

    def ask(method: str, calls: Iterable[tuple]) -> Iterator[tuple[tuple, object]]:
        waiting = {pool.submit(_call, method, call): call for call in calls}
        try:
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in sorted(done, key=lambda one: one.exception() is not None):
                    yield waiting.pop(future), future.result()
        finally:
            for future in waiting:
                future.cancel()

    return ask


def pool_of(workers: int, make: Callable[..., Asker], arguments: tuple) -> ProcessPoolExecutor:
    """Processes with an asker each: make(*arguments)."""
    context = torch.multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(make, arguments))


_asker: Asker | None = None


def _begin(make: Callable[..., Asker], arguments: tuple) -> None:
    global _asker
    _asker = make(*arguments)


def _call(method: str, call: tuple):
    return getattr(_asker, method)(*call)


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
