"""The two things no kernel is faster than, as plain as they can be: a copy, and a reading."""

import triton
import triton.language as tl


@triton.jit
def copy_kernel(source_ptr, target_ptr, entries, BLOCK: tl.constexpr):
    """Copy. Grid (blocks,); a program owns BLOCK entries. Reads and writes every entry once."""
    columns = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < entries
    tl.store(target_ptr + columns, tl.load(source_ptr + columns, mask=inside), mask=inside)


@triton.jit
def read_kernel(source_ptr, largest_ptr, entries, BLOCK: tl.constexpr):
    """Largest of every block. Grid (blocks,); a program owns BLOCK entries. Reads once, writes 4 bytes a block."""
    program = tl.program_id(0).to(tl.int64)
    columns = program * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(source_ptr + columns, mask=columns < entries, other=-float("inf")).to(tl.float32)
    tl.store(largest_ptr + program, tl.max(found, 0))
