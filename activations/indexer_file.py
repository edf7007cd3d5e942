"""Indexers as files: safetensors only, whole, and for the layer and model that they were distilled for.

A file names the sha256 of all that it holds, its schema, and its model: name, source of the weights where it is known,
and a few weights of the layer's attention, so that another model of the same name is told too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from .index_attention import attention_modules
from .indexer import IndexerShape, LightningIndexer
from .models import LanguageModel
from .tensor_file import opened, replace_tensors

SCHEMA = "qp-explorer/lightning-indexer/1"
FOLDER = Path(__file__).resolve().parent.parent / "data" / "indexers"
# What a model's weights may differ by when it is loaded in another dtype.
_SKETCH_RTOL = 2**-6
_SKETCH_NUMBERS = 16


def path_of(folder: str | Path, layer: int) -> Path:
    """The file of a layer's indexer in a folder."""
    return Path(folder) / f"indexer_layer_{layer}.safetensors"


def save_indexer(indexer: LightningIndexer, path: str | Path) -> Path:
    """Write an indexer and its `meta` to one `.safetensors` file, which replaces an older one only when complete.

    Weights are written as float16 where that changes none of a tensor, which `distil` sees to, and else as float32.

    Raises:
        ValueError: another suffix, or an indexer that does not say what it is of: `identity` makes that part of meta.
        OSError: the file cannot be written.
    """
    path = Path(path)
    _suffix(path)
    if missing := {"model", "layer", "sketch"} - set(indexer.meta):
        raise ValueError(f"the indexer's meta says nothing of {', '.join(sorted(missing))}")
    tensors = {name: _small(tensor.detach().float()) for name, tensor in indexer.state_dict().items()}
    content = json.dumps({"shape": indexer.about(), "meta": indexer.meta})
    replace_tensors(tensors, path, {"schema": SCHEMA, "content": content, "sha256": digest_of(tensors, content)})
    return path


def _small(tensor: Tensor) -> Tensor:
    half = tensor.half()
    return half if half.float().equal(tensor) else tensor


def load_indexer(path: str | Path) -> LightningIndexer:
    """Read what `save_indexer` wrote, onto the CPU.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged, holds something else, or has another schema version.
    """
    path = Path(path)
    _suffix(path)
    tensors, content = read_checked(path, SCHEMA, "indexer")
    try:
        meta = content["meta"]
        if not isinstance(meta, dict) or not isinstance(meta["model"], str) or not isinstance(meta["layer"], int):
            raise ValueError("meta must name the model and the layer")
        indexer = LightningIndexer(IndexerShape(**content["shape"]), meta)
        load_weights(indexer, tensors)
    except KeyError as error:
        raise ValueError(f"{path} is no complete indexer: {error} is missing") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is no sound indexer: {error}") from error
    return indexer.eval()


def load_weights(indexer: LightningIndexer, tensors: Mapping[str, Tensor]) -> None:
    """Copy weights into an indexer.

    Raises:
        ValueError: names, shapes, dtypes or numbers that do not fit.
    """
    wanted = indexer.state_dict()
    if set(wanted) != set(tensors):
        raise ValueError(f"its tensors are {', '.join(sorted(tensors))}; an indexer has {', '.join(sorted(wanted))}")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape or tensor.dtype not in (torch.float32, torch.float16):
            expected = f"float32 or float16 {list(wanted[name].shape)}"
            raise ValueError(f"{name} must be {expected} for its shape, got {tensor.dtype} {list(tensor.shape)}")
        if not tensor.isfinite().all():
            raise ValueError(f"{name} holds numbers that are not finite")
    indexer.load_state_dict(dict(tensors))


def read_checked(path: Path, schema: str, what: str) -> tuple[dict[str, Tensor], dict]:
    """(tensors, content) of a file of ours whose sha256 is what it says.

    Raises:
        FileNotFoundError: no such file. ValueError: damaged, or of another schema.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no {what} {path}")
    with opened(path) as file:
        metadata = file.metadata() or {}
        if metadata.get("schema") != schema:
            raise ValueError(f"{path} has the schema {metadata.get('schema')!r}; this version reads {schema!r}")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    content = metadata.get("content", "")
    if digest_of(tensors, content) != metadata.get("sha256"):
        raise ValueError(f"{path} is damaged: what it holds does not have the sha256 that it names")
    read = json.loads(content)
    if not isinstance(read, dict):
        raise ValueError(f"{path} is no sound {what}: its content must be an object")
    return tensors, read


def digest_of(tensors: Mapping[str, Tensor], *texts: str) -> str:
    """sha256 of named tensors, bit by bit, and of strings."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    for text in texts:
        digest.update(text.encode())
    return digest.hexdigest()


def identity(lm: LanguageModel, layer: int) -> dict:
    """What a layer of a model is known by, whatever dtype and device it is loaded to."""
    known = {name: lm.meta[name] for name in ("gguf_sha256", "commit", "terms") if lm.meta.get(name) is not None}
    return {"model": lm.name, "layer": layer, "n_layers": lm.n_layers, **known, "sketch": _sketch(lm, layer)}


def _sketch(lm: LanguageModel, layer: int) -> list[float]:
    """A few weights, evenly spaced, of each matrix of the layer's attention."""
    matrices = [one for module in attention_modules(lm.model, layer) for one in module.parameters() if one.ndim == 2]
    picked = []
    for matrix in matrices:
        flat = matrix.detach().reshape(-1)
        places = torch.linspace(0, len(flat) - 1, _SKETCH_NUMBERS, dtype=torch.float64).long()
        picked += flat[places.to(flat.device)].float().tolist()
    return picked


def why_not(indexer: LightningIndexer, lm: LanguageModel, layer: int, width: int | None = None) -> str | None:
    """Why an indexer is not that of this layer of this model, in words; None where it is.

    Args:
        width: Of the layer's hidden states; None is what the model's embeddings have.
    """
    meta, known = indexer.meta, identity(lm, layer)
    for name, word in (("model", "model"), ("gguf_sha256", "GGUF file with sha256"), ("commit", "commit")):
        if name in known and name in meta and meta[name] != known[name]:
            return f"it was distilled from the {word} {meta[name]}, this is {known[name]}"
    if meta["layer"] != layer:
        return f"it is of layer {meta['layer']}, not of layer {layer}"
    width = width or lm.model.get_input_embeddings().weight.shape[1]
    if indexer.shape.hidden_size != width:
        return f"it reads hidden states of {indexer.shape.hidden_size}, those of {lm.name} have {width}"
    ours, its = torch.tensor(known["sketch"]), torch.tensor(meta.get("sketch", []))
    close = ours.shape == its.shape and torch.allclose(ours, its, rtol=_SKETCH_RTOL, atol=1e-6)
    return None if close else f"the weights of layer {layer} are not those that it was distilled from"


def indexer_for(lm: LanguageModel, layer: int, given=None) -> LightningIndexer:
    """The indexer of a layer.

    Args:
        given: A file, a folder of `indexer_layer_<n>.safetensors`, one `LightningIndexer`, or several by layer. None is
            data/indexers.
    Raises:
        ValueError: there is none, or it is damaged, or of another model or layer.
    """
    if isinstance(given, LightningIndexer):
        found, where = given, "the indexer"
    elif isinstance(given, Mapping):
        if layer not in given:
            raise ValueError(f"there is no indexer of layer {layer}; there are those of layers {sorted(given)}")
        found, where = given[layer], f"the indexer given for layer {layer}"
    else:
        where = FOLDER if given is None else Path(given)
        if where.suffix != ".safetensors":
            where = _in_folder(where, layer)
        found = load_indexer(where)
    if not isinstance(found, LightningIndexer):
        raise TypeError(f"indexers must be files, a folder or LightningIndexer, got {type(found).__name__}")
    if (problem := why_not(found, lm, layer)) is not None:
        raise ValueError(f"{where} is not for layer {layer} of {lm.name}: {problem}")
    return found


def _in_folder(folder: Path, layer: int) -> Path:
    path = path_of(folder, layer)
    if not path.is_file():
        there = layers_in(folder)
        which = f"there are those of layers {there}" if there else "there is none"
        raise ValueError(
            f"no indexer of layer {layer} in {folder}: {which}; activations.distil makes one, "
            "`make indexers` those of the default model"
        )
    return path


def layers_in(folder: str | Path) -> list[int]:
    """Layers whose indexer is in a folder, by the names of its files."""
    names = [path.stem.removeprefix("indexer_layer_") for path in Path(folder).glob("indexer_layer_*.safetensors")]
    return sorted(int(name) for name in names if name.isdecimal())


def _suffix(path: Path) -> None:
    if path.suffix != ".safetensors":
        raise ValueError(f"indexers are .safetensors files, got {path.name!r}")
