"""`distil`: a lightning indexer for layers of a model that has none, taught by what their attention looks at.

The warm-up stage of DeepSeek-V3.2: the model is frozen, and the softmax of the index scores is drawn to the mean over
heads of the main attention, by the KL divergence of every query. Memory grows with the length of a text alone: queries
are taken in chunks, so that neither scores nor attention exist for all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from qp_kernels.pivot.reference import IEEE

from . import texts as built_in
from .distil_data import Pieces
from .distil_training import Recipe, Training
from .index_quality import index_report
from .index_run import check_layer, index_layers, rope_theta
from .indexer import IndexerShape, LightningIndexer
from .indexer_file import path_of, save_indexer
from .models import LanguageModel
from .progress import Progress, quiet

LENGTHS = (2048, 8192, 32_768)


@dataclass(frozen=True)
class Distillation:
    """What `distil` returns.

    Attributes:
        indexers: The indexer of each layer, on the CPU; `capture_index(..., indexers=result.indexers)` takes them.
        losses: [steps, lengths, layers] float64: the mean KL divergence of the queries of every step, in nats.
        report: One dict for each length and layer, as `index_report` returns them; empty without a text to measure on.
    """

    indexers: dict[int, LightningIndexer]
    losses: Tensor
    report: list[dict]

    def save(self, folder: str | Path) -> list[Path]:
        """Write `indexer_layer_<n>.safetensors` for each layer into a folder, which is made. Raises OSError."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        return [save_indexer(indexer, path_of(folder, layer)) for layer, indexer in self.indexers.items()]


def distil(
    lm: LanguageModel,
    layers: int | Sequence[int] | None = None,
    *,
    texts: Sequence | None = None,
    lengths: Sequence[int] = LENGTHS,
    steps: int = 300,
    rows: int | None = 4096,
    heads: int = 8,
    dim: int = 64,
    rope_dim: int = 32,
    learning_rate: float = 3e-3,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 20,
    measure_on=None,
    progress: Progress = quiet,
) -> Distillation:
    """Train lightning indexers of some layers, from what these layers attend to; the model itself stays as it is.

    Each step reads one piece of text of every length, from position 0 on, and draws the softmax of the index scores
    to the mean over heads of the attention, for `rows` queries of each piece. Gradients of lengths count alike. An
    indexer works at the lengths that it has seen: give all that it shall be used at.

    Args:
        layers: Layers that attend to the whole of the longest piece. None is all that attend to the whole of any text.
        texts: Texts or ids to train on. None is `texts.training_texts()`.
        lengths: Tokens of the pieces of a step, at least 2 each.
        steps: Updates of the weights. rows: Queries of a piece that count in a step, drawn anew in each; None is all.
        heads, dim, rope_dim: As `IndexerShape`; the base of the rotation is the layer's own.
        learning_rate: At its highest. seed: Of weights, pieces and queries.
        checkpoint: A file that is written every `checkpoint_every` steps and when the work is cancelled or fails. If it
            is there, training goes on from it; the result is the same as without a stop (bit for bit, as far as the
            device computes alike each time, which CPUs do).
        measure_on: A text or ids for the report, which training does not see. None is `texts.measuring_text()` where
            `texts` is None, and no report else. Lengths beyond this text are left out.
        progress: Called as progress(done, total, what) with steps, several times in each; may raise to cancel.
    Returns:
        `Distillation`.
    Raises:
        ValueError: a layer without attention to the whole of a piece, a number out of range, too little text, or a
            checkpoint that is damaged or of another model, recipe or text.
        RuntimeError: the divergence is no longer finite, or a layer's attention cannot be seen.

    Memory: beside the model's own, about 1.5 GB, and what the layers attend with: (hidden + Hq D + Hkv D) numbers a
    token and layer. Source: DeepSeek-V3.2 (the dense warm-up stage of its sparse attention).
    """
    recipe = _recipe(lm, layers, lengths, steps, rows, heads, dim, rope_dim, learning_rate, seed)
    _at_least("checkpoint_every", checkpoint_every, 1)
    if measure_on is None and texts is None:
        measure_on = built_in.measuring_text()
    progress = progress or quiet
    given = built_in.training_texts() if texts is None else texts
    pieces = Pieces(lm, _told(given, recipe.steps, progress), recipe.lengths, recipe.seed)
    # A panel's worker may be in inference mode, where nothing can be trained.
    with torch.inference_mode(False), IEEE, torch.autocast(lm.device.type, enabled=False):
        training = Training(lm, recipe, pieces)
        training.run(progress, None if checkpoint is None else Path(checkpoint), checkpoint_every)
        found = training.finished()
    report = []
    if measure_on is not None:
        report = index_report(lm, found, measure_on, lengths=recipe.lengths, progress=progress)
        for layer, indexer in found.items():
            indexer.meta["quality"] = [one for one in report if one["layer"] == layer]
    return Distillation(found, training.losses(), report)


def _told(given: Sequence, steps: int, progress: Progress) -> Iterator:
    for text in given:
        progress(0, steps, "Reading the texts")
        yield text


def _recipe(lm, layers, lengths, steps, rows, heads, dim, rope_dim, learning_rate, seed) -> Recipe:
    lengths = tuple(lengths)
    if not lengths or len(set(lengths)) != len(lengths):
        raise ValueError(f"lengths must be one or more different ints, got {list(lengths)}")
    for length in lengths:
        _at_least("a length", length, 2)
    longest = max(lengths)
    if lm.context is not None and longest > lm.context:
        raise ValueError(f"a length is {longest:,} tokens, {lm.name} reads at most {lm.context:,}")
    if layers is None:
        layers = index_layers(lm, "attention") or index_layers(lm, "attention", longest)
    chosen = tuple(layers) if isinstance(layers, Sequence) and not isinstance(layers, str) else (layers,)
    if not chosen or len(set(chosen)) != len(chosen):
        raise ValueError(f"name one or more different layers that see {longest:,} tokens, got {list(chosen)}")
    for layer in chosen:
        check_layer(lm, layer, "attention", longest)
    _at_least("steps", steps, 1)
    if rows is not None:
        _at_least("rows", rows, 1)
    _at_least("seed", seed, 0)
    if isinstance(learning_rate, bool) or not isinstance(learning_rate, (int, float)) or not 0 < learning_rate < 1:
        raise ValueError(f"learning_rate must be in (0, 1), got {learning_rate!r}")
    theta = tuple(rope_theta(lm, layer) for layer in chosen)
    IndexerShape(1, heads, dim, rope_dim)
    return Recipe(chosen, lengths, steps, rows, heads, dim, rope_dim, theta, float(learning_rate), seed)


def _at_least(name: str, value, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an int of at least {least}, got {value!r}")
