"""What a model still knows when it attends to selected keys: loss on passages, answers to generated tasks.

Knows models and selections, not how results are shown or kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from .forward import continued, evaluating
from .models import LanguageModel
from .passages import Passage
from .progress import Progress, quiet
from .selected import Indexer, selected_attention
from .selection import Selection
from .tasks import Example

# Rows of the head at once: [rows, V] float32 of the largest vocabularies are 256 MiB.
ROWS = 256
# A task says something only where full attention gets at least this share right.
COUNTS_FROM = 0.6


@dataclass(frozen=True)
class Answer:
    """right: Whether the model gives the answer. loss: Its next-token loss on the answer, nats a token."""

    right: bool
    loss: float


def passage_losses(
    lm: LanguageModel,
    passages: Sequence[Passage],
    selection: Selection,
    *,
    layers: Sequence[int] | None = None,
    indexers: Mapping[int, Indexer] | None = None,
    chunk: int | None = None,
    progress: Progress = quiet,
) -> list[float]:
    """Mean next-token loss of each passage's scored tokens, in nats.

    Args:
        selection, layers, indexers: As for `selected_attention`. Every token before is read on selected keys as well.
        chunk: Tokens read at once, a multiple of the selection's group; None: the multiple nearest to 512.
        progress: Called as progress(done, total, what) for each passage; may raise to cancel.
    Raises:
        ValueError: a chunk that is no such multiple, a passage beyond the model's context, what `selected_attention`
            refuses.
    """
    with _reading(lm, selection, layers, indexers, chunk) as (run, chunk):
        losses = []
        for done, one in enumerate(passages):
            progress(done, len(passages), "Reading passages")
            ids = _ids(lm, one.ids)
            run.phase = "prefill"
            states, _ = continued(lm.model, ids[:-1], chunk=chunk)
            targets = one.scored.to(ids.device)
            losses.append(float(_losses(lm, states[targets - 1], ids[targets]).mean()))
    return losses


def answers(
    lm: LanguageModel,
    examples: Sequence[Example],
    selection: Selection,
    *,
    layers: Sequence[int] | None = None,
    indexers: Mapping[int, Indexer] | None = None,
    chunk: int | None = None,
    progress: Progress = quiet,
) -> list[Answer]:
    """Whether the model answers each example on selected keys.

    The prompt is read by chunks. Then the answer's tokens are read as a multi-token prediction that guessed them right:
    phase "decode", groups of the selection's g. An answer is right if each of its tokens is the likeliest after those
    before, which is what greedy decoding would write; with choices, if its first token is the likeliest of them.

    Args, Raises: as for `passage_losses`.
    """
    with _reading(lm, selection, layers, indexers, chunk) as (run, chunk):
        found = []
        for done, one in enumerate(examples):
            progress(done, len(examples), "Answering")
            ids = _ids(lm, one.ids)
            run.phase = "prefill"
            _, cache = continued(lm.model, ids[: one.prompt - 1], chunk=chunk)
            run.phase = "decode"
            states, _ = continued(lm.model, ids[one.prompt - 1 : -1], cache)
            logits, asked = lm.head.together(states), ids[one.prompt :]
            loss = float(torch.nn.functional.cross_entropy(logits, asked))
            if one.choices is None:
                right = bool((logits.argmax(-1) == asked).all())
            else:
                right = int(logits[0, one.choices.to(ids.device)].argmax()) == 0
            found.append(Answer(right, loss))
    return found


@contextmanager
def _reading(lm: LanguageModel, selection: Selection, layers, indexers, chunk: int | None):
    """Yields the run and the length of chunks."""
    group = selection.group
    chunk = max(1, 512 // group) * group if chunk is None else chunk
    if chunk < 1 or chunk % group:
        raise ValueError(f"chunk must be a multiple of the {group} tokens of a group, got {chunk}")
    with selected_attention(lm, selection, layers=layers, indexers=indexers) as run:
        with torch.inference_mode(), evaluating(lm.model):
            yield run, chunk


def _ids(lm: LanguageModel, ids: Tensor) -> Tensor:
    if lm.context is not None and len(ids) > lm.context:
        raise ValueError(f"{len(ids):,} tokens are more than the {lm.context:,} that {lm.name} reads")
    return ids.to(lm.device)


def _losses(lm: LanguageModel, states: Tensor, targets: Tensor) -> Tensor:
    """[n] float32 nats."""
    parts = zip(states.split(ROWS), targets.split(ROWS), strict=True)
    found = [torch.nn.functional.cross_entropy(lm.head.together(s), t, reduction="none") for s, t in parts]
    return torch.cat(found)


def counts(full: Sequence[Answer]) -> bool:
    """Whether a task says something at a length: full attention answers at least 60 % of its examples.

    >>> counts([Answer(True, 0.1), Answer(True, 0.2), Answer(False, 3.0)])
    True
    """
    return bool(full) and math.fsum(answer.right for answer in full) / len(full) >= COUNTS_FROM
