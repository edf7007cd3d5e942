"""Constants of the selection kernels so small that a few hundred columns take every branch in Triton's interpreter.

A row of more than 128 columns gets a threshold from a sample of 128 and is marked in tiles of 256; up to 128 marked
columns are chosen in registers, up to 256 in memory, and beyond that the row itself is searched in blocks of 128. An
operation takes as long on four numbers as on a hundred there, so smaller constants would be slower.
"""

SIZES = {"SHORT": 128, "TILE": 256, "PLACES": 256, "RUNS": 64, "RUN": 2, "WORDS": 8, "BLOCK": 128}


def shrink(change=setattr):
    """Put them in place; `change` may be that of pytest's monkeypatch."""
    from qp_kernels.pivot import launch, selection

    change(selection, "TABLE", (selection.Line(float("inf"), 128, 1),))
    for name, value in SIZES.items():
        change(selection, name, value)
    change(launch, "PAD", SIZES["TILE"])
