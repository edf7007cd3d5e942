"""Batches of logit rows that break selections, made on the device: families of values, memory layouts, k and p.

A family is a function (rng, B, V, dtype) -> [B, V] of that dtype, with the rng of that device. Rows of a batch differ.
"""

import math

import torch

INF = math.inf
INTEGERS = {4: torch.int32, 2: torch.int16}


def normal(rng, *shape):
    return torch.randn(shape, generator=rng, device=rng.device)


def uniform(rng, *shape):
    return torch.rand(shape, generator=rng, device=rng.device)


def integers(rng, low, high, *shape):
    return torch.randint(low, high, shape, generator=rng, device=rng.device)


def pick(rng, choices, *shape):
    table = torch.tensor(choices, dtype=torch.float32, device=rng.device)
    return table[integers(rng, 0, len(choices), *shape)]


def gaussian(rng, b, v, dtype):
    """sigma .3 to 10, any mean: nuclei from one entry to nearly all."""
    return (normal(rng, b, v) * pick(rng, [0.3, 1.0, 2.5, 4.3, 10.0], b, 1) + 20 * normal(rng, b, 1)).to(dtype)


def zipf(rng, b, v, dtype):
    ranks = uniform(rng, b, v).argsort(-1)
    return (-(ranks + 1.0).log() * (0.5 + uniform(rng, b, 1)) - 8).to(dtype)


def bounded(rng, b, v, dtype):
    """Uniform: no tail beyond the bulk, nuclei of a fixed share of the row."""
    return (uniform(rng, b, v) * pick(rng, [0.01, 1.0, 8.0], b, 1)).to(dtype)


def few_values(rng, b, v, dtype):
    return pick(rng, [-2.0, -0.5, 0.0, 1.0, 1.5, 1.5], b, v).to(dtype)


def quantised(rng, b, v, dtype):
    """A bf16 head: sigma 4.3, a few hundred values, ties across every cut."""
    return (normal(rng, b, v) * 4.3 - 8).bfloat16().to(dtype)


def adjacent_floats(rng, b, v, dtype):
    base = (normal(rng, b, 1) * 4).to(dtype).view(INTEGERS[dtype.itemsize])
    return (base + integers(rng, -3, 4, b, v)).to(INTEGERS[dtype.itemsize]).view(dtype)


def subnormals(rng, b, v, dtype):
    """A few of the smallest steps around zero, of both signs."""
    size = integers(rng, 0, 6, b, v)
    low = 0x8000 if dtype.itemsize == 2 else 0x8000_0000
    whole = torch.where(integers(rng, 0, 2, b, v) > 0, size - low, size)
    return whole.to(INTEGERS[dtype.itemsize]).view(dtype)


def signed_zeros(rng, b, v, dtype):
    return pick(rng, [0.0, -0.0, 0.0, -0.0, 1e-38, -1e-38], b, v).to(dtype)


def infinities(rng, b, v, dtype):
    """Some rows full of +inf, some with one."""
    rows = pick(rng, [INF, -INF, 0.0, 2.0, -3.0, -3.0], b, v)
    rare = torch.where((rows == INF) & (uniform(rng, b, v) > 2 / v), 1.0, rows)
    return torch.where(uniform(rng, b, 1) < 0.5, rows, rare).to(dtype)


def nans(rng, b, v, dtype):
    return torch.where(uniform(rng, b, v) < uniform(rng, b, 1), math.nan, 2 * normal(rng, b, v)).to(dtype)


def soft_masks(rng, b, v, dtype):
    """Most of a row at -1e4, -1e9, the lowest number of the dtype or -inf, as attention and grammar masks are."""
    mask = pick(rng, [-1e4, -1e9, torch.finfo(dtype).min, -INF], b, 1)
    return torch.where(uniform(rng, b, v) < 1 - uniform(rng, b, 1) ** 3, mask, 2 * normal(rng, b, v)).to(dtype)


def forced(rng, b, v, dtype):
    """One to a few tokens forced to 1e9 (+inf in fp16), others forbidden."""
    rows = 3 * normal(rng, b, v)
    rows = torch.where(uniform(rng, b, v) < 3 / v, 1e9, rows)
    return torch.where(uniform(rng, b, v) < 0.2, -1e9, rows).to(dtype)


def huge(rng, b, v, dtype):
    return pick(rng, [1e9, 1e9 + 64, -1e9, 3e38, -3e38, 0.0], b, v).to(dtype)


def unsampled(rng, v, b):
    """[B] a column that the sample of the threshold does not look at, where there is one."""
    step = v // 64
    if v <= 8192 or step <= 128:
        return torch.full((b,), v - 1, device=rng.device)
    return integers(rng, 0, 64, b) * step + 128 + integers(rng, 0, step - 128, b)


def one_dominates(rng, b, v, dtype):
    """Nearly constant, and one logit that the sample misses has all the mass."""
    rows = normal(rng, b, v) * pick(rng, [0.0, 0.1, 1.0], b, 1)
    return rows.scatter_(1, unsampled(rng, v, b)[:, None], 60.0).to(dtype)


def sample_misleads(rng, b, v, dtype):
    """The sampled columns lie: far above the rest, far below, or with outliers that blow up their deviation."""
    rows = normal(rng, b, v)
    step = max(v // 64, 1)
    sampled = torch.arange(v, device=rng.device) % step < 128
    shift = pick(rng, [-30.0, -5.0, 5.0, 30.0], b, 1)
    wild = torch.where(uniform(rng, b, v) < 0.01, 1e4, rows)
    rows = torch.where(sampled, torch.where(uniform(rng, b, 1) < 0.3, wild, rows + shift), rows)
    return rows.to(dtype)


def constant(rng, b, v, dtype):
    return pick(rng, [0.0, -0.0, -7.25, 0.1, 1e9, torch.finfo(dtype).min], b, 1).to(dtype).repeat(1, v)


def wide_nuclei(rng, b, v, dtype):
    """Nearly flat: nuclei are tens of thousands of entries where the row is that long."""
    return (normal(rng, b, v) * pick(rng, [1e-3, 0.05, 0.5, 1.0], b, 1) + 5 * normal(rng, b, 1)).to(dtype)


def nothing(rng, b, v, dtype):
    """Nothing eligible in most rows, one entry in the others."""
    rows = pick(rng, [math.nan, -INF], b, v)
    one = torch.where(torch.arange(v, device=rng.device) == integers(rng, 0, v, b, 1), normal(rng, b, 1), rows)
    return torch.where(uniform(rng, b, 1) < 0.7, rows, one).to(dtype)


FAMILIES = (
    gaussian,
    zipf,
    bounded,
    few_values,
    quantised,
    adjacent_floats,
    subnormals,
    signed_zeros,
    infinities,
    nans,
    soft_masks,
    forced,
    huge,
    one_dominates,
    sample_misleads,
    constant,
    wide_nuclei,
    nothing,
)


def contiguous(b, v, dtype, device):
    return (base := torch.empty(b, v, dtype=dtype, device=device)), base


def transposed(b, v, dtype, device):
    return (base := torch.empty(v, b, dtype=dtype, device=device)), base.t()


def odd_offset(b, v, dtype, device):
    return (base := torch.empty(b, v + 8, dtype=dtype, device=device)), base[:, 3 : 3 + v]


def padded_rows(b, v, dtype, device):
    return (base := torch.empty(b, v + 16 - v % 16, dtype=dtype, device=device)), base[:, :v]


def every_second_column(b, v, dtype, device):
    return (base := torch.empty(b, 2 * v + 1, dtype=dtype, device=device)), base[:, 1::2]


def every_third_row(b, v, dtype, device):
    return (base := torch.empty(3 * b, v, dtype=dtype, device=device)), base[2::3]


# (buffer, view [B, V] of it)
LAYOUTS = (contiguous, transposed, odd_offset, padded_rows, every_second_column, every_third_row)


def k_rows(rng, b, v):
    """[B] int64: small, log-uniform, near V and beyond, off."""
    power = (uniform(rng, b) * math.log(v + 1)).exp().long().clamp(1, v)
    special = pick(rng, [1, 2, 50, v - 1, v, v + 1], b).long().clamp(min=0)
    return torch.where(uniform(rng, b) < 0.3, special, power)


def p_rows(rng, b, logits):
    """[B] float64: common values, any value, the ends, and exact cumulative masses of the row itself."""
    common = pick(rng, [0.0, 1e-9, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 1 - 1e-6, 1.0], b).double()
    any_p = torch.where(uniform(rng, b) < 0.5, uniform(rng, b).double(), 1 - 10 ** (-6 * uniform(rng, b).double()))
    p = torch.where(uniform(rng, b) < 0.5, common, any_p)
    if 0 < logits.numel() <= 1 << 22:
        x = logits.double().nan_to_num(nan=-INF, posinf=0.0, neginf=-INF)
        mass = x.softmax(-1).sort(descending=True).values.cumsum(-1)
        at = mass.gather(1, integers(rng, 0, logits.shape[1], b, 1))[:, 0].nan_to_num(nan=1.0).clamp(0, 1)
        p = torch.where(uniform(rng, b) < 0.2, at, p)
    return p
