"""Index selection from its definitions, in loops over Python integers: what the package must give on integer inputs."""


def score(q, k, w):
    """I of one query [H][D] and one key [D]."""
    return sum(wj * max(0, sum(a * b for a, b in zip(qj, k))) for qj, wj in zip(q, w))


def best(values, limit):
    """Positions of {position: score} by score descending, position ascending."""
    return sorted(values, key=lambda s: (-values[s], s))[:limit]


def row(chosen, topk):
    return sorted(chosen) + [-1] * (topk - len(chosen))


def dense(q, k, w, lo, hi, topk):
    return [row(best({s: score(q[t], k[s], w[t]) for s in range(lo[t], hi[t])}, topk), topk) for t in range(len(q))]


def groups(lo, hi, g):
    found = []
    for t in range(len(lo)):
        starts = t == 0 or lo[t] != lo[t - 1] or hi[t] != hi[t - 1] + 1 or len(found[-1]) == g
        found.append([t]) if starts else found[-1].append(t)
    return found


def pivot(q, k, w, lo, hi, topk, *, group, mode, budget, window, proxy, guard, phase):
    result = [None] * len(q)
    every = dense(q, k, w, lo, hi, topk)
    for members in groups(lo, hi, group):
        first, last = members[0], members[-1]
        keys = max(0, hi[first] - lo[first])
        limit = (
            {True: budget if mode == "refine" else topk, False: 0}.get(guard, guard)
            if isinstance(guard, bool)
            else guard
        )
        if len(members) == 1 or keys == 0 or keys <= limit:
            for t in members:
                result[t] = every[t]
            continue
        if proxy == "mean":
            pq = [[sum(q[t][j][d] for t in members) for d in range(len(q[0][0]))] for j in range(len(q[0]))]
            pw = [sum(w[t][j] for t in members) for j in range(len(w[0]))]
        else:
            pq, pw = (q[first], w[first]) if proxy == "first" else (q[last], w[last])
        values = {s: score(pq, k[s], pw) for s in range(lo[first], hi[first])}
        if mode == "reuse":
            for t in members:
                result[t] = row(best(values, topk), topk)
            continue
        recent = [s for s in range(hi[first] - window, hi[last]) if s >= lo[first]]
        if phase == "prefill":
            outside = {s: value for s, value in values.items() if s not in recent}
            candidates = set(best(outside, budget - len(recent))) | set(recent)
            assert len(candidates) <= budget
        else:
            candidates = set(best(values, budget)) | set(recent)
        for t in members:
            mine = {s: score(q[t], k[s], w[t]) for s in candidates if s < hi[t]}
            result[t] = row(best(mine, topk), topk)
    return result


def hisa(q, k, w, lo, hi, topk, *, block, blocks):
    result = []
    for t in range(len(q)):
        parts = [range(s, min(s + block, hi[t])) for s in range(lo[t], hi[t], block)]
        total = [[sum(k[s][d] for s in part) for d in range(len(k[0]))] for part in parts]
        chosen = {0, len(parts) - 1} if parts else set()
        middle = {b: score(q[t], total[b], w[t]) for b in range(1, len(parts) - 1)}
        chosen |= set(best(middle, blocks - 2))
        keys = [s for b in chosen for s in parts[b]]
        result.append(row(best({s: score(q[t], k[s], w[t]) for s in keys}, topk), topk))
    return result


def misa(q, k, w, lo, hi, topk, *, heads, block, rerank):
    result = []
    for t in range(len(q)):
        parts = [range(s, min(s + block, hi[t])) for s in range(lo[t], hi[t], block)]
        full = [part for part in parts if len(part) == block] or parts[:1]
        energies = {}
        for j in range(len(w[t])):
            sums = [[sum(k[s][d] for s in part) for d in range(len(k[0]))] for part in full]
            energies[j] = abs(w[t][j]) * sum(max(0, sum(a * b for a, b in zip(q[t][j], one))) for one in sums)
        active = sorted(best(energies, heads))
        few, weight = [q[t][j] for j in active], [w[t][j] for j in active]
        values = {s: score(few, k[s], weight) for s in range(lo[t], hi[t])}
        chosen = best(values, topk if rerank is None else rerank)
        if rerank is not None:
            chosen = best({s: score(q[t], k[s], w[t]) for s in chosen}, topk)
        result.append(row(chosen, topk))
    return result
