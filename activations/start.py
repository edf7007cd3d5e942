"""What a lesson opens: the live model that was asked for, or what was recorded from it."""

from __future__ import annotations

import os
import sys

from . import gemma
from .progress import ConsoleBar

NONE = "none"


def model_or_recorded(name: str | None = None, **options):
    """The model that `make lab MODEL=…` chose, or recorded rows where there is none.

    Args:
        name: A name, folder or id for `load`, or "none" for recorded rows. Default: the environment's QP_MODEL, else
            the default model.
        **options: Passed to `load`.
    Returns:
        A `LanguageModel`, or the `LogitCapture` of `recorded("openers")`. When the default model's package is not
        installed, a line on standard error says so and the recorded rows are returned; any other model that cannot be
        loaded is an error.
    """
    name = name or os.environ.get("QP_MODEL") or gemma.NAME
    if name.lower() == NONE:
        return _recorded()
    from .models import load

    options.setdefault("progress", ConsoleBar(sys.stdout))  # what goes to standard error is drawn as a fault by Jupyter
    try:
        return load(name, **options)
    except ImportError as missing:
        if name != gemma.NAME:
            raise
        print(f"No live model: {missing}. These are recorded rows; there is no text box.", file=sys.stderr)
        return _recorded()


def _recorded():
    from .recorded import recorded

    return recorded("openers")
