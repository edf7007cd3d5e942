"""Rows of a live model on which other samplers keep another set than k and p say, counted and recorded.

    python benchmarks/other_samplers.py --record          on a GPU, with the packages or files of benchmarks/README.md

Every sampler masks the same rows by k, by p and by both; the float64 oracle of the tests says which rows keep a set
that the contract does not allow, and why. vLLM takes another path for p alone up to 64 rows, so it is asked in batches
of 64 as well. `--record` writes the counts to data/results/other_samplers.json, and a few of the rows, with the set
that the sampler keeps beside the exact one, to data/captures/other_samplers.safetensors (`activations.recorded`).
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "qp_kernels"))

import _live  # noqa: E402
import _peers  # noqa: E402
import oracle_torch  # noqa: E402

from activations import save_capture, texts  # noqa: E402
from activations.capture import LogitCapture, StoredRows  # noqa: E402
from activations.provenance import write_provenance  # noqa: E402
from activations.record import DERIVED, FOLDER  # noqa: E402
from activations.storage import SCHEMA  # noqa: E402
from qp_kernels import results  # noqa: E402
from qp_kernels.qrita import top_k_top_p  # noqa: E402

NAME = "other_samplers"
KS = ((10, None), (50, None), (200, None), (1000, None), (5000, None))
PS = ((None, 0.5), (None, 0.9), (None, 0.95), (None, 0.99), (None, 0.999))
PAIRS = ((50, 0.9), (200, 0.95), (1000, 0.99))
# Each float32 row takes 1 MB in the file and its bf16 row half of that; all of it shall stay below 9 MB.
ROWS_RECORDED = 5
# Of one sampler on one row.
CASES_OF_A_ROW = 3
# Sets that are drawn, and whose tokens the file can name.
LARGEST_SET = 1500
# Tokens of the text before a row that go along, to show where it is from.
CONTEXT = 24
SPLIT_BATCH = 64


def main() -> int:
    options = parser().parse_args()
    start = time.monotonic()
    peers = _peers.available(options.peers, options.device)
    found = _live.capture(options.rows, options.device)
    print(f"{found!r}, {time.monotonic() - start:.0f} s", flush=True)
    survey = Survey(peers, options.settings or [*KS, *PS, *PAIRS])
    for dtype in ("model", "float32"):
        for rows, logits in _live.chunks(found, dtype, options.device):
            survey.rows(rows, logits.float(), dtype)
        print(f"{dtype}: {time.monotonic() - start:.0f} s", flush=True)
    print(survey.table())
    if options.record:
        about = {"rows": len(found)} | {
            key: found.meta[key] for key in ("model", "text", "compute_dtype", "head_dtype")
        }
        command = "python benchmarks/other_samplers.py --record"
        data = Path(options.folder) if options.folder else FOLDER.parent
        shared = {"device": options.device, "command": command, "folder": data / "results"}
        print(f"recorded in {results.write(NAME, survey.records(), about=about, **shared).name}")
        print(f"recorded in {write_capture(found, survey.chosen(), data / 'captures').name}")
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    top.add_argument("--rows", type=int, default=1016)
    top.add_argument("--peers", type=Path, default=_peers.FOLDER)
    top.add_argument("--record", action="store_true")
    top.add_argument("--folder", help="instead of data/, with results/ and captures/ in it")
    top.set_defaults(settings=None)
    return top


class Survey:
    """Which rows each sampler gets wrong, by k and p."""

    def __init__(self, peers: dict, settings: list):
        self.peers, self.settings = peers, settings
        self.reasons = collections.defaultdict(collections.Counter)
        self.off_by = collections.Counter()  # case -> largest difference in size
        self.wrong: list[dict] = []

    def rows(self, rows: slice, logits: torch.Tensor, dtype: str) -> None:
        for k, p in self.settings:
            exact = top_k_top_p(logits, k, p, backend="torch") > -torch.inf
            for name, (_, mask) in self.peers.items():
                self.compare(rows, logits, dtype, (name, len(logits), k, p), exact, mask(logits, k, p))
            if "vllm" in self.peers and k is None:
                parts = [self.peers["vllm"][1](part, k, p) for part in logits.split(SPLIT_BATCH)]
                self.compare(rows, logits, dtype, ("vllm", SPLIT_BATCH, k, p), exact, torch.cat(parts))

    def compare(self, rows, logits, dtype, case, exact, kept) -> None:
        name, batch, k, p = case
        case = (name, "up to 64" if batch <= SPLIT_BATCH else "more than 64", dtype, k, p)
        code = oracle_torch.check_kept(logits, kept, k, p)
        self.reasons[case].update(oracle_torch.REASONS[i] for i in code.tolist())
        sizes, wanted = kept.sum(-1), exact.sum(-1)
        off = torch.where(code > 0, (sizes - wanted).abs(), 0)
        self.off_by[case] = max(self.off_by[case], int(off.max()))
        if dtype != "model":
            return
        small = (code > 0) & (sizes <= LARGEST_SET) & (wanted <= LARGEST_SET)
        for i in small.nonzero()[:, 0].tolist():
            self.wrong.append(
                {
                    "sampler": name,
                    "version": self.peers[name][0],
                    "batch": case[1],
                    "k": k,
                    "p": p,
                    "why": oracle_torch.REASONS[int(code[i])],
                    "row": rows.start + i,
                    "exact": exact[i].nonzero()[:, 0].int().cpu(),
                    "kept": kept[i].nonzero()[:, 0].int().cpu(),
                }
            )

    def records(self) -> list[dict]:
        records = []
        for case, reasons in self.reasons.items():
            name, batch, dtype, k, p = case
            bad = {words: count for words, count in reasons.items() if words}
            records.append(
                {
                    "sampler": name,
                    "version": self.peers[name][0],
                    "batch": batch,
                    "logits": dtype,
                    "k": k,
                    "p": p,
                    "rows": reasons.total(),
                    "broken": sum(bad.values()),
                    "why": "; ".join(f"{words}: {count}" for words, count in bad.items()),
                    "size_off_by_most": self.off_by[case],
                }
            )
        return records

    def table(self) -> str:
        lines = [f"{'sampler':<14}{'batch':<14}{'logits':<9}{'k':>6}{'p':>7}{'rows':>6}{'broken':>8}{'off by':>8}  why"]
        for r in self.records():
            lines.append(
                f"{r['sampler']:<14}{r['batch']:<14}{r['logits']:<9}{r['k'] or '-':>6}{r['p'] or '-':>7}"
                f"{r['rows']:>6}{r['broken']:>8}{r['size_off_by_most']:>8,}  {r['why']}"
            )
        return "\n".join(lines)

    def chosen(self) -> list[dict]:
        """Wrong cases on at most `ROWS_RECORDED` rows: the clearest of every sampler in turn, and others there."""
        kinds = collections.defaultdict(list)
        for case in self.wrong:
            kinds[case["sampler"], case["k"], case["p"], case["why"]].append(case)
        rows: list[int] = []
        by_sampler = collections.defaultdict(list)
        for (sampler, *_), cases in kinds.items():
            by_sampler[sampler].append(max(cases, key=_clarity))
        while len(rows) < ROWS_RECORDED and any(by_sampler.values()):
            for cases in by_sampler.values():
                cases.sort(key=_clarity)
                if cases and len(rows) < ROWS_RECORDED and (row := cases.pop()["row"]) not in rows:
                    rows.append(row)
        of_row = collections.defaultdict(list)
        for case in sorted(self.wrong, key=_clarity, reverse=True):
            if case["row"] in rows:
                of_row[case["row"], case["sampler"], case["batch"]].append(case)
        return [case for cases in of_row.values() for case in cases[:CASES_OF_A_ROW]]


def _clarity(case: dict) -> float:
    """Share of both sets together that is in one of them only; less for sets that are too small to show anything."""
    exact, kept = set(case["exact"].tolist()), set(case["kept"].tolist())
    return len(exact ^ kept) / max(len(exact | kept), 20)


def _plain(case: dict) -> dict:
    return {name: case[name].tolist() for name in ("exact", "kept")}


def write_capture(found: LogitCapture, cases: list[dict], folder: Path) -> Path:
    """The rows of these cases as a capture whose meta["cases"] has both sets; and beside it where it all came from."""
    rows = sorted({case["row"] for case in cases})
    if not rows:
        raise SystemExit("no sampler broke the contract on these rows: there is nothing to record")
    windows = [found.ids[max(0, place - CONTEXT + 1) : place + 1] for place in found.positions[rows].tolist()]
    lengths = torch.tensor([len(window) for window in windows])
    meta = {
        **found.meta,
        "derived": DERIVED,
        "context": [int(place) + 1 for place in found.positions[rows]],
        "cases": [{**case, **_plain(case), "row": rows.index(case["row"])} for case in cases],
    }
    capture = LogitCapture(
        ids=torch.cat(windows),
        starts=lengths.cumsum(0) - lengths,
        positions=lengths.cumsum(0) - 1,
        rows=StoredRows(found.logits(rows, "float32").cpu(), found.logits(rows, "model").cpu()),
        label=found.label,
        unused=found.unused,
        vocab_size=found.vocab_size,
        logits_dtype="model",
        meta=meta,
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = save_capture(capture, folder / f"{NAME}.safetensors", head="rows")
    write_provenance(
        path,
        {key: value for key, value in meta.items() if key not in ("cases", "context")},
        schema=SCHEMA,
        command="python benchmarks/other_samplers.py --record",
        rows="positions of a long text where another sampler keeps another set: float32 logits, and those of the "
        f"bf16 head; meta.cases has both sets, meta.context the length of the text that the model had read, of which "
        f"the last {CONTEXT} tokens are here",
        texts_licence=texts.PSF_LICENCE,
        samplers=dict(sorted({(case["sampler"], case["version"]) for case in cases})),
        commit=results.commit(),
    )
    return path


if __name__ == "__main__":
    sys.exit(main())
