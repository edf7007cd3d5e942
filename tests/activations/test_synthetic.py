"""Made-up logits have the shape that their name promises."""

import pytest
import torch

from activations import synthetic

V = 20_000


def rows(kind, **kwargs):
    return synthetic.logits(kind, 4, V, seed=3, **kwargs)


@pytest.mark.parametrize("kind", synthetic.KINDS)
def test_the_seed_decides(kind):
    first, again = rows(kind), rows(kind)
    assert first.shape == (4, V)
    assert first.dtype is torch.float32
    assert torch.isfinite(first).all()
    assert torch.equal(first, again)
    if kind != "flat":
        assert not torch.equal(first, synthetic.logits(kind, 4, V, seed=4))
        assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("kind", synthetic.KINDS)
def test_the_docstring_names_every_kind(kind):
    assert f'"{kind}"' in synthetic.logits.__doc__


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes_are_rounded_from_float32(dtype):
    assert torch.equal(rows("gaussian", dtype=dtype), rows("gaussian").to(dtype))


def moments(values):
    z = (values - values.mean()) / values.std()
    return values.mean().item(), values.std().item(), (z**3).mean().item(), (z**4).mean().item() - 3


def test_gaussian_and_its_rivals_by_their_moments():
    mean, std, skew, excess = moments(rows("gaussian"))
    assert (mean, std, skew, excess) == pytest.approx((0, 2.5, 0, 0), abs=0.05)
    assert moments(rows("laplace"))[3] == pytest.approx(3, abs=0.5)
    assert moments(rows("heavy_tail"))[3] > 4
    assert moments(rows("uniform"))[3] == pytest.approx(-1.2, abs=0.05)
    assert rows("uniform").abs().max() <= 5


def test_zipf_probabilities_fall_as_one_over_rank():
    p = rows("zipf").softmax(-1).sort(descending=True).values
    torch.testing.assert_close(p[:, 0] / p[:, 9], torch.full((4,), 10.0), rtol=1e-3, atol=0)


def test_ties_peak_flat_and_lump():
    assert len(rows("ties")[0].unique()) < 300
    assert (rows("peaked").softmax(-1).max(-1).values > 0.999).all()
    assert len(rows("flat").unique()) == 1
    lump = rows("bimodal")[0] < -24
    assert lump.sum() == pytest.approx(V * 6242 / 262144, abs=3)
    assert lump[-400:].all()


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (("normal", 1, 5, 0), ValueError, "kind must be one of gaussian, zipf"),
        (("flat", 0, 5, 0), ValueError, "batch must be an int of at least 1, got 0"),
        (("flat", 1, 2.5, 0), ValueError, "vocab must be an int of at least 1, got 2.5"),
        (("flat", True, 5, 0), ValueError, "batch must be"),
        (("flat", 1, 5, -1), ValueError, "seed must be an int of at least 0, got -1"),
    ],
)
def test_wrong_arguments(arguments, kind, words):
    *positional, seed = arguments
    with pytest.raises(kind, match=words):
        synthetic.logits(*positional, seed=seed)
    with pytest.raises(TypeError, match="dtype must be float32"):
        synthetic.logits("flat", 1, 5, seed=0, dtype=torch.int8)


def test_one_word_is_enough():
    for kind in synthetic.KINDS:
        assert synthetic.logits(kind, 1, 1, seed=0).shape == (1, 1)
