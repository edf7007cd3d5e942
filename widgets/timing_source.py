"""A kernel's source read line by line: the code as it is in the file, and beside each line what is said about it."""

from __future__ import annotations

import ast
import html
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from IPython.display import HTML

CELL = "text-align: left; vertical-align: top; padding: 1px 10px 1px 0;"
CODE = "white-space: pre-wrap; font-family: var(--jp-code-font-family, monospace); width: 58%;"


def read_together(module: str, name: str, notes: Mapping[str, str]) -> HTML:
    """The source of a function as a table of lines and notes. Nothing is imported but the packages around it.

    Args:
        module: As it is imported, "qp_kernels.bench.floor_kernels". name: A function in it.
        notes: Some words of a line -> what to say beside the first line that holds them.
    Raises:
        ValueError: no such module or function, or a note on words that no line holds.
    """
    lines = source_of(module, name)
    said: dict[int, str] = {}
    for words, note in notes.items():
        place = next((i for i, line in enumerate(lines) if words in line and i not in said), None)
        if place is None:
            raise ValueError(f"no line of {name} that is free holds {words!r}")
        said[place] = note
    rows = []
    for i, line in enumerate(lines):
        note = html.escape(said.get(i, ""))
        rows.append(f"<tr><td style='{CELL}{CODE}'>{html.escape(line)}</td><td style='{CELL}'>{note}</td></tr>")
    return HTML(f"<table style='font-size: 13px; width: 100%'>{''.join(rows)}</table>")


def source_of(module: str, name: str) -> list[str]:
    """The lines of a function with its decorators."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.origin:
        raise ValueError(f"there is no module {module!r}")
    text = Path(spec.origin).read_text("utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            return text.splitlines()[first - 1 : node.end_lineno]
    raise ValueError(f"{module} has no function {name!r}")
