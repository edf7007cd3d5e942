"""A distillation as a file: weights, the optimizer's moments and the step, so that it goes on as if never stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .index_attention import attention_modules
from .indexer import IndexerShape, LightningIndexer
from .indexer_file import digest_of, load_weights, read_checked
from .tensor_file import replace_tensors

if TYPE_CHECKING:
    from .distil_training import Training

SCHEMA = "qp-explorer/distillation/1"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def write_checkpoint(training: Training, path: Path) -> None:
    """Replace the checkpoint by what there is after the last whole step. Raises OSError."""
    tensors = {}
    for layer, indexer in training.indexers.items():
        for name, parameter in indexer.named_parameters():
            tensors[f"{layer}.weight.{name}"] = parameter
            for moment in _MOMENTS:
                tensors[f"{layer}.{moment}.{name}"] = training.optimizer.state[parameter][moment]
    shapes = {str(layer): indexer.about() for layer, indexer in training.indexers.items()}
    content = json.dumps({"about": training.about(), "step": training.step, "kl": training.kl, "shapes": shapes})
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_tensors(tensors, path, {"schema": SCHEMA, "content": content, "sha256": digest_of(tensors, content)})


def read_checkpoint(training: Training, path: Path) -> None:
    """Set a training to where the file is.

    Raises:
        ValueError: the file is damaged, or of another model, recipe or text; the message says what differs.
    """
    tensors, content = read_checked(path, SCHEMA, "checkpoint")
    try:
        differing = _difference(content["about"], training.about())
        if differing:
            raise ValueError(f"it is of another distillation: {differing}; name another file, or remove it")
        indexers = {}
        for layer in training.recipe.layers:
            indexers[layer] = LightningIndexer(IndexerShape(**content["shapes"][str(layer)]))
            load_weights(indexers[layer], _part(tensors, layer, "weight"))
        # Where each layer's weights are, as `start` finds it by the hidden states.
        devices = {layer: _device(training.lm.model, layer) for layer in indexers}
        training.take(indexers, devices)
        for layer, indexer in training.indexers.items():
            moments = {moment: _part(tensors, layer, moment) for moment in _MOMENTS}
            for name, parameter in indexer.named_parameters():
                state = {moment: found[name].to(parameter.device).clone() for moment, found in moments.items()}
                training.optimizer.state[parameter] = {"step": torch.tensor(float(content["step"])), **state}
        training.step, training.kl = int(content["step"]), content["kl"]
    except KeyError as error:
        raise ValueError(f"{path} is no complete checkpoint: {error} is missing") from error
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(f"{path} cannot be gone on from: {error}") from error


def _part(tensors: dict, layer: int, kind: str) -> dict:
    begin = f"{layer}.{kind}."
    return {name.removeprefix(begin): tensor for name, tensor in tensors.items() if name.startswith(begin)}


def _device(model, layer: int) -> torch.device:
    (module, *_) = attention_modules(model, layer)
    return next(module.parameters()).device


def _difference(its: dict, ours: dict) -> str:
    """The first thing in which two descriptions differ, in words; "" where they are the same."""
    for part in ours:
        if its[part] == ours[part]:
            continue
        if part == "model":
            return _other_model(its[part], ours[part])
        name = next(name for name in ours[part] if its[part].get(name) != ours[part][name])
        return f"its {part} has {name} {its[part].get(name)}, not {ours[part][name]}"
    return ""


def _other_model(its: list[dict], ours: list[dict]) -> str:
    if its[0]["model"] != ours[0]["model"]:
        return f"its model is {its[0]['model']}, not {ours[0]['model']}"
    layers, wanted = ([one["layer"] for one in who] for who in (its, ours))
    if layers != wanted:
        return f"it is of layers {layers}, not {wanted}"
    return f"the weights of {ours[0]['model']} are not those that it was begun with"
