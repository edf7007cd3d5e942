"""Texts that are always at hand: short openers, and long ones out of what CPython ships.

Knows no model. The long texts are read from the running Python, never copied into this repository; they are
under the PSF License Agreement (https://docs.python.org/3/license.html), which is named wherever one is recorded.
"""

from __future__ import annotations

import importlib
import inspect

PSF_LICENCE = "Python Software Foundation License Version 2"

# (text, what to see in it). The numbers are for the default model.
openers: list[tuple[str, str]] = [
    ("The capital of France is", "wide: p = 0.9 keeps about 130 tokens, and Paris is third"),
    ("import numpy as", "peaked: one token has 99 % of the mass"),
    ("Roses are red, violets are", "peaked: a rhyme the model has read, 92 % on one word"),
    ("To be, or not to be, that is the", "one token has 83 %, p = 0.9 needs fifteen more"),
    ("The best thing about Python is", "medium: p = 0.9 keeps seven function words"),
    ("Once upon a time, there was a", "wide: p = 0.9 keeps about 300 tokens, the first at 6 %"),
    ("法国的首都是", "widest: the capital of France again; p = 0.9 keeps about 1,600 tokens"),
    ("1, 2, 4, 8, 16, 32,", "numbers: 97 % on the space before the next digit"),
]

# Sentences whose last token has something to look back at: for the index of a layer.
looking_back: list[str] = [
    "The red fox and the grey wolf met at the river, and the wolf said to the",
    "My sister Clara plays the violin and my brother Felix plays chess, so the music comes from",
    "After Anna and Tom had left the old station, Tom handed the ticket to",
    "for i in range(10): print(i * i)\nfor j in range(10): print(j *",
]

_SOURCES = {
    "pydoc": "the reference of the language, as `help('topics')` shows it",
    "zen": "The Zen of Python, by Tim Peters",
    "functools": "source of the module functools",
    "argparse": "source of the module argparse",
    "typing": "source of the module typing",
    "decimal": "source of the module _pydecimal",
}
_MODULES = {"functools": "functools", "argparse": "argparse", "typing": "typing", "decimal": "_pydecimal"}


def builtin_names() -> dict[str, str]:
    """Name -> what it is, for `builtin_text`."""
    return dict(_SOURCES)


def builtin_text(name: str = "pydoc", max_characters: int | None = None) -> str:
    """A long text that every CPython has, whole or its beginning.

    Args:
        name: One of `builtin_names()`. "pydoc" is the longest (about 465,000 characters, 119,000 Gemma tokens).
        max_characters: Length of the part wanted; None is all of it.
    Raises:
        ValueError: an unknown name or a length below 1.
        OSError: this Python came without the source of the module.
    """
    if name not in _SOURCES:
        raise ValueError(f"there is no built-in text {name!r}; there are {', '.join(_SOURCES)}")
    if max_characters is not None and max_characters < 1:
        raise ValueError(f"max_characters must be at least 1, got {max_characters}")
    if name == "pydoc":
        topics = importlib.import_module("pydoc_data.topics").topics
        text = "\n\n".join(topics[topic] for topic in sorted(topics))
    elif name == "zen":
        text = _zen()
    else:
        text = inspect.getsource(importlib.import_module(_MODULES[name]))
    return text[:max_characters]


def _zen() -> str:
    """The poem of `import this`, without its printing itself: the module holds it in ROT13."""
    import ast
    import codecs
    import importlib.util

    source = importlib.util.find_spec("this").loader.get_source("this")
    literals = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return codecs.decode(max((v for v in literals if isinstance(v, str)), key=len), "rot13")
