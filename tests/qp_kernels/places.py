"""Where the tests of the contract run: both back-ends, on a CPU and on a CUDA device.

A test module says `pytestmark = pytest.mark.usefixtures("place")` and takes the public functions from here: they work
on CPU tensors as the package's own do, and carry the whole memory of every tensor to the place and back, so that
strides, views and work in place mean the same there. Marks: `big` leaves Triton's interpreter out, `plain` runs with
torch on a CPU alone, `kernels` with Triton alone (with `big` as well: on a GPU).

With TRITON_INTERPRET=1, which Triton reads when it is imported, only what is marked `interpreted` runs, else everything
but that: `make test` does both in turn.
"""

import os
from dataclasses import dataclass

import pytest
import torch

from qp_kernels import attention, pivot, qrita
from qp_kernels.pivot import candidates, ranking

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@dataclass
class Place:
    backend: str
    device: str

    def is_cuda(self):
        return self.device == "cuda"


TORCH = Place("torch", "cpu")
PLACES = [
    pytest.param(TORCH, id="torch"),
    pytest.param(Place("torch", "cuda"), id="torch-cuda", marks=pytest.mark.gpu),
    pytest.param(Place("triton", "cuda"), id="triton-cuda", marks=pytest.mark.gpu),
    pytest.param(Place("triton", "cpu"), id="interpreter", marks=pytest.mark.interpreted),
]
here = TORCH


def places(marks):
    """The parameters of the fixture `place` for a test with these marks."""
    if "kernels" in marks:
        return PLACES[2:3] if "big" in marks else PLACES[2:]
    return PLACES[:1] if "plain" in marks else PLACES[:3] if "big" in marks else PLACES


def bytes_of(storage):
    return torch.empty(0, dtype=torch.uint8).set_(storage)


class Carrier:
    """Tensors at a place, and what happened to them there."""

    def __init__(self, device):
        self.device, self.memory = device, {}

    def there(self, value):
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        home = value.untyped_storage()
        if home.data_ptr() not in self.memory:
            self.memory[home.data_ptr()] = (bytes_of(home), bytes_of(home).to(self.device))
        away = self.memory[home.data_ptr()][1].untyped_storage()
        view = torch.empty(0, dtype=value.dtype, device=self.device)
        return view.set_(away, value.storage_offset(), value.shape, value.stride())

    def home(self):
        for home, away in self.memory.values():
            home.copy_(away)


def at_home(result):
    """A result on the CPU: a tensor, a named tuple of tensors, or a pair that holds one and something of the host."""
    if isinstance(result, torch.Tensor):
        return result.cpu()
    if isinstance(result, tuple):
        fields = map(at_home, result)
        return type(result)(*fields) if hasattr(result, "_fields") else tuple(fields)
    return result


def at_place(function):
    def called(*arguments, **options):
        options.setdefault("backend", here.backend)
        if not here.is_cuda():
            return function(*arguments, **options)
        carrier = Carrier(here.device)
        moved = {name: carrier.there(value) for name, value in options.items()}
        result = function(*map(carrier.there, arguments), **moved)
        carrier.home()
        if options.get("out") is not None:
            return options["out"]
        return at_home(result)

    return called


top_k_top_p = at_place(qrita.top_k_top_p)
select = at_place(qrita.select)
sample = at_place(qrita.sample)
truncation = at_place(qrita.truncation)
sparse_attention = at_place(attention.sparse_attention)
dense_topk = at_place(pivot.dense_topk)
rank_keys = at_place(ranking.rank_keys)
rank_proxies = at_place(candidates.rank_proxies)
rank_few_heads = at_place(candidates.rank_few_heads)
block_levels = at_place(candidates.block_levels)
pivot_topk = at_place(pivot.pivot_topk)
hisa_topk = at_place(pivot.hisa_topk)
misa_topk = at_place(pivot.misa_topk)


def QritaProcessor(*arguments, **options):  # noqa: N802
    processor = qrita.QritaProcessor(*arguments, backend=here.backend, **options)
    return lambda ids, scores: processor(ids, scores.to(here.device)).cpu()


def divided(scores, temperature):
    """On a GPU torch multiplies by the reciprocal."""
    return (scores.to(here.device) / temperature).cpu()
