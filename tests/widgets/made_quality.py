"""Quality on selected keys by a formula, in the form of the recorded one, for tests alone: nothing here was measured.

Each sample has a difficulty that all systems share, so that differences between them are paired.
"""

import numpy as np

from activations.passages import KINDS
from activations.selection import systems
from activations.tasks import TASKS
from qp_kernels import results
from qp_kernels.intervals import bootstrap, wilson

# Share of the answers lost, and nats, at the shortest length; both grow with the logarithm of the length.
LOST = {"dense": 0.01, "refine": 0.015, "reuse": 0.06, "hisa": 0.2, "misa": 0.12, "misa rerank": 0.03}
LOST |= {"refine first": 0.05, "refine last": 0.04, "refine least": 0.05, "refine 1.5x": 0.02, "refine 4x": 0.01}
LOST |= {"index cache": 0.05, "index cache greedy": 0.03, "refine + index cache": 0.055}
LOST |= {f"refine g{g}": 0.01 * g**0.5 for g in (1, 2, 8, 16)} | {f"reuse g{g}": 0.03 * g**0.5 for g in (1, 2, 8, 16)}
ABOUT = {"model": "made-up", "layers": "5 11 17", "compute_dtype": "bfloat16"}


def records(lengths=(2048, 8192, 32768), topks=(256, 512), sources=("attention", "distilled"), samples=20, names=None):
    """Records in the order of `benchmarks/quality.py`; `names` are systems instead of all, full attention first."""
    found = []
    for length in lengths:
        for kind, name in [("task", name) for name in TASKS] + [("passage", name) for name in KINDS]:
            random = np.random.default_rng(hash_of(f"{length} {name}"))
            hard, base = random.random(samples), random.normal(2.0, 0.3, samples)
            for source in sources:
                for topk in topks:
                    if topk >= length:
                        continue
                    what = {"kind": kind, "name": name, "length": length, "topk": topk, "source": source}
                    for system, selection in systems(topk, 3, greedy="FSF").items():
                        if names is not None and system not in names:
                            continue
                        lost = LOST.get(system, 0.0) * np.log2(length / 1024) * (256 / topk) ** 0.5
                        knows = 0.5 if name == "copying" and length > 20_000 else 0.97
                        right = hard < knows - lost
                        loss = base + 0.1 * lost * (1 + random.normal(0, 0.5, samples))
                        found.append(record(what, system, selection.label, right, base if lost == 0 else loss, base))
                        found[-1]["counts"] = kind == "passage" or (hard < knows).mean() >= 0.6
                        if not found[-1]["counts"]:
                            break
    return found


def record(what, system, label, right, loss, base):
    """One record; `right` and `loss` by sample, `base` the losses of full attention."""
    right, more = [int(one) for one in right], loss - base
    scores = {"samples": len(right), "loss": float(loss.mean())}
    if what["kind"] == "task":
        low, high = wilson(sum(right), len(right))
        scores |= {"right": sum(right), "accuracy": sum(right) / len(right), "accuracy_low": low, "accuracy_high": high}
        scores |= {"each": " ".join(map(str, right))}
    low, high = bootstrap([more], draws=50)
    scores |= {"each_loss": " ".join(f"{one:.6f}" for one in loss), "more": float(more.mean())}
    return {**what, "system": system, "label": label, **scores, "more_low": low, "more_high": high, "counts": True}


def hash_of(text):
    return sum(ord(letter) * 31**i for i, letter in enumerate(text)) % 2**32


def write(folder, found=None, **more):
    """The folder, with quality.json in it."""
    results.write("quality", records(**more) if found is None else found, folder=folder, about=ABOUT, device="cpu")
    return folder
