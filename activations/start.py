"""What a lesson opens: the live model that was asked for, or what was recorded from it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from . import gemma
from .progress import ConsoleBar

NONE = "none"


def model_or_recorded(name: str | None = None, *, instead: str | Sequence[str] = "openers", **options):
    """The model that `make lab MODEL=…` chose, or what was recorded where there is none.

    Args:
        name: A name, folder or id for `load`, or "none" for what was recorded. Default: the environment's QP_MODEL,
            else the default model.
        instead: Which recorded capture, or captures, are returned where there is no model.
        **options: Passed to `load`.
    Returns:
        A `LanguageModel`, or `recorded(instead)`, of several names a list. When the default model's package is not
        installed, a line on standard error says so and the recorded ones are returned; any other model that cannot be
        loaded is an error.
    """
    name = name or os.environ.get("QP_MODEL") or gemma.NAME
    if name.lower() == NONE:
        return _recorded(instead)
    from .models import load

    options.setdefault("progress", ConsoleBar(sys.stdout))  # what goes to standard error is drawn as a fault by Jupyter
    try:
        return load(name, **options)
    except ImportError as missing:
        if name != gemma.NAME:
            raise
        print(f"No live model: {missing}. This was recorded; there is no text box.", file=sys.stderr)
        return _recorded(instead)


def _recorded(names: str | Sequence[str]):
    from .recorded import recorded

    return recorded(names) if isinstance(names, str) else [recorded(name) for name in names]
