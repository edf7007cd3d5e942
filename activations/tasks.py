"""Generated tasks whose answer stands far back in the prompt: needles, variable tracking, copying.

After RULER (arXiv 2404.06654), reduced to what a base model without instructions can show: the prompt ends where the
answer begins. Made from a seed, as long as asked. Knows a tokenizer, no model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .tokens import apart

TASKS = ("needle", "multi-key needle", "variable tracking", "copying")
KEYS = 8  # needles of the multi-key task
CHAINS = 4  # of variable tracking
WORDS = 24  # of the list that is copied
SHOWN, ASKED = 8, 3  # words of it that the end repeats, and that must follow
SHORTEST = 512
SLACK = 32  # tokens: more than any sentence here has in a tokenizer of words
CITIES = (
    "Amsterdam Athens Bergen Berlin Bogota Boston Cairo Chicago Dakar Delhi Denver Dublin Geneva Hamburg Havana "
    "Helsinki Jakarta Karachi Lagos Lima Lisbon London Madrid Manila Milan Moscow Nairobi Naples Oslo Paris Porto "
    "Prague Quito Riga Rome Seattle Seoul Sofia Tallinn Tokyo Toronto Tunis Vienna Warsaw Zurich"
).split()
_NAMES = "Alice Bruno Clara David Emma Felix Greta Hugo Irene Jonas Karin Lukas Maria Nils Olga Peter".split()
THINGS = (
    "apple basket bottle bridge button candle carpet castle circle copper cotton desert dinner doctor dragon engine "
    "farmer flower forest garden guitar hammer helmet island jacket kettle kitten ladder lemon letter machine market "
    "mirror monkey needle orange paper pencil pepper pillow planet pocket rabbit river rocket saddle school shadow "
    "silver singer soldier spider spring station stone summer table temple ticket tiger tower tunnel turtle valley "
    "violin wagon window winter"
).split()
# Who did what to which thing, and when.
_SENTENCE = [
    "The old baker|A young sailor|Our neighbour|The tired teacher|A quiet child|The tall gardener|A stranger",
    "walked past|looked at|painted|remembered|drew a picture of|talked about|waited near|wrote a note on",
    "the empty station|a small boat|the broken fence|the long wall|an open window|the green hill|the clock",
    "before the rain|in the morning|after the market|on a cold evening|late in spring|once more|at noon",
]


@dataclass(frozen=True, eq=False)
class Example:
    """A prompt and the answer that follows it.

    Attributes:
        ids: [N] int64 on the CPU: prompt and answer, with BOS if the tokenizer puts one first.
        prompt: How many of them are the prompt.
        choices: [M] int64: the first tokens of what the answer may be, the right one first, all different; None where
            every token counts: right is what greedy decoding would write.
        task, seed: What it was made from. text: The prompt. answer: As a string.
    """

    ids: Tensor
    prompt: int
    choices: Tensor | None
    task: str
    seed: int
    text: str
    answer: str


@dataclass(frozen=True)
class _Draft:
    """Lines that lie in the haystack in their order, what the prompt ends with, and the answer; other answers."""

    lines: list[str]
    end: str
    answer: str
    others: tuple[str, ...] = ()


def example(encode: Callable[[str], Tensor], task: str, length: int, seed: int) -> Example:
    """One example of a task, at most `length` tokens with its answer, and hardly fewer.

    Args:
        encode: Text -> ids [T] int64, as `LanguageModel.encode`.
        task: "needle": a number to recall. "multi-key needle": one of eight such numbers. "variable tracking": what
            someone has who took it from another, among four such chains; the right one of the four things must be
            likeliest. "copying": the last words of a list, after its middle is repeated.
        length: In tokens, at least 512.
        seed: Which one. The lines lie anywhere in made-up sentences.
    Raises:
        ValueError: an unknown task, a length below 512; a tokenizer for which two choices begin alike.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    if length < SHORTEST:
        raise ValueError(f"length must be at least {SHORTEST} tokens, got {length}")
    rng = random.Random(f"task {task} {length} {seed}")
    draft = _DRAFTS[task](rng)
    bos, rest = apart(encode)
    ids, text = _in_haystack(rest, draft, length - len(bos), rng)
    whole = rest(text + draft.answer)
    same = (whole[: len(ids)] == ids).int().cumprod(0).sum()  # the answer may join the prompt's last token
    choices = None
    if draft.others:
        choices = torch.stack([rest(text[-64:] + one)[len(rest(text[-64:]))] for one in (draft.answer, *draft.others)])
        if len(choices.unique()) < len(choices) or choices[0] != whole[same]:
            raise ValueError(f"with this tokenizer some of {(draft.answer, *draft.others)} begin alike")
    return Example(torch.cat([bos, whole]), int(same) + len(bos), choices, task, seed, text, draft.answer)


def sentences(rng: random.Random) -> Iterator[str]:
    """Made-up sentences that say nothing of any task, without an end."""
    parts = [part.split("|") for part in _SENTENCE]
    while True:
        yield " ".join(rng.choice(part) for part in parts) + "."


def _in_haystack(encode: Callable, draft: _Draft, length: int, rng: random.Random) -> tuple[Tensor, str]:
    """Ids and text of a prompt that leaves room for the answer: as many sentences as fit, the lines among them."""
    endless = sentences(rng)
    filler = [next(endless) for _ in range(200)]
    per_sentence = len(encode("\n".join(filler))) / len(filler)
    count = max(0, int((length - len(encode("\n".join([*draft.lines, draft.end])))) / per_sentence))
    depths = sorted(rng.random() for _ in draft.lines)
    best, was_over = None, False
    while True:
        filler += [next(endless) for _ in range(count - len(filler))]
        text = _laid(draft, filler[:count], depths)
        over = len(encode(text + draft.answer)) - length
        if over > 0 and count:
            if best is not None:
                break
            was_over, count = True, max(0, count - max(1, int(over / per_sentence)))
            continue
        best = text
        if was_over or -over <= SLACK:
            break
        count += max(1, -over // SLACK)
    return encode(best), best


def _laid(draft: _Draft, filler: list[str], depths: list[float]) -> str:
    """The prompt: the lines at their depths in [0, 1) of the filler."""
    lines, at = [], 0
    for depth, line in zip(depths, draft.lines, strict=True):
        place = int(depth * (len(filler) + 1))
        lines += [*filler[at:place], line]
        at = place
    return "\n".join([*lines, *filler[at:], draft.end])


def _needles(rng: random.Random, count: int) -> _Draft:
    cities = rng.sample(CITIES, count)
    codes = [f"{rng.randrange(10**5):05d}" for _ in cities]
    lines = [f"The access code of {city} is {code}." for city, code in zip(cities, codes, strict=True)]
    asked = rng.randrange(count)
    return _Draft(lines, f"The access code of {cities[asked]} is", f" {codes[asked]}")


def _chains(rng: random.Random) -> _Draft:
    """One step a chain, and it names the thing: where two must be joined, a model of 270 M weights only guesses."""
    things = rng.sample(THINGS, CHAINS)
    names = rng.sample(_NAMES, 2 * CHAINS)
    chains = list(zip(things, names[::2], names[1::2], strict=True))
    lines = [f"{second} took the {thing} from {first}." for thing, first, second in chains]
    others = tuple(f" {thing}" for thing in things[1:])
    return _Draft(rng.sample(lines, CHAINS), f"{chains[0][2]} now has the", f" {things[0]}", others)


def _copy(rng: random.Random) -> _Draft:
    words = rng.sample(THINGS, WORDS)
    first = WORDS - SHOWN - ASKED
    shown, asked = words[first : first + SHOWN], words[first + SHOWN :]
    return _Draft([f"The list: {' '.join(words)}."], f"The list: {' '.join(shown)}", f" {' '.join(asked)}")


_DRAFTS: dict[str, Callable[[random.Random], _Draft]] = {
    "needle": lambda rng: _needles(rng, 1),
    "multi-key needle": lambda rng: _needles(rng, KEYS),
    "variable tracking": _chains,
    "copying": _copy,
}
