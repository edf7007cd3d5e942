"""`python -m activations.record indexers`: distil the indexers of data/indexers again, or those of another model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from . import gemma, indexer_file, texts
from .cache import cache_folder
from .distillation import LENGTHS, distil
from .models import LanguageModel
from .progress import Progress
from .provenance import write_provenance

DERIVED = "Distilled from activations of Gemma 3 270M, de-quantised from Q4_K_M and stored as bf16"
STEPS, ROWS, RATE = 600, 4096, 3e-3


def record_indexers(
    lm: LanguageModel,
    folder: Path = indexer_file.FOLDER,
    *,
    command: str = "activations.record_indexers.record_indexers",
    progress: Progress | None = None,
    **options,
) -> list[Path]:
    """Distil indexers and write one file `indexer_layer_<n>` a layer, with recipe, data and quality in a .json beside.

    Args:
        command: What the .json says that made the file. options: As `distil` takes them.
    Raises:
        As `distil`. OSError: a file cannot be written.
    """
    found = distil(lm, progress=progress, **options)
    trained_on = "what the caller gave"
    if options.get("texts") is None:
        trained_on = (
            "sources of the standard library, and the second half of pydoc's topics without what the first half "
        )
        trained_on += "says too: activations.texts.training_texts()"
    for indexer in found.indexers.values():
        indexer.meta["training"]["texts"] = trained_on
        if lm.name == gemma.NAME:
            indexer.meta["derived"] = DERIVED
    paths = found.save(folder)
    for path, indexer in zip(paths, found.indexers.values(), strict=True):
        write_provenance(
            path,
            {name: value for name, value in indexer.meta.items() if name != "sketch"},
            schema=indexer_file.SCHEMA,
            command=command,
            home="data/indexers",
            holds=f"weights of a lightning indexer, {sum(p.numel() for p in indexer.parameters()):,} float16 numbers",
            shape=indexer.about(),
            texts_licence=texts.PSF_LICENCE if options.get("texts") is None else "that of the texts",
        )
    return paths


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=gemma.NAME, help="as activations.load takes it (default: %(default)s)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--layers", type=int, nargs="+", help="default: all that see the whole of any text")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="tokens of a step's pieces")
    parser.add_argument("--steps", type=int, default=STEPS, help="default: %(default)s")
    parser.add_argument("--rows", type=int, default=ROWS, help="queries of a piece that count (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=RATE, help="at its highest (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="to go on from after a stop (default: one in the user's cache)")
    parser.add_argument("--folder", type=Path, help="default: data/indexers, for the standard ones alone")


def run(lm: LanguageModel, options: argparse.Namespace, command: str, progress: Progress) -> Sequence[Path]:
    """What the command line asks for. The checkpoint goes when the files are there."""
    checkpoint = options.checkpoint or cache_folder() / "distillation" / f"{lm.name}.safetensors"
    wanted = ("layers", "lengths", "steps", "rows", "learning_rate", "seed")
    paths = record_indexers(
        lm,
        options.folder or indexer_file.FOLDER,
        command=command,
        progress=progress,
        checkpoint=checkpoint,
        **{name: getattr(options, name) for name in wanted},
    )
    checkpoint.unlink(missing_ok=True)
    return paths
