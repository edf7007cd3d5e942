"""Exact top-k / top-p of logit rows (Qrita, arXiv 2602.01518). README.md beside this file has the mathematics."""

from .api import Candidates, sample, select, top_k_top_p, truncation
from .processor import QritaProcessor
from .threshold import TruncationStats
from .trace import SearchStep, trace_search

__all__ = [
    "Candidates",
    "QritaProcessor",
    "SearchStep",
    "TruncationStats",
    "sample",
    "select",
    "top_k_top_p",
    "trace_search",
    "truncation",
]
