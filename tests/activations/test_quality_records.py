"""Records of quality: what systems are compared on, and what a difference allows to say."""

import numpy as np
import pytest

from activations.quality_records import FEWEST, Asked, Estimate, QualityRecords, share
from qp_kernels.intervals import student, wilson

WHAT = {"length": 512, "topk": 16, "source": "attention", "label": "x"}


def task(name, system, right, **more):
    losses = " ".join("1.0" for _ in right.split())
    return {
        **WHAT,
        "kind": "task",
        "name": name,
        "system": system,
        "each": right,
        "each_loss": losses,
        "counts": True,
    } | more


def passage(name, system, losses, **more):
    return {**WHAT, "kind": "passage", "name": name, "system": system, "each_loss": losses, "counts": True} | more


def test_systems_are_compared_on_what_each_was_asked():
    table = QualityRecords(
        [
            task("needle", "full", "1 1"),
            task("needle", "dense", "1 0"),
            task("copying", "full", "0 1"),
            passage("code", "full", "2.0"),
        ]
    )
    needle, copying = (Asked("task", name, 512, 16, "attention") for name in ("needle", "copying"))
    assert table.asked(["full", "dense"]) == [needle] and table.asked(["full"], kind="task") == [needle, copying]
    assert table.asked(["full"], name="needle", length=None) == [needle] and table.asked(["full"], length=1024) == []
    assert table.systems(name="copying") == ["full"] and table.values("kind") == ["task", "passage"]
    assert table.level("dense", [needle]) == Estimate(0.5, *wilson(1, 2), 2)
    assert table.level("full", [needle, copying]) == Estimate(0.75, *wilson(3, 4), 4)
    assert table.difference("dense", "full", [needle]) == Estimate(-0.5, *student([[0, -1]]), 2, 1)


def test_what_a_system_lacks_is_left_out_or_the_system_whatever_leaves_more():
    def names(**each):
        asked = [task(name, system, "1 0") for system, tasks in each.items() for name in tasks.split()]
        shown, found = QualityRecords(asked).comparable(list(each))
        return shown, [one.name for one in found]

    assert names(full="a b c", dense="a b c", hisa="a") == (["full", "dense"], ["a", "b", "c"])
    assert names(full="a b", dense="a b", hisa="a", misa="a") == (["full", "dense", "hisa", "misa"], ["a"])
    assert names(full="a b", dense="a", hisa="a b", misa="b") == (["full", "dense", "hisa"], ["a"])
    # A lacks the last of ten, B the first: all four on eight answers are more than three on nine.
    ten = "a b c d e f g h i j"
    assert names(full=ten, dense=ten, hisa=ten[:-2], misa=ten[2:]) == (
        ["full", "dense", "hisa", "misa"],
        ten[2:-2].split(),
    )
    assert names(full="a", dense="b", hisa="a") == ([], []) and names(hisa="a") == (["hisa"], ["a"])


def test_the_longest_length_is_one_that_most_systems_have():
    def records(**each):
        return [
            task("a", name, "1", length=n) for name, longest in each.items() for n in (512, 1024, 2048) if n <= longest
        ]

    systems = ["full", "dense", "reuse", "hisa"]
    assert QualityRecords(records(full=2048, dense=2048, reuse=2048, hisa=512)).longest(systems) == 2048
    assert QualityRecords(records(full=2048, dense=2048, reuse=1024, hisa=1024)).longest(systems) == 1024
    assert QualityRecords([]).longest(systems) is None


def test_passages_are_told_by_what_is_lost_to_full_attention():
    table = QualityRecords([passage("code", "full", "2.0 1.0"), passage("code", "dense", "2.5 1.25")])
    (code,) = table.asked(["dense"])
    assert table.level("dense", [code]) == Estimate(0.375, *student([[0.5, 0.25]]), 2, 2)
    assert table.level("full", [code]) == Estimate(0.0, 0.0, 0.0, 2, 0)


def test_what_does_not_count_is_left_out_and_a_later_record_holds():
    lost = task("needle", "full", "0 1", counts=False, accuracy=0.5)
    table = QualityRecords([lost, task("copying", "full", "0 0"), task("copying", "full", "1 1")])
    (copying,) = table.asked(["full"])
    assert copying.name == "copying" and table.level("full", [copying]).value == 1
    assert table.left_out == {Asked("task", "needle", 512, 16, "attention"): 0.5}


def test_each_task_counts_alike_and_equal_answers_have_an_interval_of_some_width():
    unequal = share([[1, 0, 0, 0], [1]])
    assert (unequal.value, unequal.samples) == (0.625, 5) and unequal.low == wilson(0.625 * 3.2, 3.2)[0]
    assert share([[1, 1], [1, 1, 1]]) == Estimate(1.0, *wilson(4.8, 4.8), 5)
    assert share([[0, 0], [0, 0]]) == Estimate(0.0, *wilson(0, 4), 4)


@pytest.mark.parametrize(
    "low, high, differ, verdict",
    [
        (0.0, 0.0, 0, "same"),
        (-0.2, 0.0, 8, "open"),
        (-0.2, 0.1, 2, "open"),
        (-0.2, -0.1, FEWEST - 1, "few"),
        (-0.2, -0.1, FEWEST, "less"),
        (0.1, 0.2, FEWEST, "more"),
        (-0.3, -0.3, 1, "few"),
    ],
)
def test_a_difference_is_claimed_only_where_interval_and_samples_carry_it(low, high, differ, verdict):
    assert Estimate((low + high) / 2, low, high, 20, differ).verdict == verdict


def test_records_that_do_not_go_together():
    table = QualityRecords([task("needle", "full", "1 1"), task("needle", "dense", "1")])
    with pytest.raises(ValueError, match="needle at 512 tokens: dense has 1 samples, full 2"):
        table.difference("dense", "full", table.asked(["dense"]))
    with pytest.raises(ValueError, match="at least one value"):
        table.level("full", [])
    with pytest.raises(KeyError):
        table.level("hisa", table.asked(["dense"]))


def test_each_task_or_kind_can_be_seen_by_itself():
    table = QualityRecords(
        [
            passage(name, system, losses)
            for name, *both in (("code", "1.0 2.0 3.0", "1.5 2.5 3.75"), ("prose", "1.0 2.0 4.0", "0.5 1.0 3.0"))
            for system, losses in zip(("full", "dense"), both, strict=True)
        ]
    )
    found = table.by_name("dense", "full", table.asked(["dense"]))
    assert list(found) == ["code", "prose"]
    assert found["code"] == Estimate(1.75 / 3, *student([[0.5, 0.5, 0.75]]), 3, 3)
    assert found["prose"].value == pytest.approx(-2.5 / 3) and found["prose"].samples == 3
    assert table.asked(["dense"], name=("code", "few-shot")) == table.asked(["dense"], name="code") != []


def test_a_share_of_several_tasks_is_covered_as_one_of_few_wrong_answers_is():
    """Where nearly all are right a bootstrap leaves out the true share in a third of the cases."""
    random = np.random.default_rng(0)
    right = random.random((2000, 3, 12)) < np.array([0.95, 0.97, 0.99])[:, None]
    found = [share(one.astype(float).tolist()) for one in right]
    assert np.mean([one.low <= 0.97 <= one.high for one in found]) >= 0.94
