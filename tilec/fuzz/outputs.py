"""The end of a program: what it did is copied where it can be seen."""

from __future__ import annotations

from tilec.fuzz.expressions import Scope, value
from tilec.fuzz.writer import Output, Tile, Writer, head, indices


def show(w: Writer, tile: Tile) -> None:
    """Copy a tile to an output of its own, where all of it is seen."""
    lead = len(tile.shape) - 1
    at = (f"(by * {w.columns} + bx) * {tile.shape[0]}", *["0"] * lead)
    shape = (w.rows * w.columns * tile.shape[0], *tile.shape[1:])
    kinds = (tile.dtype, tile.dtype, "float32")
    made = w.output(shape, w.one_of(kinds), at, tile.shape)
    w.emit(f"T.copy({tile.name}, {made.name}[{', '.join(at)}])")


def finish(w: Writer, output: Output) -> None:
    """Write an output whole, so that what the program did is seen."""
    tiles = [t for t in w.tiles if t.shape == output.part]
    if tiles and w.chance(0.7):
        w.emit(f"T.copy({w.one_of(tiles).name}, {output.name}[{', '.join(output.at)}])")
        return
    names = indices(w, len(output.part))
    scope = Scope(tuple(zip(names, output.part)))
    own = [f"{a} + {n}" for a, n in zip(output.at, names)]
    with w.block(head(names, output.part)):
        w.emit(f"{output.name}[{', '.join(own)}] = {value(w, scope, output.dtype, 2)}")
