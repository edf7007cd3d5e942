"""Logits of a live model at the positions of a text, made when asked for.

A capture keeps what the head sees, [P, H], and the head: [P, V] of a long text would not fit.
Row t predicts token t + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from . import tokens
from .forward import evaluating, hidden_states
from .head import Head
from .models import LanguageModel, dtype_name
from .progress import Progress, quiet

DTYPES = ("float32", "model")
# More than this at once is asked for by mistake more often than on purpose.
_MAX_ALL_ROWS_BYTES = 4 << 30
# Vocabulary entries compared with the model's own: what is done to logits is done to all of them.
_CHECKED = 4096


class HiddenRows:
    """Rows from hidden states [P, H] and a head."""

    def __init__(self, hidden: torch.Tensor, head: Head, model_dtype: torch.dtype):
        self.hidden, self.head, self.model_dtype = hidden, head, model_dtype

    def rows(self, indices: list[int], logits_dtype: str) -> torch.Tensor:
        dtype = torch.float32 if logits_dtype == "float32" else self.model_dtype
        return self.head.rows(self.hidden[indices], dtype)


class StoredRows:
    """Rows that are there already: [P, V] float32, and [P, V] as the model's own head gives them."""

    def __init__(self, float32: torch.Tensor, model: torch.Tensor):
        self.float32, self.model, self.model_dtype = float32, model, model.dtype

    def rows(self, indices: list[int], logits_dtype: str) -> torch.Tensor:
        return (self.float32 if logits_dtype == "float32" else self.model)[indices]


class LogitCapture:
    """A text, and the logits at some of its positions.

    Attributes:
        ids: int64 [T]; several texts one after the other.
        tokens: str of each id.
        starts: int64 [texts]: where each text begins in `ids`.
        positions: int64 [P]: the places in `ids` whose logits are here.
        next_ids: int64 [P]: the token that follows there; -1 where none is known (the end of a text).
        vocab_size: V.
        logits_dtype: "float32" or "model", the default of `logits`.
        meta: What the caption is made of, and more; plain values.
        unused: bool [V], tokens that training never filled; None if not known.
    """

    def __init__(
        self,
        *,
        ids: torch.Tensor,
        starts: torch.Tensor,
        positions: torch.Tensor,
        rows: HiddenRows | StoredRows,
        label: Callable[[Sequence[int]], list[str]],
        unused: torch.Tensor | Callable[[], torch.Tensor] | None,
        vocab_size: int,
        logits_dtype: str,
        meta: dict,
    ):
        self.ids, self.starts, self.positions = ids, starts, positions
        self.next_ids = _next_ids(ids, starts, positions)
        self.vocab_size, self.logits_dtype, self.meta = vocab_size, logits_dtype, meta
        self.source = rows
        self._label, self._unused = label, unused
        self.tokens = self.label(ids)

    def logits(self, rows=None, logits_dtype: str | None = None) -> torch.Tensor:
        """Logits of some rows. The same row has the same bits, whatever is asked for with it.

        Args:
            rows: An int gives [V]; a slice or a sequence of ints gives [R, V]; None all P. They count in `positions`;
                negative ones from the end.
            logits_dtype: "float32", or "model": as the model's own head gives them, with its ties. None: the
                capture's own.
        Returns:
            float32, or the dtype of the model's head; on the device of the head. The caller may change it.
        Raises:
            IndexError: a row that is not there.
            ValueError: a wrong `logits_dtype`, or all rows of a capture when they take more than 4 GiB.
        """
        logits_dtype = _logits_dtype(logits_dtype or self.logits_dtype)
        indices = self._row_indices(rows)
        if rows is None and 4 * len(indices) * self.vocab_size > _MAX_ALL_ROWS_BYTES:
            raise ValueError(f"all {len(indices)} rows take more than 4 GiB: ask for some, logits(rows=...)")
        values = self.source.rows(indices, logits_dtype)
        return values[0] if isinstance(rows, int) else values

    def _row_indices(self, rows) -> list[int]:
        n = len(self.positions)
        if rows is None:
            return list(range(n))
        if isinstance(rows, slice):
            return list(range(n))[rows]
        wanted = torch.as_tensor(rows)
        if wanted.numel() and (wanted.dtype == torch.bool or wanted.is_floating_point()) or wanted.dim() > 1:
            raise ValueError(f"rows must be an int, a slice or a sequence of ints, got {rows!r:.80}")
        wanted = wanted.reshape(-1).tolist()
        for row in wanted:
            if not -n <= row < n:
                raise IndexError(f"row {row} is not in a capture of {n} rows")
        return [int(row) % n for row in wanted]

    def label(self, ids) -> list[str]:
        """The text of any vocabulary ids; `<id N>` where none is known."""
        return self._label(ids)

    @property
    def unused(self) -> torch.Tensor | None:
        if callable(self._unused):
            self._unused = self._unused()
        return self._unused

    def context(self, row: int) -> list[str]:
        """Tokens of the row's own text, from its start to the row's position."""
        (index,) = self._row_indices(int(row))
        position = int(self.positions[index])
        start = int(self.starts[self.starts <= position][-1])
        return self.tokens[start : position + 1]

    def describe(self, logits_dtype: str | None = None) -> str:
        """The caption for logits of this dtype: model, layer, what is computed and stored in which dtype, device."""
        logits_dtype = _logits_dtype(logits_dtype or self.logits_dtype)
        meta = self.meta
        shown = "float32" if logits_dtype == "float32" else f"{meta['head_dtype']} (the model's own)"
        parts = [meta["model"], f"layer {meta['layer']} of {meta['n_layers']}"]
        parts += [f"computed in {meta['compute_dtype']}", f"logits {shown}", meta["device"]]
        return " · ".join(parts + ["recorded"] * bool(meta.get("recorded")))

    @property
    def caption(self) -> str:
        return self.describe()

    def __len__(self) -> int:
        return len(self.positions)

    def __repr__(self) -> str:
        return f"<LogitCapture {len(self)} rows of {self.vocab_size:,}, {len(self.ids)} tokens: {self.caption}>"


def _next_ids(ids: torch.Tensor, starts: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    following = torch.cat([ids[1:], ids.new_tensor([-1])])
    following[starts[1:] - 1] = -1
    return following[positions]


def _logits_dtype(logits_dtype: str) -> str:
    if logits_dtype not in DTYPES:
        raise ValueError(f"logits_dtype must be one of {DTYPES}, got {logits_dtype!r}")
    return logits_dtype


def capture_logits(
    lm: LanguageModel,
    text_or_ids,
    *,
    positions=None,
    layer: int | None = None,
    logits_dtype: str = "float32",
    progress: Progress = quiet,
) -> LogitCapture:
    """Run a text through the model and keep what its logits are made of.

    Args:
        text_or_ids: A text; its ids (taken as they are, no BOS added); or a list of either, each run alone and laid
            one after the other.
        positions: Places in the ids to keep, negative ones from the end; None keeps all.
        layer: 0 (embeddings) to n_layers: the final norm and head on the output of that layer. None: the last.
        logits_dtype: "float32", or "model": the dtype in which the model's head is stored. bf16 heads tie.
        progress: Called as progress(done, total, what) every 512 tokens; may raise to cancel, which leaves nothing.
    Raises:
        ValueError: an empty or too long text, ids that are wrong, a layer or position out of range.
        RuntimeError: logits made from the capture are not those of the model.
    """
    logits_dtype = _logits_dtype(logits_dtype)
    texts = _texts(lm, text_or_ids)
    layer = lm.n_layers if layer is None else layer
    if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer <= lm.n_layers:
        raise ValueError(f"layer must be an int in [0, {lm.n_layers}], got {layer!r}")
    progress = progress or quiet
    lengths = torch.tensor([len(text) for text in texts])
    kept = chosen_positions(positions, int(lengths.sum()))
    with lm.lock, torch.inference_mode(), evaluating(lm.model):
        head = lm.head
        hidden = _run(lm, head, texts, layer, progress)
    with torch.inference_mode(False), torch.no_grad():
        # Out of inference mode, so that a caller may do anything with what is made of it.
        hidden = hidden[kept.to(hidden.device)].clone()
    return LogitCapture(
        ids=torch.cat(texts),
        starts=lengths.cumsum(0) - lengths,
        positions=kept,
        rows=HiddenRows(hidden, head, lm.head_dtype),
        label=lm.text.label,
        unused=lambda: lm.text.unused,
        vocab_size=head.vocab_size,
        logits_dtype=logits_dtype,
        meta=model_meta(lm, layer),
    )


def _texts(lm: LanguageModel, given) -> list[torch.Tensor]:
    """The ids of each text, checked."""
    if isinstance(given, str) or torch.is_tensor(given) or hasattr(given, "__array__"):
        given = [given]
    elif not isinstance(given, Sequence):
        raise TypeError(f"give a text, ids or a list of texts, not {type(given).__name__}")
    elif given and not isinstance(given[0], (str, Sequence)) and getattr(given[0], "ndim", 0) == 0:
        given = [given]
    if not given:
        raise ValueError("there is no text: the list is empty")
    return [_text_ids(lm, text) for text in given]


def text_ids(lm: LanguageModel, given) -> torch.Tensor:
    """The ids of one text, checked."""
    texts = _texts(lm, given)
    if len(texts) != 1:
        raise ValueError(f"give one text or its ids, got {len(texts)} texts: capture them one by one")
    return texts[0]


def _text_ids(lm: LanguageModel, text) -> torch.Tensor:
    ids = lm.encode(text) if isinstance(text, str) else torch.tensor(tokens.as_ids(text, lm.vocab_size))
    if not len(ids):
        raise ValueError("the list of ids is empty: give at least one")
    n_embedded = lm.model.get_input_embeddings().weight.shape[0]
    if int(ids.max()) >= n_embedded:
        raise ValueError(f"token id {int(ids.max())} is beyond the model's {n_embedded} embeddings")
    if lm.context is not None and len(ids) > lm.context:
        raise ValueError(
            f"the text has {len(ids):,} tokens, {lm.name} reads at most {lm.context:,}: shorten it, or capture parts"
        )
    return ids.to(torch.int64)


def chosen_positions(positions, n_tokens: int) -> torch.Tensor:
    """Places in a text as int64, negative ones counted from its end; None is all."""
    if positions is None:
        return torch.arange(n_tokens)
    try:
        given = torch.as_tensor(positions).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as refused:
        raise ValueError(f"positions must be one or more ints, got {positions!r:.80}") from refused
    if not len(given) or given.dtype == torch.bool or given.is_floating_point():
        raise ValueError(f"positions must be one or more ints, got {positions!r:.80}")
    given = given.to(torch.int64)
    outside = (given < -n_tokens) | (given >= n_tokens)
    if outside.any():
        raise ValueError(f"position {given[outside][0].item()} is not in a text of {n_tokens} tokens")
    return given % n_tokens


def _run(lm: LanguageModel, head: Head, texts: list[torch.Tensor], layer: int, progress: Progress) -> torch.Tensor:
    """Hidden states of all texts, [T, H]; what they give is compared with what the model gives itself."""
    total, done, parts = sum(map(len, texts)), 0, []
    through = None if layer == lm.n_layers else layer
    progress(0, total, "Reading the text")
    for ids in texts:
        hidden, last, own = hidden_states(lm.model, ids.to(lm.device), through, progress, done, total)
        every = max(1, len(own) // _CHECKED)
        _check(lm, head.rows(last, lm.dtype, every)[0], own[::every])
        parts.append(hidden)
        done += len(ids)
    return torch.cat(parts)


def _check(lm: LanguageModel, ours: torch.Tensor, own: torch.Tensor) -> None:
    # Two matrix products may round differently: a few units in the last place of the largest logit.
    tolerance = 8 * torch.finfo(lm.dtype).eps * own.abs().max().item()
    if not torch.allclose(ours.float(), own.to(ours.device).float(), rtol=0, atol=tolerance, equal_nan=True):
        worst = (ours.float() - own.to(ours.device).float()).abs().max().item()
        raise RuntimeError(
            f"{lm.name} does more to its logits than its configuration says: what the capture gives at the last "
            f"position is off by up to {worst:.3g}"
        )


def model_meta(lm: LanguageModel, layer: int) -> dict:
    """What a capture says of the model that it is of."""
    import transformers

    return {
        "model": lm.name,
        "layer": layer,
        "n_layers": lm.n_layers,
        "compute_dtype": dtype_name(lm.dtype),
        "head_dtype": dtype_name(lm.head_dtype),
        "device": str(lm.device),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        **{key: value for key, value in lm.meta.items() if value is not None},
    }
