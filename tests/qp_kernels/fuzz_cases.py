"""One random batch: what it is, how it is made again from two numbers, and what is checked of it."""

from __future__ import annotations

import dataclasses
import math
import random

import fuzz_rows
import oracle_torch
import torch
from fuzz_rows import FAMILIES, LAYOUTS

from qp_kernels.qrita import philox, sample, select, threshold, top_k_top_p, truncation

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Entries of a batch: the oracle needs about 100 bytes for each.
ENTRIES = {"cuda": 1 << 25, "cpu": 1 << 17}
# What lies around a view: no call may change it.
GUARD = 7.0
# How often a batch goes through the other functions as well; "again" is the mask of its rows in another batch.
SHARES = {"select": 0.3, "sample": 0.3, "truncation": 0.3, "again": 0.25}
VOCABULARIES = (
    (3, lambda pick: pick.randint(1, 64)),
    (3, lambda pick: pick.choice([65, 97, 127, 128, 129, 256, 257, 500, 511, 512, 513, 600])),
    (3, lambda pick: pick.choice([1000, 1009, 1024, 2048, 2053, 4096, 4099, 8191, 8192, 8193, 8321, 10_007])),
    (0.7, lambda pick: pick.choice([16_384, 32_000, 32_769, 50_257, 65_536, 100_003, 128_256])),
    (0.5, lambda pick: pick.choice([151_936, 200_003, 262_143, 262_144, 262_145, 262_147])),
)


@dataclasses.dataclass
class Case:
    """A batch and how the functions are called; drawn from (seed, index) alone."""

    seed: int
    index: int
    device: str
    backend: str
    family: str
    dtype: str
    batch: int
    vocab: int
    layout: str
    k: str  # none, number or rows
    p: str
    order: str
    ties: str
    out: str  # none, in place, or the name of a layout
    calls: tuple[str, ...]

    def __str__(self) -> str:
        shape = f"[{self.batch}, {self.vocab}] {self.dtype} {self.layout}"
        return f"{self.family} {shape}, k {self.k}, p {self.p}, {self.order}, ties {self.ties}, out {self.out}"


@dataclasses.dataclass
class Fault:
    """A row that breaks the contract."""

    case: Case
    call: str
    row: int
    words: str
    rows: int  # of the batch that do
    inputs: dict  # of the row alone: logits [1, V], k, p, temperature, seeds


def draw_case(seed: int, index: int, device: str, backend: str, max_vocab: int, entries: int = 0) -> Case:
    """The case of a seed and an index, of at most `max_vocab` columns and `entries` entries (0: `ENTRIES`)."""
    pick = random.Random(f"{seed}:{index}")
    makers = [maker for _, maker in VOCABULARIES]
    (maker,) = pick.choices(makers, [weight for weight, _ in VOCABULARIES])
    vocab = maker(pick)
    if vocab > max_vocab:
        vocab = pick.randint(1, max_vocab)
    most = max(1, (entries or ENTRIES[torch.device(device).type]) // vocab)
    batch = pick.choice([0, 1, 2, 3, 17, 131, 133, 1025, *[pick.randint(1500, 6000)] * 8])
    layouts = [layout.__name__ for layout in LAYOUTS] + ["expanded"]
    return Case(
        seed=seed,
        index=index,
        device=device,
        backend=backend,
        family=pick.choice(FAMILIES).__name__,
        dtype=pick.choice(list(DTYPES)),
        batch=min(batch, most),
        vocab=vocab,
        layout=pick.choice(layouts + ["contiguous"] * 6),
        k=pick.choice(["none", "number", "rows", "rows"]),
        p=pick.choice(["none", "number", "rows", "rows"]),
        order=pick.choice(["k_then_p", "k_then_p", "joint"]),
        ties=pick.choice(["index"] * 4 + ["all"]),
        out=pick.choice(["none"] * 3 + ["in place"] * 2 + layouts[:-1]),
        calls=("mask", *(name for name, share in SHARES.items() if pick.random() < share)),
    )


class Batch:
    """The tensors of a case."""

    def __init__(self, case: Case):
        self.case = case
        self.pick = random.Random(f"{case.seed}:{case.index}:arguments")
        self.rng = torch.Generator(case.device).manual_seed((case.seed << 32) + case.index)
        self.dtype = DTYPES[case.dtype]
        self.buffer, self.logits = self._logits()
        k, p = self._k(), self._p()
        self.limits = {"k": k, "p": p}
        self.draw = {"temperature": self._temperature(), "seeds": self._seeds()}

    def _logits(self):
        case = self.case
        family = next(family for family in FAMILIES if family.__name__ == case.family)
        rows = 1 if case.layout == "expanded" else case.batch
        content = family(self.rng, rows, case.vocab, self.dtype)
        if case.layout == "expanded":
            return content, content.expand(case.batch, case.vocab)
        buffer, view = guarded(case.layout, case, self.dtype)
        return buffer, view.copy_(content)

    def _k(self):
        case, vocab = self.case, self.case.vocab
        if case.k == "none":
            return None
        if case.k == "number":
            return self.pick.choice([0, -1, 1, 1, 2, 50, self.pick.randint(1, vocab), vocab - 1, vocab, vocab + 9])
        rows = fuzz_rows.k_rows(self.rng, case.batch, vocab)
        dtype = self.pick.choice([torch.int64, torch.int64, torch.int32])
        if self.logits.is_cuda:  # contents are taken as they come there
            wild = self.pick.choice([-7, -(2**31), 2**31 - 1] + [10**12] * (dtype is torch.int64))
            rows[::7] = wild
        return rows.to(dtype)

    def _p(self):
        case = self.case
        if case.p == "none":
            return None
        if case.p == "number":
            return self.pick.choice([0, 0.0, 1e-9, 0.1, 0.5, 0.9, 0.9, 0.95, 0.99, 0.999, 1.0, self.pick.random()])
        rows = fuzz_rows.p_rows(self.rng, case.batch, self.logits)
        if self.logits.is_cuda:
            rows[::5] = self.pick.choice([-1.0, 2.0, math.nan])
        return rows.to(self.pick.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16]))

    def _temperature(self):
        if self.pick.random() < 0.6:
            return self.pick.choice([1.0, 1.0, 0.6, 0.4, 1.5, 0.0, 1e-3, 100.0])
        heat = 2 * fuzz_rows.uniform(self.rng, self.case.batch)
        heat[::6] = 0.0
        return heat

    def _seeds(self):
        return fuzz_rows.integers(self.rng, -(2**63), 2**63 - 1, self.case.batch)

    def row(self, i: int) -> dict:
        """Inputs of one row alone."""
        inputs = {"logits": self.logits, **self.limits, **self.draw}
        return {
            name: value[i : i + 1].clone() if isinstance(value, torch.Tensor) else value
            for name, value in inputs.items()
        }


def guarded(layout: str, case: Case, dtype: torch.dtype):
    """A view [B, V] full of NaN in a buffer full of `GUARD`."""
    make = next(one for one in LAYOUTS if one.__name__ == layout)
    buffer, view = make(case.batch, case.vocab, dtype, case.device)
    buffer.fill_(GUARD)
    return buffer, view.fill_(math.nan)


def check(case: Case) -> list[Fault]:
    """Make the batch, call what the case calls, and compare with the oracle."""
    batch = Batch(case)
    faults = []
    before = batch.buffer.clone()
    code = mask_code(case, batch)
    codes = {"mask": code}
    for call in case.calls[1:]:
        codes[call] = CALLS[call](case, {"logits": before_view(batch, before), **batch.limits, **batch.draw})
    for call, code in codes.items():
        if len(code) and int(code.max()) > 0:
            i = int((code > 0).nonzero()[0])
            batch.logits = before_view(batch, before)
            words = oracle_torch.REASONS[int(code[i])]
            faults.append(Fault(case, call, i, words, int((code > 0).sum()), batch.row(i)))
    return faults


def before_view(batch: Batch, before: torch.Tensor) -> torch.Tensor:
    """The logits as they were, in their own layout."""
    view = batch.logits
    return before.as_strided(view.size(), view.stride(), view.storage_offset())


def mask_code(case: Case, batch: Batch) -> torch.Tensor:
    """top_k_top_p into what `out` says; also that nothing else was touched."""
    before = batch.buffer.clone()
    original = before_view(batch, before)
    out_buffer, out = None, None
    if case.out == "in place" and case.layout != "expanded":
        out_buffer, out = batch.buffer, batch.logits
    elif case.out in {layout.__name__ for layout in LAYOUTS}:
        out_buffer, out = guarded(case.out, case, batch.dtype)
    result = top_k_top_p(batch.logits, **batch.limits, order=case.order, ties=case.ties, out=out, backend=case.backend)
    code, _ = oracle_torch.check_mask(original, result, **batch.limits, order=case.order, ties=case.ties)
    if out_buffer is not batch.buffer and len(code):
        same = (oracle_torch.bits(batch.buffer) == oracle_torch.bits(before)).all()
        code = torch.where(same, code, oracle_torch.reason("changed what was not its to write"))
    if out_buffer is not None and len(code):
        out.fill_(GUARD)
        code = torch.where((out_buffer == GUARD).all(), code, oracle_torch.reason("changed what was not its to write"))
    return code


def alone(case: Case, inputs: dict) -> torch.Tensor:
    """The code of top_k_top_p alone."""
    limits = {"k": inputs["k"], "p": inputs["p"], "order": case.order, "ties": case.ties}
    return oracle_torch.check_mask(
        inputs["logits"], top_k_top_p(inputs["logits"], **limits, backend=case.backend), **limits
    )[0]


def again(case: Case, inputs: dict) -> torch.Tensor:
    """The same rows in another order, number and layout give the same bits."""
    logits, limits = inputs["logits"], {"order": case.order, "ties": case.ties, "backend": case.backend}
    rows = torch.arange(len(logits) - 1, -1, -2, device=logits.device)
    other = {name: _rows(inputs[name], rows) for name in ("k", "p")}
    one = top_k_top_p(logits, inputs["k"], inputs["p"], **limits)
    two = top_k_top_p(logits[rows].t().contiguous().t(), **other, **limits)
    differs = (oracle_torch.bits(one[rows]) != oracle_torch.bits(two.contiguous())).any(-1)
    code = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    code[rows] = oracle_torch.worst(("depends on the batch", differs))
    return code


def _rows(value, rows):
    return value[rows] if isinstance(value, torch.Tensor) else value


def _is_off(k, p) -> bool:
    return (k is None or (isinstance(k, int) and k <= 0)) and (p is None or (isinstance(p, (int, float)) and p == 1))


def listed(case: Case, inputs: dict) -> torch.Tensor:
    """select, beside the mask of the same arguments with ties by index."""
    logits, k, p = inputs["logits"], inputs["k"], inputs["p"]
    limits = {"order": case.order, "backend": case.backend}
    if _is_off(k, p):
        return torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    mask = top_k_top_p(logits, k, p, **limits)
    pick = random.Random(f"{case.seed}:{case.index}:width")
    width = pick.choice([None, 1, 7, 64, pick.randint(1, 300), case.vocab + 3])
    found = select(logits, k, p, **limits, max_candidates=width)
    code = oracle_torch.check_listed(logits, mask > -math.inf, *found)
    own = oracle_torch.check_mask(logits, mask, k, p, case.order)[0]
    return torch.where(own > 0, own, code)


def drawn(case: Case, inputs: dict) -> torch.Tensor:
    """sample, and that a token does not depend on the batch."""
    logits, arguments = inputs["logits"], {name: inputs[name] for name in ("k", "p", "temperature", "seeds")}
    tokens = sample(logits, **arguments, backend=case.backend)
    u = philox.uniform(arguments.pop("seeds"))
    code = oracle_torch.check_token(logits, tokens, u, **arguments)
    rows = torch.arange(len(logits) - 1, -1, -3, device=logits.device)
    other = {name: _rows(inputs[name], rows) for name in ("k", "p", "temperature", "seeds")}
    differs = torch.zeros_like(code, dtype=torch.bool)
    differs[rows] = sample(logits[rows], **other, backend=case.backend) != tokens[rows]
    return torch.where(code > 0, code, oracle_torch.worst(("depends on the batch", differs)))


def cut_off(case: Case, inputs: dict) -> torch.Tensor:
    """truncation, by both rules and several margins."""
    pick = random.Random(f"{case.seed}:{case.index}:margin")
    options = {
        "k": inputs["k"],
        "p": inputs["p"],
        "order": case.order,
        "margin": pick.choice([0.2, 0.2, 0.0, 0.5, 1.5]),
        "rule": pick.choice(["sigma", "sigma", "paper"]),
    }
    stats = truncation(inputs["logits"], **options, backend=case.backend)
    return oracle_torch.check_truncation(inputs["logits"], stats, **options, buffer=threshold.CANDIDATE_BUFFER)


CALLS = {"mask": alone, "again": again, "select": listed, "sample": drawn, "truncation": cut_off}
