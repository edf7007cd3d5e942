"""Who does what is measured: our kernels, torch, other libraries where they are installed, and a user's own function.

A provider makes a call for a case, or says that it has none. What a call needs beside the logits (tensors of k and p,
seeds) is made then, and is not timed.
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..qrita import sample, select, top_k_top_p
from ..qrita.api import Candidates
from . import peers
from .cases import Case

INF = float("inf")
OURS = "qp_kernels"


@dataclass(frozen=True)
class Call:
    """What is timed: `run(x)` for a batch x, and the kind of its result (see `check.wrong_rows`).

    With `in_place`, x is changed and the result is x or None.
    """

    run: Callable[[Tensor], Any]
    kind: str = "mask"
    in_place: bool = False


@dataclass(frozen=True)
class Provider:
    """A name, a version, and `call(case, device)`, which is None for what it does not do.

    `forget` frees what earlier calls keep, so that memory is measured from nothing. Where `must` is set, an error ends
    the run; else this provider is left out, and the run says so.
    """

    name: str
    version: str
    call: Callable[[Case, torch.device], Call | None]
    forget: Callable[[], None] = lambda: None
    must: bool = False


def providers(
    device: torch.device | str | None = None, own: Mapping[str, Callable[..., Any]] | None = None, only: str = "*"
) -> dict[str, Provider]:
    """Those that can run on a device, by name, ours first; `missing` has the others.

    Args:
        device: None is the GPU where there is one.
        only: Patterns of names between commas; other libraries are not even looked for. A user's own are always there.
        own: Name -> `f(logits, k, p)`, which returns logits with -inf for what is dropped (new, or changed in place)
            or a bool mask of what is kept. k is an int or None, p a float or None.
    Raises:
        ValueError: a name that is taken, or what is not callable.
    """
    found = {}
    for name, load in _loaders(_device(device), only).items():
        try:
            found[name] = load()
        except peers.Unavailable:
            continue
    taken = {*_loaders(_device(device)), "floor_read", "floor_read_write"}
    for name, function in (own or {}).items():
        if name in taken or not callable(function):
            raise ValueError(f"own={{{name!r}: ...}} needs a name that is not taken, and a function")
        found[name] = _own(name, function)
    return found


def missing(device: torch.device | str | None = None, only: str = "*") -> dict[str, str]:
    """Why the other providers cannot run on a device, by name."""
    reasons = {}
    for name, load in _loaders(_device(device), only).items():
        try:
            load()
        except peers.Unavailable as reason:
            reasons[name] = str(reason)
    return reasons


def _device(device: torch.device | str | None) -> torch.device:
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _loaders(device: torch.device, only: str = "*") -> dict[str, Callable[[], Provider]]:
    known = {
        OURS: _ours,
        "vllm": lambda: _vllm(device),
        "flashinfer": lambda: _flashinfer(device),
        "torch_sort": lambda: Provider("torch_sort", torch.__version__, _torch_sort),
        "torch_topk": lambda: Provider("torch_topk", torch.__version__, _torch_topk),
        "transformers_rule": _transformers,
    }
    patterns = only.split(",")
    return {name: load for name, load in known.items() if any(fnmatch.fnmatch(name, one) for one in patterns)}


def _ours() -> Provider:
    def call(case: Case, device: torch.device) -> Call:
        k, p = case.k, case.p
        if case.operation == "mask":
            return Call(lambda x: top_k_top_p(x, k, p))
        if case.operation == "select":
            # A width of its own for p alone: counting first would wait for the GPU.
            width = min(case.vocab, 4096 if k is None else k)
            return Call(lambda x: select(x, k, p, max_candidates=width), "candidates")
        seeds = torch.arange(case.batch, device=device)
        return Call(lambda x: sample(x, k, p, seeds=seeds), "tokens")

    try:
        version = importlib.metadata.version("qp-explorer")
    except importlib.metadata.PackageNotFoundError:
        version = "clone"
    return Provider(OURS, version, call, must=True)


def _own(name: str, function: Callable[..., Any]) -> Provider:
    def call(case: Case, device: torch.device) -> Call | None:
        if case.operation != "mask":
            return None
        probe = torch.randn(2, case.vocab, generator=torch.Generator().manual_seed(1))
        probe = probe.to(device=device, dtype=getattr(torch, case.dtype))
        before = probe.clone()
        result = function(probe, case.k, case.p)
        in_place = not torch.equal(probe, before)
        kind = "kept" if isinstance(result, Tensor) and result.dtype is torch.bool else "mask"
        return Call(lambda x: function(x, case.k, case.p), kind, in_place)

    return Provider(name, "own", call, must=True)


def _vllm(device: torch.device) -> Provider:
    found = peers.vllm(device)

    def call(case: Case, device: torch.device) -> Call | None:
        if case.operation != "mask" or case.dtype != "float32":
            return None
        k = None if case.k is None else torch.full((case.batch,), case.k, dtype=torch.int32, device=device)
        p = None if case.p is None else torch.full((case.batch,), case.p, dtype=torch.float32, device=device)
        return Call(lambda x: found.apply(x, k, p), in_place=True)

    return Provider("vllm", found.version, call, found.forget)


def _flashinfer(device: torch.device) -> Provider:
    found = peers.flashinfer(device)

    def call(case: Case, device: torch.device) -> Call | None:
        if case.operation != "mask" or case.dtype != "float32":
            return None
        k, p = case.k, case.p
        if p is None:
            return Call(lambda x: found.top_k_mask(x, k))

        def nucleus(x: Tensor) -> Tensor:
            """It takes probabilities, so a softmax belongs to it."""
            x = x if k is None else found.top_k_mask(x, k)
            return found.top_p_renorm(x.softmax(-1), p)

        return Call(nucleus, "probs")

    return Provider("flashinfer", found.version, call, found.forget)


def _transformers() -> Provider:
    """What `generate` does: TopKLogitsWarper, then TopPLogitsWarper."""
    version, warpers = peers.transformers_warpers()

    def call(case: Case, device: torch.device) -> Call | None:
        if case.operation != "mask":
            return None
        steps = warpers(case.k, case.p)

        def run(x: Tensor) -> Tensor:
            for step in steps:
                x = step(None, x)
            return x

        return Call(run)

    return Provider("transformers_rule", version, call)


def _torch_sort(case: Case, device: torch.device) -> Call | None:
    """One full sort, both cuts in sorted order, and back: the usual code of serving without a kernel."""
    k, p, vocab = case.k, case.p, case.vocab
    if case.operation != "mask":
        return None

    def run(x: Tensor) -> Tensor:
        ranked, order = x.sort(dim=-1)
        if k is not None and k < vocab:
            ranked = ranked.masked_fill(ranked < ranked[:, vocab - k, None], -INF)
        if p is not None:
            dropped = ranked.softmax(-1).cumsum_(-1) <= 1 - p
            dropped[:, -1] = False
            ranked.masked_fill_(dropped, -INF)
        return torch.empty_like(x).scatter_(-1, order, ranked)

    return Call(run)


def _torch_topk(case: Case, device: torch.device) -> Call | None:
    """`torch.topk`, and the nucleus among its k entries; p alone has no k to begin with."""
    k, p = case.k, case.p
    if k is None or case.operation == "sample":
        return None

    def cut(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, indices = x.topk(min(k, case.vocab), dim=-1)
        probs = values.float().softmax(-1)
        kept = (probs.cumsum(-1) - probs < p) if p is not None else torch.ones_like(indices, dtype=torch.bool)
        return values, indices, kept

    def mask(x: Tensor) -> Tensor:
        values, indices, kept = cut(x)
        return torch.full_like(x, -INF).scatter_(-1, indices, values.where(kept, -INF))

    def listed(x: Tensor) -> Candidates:
        values, indices, kept = cut(x)
        probs = values.float().masked_fill(~kept, -INF).softmax(-1)
        values = values.float().where(kept, 0.0)
        return Candidates(indices.where(kept, -1).int(), values, probs, kept.sum(-1, dtype=torch.int32))

    return Call(mask) if case.operation == "mask" else Call(listed, "candidates")
