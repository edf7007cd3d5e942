"""A lightning indexer: a few small queries a token, one key a token, and the score that ranks keys.

The indexer of DeepSeek-V3.2 for a layer that has none: query heads, keys and head weights are made from what the
layer's attention reads, its hidden states. Knows no language model and no training.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

NORM_EPS = 1e-6


@dataclass(frozen=True)
class IndexerShape:
    """What an indexer is made by.

    Attributes:
        hidden_size: Width of the hidden states that it reads.
        heads, dim: H queries a token of D numbers each; the key has D too, 1 <= D <= 256.
        rope_dim: The first numbers of queries and keys that are rotated by position, even, at most D; 0 is none.
        rope_theta: Base of the rotation's wave lengths.
        input_scale: Hidden states are multiplied by it, so that weights of every layer start and train alike.
    Raises:
        ValueError: a number out of range.
    """

    hidden_size: int
    heads: int = 8
    dim: int = 64
    rope_dim: int = 32
    rope_theta: float = 10_000.0
    input_scale: float = 1.0

    def __post_init__(self):
        for name in ("hidden_size", "heads", "dim", "rope_dim"):
            value, least = getattr(self, name), int(name != "rope_dim")
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an int of at least {least}, got {value!r}")
        if self.dim > 256:
            raise ValueError(f"dim must be at most 256, got {self.dim}")
        if self.rope_dim % 2 or self.rope_dim > self.dim:
            raise ValueError(f"rope_dim must be even and at most dim = {self.dim}, got {self.rope_dim}")
        for name in ("rope_theta", "input_scale"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a positive number, got {value!r}")


class LightningIndexer(nn.Module):
    """Queries, keys and head weights of a layer's tokens from its hidden states, in float32.

    Attributes:
        shape: `IndexerShape`.
        meta: What is known of it, plain values: its model, layer, recipe, quality; filled by `distil`.
    Source: DeepSeek-V3.2. There queries come from the compressed query of its attention; here from the hidden states,
    as keys and weights do in both.
    """

    def __init__(self, shape: IndexerShape, meta: dict | None = None):
        super().__init__()
        self.shape, self.meta = shape, meta or {}
        self.wq = nn.Linear(shape.hidden_size, shape.heads * shape.dim, bias=False)
        self.wk = nn.Linear(shape.hidden_size, shape.dim, bias=False)
        self.k_norm = nn.LayerNorm(shape.dim, eps=NORM_EPS)
        self.weights_proj = nn.Linear(shape.hidden_size, shape.heads, bias=False)

    @property
    def scale(self) -> float:
        """What the head weights are multiplied by: a ReLU lets positive factors pass, so they hold both scales."""
        return (self.shape.heads * self.shape.dim) ** -0.5

    @property
    def rope(self) -> str:
        shape = self.shape
        return f"post, half-split on the first {shape.rope_dim} of {shape.dim}" if shape.rope_dim else "none"

    def start(self, seed: int) -> None:
        """Draw new weights; the same ones for a seed, on every device."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for linear in (self.wq, self.wk, self.weights_proj):
                drawn = torch.randn(linear.weight.shape, generator=generator) * self.shape.hidden_size**-0.5
                linear.weight.copy_(drawn)
            self.k_norm.weight.fill_(1.0)
            self.k_norm.bias.zero_()

    def queries(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """q [T, H, D] and w [T, H] of hidden states [T, hidden_size] at positions [T]; any float in, float32 out."""
        hidden = self._scaled(hidden)
        q = self.wq(hidden).unflatten(-1, (self.shape.heads, self.shape.dim))
        return self._rotated(q, positions), self.weights_proj(hidden) * self.scale

    def keys(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """k [N, D] of hidden states [N, hidden_size] at positions [N]."""
        k = self.k_norm(self.wk(self._scaled(hidden)))
        return self._rotated(k[:, None], positions)[:, 0]

    def _scaled(self, hidden: Tensor) -> Tensor:
        return hidden.to(self.wk.weight.device, torch.float32) * self.shape.input_scale

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [T, H, D] with its first numbers turned by their position, first half against second."""
        half = self.shape.rope_dim // 2
        turn = torch.arange(half, device=x.device, dtype=torch.float32) / max(1, half)
        angle = positions.to(x.device, torch.float32)[:, None] * self.shape.rope_theta**-turn  # [T, half]
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)

    def about(self) -> dict:
        """Its shape as plain values."""
        return asdict(self.shape)


def index_scores(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """Scores [R, n] float32 of queries q [R, H, D] with weights w [R, H] against keys k [n, D]; differentiable.

    All heads exist at once, 4 R H n bytes: for chunks of rows.
    """
    products = (q.float().flatten(0, 1) @ k.float().t()).relu().unflatten(0, q.shape[:2])  # [R, H, n]
    return torch.bmm(w.float()[:, None], products)[:, 0]


def divergence(target: Tensor, scores: Tensor, hi: Tensor) -> Tensor:
    """KL divergence [R] of what attention gives the keys from the softmax of their scores, in nats.

    Args:
        target: [R, n] not negative, zero from hi on; normalised here, since a sink may have taken a part.
        scores: [R, n] float32. hi: [R]: row r sees the keys s < hi[r], at least one.
    """
    unseen = torch.arange(scores.shape[1], device=scores.device) >= hi.to(scores.device)[:, None]
    log_q = scores.masked_fill(unseen, -torch.inf).log_softmax(-1).masked_fill(unseen, 0.0)
    target = target.float() / target.float().sum(1, keepdim=True)
    return (torch.xlogy(target, target) - target * log_q).sum(1)
