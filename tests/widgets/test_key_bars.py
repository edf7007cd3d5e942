"""Bars of keys: what part of each stretch they are, none without height, and the axis that holds them."""

import numpy as np
import pytest

from widgets import key_bars


@pytest.mark.parametrize("n_keys", [1, 2, 199, 200, 201, 401, 8192, 8193])
def test_bars_hold_every_key_once(n_keys):
    keys = np.random.default_rng(n_keys).permutation(n_keys)[: n_keys // 3 + 1]
    one, other = keys[::2], keys[1::2]
    bars = key_bars.binned(n_keys, one=one, other=other)
    stacks = {}
    for name, some in (("one", one), ("other", other)):
        bar = bars[name]
        assert (bar["y"] > 0).all() and len(bar["x"]) == len(bar["width"]) == len(bar["y"]) <= min(
            n_keys, key_bars.BINS
        )
        held = [((some > x - width / 2) & (some < x + width / 2)).sum() for x, width in zip(bar["x"], bar["width"])]
        np.testing.assert_allclose(bar["y"] * bar["width"], held)
        assert sum(held) == len(some)
        for x, y in zip(bar["x"], bar["y"]):
            stacks[x] = stacks.get(x, 0) + y
    assert (
        key_bars.highest(n_keys, one, other) == pytest.approx(max(stacks.values())) and max(stacks.values()) < 1 + 1e-9
    )


def test_no_keys_are_no_bars():
    assert [len(values) for values in key_bars.binned(9, none=np.empty(0, np.int64))["none"].values()] == [0, 0, 0]
    assert key_bars.highest(9, np.empty(0, np.int64)) == 0


@pytest.mark.parametrize(("highest", "end"), [(0, 0.01), (0.011, 0.02), (0.3, 0.5), (1.0, 1.0), (1.0000001, 1.0)])
def test_the_axis_ends_at_a_round_step_above(highest, end):
    assert key_bars.ends(highest) == [0, pytest.approx(1.05 * end)]
