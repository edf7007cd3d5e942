"""Models by their Hugging Face id: first what is on this machine, then, if there is a network, a download.

Fails within seconds where there is no network: the libraries below would retry for a minute.
"""

from __future__ import annotations

import difflib
import threading
import urllib.error
import urllib.request
from pathlib import Path

from . import gemma
from .folders import IncompleteFolder, read_folder, read_model, read_tokenizer
from .progress import Progress

_PROBE_S = 3.0
_FOR_TOKENIZER = ("revision", "token", "trust_remote_code", "cache_dir", "subfolder")
_FOR_DOWNLOAD = ("revision", "token", "cache_dir", "subfolder", "force_download", "local_files_only")


def read_from_hub(name: str, hf: dict, progress: Progress):
    """(model, tokenizer, commit) of an id.

    Raises:
        ConnectionError: not on this machine and the hub cannot be reached, or is switched off.
        ValueError: no such id, or no valid one, or not a causal language model.
        PermissionError: the id needs an accepted licence and a token.
    """
    _check_name(name)
    progress(0, 0, f"Looking for {name} on this machine")
    if (snapshot := _snapshot(name, hf)) is not None:
        try:
            # As a folder: by its id, some versions of transformers ask the network all the same.
            aside = {key: value for key, value in hf.items() if key not in _FOR_DOWNLOAD}
            return (*read_folder(snapshot / hf.get("subfolder", ""), aside), snapshot.name)
        except IncompleteFolder:
            progress(0, 0, f"{name} is on this machine in part only")
    _suggest(name)
    _check_reachable(name, hf)
    _check_exists(name, hf)
    progress(0, 0, f"Downloading {name}")
    model = read_model(name, **hf)
    tokenizer = read_tokenizer(name, **{key: hf[key] for key in _FOR_TOKENIZER if key in hf})
    return model, tokenizer, getattr(model.config, "_commit_hash", None)


def _snapshot(name: str, hf: dict) -> Path | None:
    """Where the hub's own cache keeps this id, complete or not."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    where = {key: hf[key] for key in ("revision", "cache_dir") if key in hf}
    try:
        return Path(snapshot_download(name, local_files_only=True, **where))
    except LocalEntryNotFoundError:
        return None


def _check_name(name: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(f"{name!r} is neither a folder nor a Hugging Face id: {error}") from error


def _suggest(name: str) -> None:
    if "/" not in name and difflib.get_close_matches(name.lower(), [gemma.NAME], cutoff=0.5):
        raise ValueError(f"there is no model {name!r}; did you mean {gemma.NAME!r}?")


def _check_reachable(name: str, hf: dict) -> None:
    from huggingface_hub import constants

    if hf.get("local_files_only"):
        raise ConnectionError(_not_here(name, "local_files_only is set"))
    if constants.HF_HUB_OFFLINE:
        raise ConnectionError(_not_here(name, "HF_HUB_OFFLINE is set"))
    if not reachable(constants.ENDPOINT, _PROBE_S):
        raise ConnectionError(_not_here(name, f"{constants.ENDPOINT} does not answer within {_PROBE_S:.0f} s"))


def _not_here(name: str, reason: str) -> str:
    return (
        f"{name!r} is not on this machine, and {reason}. Connect, give a local folder, or use the default model "
        f"{gemma.NAME!r} or a recorded capture"
    )


def reachable(url: str, timeout_s: float) -> bool:
    """Whether a server answers at all, through the proxies of the environment, in one try."""
    answered = []

    def ask():
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=timeout_s).close()
            answered.append(True)
        except urllib.error.HTTPError:
            answered.append(True)
        except OSError:
            return

    # In a thread, because looking up the host's name knows no time limit of its own.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return bool(answered)


def _check_exists(name: str, hf: dict) -> None:
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        HfApi(endpoint=constants.ENDPOINT).model_info(
            name, revision=hf.get("revision"), token=hf.get("token"), timeout=10
        )
    except GatedRepoError as error:
        raise PermissionError(
            f"{name!r} is gated: accept its terms on its page and log in with 'hf auth login'"
        ) from error
    except RevisionNotFoundError as error:
        raise ValueError(f"{name!r} has no revision {hf.get('revision')!r}") from error
    except RepositoryNotFoundError as error:
        raise ValueError(f"there is no model {name!r} on the hub, or it is private and needs a token") from error
    except Exception as error:
        # Whatever the library's HTTP client raises, which has changed its name before.
        raise ConnectionError(f"{constants.ENDPOINT} did not say whether it has {name!r}: {error}") from error
