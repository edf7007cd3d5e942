"""Index selection for DeepSeek Sparse Attention: dense, PIVOT, and what it is compared to. `README.md` defines them."""

from .api import dense_topk, pivot_topk
from .crossover import Crossover, measured_crossover
from .index_cache import index_cache_greedy, index_cache_layers
from .rivals import hisa_topk, misa_topk

__all__ = [
    "Crossover",
    "dense_topk",
    "hisa_topk",
    "index_cache_greedy",
    "index_cache_layers",
    "measured_crossover",
    "misa_topk",
    "pivot_topk",
]
