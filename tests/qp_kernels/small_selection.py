"""Constants of the selection kernels so small that a few hundred columns take every branch in Triton's interpreter.

A row of more than 32 columns gets a threshold from a sample of 32 and is marked in tiles of 64; up to 32 marked columns
are chosen in registers, up to 64 in memory, and beyond that the row itself is searched in blocks of 32.
"""

SIZES = {"SHORT": 32, "TILE": 64, "PLACES": 64, "RUNS": 16, "RUN": 2, "WORDS": 4, "BLOCK": 32}


def shrink(change=setattr):
    """Put them in place; `change` may be that of pytest's monkeypatch."""
    from qp_kernels.pivot import launch, selection

    change(selection, "TABLE", (selection.Line(1e9, 32, 1),))
    for name, value in SIZES.items():
        change(selection, name, value)
    change(launch, "PAD", SIZES["TILE"])
