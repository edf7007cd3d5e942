"""Pictures of how a language model chooses tokens and keys. `from widgets import LogitExplorer`."""

from widgets.panels.base import show
from widgets.panels.indexer import IndexerExplorer
from widgets.panels.logits import LogitExplorer
from widgets.panels.needle import NeedleExplorer
from widgets.panels.overlap import OverlapExplorer
from widgets.panels.pivot import PivotExplorer
from widgets.panels.quality import QualityExplorer
from widgets.panels.search import SearchExplorer
from widgets.panels.timing import TimingExplorer
from widgets.panels.truncation import TruncationExplorer

__all__ = [
    "IndexerExplorer",
    "LogitExplorer",
    "NeedleExplorer",
    "OverlapExplorer",
    "PivotExplorer",
    "QualityExplorer",
    "SearchExplorer",
    "TimingExplorer",
    "TruncationExplorer",
    "show",
]
