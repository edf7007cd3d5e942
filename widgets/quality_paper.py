"""What the paper on PIVOT reports of quality, quoted: another model, longer texts, other questions than ours."""

from __future__ import annotations

QUOTED = "arXiv 2607.24593, DeepSeek-V3.2"
# Question -> system -> score in %.
RULER = {"dense": 90.45, "reuse": 86.46, "refine": 90.63, "hisa": 62.46, "misa": 84.91, "index cache": 88.67}
SCORES = {
    "length": {name: RULER[name] for name in ("dense", "reuse", "refine")},
    "proxy": {"refine": 93.75, "refine first": 88.53, "refine last": 89.29},
    "group": {"refine g16": 87.47},
    "rivals": RULER,
}
SCALES = {"length": "RULER at 128K", "proxy": "average score", "group": "score with g = 16", "rivals": "RULER at 128K"}
# Candidates from which down Refine starts to lose there: 3,072 with topk = 2,048.
LOSES_AT, LOSES_AT_TOPK = 3072, 2048
