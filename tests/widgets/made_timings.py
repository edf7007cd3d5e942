"""Timings by a formula, in the form of the recorded ones, for tests alone: nothing here was measured."""

from qp_kernels import results
from qp_kernels.bench import CASES, FIELDS, modes, target

GBPS, LAUNCH_US = 4000.0, 5.0
# Way -> (times the floor, microseconds more, bytes of memory per byte of logits, version).
MADE = {
    "qp_kernels": (1.2, 8.0, 0.01, "0.1.0"),
    "vllm": (3.6, 90.0, 1.0, "0.33.0"),
    "flashinfer": (8.0, 120.0, 2.0, "0.7.4"),
    "torch_sort": (50.0, 100.0, 5.0, "2.13.0"),
    "torch_topk": (5.5, 60.0, 0.2, "2.13.0"),
}


def records():
    found = []
    for case in CASES:
        for mode in modes(case, "cuda"):
            floor = case.bytes_moved / GBPS / 1e3 + LAUNCH_US
            found.append(record(case, mode, case.floor, floor, None))
            for name, (ratio, more, _, _) in MADE.items():
                if name == "qp_kernels" or case.operation == "mask" and (name != "torch_topk" or case.k):
                    more = 40.0 + more if mode == "wall" else more
                    found.append(record(case, mode, name, ratio * floor + more, floor))
    return found


def record(case, mode, provider, us, floor):
    _, _, memory, version = MADE.get(provider, (0, 0, 0, "torch copy_"))
    wrong = 3 if provider == "vllm" and case.rows == "live" else 0
    aim = target(case, mode) if provider == "qp_kernels" else None
    logits = case.batch * case.vocab * (4 if case.dtype == "float32" else 2)
    values = {
        "case": case.name,
        **case._asdict(),
        "mode": mode,
        "provider": provider,
        "version": version,
        **{"median_us": us, "p20_us": us * 0.96, "p80_us": us * 1.05, "repetitions": 30, "late": 0},
        "bytes_moved": case.bytes_moved,
        "gbps": case.bytes_moved / us / 1e3,
        "times_floor": us / floor if floor else None,
        "target_times_floor": aim.times_floor if aim else None,
        "target_us": aim.us if aim else None,
        "correct": not wrong,
        "wrong_rows": wrong,
        "peak_bytes": round(memory * logits) if floor else None,
        "in_place": provider == "vllm",
    }
    return {name: values[name] for name in FIELDS}


def write(folder):
    """The folder, with bench_qrita.json in it."""
    results.write("bench_qrita", records(), folder=folder, about={"made_up": True})
    return folder
