"""Where a file of `data/` came from, as a .json beside it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from .cache import sha256_of


def write_provenance(path: Path, meta: dict, *, command: str, schema: str, home: str = "data/captures", **more) -> Path:
    """Write where a file came from as a .json beside it: sha256, size, command, date, licence, its `meta`.

    Args:
        home: Folder of the repository whose NOTICE counts where the file has none beside it.
    """
    provenance = {
        "file": path.name,
        "sha256": sha256_of(path),
        "bytes": path.stat().st_size,
        "schema": schema,
        "command": command,
        "recorded": datetime.now(UTC).date().isoformat(),
        **more,
        "licence": meta.get("terms", "that of the model"),
        "notice": "NOTICE" if path.with_name("NOTICE").is_file() else f"{home}/NOTICE of the repository",
        "meta": meta,
    }
    beside = path.with_suffix(".json")
    beside.write_text(json.dumps(provenance, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return beside
