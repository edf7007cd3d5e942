"""Constants of the selection kernels so small that a few hundred columns take every branch in Triton's interpreter.

A row of more than 128 columns gets a threshold from a sample of 128, and is gathered in tiles of 256. Such a tile holds
about what is expected of it, else it is read again. Up to 128 of a row are chosen in registers, more in memory in
blocks of 128, and a row most of which was gathered is searched itself. One row is selected in one launch, more in
three. An operation takes as long on four numbers as on a hundred there, so smaller constants would be slower.
"""

SIZES = {"SHORT": 128, "TILE": 256, "PLACES": 16, "ROOM": 1, "RUNS": 64, "RUN": 2, "FEW_RUNS": 32, "FEW_RUN": 4}
SIZES |= {"TILES": 2, "BLOCK": 128}


def shrink(change=setattr):
    """Put them in place; `change` may be that of pytest's monkeypatch."""
    from qp_kernels.pivot import launch, selection

    change(selection, "TABLE", (selection.Line(128, 1),))
    for name, value in SIZES.items():
        change(selection, name, value)
    change(launch, "PAD", SIZES["TILE"])
    change(launch, "FEW_ROWS", 1)
