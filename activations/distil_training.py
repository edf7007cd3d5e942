"""The steps of a distillation: read a piece of text, compare, improve. `distillation.py` says what for."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from .distil_checkpoint import read_checkpoint, write_checkpoint
from .distil_data import Attention, Pieces, read_attention
from .indexer import IndexerShape, LightningIndexer, divergence, index_scores
from .indexer_file import identity
from .models import LanguageModel, dtype_name
from .progress import Progress

# The scores of all heads of a chunk of queries; what is kept for their gradient is about four times that.
_SCORE_BYTES = 256 << 20
_WARM_UP, _LAST_RATE = 0.05, 0.05
_CLIP = 1.0


@dataclass(frozen=True)
class Recipe:
    """What a distillation does, apart from its model and texts. See `distil`."""

    layers: tuple[int, ...]
    lengths: tuple[int, ...]
    steps: int
    rows: int | None
    heads: int
    dim: int
    rope_dim: int
    rope_theta: tuple[float, ...]
    learning_rate: float
    seed: int

    def rate(self, step: int) -> float:
        """Learning rate of a step: a short rise, then half a cosine down to a twentieth."""
        rise = max(1, round(_WARM_UP * self.steps))
        down = (step - rise) / max(1, self.steps - rise)
        cosine = _LAST_RATE + (1 - _LAST_RATE) * 0.5 * (1 + math.cos(math.pi * max(0.0, down)))
        return self.learning_rate * min((step + 1) / rise, cosine)


class Training:
    """Indexers on their way: weights, the optimizer's moments, and the steps done."""

    def __init__(self, lm: LanguageModel, recipe: Recipe, pieces: Pieces):
        self.lm, self.recipe, self.pieces = lm, recipe, pieces
        self.step, self.whole = 0, True  # whole: no update is half made
        self.kl: list[list[list[float]]] = []  # [steps][lengths][layers]
        self.indexers: dict[int, LightningIndexer] = {}
        self.optimizer: torch.optim.Optimizer | None = None

    def about(self) -> dict:
        """What a checkpoint must agree with."""
        who = [identity(self.lm, layer) for layer in self.recipe.layers]
        recipe = json.loads(json.dumps(asdict(self.recipe)))  # as it comes back from a file
        return {"model": who, "recipe": recipe, "text": self.text(), "computed": {"dtype": dtype_name(self.lm.dtype)}}

    def text(self) -> dict:
        return {"tokens": len(self.pieces.ids), "sha256": self.pieces.sha256}

    def run(self, progress: Progress, checkpoint: Path | None, every: int) -> None:
        """All steps that are left. A checkpoint is written whenever something ends them."""
        saved = None
        if checkpoint is not None and checkpoint.exists():
            read_checkpoint(self, checkpoint)
            saved = self.step
        stop = _Told(self, progress)
        try:
            stop()
            if not self.indexers:
                self.start(stop)
            while self.step < self.recipe.steps:
                self.advance(stop)
                if checkpoint is not None and self.step % every == 0:
                    write_checkpoint(self, checkpoint)
                    saved = self.step
            stop()
        finally:
            if checkpoint is not None and self.step and self.whole and saved != self.step:
                write_checkpoint(self, checkpoint)

    def start(self, stop: Callable[[], None]) -> None:
        """New weights, scaled to the hidden states of the first piece."""
        shortest = min(self.pieces.at(0), key=len)
        first = read_attention(self.lm, shortest, self.recipe.layers, stop)
        scales = {layer: one.hidden.float().square().mean().sqrt().reciprocal().item() for layer, one in first.items()}
        widths = {layer: one.hidden.shape[1] for layer, one in first.items()}
        recipe = self.recipe
        made = {}
        for layer, theta in zip(recipe.layers, recipe.rope_theta):
            shape = IndexerShape(widths[layer], recipe.heads, recipe.dim, recipe.rope_dim, theta, scales[layer])
            made[layer] = LightningIndexer(shape)
            made[layer].start(recipe.seed * 1009 + layer)
        self.take(made, {layer: one.hidden.device for layer, one in first.items()})

    def take(self, indexers: dict[int, LightningIndexer], devices: dict[int, torch.device]) -> None:
        """Train these from now on."""
        self.indexers = {layer: indexer.to(devices[layer]).train() for layer, indexer in indexers.items()}
        self.optimizer = torch.optim.Adam([p for one in self.indexers.values() for p in one.parameters()], lr=0.0)

    def advance(self, stop: Callable[[], None]) -> None:
        """One step. What it changes, it changes at its end."""
        self.optimizer.zero_grad()
        found, layers = [], self.recipe.layers
        for ids in self.pieces.at(self.step):
            attention = read_attention(self.lm, ids, layers, stop)
            rows = self.pieces.rows(self.step, len(ids), self.recipe.rows)
            share = 1 / (len(rows) * len(self.recipe.lengths))
            found.append([learn(self.indexers[one], attention.pop(one), rows, share, stop) for one in layers])
        values = torch.tensor([[float(kl) for kl in row] for row in found], dtype=torch.float64)
        if not values.isfinite().all():
            raise RuntimeError(f"step {self.step}: the divergence is {values.tolist()}; a lower learning_rate may help")
        for indexer in self.indexers.values():
            torch.nn.utils.clip_grad_norm_(indexer.parameters(), _CLIP)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate(self.step)
        self.whole = False
        self.optimizer.step()
        self.kl.append(values.tolist())
        self.step += 1
        self.whole = True

    def losses(self) -> Tensor:
        shape = (len(self.kl), len(self.recipe.lengths), len(self.recipe.layers))
        return torch.tensor(self.kl, dtype=torch.float64).reshape(shape)

    def finished(self) -> dict[int, LightningIndexer]:
        """The indexers on the CPU, with what is known of them; weights are rounded to float16, as files hold them."""
        about, losses = self.about(), self.losses()
        last = losses[-max(1, len(losses) // 10) :].mean(0)
        found = {}
        for number, (layer, indexer) in enumerate(self.indexers.items()):
            kl = {str(length): last[i, number].item() for i, length in enumerate(self.recipe.lengths)}
            recipe = {**about["recipe"], "method": "KL divergence of index softmax from head-averaged attention"}
            training = {"text": about["text"], "last_kl": kl, "device": str(self.lm.device), "torch": torch.__version__}
            training |= {"compute_dtype": dtype_name(self.lm.dtype), "python": platform.python_version()}
            derived = f"Distilled from activations of {self.lm.name}"
            indexer.meta = {**about["model"][number], "derived": derived, "recipe": recipe, "training": training}
            indexer.requires_grad_(False)
            found[layer] = indexer.cpu().half().float().eval()
        return found


class _Told:
    """Tells the step and how far the divergence is down, twenty times in all, and lets the caller stop."""

    def __init__(self, training: Training, progress: Progress):
        self.training, self.progress = training, progress
        layers = ", ".join(map(str, training.recipe.layers))
        self._name = f"Distilling an indexer of layer {layers}" if layers.isdigit() else f"Distilling layers {layers}"
        self._every = max(1, training.recipe.steps // 20)

    def __call__(self) -> None:
        training = self.training
        told = training.step - training.step % self._every
        kl = f", KL {torch.tensor(training.kl[told - 1]).mean():.3f}" if told else ""
        self.progress(training.step, training.recipe.steps, self._name + kl)


def learn(
    indexer: LightningIndexer, attention: Attention, rows: Tensor, share: float, stop: Callable[[], None]
) -> Tensor:
    """Add the gradient of share times the summed divergence of some queries to an indexer; return their mean.

    Args:
        rows: Places of the queries in the text, ascending int64.
        stop: Called before each chunk of queries; may raise.
    """
    hidden = attention.hidden
    rows = rows.to(hidden.device)
    size = max(1, _SCORE_BYTES // (4 * indexer.shape.heads * len(hidden)))
    total = torch.zeros((), dtype=torch.float64, device=hidden.device)
    with torch.enable_grad():
        k = indexer.keys(hidden, torch.arange(len(hidden), device=hidden.device))
        # The keys' gradient is gathered over the chunks, and goes through the indexer once.
        leaf = k.detach().requires_grad_()
        for chunk in rows.split(size):
            stop()
            target = attention.mass(chunk)
            q, w = indexer.queries(hidden[chunk], chunk)
            kl = divergence(target, index_scores(q, leaf[: target.shape[1]], w), chunk + 1)
            (share * kl.sum()).backward()
            total += kl.detach().double().sum()
        k.backward(leaf.grad)
    return total / len(rows)
