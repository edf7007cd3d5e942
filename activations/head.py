"""The output embedding: hidden states to logits, row by row, in the dtype that is asked for.

A row comes out with the same bits however many rows are asked for with it. One matrix product of all rows would be
quicker (about twice, at 19 rows) and round differently for every number of rows, so that a saved row, a row on screen
and the same row of a table would disagree. Knows nothing about texts.
"""

from __future__ import annotations

import threading
import weakref

import torch

# Vocabulary rows that stay in the processor's cache while all hidden states pass over them.
_BLOCK = 2048


class Head:
    """`rows(hidden [R, H], dtype) -> [R, V]`. Keeps a copy of the matrix per wider dtype, made when first needed.

    Args:
        weight: [V, H] of the output embedding, as it is computed with.
        bias: [V] or None.
        softcap: c of c·tanh(x / c), or None.
        scale: Factor of the logits.
    """

    def __init__(self, weight, bias=None, *, softcap: float | None = None, scale: float = 1.0):
        self._weight, self._bias = weight, bias
        self._stamp = _stamp(weight)
        self._copies: dict[torch.dtype, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._lock = threading.Lock()
        self.softcap, self.scale = softcap, scale

    @property
    def vocab_size(self) -> int:
        return self._weight.shape[0]

    @property
    def hidden_size(self) -> int:
        return self._weight.shape[1]

    @property
    def device(self) -> torch.device:
        return self._weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self._weight.dtype

    @property
    def current(self) -> bool:
        """Whether the model's weight is still the one that this head was made from."""
        return _stamp(self._weight) == self._stamp

    def matrix(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight [V, H] and bias [V] in `dtype`.

        Raises:
            RuntimeError: the weight has been changed in place since.
        """
        if not self.current:
            raise RuntimeError("the model's output embedding has changed since this capture: capture again")
        with self._lock, torch.inference_mode(False), torch.no_grad():
            if dtype not in self._copies:
                bias = None if self._bias is None else self._bias.detach().to(dtype)
                self._copies[dtype] = (self._weight.detach().to(dtype), bias)
            return self._copies[dtype]

    def rows(self, hidden: torch.Tensor, dtype: torch.dtype, every: int = 1) -> torch.Tensor:
        """Logits [R, V] of hidden states [R, H] on the head's device, as a head in `dtype` gives them.

        A dtype narrower than the weight's is one that the weight was stored in and widened from: its products are
        those of the narrow numbers, added in the wide dtype and rounded once, as hardware does, without a copy.

        Args:
            every: Only each `every`-th vocabulary entry: [R, ceil(V / every)].
        """
        wide = dtype if dtype.itemsize >= self.dtype.itemsize else self.dtype
        weight, bias = self.matrix(wide)
        with torch.inference_mode(False), torch.no_grad():
            weight, bias = weight[::every], None if bias is None else bias[::every]
            hidden = hidden.to(weight.device, dtype).to(wide)
            logits = torch.empty(len(hidden), len(weight), dtype=wide, device=weight.device)
            step = _BLOCK if weight.device.type == "cpu" else len(weight)
            for start in range(0, len(weight), step):
                block = weight[start : start + step]
                for row, state in zip(logits[:, start : start + step], hidden, strict=True):
                    torch.mv(block, state, out=row)
            if bias is not None:
                logits += bias
            return self._finish(logits.to(dtype))

    def together(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 logits [R, V] of hidden states [R, H] in one product: for sums over many rows.

        Quicker than `rows`, and rounded differently for every number of rows.
        """
        weight, bias = self.matrix(self.dtype)
        logits = torch.nn.functional.linear(hidden.to(weight.device, weight.dtype), weight, bias)
        return self._finish(logits.float())

    def _finish(self, logits: torch.Tensor) -> torch.Tensor:
        if self.scale != 1.0:
            logits *= self.scale
        if self.softcap:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits


class Shared:
    """What belongs to a model in memory, however often it is wrapped: its lock and its head."""

    _of_model: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
    _making = threading.Lock()

    def __init__(self):
        self.lock = threading.RLock()
        self._head: Head | None = None

    @classmethod
    def of(cls, model) -> Shared:
        with cls._making:
            return cls._of_model.setdefault(model, cls())

    def head(self, model) -> Head:
        """The head of `model`, made again after its weights were changed, replaced or moved.

        Raises:
            ValueError: the model has no plain linear output embedding.
        """
        module = model.get_output_embeddings()
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or not weight.is_floating_point():
            raise ValueError(
                f"{type(model).__name__} has no plain linear output embedding ({type(module).__name__}): "
                "only causal language models with an unquantised head can be captured"
            )
        if self._head is None or self._head._weight is not weight or not self._head.current:
            self._head = Head(weight, getattr(module, "bias", None), **_post_processing(model))
        return self._head


def _post_processing(model) -> dict:
    """What a model does to its logits after the head, says its configuration; every capture checks that."""
    config = model.config.get_text_config(decoder=True)
    scale = 1.0
    for name, divides in (("logit_scale", False), ("logits_scaling", True), ("lm_head_multiplier", False)):
        if (value := getattr(config, name, None)) is not None:
            scale = scale / value if divides else scale * value
    return {"softcap": getattr(config, "final_logit_softcapping", None), "scale": scale}


def _stamp(weight: torch.Tensor) -> tuple:
    # Tensors made in inference mode count no versions.
    return weight.data_ptr(), weight.dtype, None if weight.is_inference() else weight._version
