"""Other samplers' masks as functions (logits [B, V] float32, k or None, p or None) -> kept [B, V] bool.

Where their code comes from, an installed package or the ignored folder `.peers`, is in qp_kernels/bench/peers.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

from qp_kernels.bench import peers

FOLDER = peers.FOLDER
INF = float("inf")
Mask = Callable[[torch.Tensor, int | None, float | None], torch.Tensor]


def available(folder: Path = FOLDER, device: str = "cuda") -> dict[str, tuple[str, Mask]]:
    """name -> (version, mask) of all that can run here."""
    found = {}
    for name, load in (("transformers", transformers_rule), ("vllm", vllm), ("flashinfer", flashinfer)):
        try:
            found[name] = load(folder, torch.device(device))
        except peers.Unavailable as reason:
            print(f"without {name}: {reason}", file=sys.stderr)
    return found


def transformers_rule(folder: Path, device: torch.device) -> tuple[str, Mask]:
    """What `generate` does: TopKLogitsWarper, then TopPLogitsWarper."""
    version, steps = peers.transformers_warpers()

    def mask(logits, k, p):
        for step in steps(k, p):
            logits = step(None, logits)
        return logits > -INF

    return version, mask


def vllm(folder: Path, device: torch.device) -> tuple[str, Mask]:
    """vLLM's `apply_top_k_top_p_triton`, on a copy, since it works in place."""
    found = peers.vllm(device, folder)

    def mask(logits, k, p):
        rows = {"device": logits.device}
        k = None if k is None else torch.full((len(logits),), k, dtype=torch.int32, **rows)
        p = None if p is None else torch.full((len(logits),), p, dtype=torch.float32, **rows)
        return found.apply(logits.clone(), k, p) > -INF

    return found.version, mask


def flashinfer(folder: Path, device: torch.device) -> tuple[str, Mask]:
    """`top_k_mask_logits`, then softmax and `top_p_renorm_probs`, as FlashInfer documents it for "top_k_first"."""
    found = peers.flashinfer(device, folder)

    def mask(logits, k, p):
        if k is not None:
            logits = found.top_k_mask(logits, k)
        return logits > -INF if p is None else found.top_p_renorm(logits.softmax(-1), p) > 0

    return found.version, mask
