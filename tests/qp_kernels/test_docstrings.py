"""The examples of the docstrings run, and the public functions have some."""

import doctest
import importlib
import pkgutil
import sys

import pytest

import qp_kernels
from qp_kernels import backend, qrita
from qp_kernels.qrita import rivals

MODULES = [module.name for module in pkgutil.walk_packages(qp_kernels.__path__, "qp_kernels.")]
PUBLIC = [qrita.top_k_top_p, qrita.select, qrita.sample, qrita.truncation, qrita.QritaProcessor]
PUBLIC += [qrita.trace_search, rivals.min_p, rivals.top_n_sigma]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name == "triton" and not backend.has_triton(), error
        pytest.skip("triton is not installed")
    assert doctest.testmod(sys.modules[name]).failed == 0


@pytest.mark.parametrize("function", PUBLIC)
def test_public_functions_say_what_they_take_and_raise(function):
    text = function.__doc__
    assert ">>>" in text and "Raises:" in text and "Args:" in text
