"""Notebooks are committed without outputs, counts and the noise that editors leave."""

import json
from pathlib import Path

from steps import ROOT

KERNEL = {"kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}}
KEPT_METADATA = {"tags"}  # of a cell


def tracked(root=ROOT):
    return sorted(
        path for path in (Path(root) / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts
    )


def stripped(text):
    """The text of a notebook file as it is committed: no outputs, no counts, no metadata but tags and the kernel."""
    book = json.loads(text)
    book["metadata"] = {**KERNEL, "language_info": {"name": "python"}}
    for number, cell in enumerate(book["cells"]):
        cell["metadata"] = {key: value for key, value in cell.get("metadata", {}).items() if key in KEPT_METADATA}
        cell.setdefault("id", f"cell-{number:02d}")
        cell["source"] = _lines(cell["source"])
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
        cell.pop("attachments", None)
    book["nbformat"], book["nbformat_minor"] = 4, 5
    return json.dumps(book, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _lines(source):
    text = source if isinstance(source, str) else "".join(source)
    return text.splitlines(keepends=True)


def unstripped(paths=None):
    """Those notebooks whose file differs from its stripped text."""
    paths = tracked() if paths is None else paths
    return [path for path in paths if path.read_text(encoding="utf-8") != stripped(path.read_text(encoding="utf-8"))]


def strip(paths=None):
    """Rewrite the notebooks that need it; return them."""
    changed = unstripped(paths)
    for path in changed:
        path.write_text(stripped(path.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
    return changed
