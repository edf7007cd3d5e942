"""Texts that are always at hand: short openers, and long ones out of what CPython ships.

Knows no model. The long texts are read from the running Python, never copied into this repository; they are
under the PSF License Agreement (https://docs.python.org/3/license.html), which is named wherever one is recorded.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sysconfig
from pathlib import Path

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
# Neither prose nor code that anyone wrote: tables of characters, files of tests, and what is not of CPython.
_NOT_TRAINED_ON = {"test", "tests", "idle_test", "lib2to3", "encodings", "site-packages", "dist-packages", "pydoc_data"}
# Of pydoc's topics, in their order: what is before is for measuring, and long enough for 32,768 tokens.
_MEASURED_SHARE = 0.5
# How often each of the other half's topics stands among the training texts: they are all the prose there is.
_TOPIC_TIMES = 4
# A line shorter than this says nothing of where it is from.
_TELLING_CHARACTERS = 40


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


def training_texts(max_characters: int | None = None) -> list[str]:
    """Texts to train on: sources of the standard library, and the second half of pydoc's topics.

    No `builtin_text` but the rest of "pydoc" is among them, nor a paragraph of pydoc's first half, which has
    some of them twice: that half and the other built-in texts are for measuring. Order and content are the same for one
    version of CPython.

    Args:
        max_characters: About how much is wanted; None is all, about 10 million characters.
    Returns:
        Texts, sources and topics in turn; each topic four times, far apart, since there is little other prose.
    """
    sources, topics = _source_files(), _TOPIC_TIMES * _later_topics()
    every = max(1, len(sources) // max(1, len(topics)))
    found, length = [], 0
    for number, path in enumerate(sources):
        parts = [path.read_text("utf-8", errors="replace")]
        if number % every == 0 and number // every < len(topics):
            parts.append(topics[number // every])
        for part in filter(None, parts):
            if max_characters is not None and length >= max_characters:
                return found
            found.append(part)
            length += len(part)
    return found


def measuring_text() -> str:
    """The first half of pydoc's topics, of which nothing is in `training_texts`: about 58,000 Gemma tokens."""
    text = builtin_text("pydoc")
    return text[: int(_MEASURED_SHARE * len(text))]


def _source_files() -> list[Path]:
    """Sources of the standard library, in an order that has nothing to do with their names."""
    home = Path(sysconfig.get_path("stdlib"))
    measured = {f"{module}.py" for module in (*_MODULES.values(), "this")}
    files = [path.relative_to(home) for path in home.rglob("*.py") if path.is_file()]
    chosen = [one for one in files if not _NOT_TRAINED_ON & set(one.parts) and one.as_posix() not in measured]
    return [home / one for one in sorted(chosen, key=lambda one: hashlib.sha256(one.as_posix().encode()).digest())]


def _later_topics() -> list[str]:
    """Topics of pydoc beyond the measured half, without what that half says too."""
    topics = importlib.import_module("pydoc_data.topics").topics
    measured = measuring_text()
    known = {paragraph.strip() for paragraph in measured.split("\n\n")}
    lines = {line.strip() for line in measured.splitlines() if len(line.strip()) >= _TELLING_CHARACTERS}
    begin, found = 0, []
    for topic in sorted(topics):
        if begin >= len(measured):
            own = [one for one in topics[topic].split("\n\n") if one.strip() not in known]
            own = [one for one in own if not lines & {line.strip() for line in one.splitlines()}]
            found.append("\n\n".join(own))
        begin += len(topics[topic]) + len("\n\n")
    return found


def _zen() -> str:
    """The poem of `import this`, without its printing itself: the module holds it in ROT13."""
    import ast
    import codecs
    import importlib.util

    source = importlib.util.find_spec("this").loader.get_source("this")
    literals = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return codecs.decode(max((v for v in literals if isinstance(v, str)), key=len), "rot13")
