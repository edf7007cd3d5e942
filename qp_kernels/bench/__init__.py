"""Our kernels, others' and a user's own, checked and timed on one machine: `python -m qp_kernels.bench`.

Here top-k / top-p; `index` has the same for index selection. In Python, with a function of one's own beside the others:

    >>> import torch
    >>> from qp_kernels import bench
    >>> def by_sorting(logits, k, p):
    ...     kth = logits.sort(-1, descending=True).values[:, k - 1, None]
    ...     return logits.masked_fill(logits < kth, -torch.inf)
    >>> case = bench.Case("gauss", batch=2, vocab=1000, k=50, p=None)
    >>> records = bench.run([case], own={"by_sorting": by_sorting}, only="qp_kernels", repetitions=3, say=None,
    ...                     device="cpu")
    >>> [(record["provider"], record["correct"]) for record in records]
    [('floor_read_write', True), ('qp_kernels', True), ('by_sorting', True)]
"""

from . import index
from .case_run import FIELDS, WrongResult, run_case
from .cases import CASES, SMALL_CASES, Case, Target, modes, target
from .providers import Call, Provider, missing, providers
from .rows import make, read
from .suite import run

__all__ = [
    "CASES",
    "FIELDS",
    "SMALL_CASES",
    "Call",
    "Case",
    "Provider",
    "Target",
    "WrongResult",
    "index",
    "make",
    "missing",
    "modes",
    "providers",
    "read",
    "run",
    "run_case",
    "target",
]
