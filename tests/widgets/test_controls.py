"""Sliders over grids: the value is the quantity, the box is exact, a bad entry says why and changes nothing."""

import pytest

from widgets.controls import GridSlider, choice, k_grid, linear_grid, p_grid


@pytest.mark.parametrize("vocab", [1, 2, 3, 17, 50257, 262144])
def test_k_grid_is_increasing_and_ends_at_the_vocabulary(vocab):
    grid = k_grid(vocab)
    assert grid[0] == 0 and grid[1] == 1 and grid[-1] == vocab
    assert grid == sorted(set(grid)) and all(isinstance(k, int) for k in grid)
    assert len(grid) < 150


def test_p_grid_holds_the_usual_values_and_both_ends():
    grid = p_grid()
    assert {0.0, 0.9, 0.99, 0.999, 1.0} <= set(grid)
    assert grid == sorted(set(grid))


def make():
    return GridSlider("k", "k  tokens kept", k_grid(1000), 50, off=0)


def test_slider_moves_the_value_and_the_box():
    slider = make()
    slider._slider.value = len(slider.grid) - 1
    assert slider.value == 1000 and slider._box.value == 1000


def test_exact_value_off_the_grid():
    slider = make()
    assert 777 not in slider.grid
    slider.value = 777
    assert slider.value == 777 and slider._box.value == 777
    assert abs(slider.grid[slider._slider.value] - 777) < 40
    slider._box.value = 778
    assert slider.value == 778


@pytest.mark.parametrize("bad", [-1, 1001, 2.5, "7", None, True, float("nan"), float("inf")])
def test_bad_values_are_refused_and_change_nothing(bad):
    slider = make()
    with pytest.raises(ValueError, match="k must be a whole number from 0 to 1,000, got"):
        slider.value = bad
    assert slider.value == 50 and slider._box.value == 50


def test_bad_entry_in_the_box_is_told_every_time():
    slider, told = make(), []
    slider.observe(lambda change: told.append(change["new"]), "error")
    for _ in range(2):
        slider._box.value = 2000
    assert [t for t in told if t] == ["k must be a whole number from 0 to 1,000, got 2000"] * 2
    assert slider.value == 50 and slider._box.value == 50
    slider.value = 10
    assert slider.error == ""


def test_set_grid_clips():
    slider = make()
    slider.value = 1000
    slider.set_grid(k_grid(100))
    assert slider.value == 100 and slider._slider.value == len(slider.grid) - 1


def test_a_limit_beyond_the_grid():
    slider = GridSlider("T", "T temperature", linear_grid(0, 3, 0.05), 5.0, limit=100)
    assert slider.value == 5.0 and slider._slider.value == slider._slider.max
    with pytest.raises(ValueError, match="from 0 to 100, got 101"):
        slider.value = 101


def test_new_bounds_make_a_new_slider_that_is_connected():
    slider = GridSlider("position", "position", [0], 0)
    old = slider._slider
    slider.set_grid(list(range(7)))
    assert slider._slider is not old and slider.children[0] is slider._slider and slider._slider.max == 6
    slider._slider.value = 6
    assert slider.value == 6
    assert old.comm is None, "the old slider was left behind"


def test_one_notification_a_change():
    slider, seen = make(), []
    slider.observe(lambda change: seen.append(change["new"]), "value")
    slider.value = 60
    slider._slider.value = 3
    slider._box.value = 9
    assert seen == [60, slider.grid[3], 9]


def test_float_slider_takes_numpy_and_whole_numbers():
    import numpy as np

    slider = GridSlider("T", "T  temperature", linear_grid(0, 3, 0.05), 1.0)
    slider.value = np.float32(0.5)
    slider.value = 1
    assert slider.value == 1.0 and isinstance(slider.value, float)


def test_the_slider_starts_where_the_value_is_also_at_0():
    slider = GridSlider("shift", "shift", linear_grid(-10, 10, 1), 0.0)
    assert slider._slider.value == 10


def test_a_choice_keeps_its_value_among_new_options_or_takes_the_nearest():
    one = choice("topk", [("256", 256), ("512", 512)], 512)
    seen = []
    one.observe(lambda change: seen.append(change["new"]), "value")
    one.offer([("512", 512), ("2,048", 2048)])
    assert one.value == 512 and [value for _, value in one.options] == [512, 2048]
    one.offer([("64", 64), ("2,048", 2048)])
    assert one.value == 64
    words = choice("rows", ["gauss", "live"], "live")
    words.offer([("normal", "gauss"), ("made up", "lie")])
    assert words.value == "gauss"
    one.close()
    words.close()
