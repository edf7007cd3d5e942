"""How good an index is: what its selections keep of the attention, what neighbours share, what PIVOT loses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qp_kernels import index_metrics as metrics
from qp_kernels.pivot import dense_topk, pivot_topk
from qp_kernels.pivot.reference import in_float32

from .index_capture import IndexCapture
from .index_run import capture_index
from .indexer import divergence, index_scores
from .models import LanguageModel
from .progress import Progress, quiet

RUN = 16  # neighbouring queries
QUERIES = 512
# The scores of all heads of a chunk of queries.
_SCORE_BYTES = 64 << 20


def spread_queries(n_tokens: int, count: int = QUERIES) -> Tensor:
    """About `count` positions: runs of 16 neighbours over the second half of a text, the last run at its end."""
    run = min(RUN, n_tokens)
    starts = torch.linspace(n_tokens // 2, max(n_tokens // 2, n_tokens - run), max(1, count // run)).long()
    places = (starts[:, None] + torch.arange(run)).flatten().unique()
    return places[places < n_tokens]


def measured(capture: IndexCapture, topk: int, budget: int, group: int) -> dict:
    """What neighbouring queries share, and what the selections keep of the exact one and of the attention.

    Args:
        capture: With the mass of attention. topk, budget, group: k keys a query, c candidates and g queries a group.
    Returns:
        Means over the queries, or over whole groups: adjacent_overlap, joint and union_over_k of dense selection;
        recall_reuse and recall_refine of it; recall_attention, the share of the k keys with the most attention that
        dense selection finds; mass_best, mass_dense, mass_reuse and mass_refine, the attention that is kept.
    Raises:
        ValueError: a capture without mass.
    """
    if capture.mass is None:
        raise ValueError("the capture has no mass of attention: capture_index(..., mass=True) keeps it")
    given = (capture.q, capture.k, capture.w, topk)
    ranges = {"lo": capture.lo, "hi": capture.hi}
    dense = dense_topk(*given, **ranges)
    reuse = pivot_topk(*given, group=group, mode="reuse", **ranges)
    refine = pivot_topk(*given, group=group, mode="refine", budget=budget, **ranges)
    neighbours = capture.positions[1:] == capture.positions[:-1] + 1
    joint, union = metrics.joint_and_union(dense, group)
    best = capture.mass.topk(min(topk, capture.mass.shape[1]), dim=1).indices
    # A query may have fewer keys than k: what it cannot see is no loss.
    best = best.masked_fill(best >= capture.hi.to(best.device)[:, None], metrics.NOBODY).sort(1).values
    best = best.masked_fill(best == metrics.NOBODY, -1)
    record = {"kind": "selection", "tokens": len(capture.k), "layer": capture.meta["layer"], "queries": len(capture)}
    record |= {"topk": topk, "budget": budget, "group": group}
    record["adjacent_overlap"] = _mean(metrics.overlap(dense[:-1], dense[1:])[neighbours.to(dense.device)])
    record |= {"joint": _mean(joint), "union_over_k": _mean(union)}
    for name, found, wanted in (("reuse", reuse, dense), ("refine", refine, dense), ("attention", dense, best)):
        record[f"recall_{name}"] = _mean(metrics.recall(found, wanted))
    for name, chosen in (("best", best), ("dense", dense), ("reuse", reuse), ("refine", refine)):
        record[f"mass_{name}"] = _mean(metrics.captured(capture.mass, chosen))
    return record


def _mean(values: Tensor) -> float:
    return values.double().mean().item()


@in_float32
def kl_of(capture: IndexCapture) -> float:
    """The mean over queries of the KL divergence of the attention from the softmax of the index scores, in nats."""
    size, parts = max(1, _SCORE_BYTES // (4 * capture.q.shape[1] * len(capture.k))), []
    for rows in torch.arange(len(capture), device=capture.q.device).split(size):
        scores = index_scores(capture.q[rows], capture.k, capture.w[rows])
        parts.append(divergence(capture.mass[rows], scores, capture.hi.to(rows.device)[rows]))
    return _mean(torch.cat(parts))


def index_report(
    lm: LanguageModel,
    indexers,
    text_or_ids,
    *,
    lengths: Sequence[int],
    layers: Sequence[int] | None = None,
    topk: int | None = None,
    group: int = 4,
    progress: Progress = quiet,
) -> list[dict]:
    """Measure distilled indexers on the beginning of a text, at several lengths.

    The queries are 512 in runs of 16 neighbours, over the second half of each length.

    Args:
        indexers: As `capture_index` takes them; a dict by layer names the layers too.
        text_or_ids: A text that training did not see. Lengths beyond its end are left out.
        layers: None is all that `indexers` has.
        topk: Keys a query; None is a sixteenth of the length. Refine's budget is twice that, or what it needs at least.
        progress: Called as progress(done, total, what) in tokens; may raise to cancel.
    Returns:
        One dict for each length and layer: `kl`, and what `measured` gives.
    Raises:
        ValueError: as `capture_index`.
    """
    ids = lm.encode(text_or_ids) if isinstance(text_or_ids, str) else torch.as_tensor(text_or_ids)
    layers = list(indexers) if layers is None else list(layers)
    report = []
    for length in [one for one in lengths if one <= len(ids)]:
        keys = topk or max(1, length // 16)
        options = {"source": "distilled", "indexers": indexers, "positions": spread_queries(length), "mass": True}
        for capture in capture_index(lm, ids[:length], layer=layers, **options, progress=progress):
            budget = max(2 * keys, keys + 2 * group - 1)
            report.append({**measured(capture, keys, budget, group), "kl": kl_of(capture)})
    return report
