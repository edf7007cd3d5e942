"""Modules of these tests import each other; hypothesis keeps to a time that two busy cores can hold."""

import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).resolve().parent))

import places  # noqa: E402

settings.register_profile(
    "qp_kernels",
    max_examples=8 if places.INTERPRETED else 60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
settings.load_profile("qp_kernels")


def pytest_generate_tests(metafunc):
    if "place" in metafunc.fixturenames:
        marks = {mark.name for mark in metafunc.definition.iter_markers()}
        metafunc.parametrize("place", places.places(marks), indirect=True)


@pytest.fixture
def place(request):
    """The place at which the functions of `places` run during a test."""
    before, places.here = places.here, request.param
    yield request.param
    places.here = before


@pytest.fixture
def no_synchronisation():
    """Call it: from then on what waits for the GPU raises, until the test ends or calls `.off()`."""
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()

    def switch(mode="error"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
            torch.cuda.set_sync_debug_mode(mode)

    switch.off = lambda: switch(before)
    yield switch
    switch.off()


def pytest_collection_modifyitems(config, items):
    """Tests through the interpreter run by themselves (`places`)."""
    kinds = {True: [], False: []}
    for item in items:
        kinds[item.get_closest_marker("interpreted") is not None].append(item)
    items[:] = kinds[places.INTERPRETED]
    config.hook.pytest_deselected(items=kinds[not places.INTERPRETED])


def pytest_configure(config):
    if places.INTERPRETED:  # it computes in numpy, which warns of inf - inf and of casts, where a GPU does not
        config.addinivalue_line("filterwarnings", "ignore::RuntimeWarning")
