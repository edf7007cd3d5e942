"""What both fuzzers do with their work: in one process or several, what they print, and what they end with.

Imports nothing that imports Triton, which must be told first whether it is to interpret.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing


def shared(work, options, processes: int, empty):
    """The tallies of work(options, first, step) of all processes, added to an empty one."""
    if processes == 1:
        return work(options)
    spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        parts = pool.map(work, [options] * processes, range(processes), [processes] * processes)
        return sum(parts, empty)


def ended(tally, options, record) -> int:
    """Print what was found, record it if asked for; the exit status."""
    for fault in tally.faults:
        print(fault, flush=True)
    print(tally.table())
    print(tally.line(options))
    if options.record:
        print(f"recorded in {record(tally, options).name}")
    return int(bool(tally.faults))
