"""The live-model half of the data: load or wrap a model, capture logits or an index, distil, synthesise, record.

Importing this package loads neither torch nor transformers; each name below is fetched on first use.
"""

from importlib import import_module

# At once, because the function shares its name with the module: importing the module later would replace it.
from .recorded import recorded, recorded_names

_HOME = {
    "load": "models",
    "wrap": "models",
    "model_or_recorded": "start",
    "LanguageModel": "models",
    "capture_logits": "capture",
    "LogitCapture": "capture",
    "IndexCapture": "index_capture",
    "capture_index": "index_run",
    "index_layers": "index_run",
    "distil": "distillation",
    "Distillation": "distillation",
    "LightningIndexer": "indexer",
    "save_indexer": "indexer_file",
    "load_indexer": "indexer_file",
    "distilled_indexers": "index_distilled",
    "index_report": "index_quality",
    "selected_attention": "selected",
    "Selection": "selection",
    "save_capture": "storage",
    "load_capture": "storage",
}
_MODULES = ("models", "capture", "storage", "synthetic", "texts", "tasks", "passages", "quality")

__all__ = [*_HOME, "recorded", "recorded_names", "synthetic", "texts"]


def __getattr__(name: str):
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
