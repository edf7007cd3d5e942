"""Make the captures in data/captures and the indexers in data/indexers again, or others elsewhere.

    python -m activations.record openers                      rows of logits of the default model
    python -m activations.record sentence                     every query and key of a sentence, of each global layer
    python -m activations.record index                        8,192 tokens, 64 queries of each global layer
    python -m activations.record index --tokens 32768 --queries 1024 --folder captures
    python -m activations.record index --model ID_OR_FOLDER --layers 3 7 --folder captures
    python -m activations.record indexers                     train those of the default model's global layers: a GPU
    python -m activations.record indexers --lengths 512 1024 --steps 60 --folder indexers       minutes on a CPU

Beside each file stands a .json that says where it came from. The standard ones need the default model.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from . import gemma, index_storage, record_indexers, texts
from .capture import capture_logits
from .index_run import SOURCES, capture_index, index_layers
from .models import LanguageModel, load
from .progress import ConsoleBar
from .provenance import write_provenance
from .recorded import FOLDER
from .storage import SCHEMA, save_capture

# The last position of each: a peaked, a medium and a wide nucleus, and the Chinese one.
_OPENERS = ("The capital of France is", "import numpy as", "To be, or not to be, that is the", "法国的首都是")
_CHARACTERS_A_TOKEN = 10  # more than any text of ours has, so that enough is tokenised
SENTENCE = texts.looking_back[0]
_WHERE = ("device", "folder", "checkpoint")  # options that change nothing of what is made
DERIVED = "Outputs of Gemma 3 270M, de-quantised from Q4_K_M and stored as bf16"


def record_openers(folder: Path = FOLDER) -> Path:
    """Capture the last position of four openers with the default model, and write where it all came from beside."""
    lm = load(device="cpu")
    lengths = [len(lm.encode(text)) for text in _OPENERS]
    last = [sum(lengths[: i + 1]) - 1 for i in range(len(lengths))]
    capture = capture_logits(lm, list(_OPENERS), positions=last)
    capture.meta["derived"] = DERIVED
    path = save_capture(capture, folder / "openers.safetensors", head="rows")
    write_provenance(
        path,
        capture.meta,
        schema=SCHEMA,
        command="python -m activations.record openers",
        texts=list(_OPENERS),
        rows="the last position of each text: float32 logits, and those of the bf16 head",
        texts_licence="public domain, or written for this project",
    )
    return path


def record_sentence(folder: Path = FOLDER) -> list[Path]:
    """Capture all queries and keys of `SENTENCE` with the default model, one file `sentence_layer_<n>` a layer."""
    lm = load(device="cpu")
    captures = capture_index(lm, SENTENCE, layer=index_layers(lm), mass=True)
    more = {"rows": "every token as query and as key: q, k, w, and the mass of attention"}
    more |= {"command": "python -m activations.record sentence", "texts_licence": "written for this project"}
    return [_save_index(lm, capture, folder, "sentence", SENTENCE, more) for capture in captures]


def record_index(
    lm: LanguageModel,
    folder: Path = FOLDER,
    *,
    text: str = "pydoc",
    tokens: int = 8192,
    queries: int = 64,
    layers: Sequence[int] | None = None,
    source: str = "attention",
    kv_head: int | None = None,
    mass: bool = True,
    command: str = "activations.record.record_index",
) -> list[Path]:
    """Capture the index of some layers over the beginning of a text, one file `index_layer_<n>` a layer.

    The queries are the last tokens of that beginning, so they are neighbours and form groups. Queries and keys keep the
    dtype that the model computes in; the attention's mass is rounded to float16, which is off by at most 3e-8 or a
    2,048th of a value, and leaves a row's sum within 3e-4 of 1.

    Args:
        text: A name of `texts.builtin_names()`, or the path of a text file in UTF-8.
        tokens: N. queries: T, at most N. layers: None is all of `index_layers`.
        source, kv_head: As `capture_index` takes them. mass: Whether the attention's mass is kept.
        command: What the .json says that made the file.
    Raises:
        ValueError: a text with fewer tokens, more queries than tokens, no eligible layer, or what `capture_index` says.
        OSError: the text can't be read or a file not be written.
    """
    if not 1 <= queries <= tokens:
        raise ValueError(f"queries must be from 1 to the {tokens:,} tokens, got {queries}")
    chosen = index_layers(lm, source, tokens) if layers is None else list(layers)
    if not chosen:
        raise ValueError(f"no layer of {lm.name} has an index of source {source!r} over {tokens:,} tokens")
    written, licence = _text(text, tokens)
    ids = lm.encode(written)[:tokens]
    if len(ids) < tokens:
        raise ValueError(f"the text {text!r} has {len(ids):,} tokens, {tokens:,} are wanted")
    bar, positions = ConsoleBar(), range(-queries, 0)
    try:
        options = {"source": source, "kv_head": kv_head, "positions": positions, "mass": mass, "progress": bar}
        captures = capture_index(lm, ids, layer=chosen, **options)
    finally:
        bar.close()
    known = texts.builtin_names()
    described = f"{text}, {known[text]}" if text in known else Path(text).name
    rows = f"the last {queries:,} tokens as queries, all {tokens:,} as keys: q, k, w"
    rows += ", and the mass of attention" * mass
    more = {"rows": rows, "command": command, "python": platform.python_version(), "texts_licence": licence}
    where = f"the first {tokens:,} tokens of {described}"
    return [_save_index(lm, capture, folder, "index", where, more) for capture in captures]


def _save_index(lm, capture, folder: Path, stem: str, text: str, more: dict) -> Path:
    """Write an index, its mass as float16, and beside it where it came from."""
    derived = DERIVED.replace("Outputs", "Activations") if lm.name == gemma.NAME else f"Activations of {lm.name}"
    meta = {**capture.meta, "derived": derived, "text": text}
    if capture.mass is not None:
        meta["mass"] += ", rounded to float16"
        capture = dataclasses.replace(capture, mass=capture.mass.half())
    capture = dataclasses.replace(capture, meta=meta)
    folder.mkdir(parents=True, exist_ok=True)
    path = save_capture(capture, folder / f"{stem}_layer_{meta['layer']}.safetensors")
    write_provenance(path, meta, schema=index_storage.SCHEMA, **more)
    return path


def _text(text: str, tokens: int) -> tuple[str, str]:
    """(enough of a text, its licence)."""
    if text in texts.builtin_names():
        return texts.builtin_text(text, _CHARACTERS_A_TOKEN * tokens), texts.PSF_LICENCE
    return Path(text).read_text("utf-8")[: _CHARACTERS_A_TOKEN * tokens], "that of the text"


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        "python -m activations.record", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = top.add_subparsers(dest="what", required=True, metavar="openers | sentence | index | indexers")
    what.add_parser("openers", help="logits at the end of four openers, into data/captures")
    what.add_parser("sentence", help="queries, keys and attention mass of a sentence, into data/captures")
    index = what.add_parser("index", help="queries, keys and attention mass, one file a layer")
    index.add_argument("--model", default=gemma.NAME, help="as activations.load takes it (default: %(default)s)")
    index.add_argument("--device", default="auto")
    index.add_argument("--dtype", default="bfloat16", help="that the model computes in (default: %(default)s)")
    index.add_argument("--text", default="pydoc", help="a built-in text, or a file (default: %(default)s)")
    index.add_argument("--tokens", type=int, default=8192, help="from the beginning of the text (default: %(default)s)")
    index.add_argument("--queries", type=int, default=64, help="the last of them (default: %(default)s)")
    index.add_argument("--layers", type=int, nargs="+", help="default: all that see the whole text")
    index.add_argument("--source", default="attention", choices=SOURCES)
    index.add_argument("--kv-head", type=int, help="of several key heads (default: the first)")
    index.add_argument("--no-mass", action="store_true", help="leave out the attention's mass, T x N x 2 bytes a layer")
    index.add_argument("--folder", type=Path, help="default: data/captures, for the standard ones alone")
    record_indexers.add_arguments(what.add_parser("indexers", help="distil lightning indexers, one file a layer"))
    return top


def _changed(options: argparse.Namespace) -> list[str]:
    """The options that are not as they stand for the files of data/captures, as they are written."""
    standard, given = vars(_parser().parse_args([options.what])), vars(options)
    out = []
    for name in [name for name in given if given[name] != standard[name] and name not in _WHERE]:
        values = given[name] if isinstance(given[name], list) else [given[name]] * (given[name] is not True)
        out += [f"--{name.replace('_', '-')}", *map(str, values)]
    return out


def _index(options: argparse.Namespace, command: str) -> list[Path]:
    lm = load(options.model, device=options.device, dtype=options.dtype)
    wanted = {name: getattr(options, name) for name in ("text", "tokens", "queries", "layers", "source", "kv_head")}
    return record_index(lm, options.folder or FOLDER, **wanted, mass=not options.no_mass, command=command)


def _indexers(options: argparse.Namespace, command: str) -> Sequence[Path]:
    lm = load(options.model, device=options.device)
    bar = ConsoleBar()
    try:
        return record_indexers.run(lm, options, command, bar)
    finally:
        bar.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.what == "openers":
        paths = [record_openers()]
    elif options.what == "sentence":
        paths = record_sentence()
    else:
        changed = _changed(options)
        if changed and options.folder is None:
            home = "data/captures" if options.what == "index" else "data/indexers"
            parser.error(f"with {' '.join(changed)} say where the files go: --folder ({home} has the standard)")
        command = " ".join([f"python -m activations.record {options.what}", *changed])
        try:
            paths = _index(options, command) if options.what == "index" else _indexers(options, command)
        except (ValueError, OSError, ImportError, RuntimeError) as error:
            sys.exit(f"{parser.prog}: {error}")
    for path in paths:
        print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
