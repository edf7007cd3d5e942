"""The bench of index selection: scan, selection, PIVOT and its rivals; part of `python -m qp_kernels.bench`.

>>> from qp_kernels.bench import index
>>> records, about = index.run(index.SMALL_CASES[:1], device="cpu", repetitions=3, say=None)
>>> [(r["provider"], r["checked_rows"]) for r in records]
[('floor_read', 0), ('torch_topk', 16)]
"""

from .case_run import FIELDS, Given, Run, run_case
from .cases import CASES, PAPER_REFINE, SMALL_CASES, Case, Target, target
from .suite import fitted_r, run

__all__ = [
    "CASES",
    "FIELDS",
    "PAPER_REFINE",
    "SMALL_CASES",
    "Case",
    "Given",
    "Run",
    "Target",
    "fitted_r",
    "run",
    "run_case",
    "target",
]
