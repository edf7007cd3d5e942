"""Exact top-k / top-p of logit rows (Qrita, arXiv 2602.01518). README.md beside this file has the mathematics."""

from .api import Candidates, sample, select, top_k_top_p, truncation
from .processor import QritaProcessor
from .threshold import TruncationStats

__all__ = [
    "Candidates",
    "QritaProcessor",
    "TruncationStats",
    "sample",
    "select",
    "top_k_top_p",
    "truncation",
]
