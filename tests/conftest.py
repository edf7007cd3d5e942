"""For all rooms: quick tests first, and tests whose hardware or model is missing are skipped with the reason.

`make test` sets QP_TEST_ALL=1: then the model has been prepared, and a test that lacks it fails instead.
"""

import os

import pytest

RANKS = ("model", "browser", "slow")


def rank(item):
    return max((1 + RANKS.index(mark.name) for mark in item.iter_markers() if mark.name in RANKS), default=0)


def why_no_gpu():
    import torch

    return "" if torch.cuda.is_available() else "needs a CUDA device"


def why_no_model():
    if os.environ.get("QP_TEST_ALL"):
        return ""
    from activations import gemma

    problem = gemma.problem()
    return f"the default model is not prepared ({problem}): make model" if problem else ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items.sort(key=rank)
    for name, why in (("gpu", why_no_gpu), ("model", why_no_model)):
        marked = [item for item in items if item.get_closest_marker(name)]
        if marked and (reason := why()):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
