"""Exact top-k / top-p selection on PyTorch tensors: references, kernels and the report of what runs here.

Importing this package is light: Triton is imported only when a kernel is launched.
"""

from . import backend
from .report import report

__all__ = ["backend", "report"]
