"""The contract for whole batches at once, in float64 on the device of the rows; it shares no code with the package.

`oracle.py` says the same for one row in numpy and is the judge of this file. Nothing here sorts indices: a kept set is
a prefix of the row order exactly if its smallest value and the ties of that value say so. Each check returns [B] int64:
0 where the row meets the contract, else the place of the reason in `REASONS`.
"""

import math

import torch

INF = math.inf
TOLERANCE = 1e-6
PROB_RTOL, PROB_ATOL = 1e-5, 1e-15
REASONS = (
    "",
    "keeps what is not eligible",
    "keeps no prefix of the row order",
    "keeps another number than k and p say",
    "keeps more than p needs",
    "keeps less than p needs",
    "changed the bits of a kept entry, or wrote something else than -inf",
    "lists no row order",
    "lists another set than the mask keeps",
    "lists other logits",
    "lists other probabilities",
    "counts another number than the mask keeps",
    "draws a token that is not kept",
    "draws too early a token for its u",
    "draws too late a token for its u",
    "has another mean or std",
    "has another delta or threshold",
    "counts other candidates than its threshold leaves",
    "has another mass than its threshold leaves",
    "calls hit or overflow what is none, or misses one",
    "depends on the batch",
    "changed what was not its to write",
)


def reason(words):
    return REASONS.index(words)


def worst(*pairs):
    """[B] int64: of (words, bool [B]) the first reason that holds."""
    code = torch.zeros_like(pairs[0][1], dtype=torch.int64)
    for words, failed in pairs:
        code = torch.where((code == 0) & failed, reason(words), code)
    return code


def values(logits):
    """[B, V] float32 that sort as the row order does: -0.0 is 0.0, what is never eligible is -inf."""
    x = logits.float() + 0.0
    return torch.where(x.isnan(), -INF, x)


def weights(x, top, temperature=None):
    """exp((x - top) / T), float64: 1 for the maximum, also +inf; 0 for what is not eligible. Shapes [B, N], [B, 1]."""
    gap = x.double() - top.double()
    if temperature is not None:
        gap = gap / temperature.double()[:, None]
    return torch.where(x == top, 1.0, gap.exp()).masked_fill(x == -INF, 0.0)


def maximum(x):
    return x.amax(-1, keepdim=True)


def limit_rows(logits, k, p):
    """k and p of any public form as [B] int64 in 1..V (V: off) and [B] float64 in 0..1 (1: off)."""
    batch, vocab = logits.shape
    k = 0 if k is None else k
    k = torch.as_tensor(k, device=logits.device).to(torch.int64).expand(batch)
    p = torch.as_tensor(1.0 if p is None else p, device=logits.device).double().expand(batch)
    return torch.where(k <= 0, vocab, k.clamp(max=vocab)), torch.where(p.isnan(), 1.0, p.clamp(0.0, 1.0))


def most_kept(x, k, ties):
    """(how many the k step keeps [B], its smallest value [B, 1]; -inf where nothing is eligible)."""
    eligible = (x > -INF).sum(-1)
    if bool((k >= x.shape[-1]).all()):
        return eligible, torch.full_like(x[:, :1], -INF)
    count = eligible.minimum(k)
    ranked = x.sort(dim=-1, descending=True).values
    bound = ranked.gather(1, (count - 1).clamp(min=0)[:, None])
    if ties == "all":
        count = torch.where(count > 0, (x >= bound).sum(-1).minimum(eligible), 0)
    return count, bound


def base_mass(x, w, order, most, bound):
    """What p is a share of [B]: the mass of the k step, or of the whole row."""
    if order == "joint":
        return w.sum(-1)
    above = x > bound
    edge = weights(bound, maximum(x))[:, 0]
    return (w * above).sum(-1) + (most - above.sum(-1)) * edge


def check_prefix(x, kept, ties="index"):
    """(code [B], smallest kept value [B, 1], inf where nothing is kept)."""
    smallest = x.masked_fill(~kept, INF).amin(-1, keepdim=True)
    columns = torch.arange(x.shape[-1], device=x.device)
    tie = x == smallest
    last_kept = torch.where(tie & kept, columns, -1).amax(-1)
    first_dropped = torch.where(tie & ~kept, columns, x.shape[-1]).amin(-1)
    some = kept.any(-1)
    broken = (~kept & (x > smallest)).any(-1) | (first_dropped < last_kept)
    if ties == "all":
        broken |= first_dropped < x.shape[-1]
    code = worst(
        ("keeps what is not eligible", (kept & (x == -INF)).any(-1)),
        ("keeps no prefix of the row order", broken & some),
    )
    return code, smallest


def check_kept(logits, kept, k=None, p=None, order="k_then_p", ties="index"):
    """Whether kept [B, V] bool is a set that the contract allows for each row of logits [B, V]."""
    if not len(logits):
        return torch.zeros(0, dtype=torch.int64, device=logits.device)
    k, p = limit_rows(logits, k, p)
    x = values(logits)
    code, smallest = check_prefix(x, kept, ties)
    count = kept.sum(-1)
    most, bound = most_kept(x, k, ties)
    wrong = torch.where(p < 1, (count > most) | (count < most.clamp(max=1)), count != most)
    long = short = torch.zeros_like(wrong)
    if bool((p < 1).any()):
        w = weights(x, maximum(x))
        base = base_mass(x, w, order, most, bound)
        mass = (w * kept).sum(-1)
        # What the kept set would be without its last entry, or with ties="all" without its last ties.
        edge = weights(smallest, maximum(x))[:, 0]
        last = (kept & (x == smallest)).sum(-1) if ties == "all" else torch.ones_like(count)
        without = ((w * (kept & (x > smallest))).sum(-1) + ((kept & (x == smallest)).sum(-1) - last) * edge) / base
        nucleus = (p < 1) & (count > 0)
        # 0 keeps one, whatever little mass that has.
        long = nucleus & (count > last) & ((without >= p + TOLERANCE) | (p <= 0))
        short = nucleus & (count < most) & (mass / base < p - TOLERANCE)
    numbers = worst(
        ("keeps another number than k and p say", wrong),
        ("keeps more than p needs", long),
        ("keeps less than p needs", short),
    )
    return torch.where(code > 0, code, numbers)


def bits(tensor):
    return tensor.view({4: torch.int32, 2: torch.int16}[tensor.element_size()])


def check_mask(logits, out, k=None, p=None, order="k_then_p", ties="index"):
    """`check_kept` of what `top_k_top_p` wrote, and that it wrote bits of the input or -inf. (code [B], kept [B, V])"""
    kept = out != -INF  # NaN, as what was never written is, counts as kept
    changed = (kept & (bits(out.contiguous()) != bits(logits.contiguous()))).any(-1)
    code = check_kept(logits, kept, k, p, order, ties)
    wrong = worst(("changed the bits of a kept entry, or wrote something else than -inf", changed))
    return torch.where(wrong > 0, wrong, code), kept


def check_listed(logits, kept, indices, listed, probs, count):
    """What `select` lists, [B, C] each and count [B], beside the mask's kept set."""
    batch, width = indices.shape
    total = kept.sum(-1)
    if not batch or not width:
        return worst(("counts another number than the mask keeps", count.long() != total))
    slots = torch.arange(width, device=logits.device)
    filled = slots < total[:, None]
    place = indices.long()
    bad_place = torch.where(filled, (place < 0) | (place >= logits.shape[-1]), place != -1).any(-1)
    safe = place.clamp(0, logits.shape[-1] - 1)
    x = values(logits)
    listed_x = x.gather(1, safe)
    fallen = (listed_x[:, :-1] > listed_x[:, 1:]) | (
        (listed_x[:, :-1] == listed_x[:, 1:]) & (safe[:, :-1] < safe[:, 1:])
    )
    unordered = (filled[:, 1:] & ~fallen).any(-1)
    there = torch.zeros_like(kept, dtype=torch.int32).scatter_add_(1, safe, filled.int())
    stray = ((there > 0) & ~kept).any(-1) | (there > 1).any(-1) | (check_prefix(x, there > 0)[0] > 0)
    other = torch.where(filled, listed != logits.gather(1, safe).float(), listed != 0).any(-1)
    w = weights(x, maximum(x))
    want = (w / (w * kept).sum(-1, keepdim=True)).gather(1, safe).where(filled, 0.0)
    off = ((probs.double() - want).abs() > PROB_RTOL * want + PROB_ATOL).any(-1) | probs.isnan().any(-1)
    return worst(
        ("counts another number than the mask keeps", count.long() != total),
        ("lists another set than the mask keeps", bad_place | stray),
        ("lists no row order", unordered),
        ("lists other logits", other),
        ("lists other probabilities", off),
    )


def check_token(logits, token, u, k=None, p=None, temperature=1.0):
    """Whether a token [B] is the first in row order whose cumulative mass exceeds u [B] times the kept mass.

    The kept mass is that of any nucleus the contract allows, and masses agree within the same tolerance.
    """
    if not len(logits):
        return torch.zeros(0, dtype=torch.int64, device=logits.device)
    k, p = limit_rows(logits, k, p)
    heat = torch.as_tensor(temperature, device=logits.device).double().expand(len(logits))
    greedy = ~((heat > 0) & (heat < INF))
    heat, u = heat.masked_fill(greedy, 1.0), u.double()
    x = values(logits)
    top, columns = maximum(x), torch.arange(x.shape[-1], device=x.device)
    eligible = (x > -INF).sum(-1)
    ranked = x.sort(dim=-1, descending=True).values
    mass = weights(ranked, top, heat).cumsum(-1)
    most = eligible.minimum(k)
    base = _at(mass, most)
    fewest, largest = (_nucleus(mass / base[:, None], most, p, tolerance) for tolerance in (-TOLERANCE, TOLERANCE))
    chosen = x.gather(1, token.clamp(0, x.shape[-1] - 1)[:, None])
    ahead = (x > chosen) | ((x == chosen) & (columns < token[:, None]))
    before = (weights(x, top, heat) * ahead).sum(-1) / base
    through = before + weights(chosen, top, heat)[:, 0] / base
    first = torch.where(x == top, columns, x.shape[-1]).amin(-1)
    none = eligible == 0
    strange = torch.where(none, token != -1, (token < 0) | (token >= x.shape[-1]) | (chosen[:, 0] == -INF))
    drawn = ~none & ~greedy
    return worst(
        ("draws a token that is not kept", strange | (drawn & (ahead.sum(-1) >= largest))),
        (
            "draws too late a token for its u",
            torch.where(drawn, before > u * _at(mass, largest) / base + TOLERANCE, False),
        ),
        (
            "draws too early a token for its u",
            torch.where(drawn, through < u * _at(mass, fewest) / base - TOLERANCE, False),
        ),
        ("draws too late a token for its u", ~none & greedy & (token != first)),
    )


def _nucleus(share, most, p, tolerance):
    """[B]: the least n whose share reaches p + tolerance, 1 for p = 0, all of them for p off."""
    inside = torch.arange(share.shape[-1], device=share.device) < (most - 1)[:, None]
    length = 1 + ((share < (p + tolerance)[:, None]) & inside).sum(-1)
    return torch.where(p >= 1, most, torch.where(p <= 0, 1, length))


def _at(mass, count):
    return mass.gather(1, (count - 1).clamp(min=0)[:, None])[:, 0]


def check_truncation(logits, stats, k=None, p=None, order="k_then_p", margin=0.2, rule="sigma", buffer=16_384):
    """What `truncation` returned: sample, threshold, and what its own threshold leaves."""
    if not len(logits):
        return torch.zeros(0, dtype=torch.int64, device=logits.device)
    vocab = logits.shape[-1]
    k, p = limit_rows(logits, k, p)
    mean, std, largest = sample_moments(logits)
    delta = expected_delta(std, k, p, order, vocab)
    slack = 1e-5 * largest + 1e-4 * std.nan_to_num() + 1e-37
    t = mean + delta * std * (1 - margin * delta.sign())
    if rule == "paper":
        t = mean + delta * std
        t = t - margin * t.abs()
    t = torch.where((std > 0) & (delta > -INF) & (vocab > 512), t, -INF).float().double()
    x = values(logits)
    w = weights(x, maximum(x))
    above = logits.float() >= stats.threshold[:, None]
    kept = above.sum(-1)
    share = (w * above).sum(-1) / w.sum(-1).clamp(min=1.0)
    has_k, has_p = k < vocab, p < 1
    if order == "k_then_p":
        has_p = has_p & ~has_k
    enough_k, off = has_k & (kept >= k), ~(has_k | has_p)
    surely = enough_k | off | (has_p & (share >= p + TOLERANCE))
    maybe = surely | (has_p & (share >= p - TOLERANCE))
    claimed = (stats.overflow != (kept > buffer)) | (surely & ~stats.hit) | (stats.hit & ~maybe)
    return worst(
        ("has another mean or std", _apart(stats.mean, mean, slack) | _apart(stats.std, std, slack)),
        ("has another delta or threshold", _apart(stats.delta, delta, 1e-3 * (1 + delta.abs())) & ~std.isnan()),
        (
            "has another delta or threshold",
            _apart(stats.threshold, t, slack * (1 + delta.abs().nan_to_num(posinf=0.0))),
        ),
        ("counts other candidates than its threshold leaves", stats.kept.long() != kept),
        ("has another mass than its threshold leaves", ~((stats.mass.double() - share).abs() <= TOLERANCE)),
        ("calls hit or overflow what is none, or misses one", claimed),
    )


def sample_moments(logits):
    """Mean and std (ddof 0) over the finite entries of the sample, and the largest magnitude there; float64 [B]."""
    vocab = logits.shape[-1]
    if vocab > 8192:
        runs = torch.arange(64, device=logits.device) * (vocab // 64)
        logits = logits[:, (runs[:, None] + torch.arange(128, device=logits.device)).flatten()]
    x = logits.double()
    finite = x.isfinite()
    x, count = x.where(finite, 0.0), finite.sum(-1)
    mean = x.sum(-1) / count
    std = ((x - mean[:, None]).where(finite, 0.0).square().sum(-1) / count).sqrt()
    return mean, std, x.abs().amax(-1)


def expected_delta(std, k, p, order, vocab):
    """delta [B] float64; -inf where k and p are off, or where p has no std to go by."""
    delta_k = torch.where(k < vocab, torch.special.ndtri(1.0 - k.double() / vocab), -INF)
    most = torch.special.ndtri(torch.tensor(max(0.0, 1.0 - 256 / vocab), dtype=torch.float64, device=std.device))
    delta_p = torch.where(p < 1, (std - torch.special.ndtri(p)).minimum(most), -INF)
    if order == "joint":
        return delta_k.maximum(delta_p)
    return torch.where(k < vocab, delta_k, delta_p)


def _apart(got, want, slack):
    """[B] bool: further apart than slack; infinities and NaN must be the same."""
    got = got.double()
    same = (got == want) | (got.isnan() & want.isnan())
    return ~(same | ((got - want).abs() <= slack))
