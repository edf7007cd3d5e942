"""Make the captures in data/captures again: `python -m activations.record openers`. Needs the default model."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from . import gemma
from .cache import sha256_of
from .capture import capture_logits
from .models import load
from .recorded import FOLDER
from .storage import SCHEMA, save_capture

# The last position of each: a peaked, a medium and a wide nucleus, and the Chinese one.
_OPENERS = ("The capital of France is", "import numpy as", "To be, or not to be, that is the", "法国的首都是")


def record_openers(folder: Path = FOLDER) -> Path:
    """Capture the last position of four openers with the default model, and write where it all came from beside."""
    lm = load(device="cpu")
    lengths = [len(lm.encode(text)) for text in _OPENERS]
    last = [sum(lengths[: i + 1]) - 1 for i in range(len(lengths))]
    capture = capture_logits(lm, list(_OPENERS), positions=last)
    capture.meta["derived"] = "Outputs of Gemma 3 270M, de-quantised from Q4_K_M and stored as bf16"
    path = save_capture(capture, folder / "openers.safetensors", head="rows")
    provenance = {
        "file": path.name,
        "sha256": sha256_of(path),
        "bytes": path.stat().st_size,
        "schema": SCHEMA,
        "command": "python -m activations.record openers",
        "recorded": datetime.now(UTC).date().isoformat(),
        "texts": list(_OPENERS),
        "rows": "the last position of each text: float32 logits, and those of the bf16 head",
        "texts_licence": "public domain, or written for this project",
        "licence": gemma.TERMS,
        "notice": "NOTICE",
        "meta": capture.meta,
    }
    path.with_suffix(".json").write_text(json.dumps(provenance, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return path


if __name__ == "__main__":
    if sys.argv[1:] != ["openers"]:
        sys.exit("usage: python -m activations.record openers")
    written = record_openers()
    print(f"{written} ({written.stat().st_size / 1e6:.1f} MB)")
