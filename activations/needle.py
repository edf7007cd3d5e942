"""A needle in a haystack that is read once, and its question on selected keys, again and again at other settings.

Knows models and selections, not how anything is shown.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from qp_kernels.pivot.candidates import rank_proxies, refine_levels
from qp_kernels.pivot.ranking import rank_keys

from .forward import CHUNK, continued, evaluating
from .index_distilled import LayerInput
from .index_run import index_layers
from .models import LanguageModel
from .progress import Progress, quiet
from .selected import Indexer, selected_attention
from .selection import Selection
from .tasks import CITIES, THINGS, sentences
from .tokens import apart

# Groups begin at multiples of g from the text's start; at a multiple of this, all of these g agree.
WHOLE = 16
GROUPS = (1, 2, 4, 8, 16)
SYSTEMS = ("refine", "reuse", "dense", "full")


@dataclass(frozen=True, eq=False)
class Needle:
    """A prompt: made-up sentences, one among them that matters, and its beginning once more as the question.

    Attributes:
        ids: [N + A] int64 on the CPU: the prompt of N tokens, and the answer.
        line: Where the needle lies. key: Position in it of the answer's first token. question: Where the question lies.
        asked, answer: The question, and what the needle says after it, with a space before.
    """

    ids: Tensor
    line: range
    key: int
    question: range
    asked: str
    answer: str

    @property
    def prompt(self) -> int:
        """N."""
        return self.question.stop

    @property
    def expected(self) -> Tensor:
        """[A]: the answer."""
        return self.ids[self.prompt :]


def needle(
    encode: Callable[[str], Tensor], length: int, seed: int, *, depth: float = 0.3, sentence: str | None = None
) -> Needle:
    """A prompt of exactly `length` tokens, so that its last token is the last member of a whole group.

    Args:
        encode: Text -> ids [T] int64, as `LanguageModel.encode`.
        length: N in tokens, a multiple of 16. seed: Of the haystack, and of a needle that is not given.
        depth: Share of the haystack before the needle, in [0, 1]; it is put between two sentences.
        sentence: The needle; its last word is what is asked for. None: a city's secret word.
    Raises:
        ValueError: another length or depth, a needle of one word, one that leaves no room for a haystack.
    """
    if length < WHOLE or length % WHOLE:
        raise ValueError(f"length must be a multiple of {WHOLE} tokens, got {length}")
    if not 0 <= depth <= 1:
        raise ValueError(f"depth must be in [0, 1], got {depth}")
    rng = random.Random(f"needle {seed}")
    made = f"The secret word of {rng.choice(CITIES)} is {rng.choice(THINGS)}."
    body = (made if sentence is None else " ".join(sentence.split())).rstrip(".!?")
    asked, _, word = body.rpartition(" ")
    if not asked or not word:
        raise ValueError(f"the needle needs at least two words, of which the last is asked for, got {sentence!r}")
    bos, rest = apart(encode)
    question, whole, line = (rest(f"\n{text}") for text in (asked, body, f"{body}."))
    same = int((whole[: len(question)] == question).int().cumprod(0).sum())  # the answer may join the last token
    line = line if line[: len(whole)].equal(whole) else whole
    room = length - len(bos) - len(line) - same
    if room < 2 * WHOLE:
        raise ValueError(f"a needle of {len(line)} tokens and its question leave no haystack in {length} tokens")
    hay, ends = _haystack(rest, room, rng)
    start = min(ends, key=lambda end: abs(end - depth * room))
    ids = torch.cat([bos, hay[:start], line, hay[start:], whole])
    start += len(bos)
    return Needle(ids, range(start, start + len(line)), start + same, range(length - same, length), asked, f" {word}")


def _haystack(encode: Callable[[str], Tensor], room: int, rng: random.Random) -> tuple[Tensor, list[int]]:
    """The last `room` tokens of made-up sentences, and where sentences begin or end in them."""
    parts, total = [], 0
    for sentence in sentences(rng):
        parts.append(encode(f"\n{sentence}"))
        total += len(parts[-1])
        if total >= room:
            break
    ends = np.cumsum([len(part) for part in parts]) - (total - room)
    return torch.cat(parts)[total - room :], [0, *(int(end) for end in ends if end > 0)]


@dataclass(frozen=True, eq=False)
class Place:
    """Where the needle's key stands in one layer, for the query that answers; with several key heads in the best one.

    Attributes:
        rank: In the order of the answering query itself; 0 is the best key.
        needed: How many keys must be taken before this one is: by the group's proxy for Refine (then it is the least c
            with which the key is a candidate) and Reuse, by the query itself where it searches.
        cut: How many are taken: c, or k.
        is_dense: Whether the query searches by itself: in dense selection, by the guard, or alone in its group.
        candidate, selected: Whether the key is among the candidates, and among the topk that the query attends to.
        chosen: [<= H topk] positions that the query attends to, ascending.
    """

    rank: int
    needed: int
    cut: int
    is_dense: bool
    candidate: bool
    selected: bool
    chosen: np.ndarray


@dataclass(frozen=True, eq=False)
class Reply:
    """What the model answers.

    Attributes:
        probability: Of the whole right answer. right: Whether greedy decoding writes it.
        said: Tokens that greedy decoding writes, up to the first wrong one. likely: Probability of the last of them.
        places: layer -> the needle's key there; empty under full attention, which selects nothing.
    """

    probability: float
    right: bool
    said: list[str]
    likely: float
    places: dict[int, Place] = field(default_factory=dict)


class NeedleReader:
    """A model that has read a haystack, and answers its question under any selection.

    The haystack is read once with full attention, whatever the selection: only the last tokens, the question and the
    answer, select. A step then costs one call on a few tokens; where the prefill selects too, as in the paper, the
    needle has more ways to get lost. Groups lie where they would in the prefill of the whole prompt; the answer's
    tokens after the first are a multi-token prediction that guessed them right.

    Args:
        layers, indexers: As for `selected_attention`. progress: Called while the haystack is read; may raise.
    Raises:
        ValueError: no layer that selects, a prompt beyond the model's context.
    """

    def __init__(
        self,
        lm: LanguageModel,
        made: Needle,
        *,
        layers: Sequence[int] | None = None,
        indexers: Mapping[int, Indexer] | None = None,
        progress: Progress = quiet,
    ):
        self.lm, self.needle, self.indexers = lm, made, indexers
        self.layers = index_layers(lm) if layers is None else list(layers)
        if not self.layers:
            raise ValueError(f"there is no layer to select keys for: no layer of {lm.name} attends to the whole text")
        if lm.context is not None and len(made.ids) > lm.context:
            raise ValueError(f"{len(made.ids):,} tokens are more than the {lm.context:,} that {lm.name} reads")
        self._ids = made.ids.to(lm.device)
        asked = -(-len(made.question) // WHOLE) * WHOLE
        self.read = made.prompt - asked  # tokens that the cache holds
        self._cache, self._earlier = self._prefix(progress)

    def _prefix(self, progress: Progress):
        """The cache of the haystack, and what the indexers make of it."""
        cache, keys = None, {layer: [] for layer in self.indexers or {}}
        with ExitStack() as stack:
            stack.enter_context(self.lm.lock)
            stack.enter_context(torch.inference_mode())
            stack.enter_context(evaluating(self.lm.model))
            seen = {layer: stack.enter_context(LayerInput(layer).hooked(self.lm.model)) for layer in keys}
            for start in range(0, self.read, CHUNK):
                progress(start, self.read, "the model reads the haystack")
                part = self._ids[start : min(start + CHUNK, self.read)]
                _, cache = continued(self.lm.model, part, cache)
                place = torch.arange(start, start + len(part), device=part.device)
                for layer, given in seen.items():
                    keys[layer].append(self.indexers[layer](given.hidden, place)[1])
        return cache, {layer: torch.cat(parts) for layer, parts in keys.items()}

    def answer(self, selection: Selection) -> Reply:
        """What the model answers when its layers select so.

        Raises:
            ValueError: what `selected_attention` and the selection refuse, a budget that is too small for one.
        """
        prompt, places = self.needle.prompt, {}
        with torch.inference_mode():
            cache = copy.deepcopy(self._cache)
        given = {"layers": self.layers, "indexers": self.indexers, "earlier": (cache, self._earlier)}
        seen = _Seen(**vars(selection))
        with selected_attention(self.lm, seen, **given, watch=functools.partial(self._see, seen, places)) as run:
            with torch.inference_mode(), evaluating(self.lm.model):
                states, cache = continued(self.lm.model, self._ids[self.read : prompt], cache)
                states = states[-1:]
                if len(self._ids) > prompt + 1:
                    run.phase = "decode"
                    more, _ = continued(self.lm.model, self._ids[prompt:-1], cache)
                    states = torch.cat([states, more])
                logs = self.lm.head.together(states).log_softmax(-1)
        return self._reply(logs, places)

    def _reply(self, logs: Tensor, places: dict[int, Place]) -> Reply:
        expected, likeliest = self._ids[self.needle.prompt :], logs.argmax(-1)
        same = int((likeliest == expected).int().cumprod(0).sum())
        last = min(same, len(expected) - 1)
        probability = float(logs.gather(1, expected[:, None]).double().sum().exp())
        said = self.lm.tokens(likeliest[: last + 1])
        return Reply(probability, same == len(expected), said, float(logs[last].max().exp()), places)

    def _see(self, seen: _Seen, places: dict[int, Place], layer: int, start: int, found: list[Tensor]) -> None:
        """Keep where the needle's key stands, from the call that the prompt's last token is in."""
        indices, seen.indices[:] = list(seen.indices), []
        if start == self.read and indices:
            heads = [_place(seen, self.needle.key, index, chosen) for index, chosen in zip(indices, found, strict=True)]
            best = min(heads, key=lambda one: (not one.selected, not one.candidate, one.needed))
            chosen = np.unique(np.concatenate([one.chosen for one in heads]))
            places[layer] = Place(**{**vars(best), "chosen": chosen})


@dataclass(frozen=True)
class _Seen(Selection):
    """A selection that keeps the queries, keys and weights which it was asked with."""

    indices: list = field(default_factory=list, compare=False)

    def __call__(self, q: Tensor, k: Tensor, w: Tensor, *, phase: str = "prefill") -> Tensor:
        self.indices.append((q, k, w))
        return super().__call__(q, k, w, phase=phase)


def _place(selection: Selection, key: int, index: tuple[Tensor, Tensor, Tensor], found: Tensor) -> Place:
    """Where a key stands for the last query of a prefill; found: [S, <= topk] as it was selected."""
    q, k, w = index
    rank = int(rank_keys(q[-1:], k, w[-1:], backend=selection.backend).rank[0, key])
    chosen = found[-1][found[-1] >= 0].cpu().numpy()
    if selection.system == "dense":
        return Place(rank, rank + 1, selection.topk, True, rank < selection.topk, key in chosen, chosen)
    options = {"group": selection.group, "proxy": selection.proxy, "backend": selection.backend}
    groups, ranking = rank_proxies(q, k, w, **options)
    is_refine = selection.system == "refine"
    cut = budget_of(selection) if is_refine else selection.topk
    shortest = cut if selection.guard is True else int(selection.guard)
    if groups.stop[-1] - groups.start[-1] == 1 or groups.hi[-1] - groups.lo[-1] <= shortest:
        return Place(rank, rank + 1, cut, True, True, key in chosen, chosen)
    needed = int(ranking.rank[-1, key]) + 1
    if is_refine:
        window = selection.group if selection.window is None else selection.window
        needed = int(refine_levels(ranking.rank, groups, window)[-1, key])
    return Place(rank, needed, cut, False, needed <= cut, key in chosen, chosen)


def least_budget(topk: int, group: int, window: int | None = None) -> int:
    """The smallest c that Refine takes in prefill.

    >>> least_budget(16, 8)
    31
    """
    return topk + (group if window is None else window) + group - 1


def budget_of(selection: Selection) -> int:
    """c of Refine, the default one where none was chosen."""
    least = least_budget(selection.topk, selection.group, selection.window)
    return max(2 * selection.topk, least) if selection.budget is None else selection.budget
