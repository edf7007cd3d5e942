"""Orders and levels: what they select at every topk and budget is what the public functions select."""

import pytest
import torch
from places import block_levels, hisa_topk, misa_topk, pivot_topk, rank_few_heads, rank_keys, rank_proxies

from activations import synthetic
from qp_kernels.pivot import candidates
from qp_kernels.pivot.candidates import first_places, order_of, places_in, refine_levels
from qp_kernels.pivot.ranking import NEVER

pytestmark = pytest.mark.usefixtures("place")


def made(seed=5, T=14, N=90, H=3, **more):
    return synthetic.index(T, N, H, 8, seed=seed, integers=True, **more)


def inputs(one):
    """A capture with packed sequences, a row without keys and one of NaN."""
    q, lo, hi = one.q.clone(), one.lo.clone(), one.hi.clone()
    lo[6:] = 30
    hi[12] = 0
    q[10] = torch.nan
    return (q, one.k, one.w), {"lo": lo, "hi": hi}


def selection(order, places):
    """[T, topk] int32 ascending, as the public functions give it."""
    found = order.gather(1, places.clamp(min=0)).masked_fill(places < 0, NEVER).sort(1).values
    return found.masked_fill(found == NEVER, -1).int()


def ranked(given, bounds):
    ranking = rank_keys(*given, **bounds)
    return order_of(ranking.rank), ranking.count


@pytest.mark.big  # too many calls for the interpreter
@pytest.mark.parametrize("proxy", ["mean", "first", "last"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_refine_at_every_budget(proxy, phase):
    given, bounds = inputs(made())
    order, count = ranked(given, bounds)
    for group, window in ((2, 2), (3, 7), (5, 5), (20, 90)):
        groups, proxies = rank_proxies(*given, **bounds, group=group, proxy=proxy)
        levels = refine_levels(proxies.rank, groups, window, phase)
        of = torch.arange(len(groups)).repeat_interleave(torch.from_numpy(groups.stop - groups.start))
        for topk in (1, 6, 33, 95):
            least = topk + window + group - 1
            for budget in (least, least + 9, 90, 400) if phase == "prefill" else (1, 5, 40, 400):
                if phase == "prefill" and budget < least:
                    continue
                for guard in (True, False, 50):
                    shortest = budget if guard is True else int(guard)
                    alone = torch.from_numpy(groups.are_dense(shortest))[of]
                    places = first_places(order, count, topk, levels, of, torch.full_like(of, budget) + alone * NEVER)
                    options = {"group": group, "window": window, "proxy": proxy, "phase": phase, "budget": budget}
                    expected = pivot_topk(*given, topk, **options, guard=guard, **bounds)
                    assert selection(order, places).equal(expected), (options, topk, guard)


def test_places_are_known_once_the_columns_hold_them():
    levels = torch.tensor([[3, 9, 3, 3, 3], [9, 9, 9, 9, 3]])
    few, both = torch.tensor([5, 3]), torch.tensor([5, 5])
    budget = torch.tensor([3, 3])
    assert places_in(levels[:, :2], few, 2, budget) is None and places_in(levels[:, :4], both, 2, budget) is None
    assert places_in(levels[:, :3], few, 2, budget).tolist() == [[0, 2], [-1, -1]]
    assert places_in(levels, both, 2, budget).tolist() == [[0, 2], [4, -1]]
    assert places_in(levels, both, 3, torch.tensor([3, NEVER])).tolist() == [[0, 2, 3], [0, 1, 2]]


def test_the_ranks_of_proxies_are_reuse():
    given, bounds = inputs(made())
    for group in (2, 3, 5):
        groups, proxies = rank_proxies(*given, **bounds, group=group)
        of = torch.arange(len(groups)).repeat_interleave(torch.from_numpy(groups.stop - groups.start))
        for topk in (1, 9, 40, 95):
            expected = pivot_topk(*given, topk, group=group, mode="reuse", guard=False, **bounds)
            shared = torch.from_numpy(groups.rows(~groups.are_dense(0)))
            for row in shared.nonzero()[:, 0].tolist():
                keys = (proxies.rank[of[row]] < topk).nonzero()[:, 0].tolist()
                assert keys == [s for s in expected[row].tolist() if s >= 0]


@pytest.mark.big
@pytest.mark.parametrize("block", [1, 7, 16, 200])
def test_levels_of_blocks_are_hisa(block):
    (q, k, w), bounds = inputs(made())
    k = k.clone()
    k[[33, 61]] = torch.nan  # two blocks that rank last
    given = (q, k, w)
    order, count = ranked(given, bounds)
    levels = block_levels(*given, block=block, **bounds)
    rows = torch.arange(len(levels))
    for topk in (1, 6, 33):
        for blocks in {max(2, -(-topk // block) + 1), 5 + topk // block, 95}:
            places = first_places(order, count, topk, levels, rows, torch.full_like(rows, blocks))
            assert selection(order, places).equal(hisa_topk(*given, topk, block=block, blocks=blocks, **bounds))


@pytest.mark.big
@pytest.mark.parametrize("heads", [1, 2, 3, 9])
def test_few_heads_are_misa(heads):
    given, bounds = inputs(made(H=4))
    order, count = ranked(given, bounds)
    few = rank_few_heads(*given, heads=heads, block=16, **bounds)
    levels, rows = few.rank.where(few.rank == NEVER, few.rank + 1), torch.arange(len(few.rank))
    for topk in (1, 6, 33, 95):
        expected = misa_topk(*given, topk, heads=heads, block=16, **bounds)
        found = order_of(few.rank)[:, :topk]
        places = torch.arange(topk).clamp(max=found.shape[1] - 1).expand(len(rows), -1)
        beyond = torch.arange(topk) >= few.count[:, None]
        assert selection(order_of(few.rank), places.masked_fill(beyond, -1)).equal(expected)
        for rerank in (topk, topk + 12, 200):
            places = first_places(order, count, topk, levels, rows, torch.full_like(rows, rerank))
            assert selection(order, places).equal(
                misa_topk(*given, topk, heads=heads, block=16, rerank=rerank, **bounds)
            )


def test_words_and_numbers_are_checked():
    given, bounds = inputs(made())
    for options, words in (({"group": 0}, "group must be >= 1"), ({"group": 2, "proxy": "best"}, "proxy must be one")):
        with pytest.raises(ValueError, match=words):
            candidates.rank_proxies(*given, **bounds, **options)
    groups, proxies = candidates.rank_proxies(*given, **bounds, group=2)
    with pytest.raises(ValueError, match="phase must be one of"):
        refine_levels(proxies.rank, groups, 2, "later")
