"""Panels that are closed after the test, a tiny live model, and looks at what is drawn."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # modules of these tests import each other

import index_cases  # noqa: E402

SMOOTHNESS = {5: 0.7, 11: 0.9, 17: 0.99}


class Letters:
    """One token a character; ids beyond the alphabet have no name, as in a padded vocabulary."""

    bos_token_id = 1

    def encode(self, text, add_special_tokens=True):
        return [1] * add_special_tokens + [2 + ord(c) % 250 for c in text]

    def decode(self, ids, **_):
        return "".join("<bos>" if i == 1 else chr(i - 2) if i >= 2 else "" for i in ids)

    def __len__(self):
        return 252


@pytest.fixture(scope="module")
def capture():
    """Queries, keys and weights of an indexer, on whole numbers."""
    return index_cases.made()


@pytest.fixture(scope="module")
def layers():
    """Three such captures, by layer: neighbours choose ever more alike."""
    return {n: index_cases.made(seed, smoothness=s) for seed, (n, s) in enumerate(SMOOTHNESS.items(), 1)}


@pytest.fixture(scope="session")
def tiny_model():
    """A language model of 300 tokens that reads 64."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from activations import wrap

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=0,
    )
    return wrap(LlamaForCausalLM(config).eval(), Letters(), name="tiny")


@pytest.fixture
def open_panel():
    """open_panel(Panel, source, ...) opens a panel, waits until it is drawn, and closes it after the test."""
    panels = []

    def build(kind, *args, **more):
        panels.append(kind(*args, **more))
        panels[-1].updates_per_s = 1000  # a test's own steps need not wait for each other
        panels[-1].wait(60)
        return panels[-1]

    yield build
    for panel in panels:
        panel.close()
        assert not panel._worker.alive


@pytest.fixture(scope="session")
def trace_of():
    """trace_of(panel or figure, name): the trace of that name."""
    return lambda shown, name: next(t for t in getattr(shown, "figure", shown).data if t.name == name)


@pytest.fixture(scope="session")
def map_of(trace_of):
    """map_of(panel): the cells of its map as a matrix, whose x, y and z are columns."""

    def cells(panel):
        drawn = trace_of(panel, "map")
        rows = np.unique(drawn.y)
        assert (drawn.x == np.tile(rows, len(rows))).all() and (drawn.y == np.repeat(rows, len(rows))).all()
        return drawn.z.reshape(len(rows), len(rows))

    return cells


@pytest.fixture(scope="session")
def run_code():
    """run_code(panel, name, logits): execute what `panel.code()` says and return that variable."""

    def run(panel, name, logits=None):
        scope = {"logits_of_test": logits, "torch": torch}
        exec(panel.code().replace("logits = ...", "logits = logits_of_test"), scope)
        return scope[name]

    return run


@pytest.fixture(scope="session")
def widgets_alive():
    """widgets_alive(): how many widgets the kernel holds."""
    import ipywidgets as w

    return lambda: len(w.widgets.widget._instances)
