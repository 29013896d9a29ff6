"""The words that move tiles or set them: T.copy in every form, T.fill, T.clear."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilec.fuzz.expressions import Scope, own_element, position, value
from tilec.fuzz.writer import Input, Tile, Writer, head, indices
from tilec.ir.types import DTYPES


def copy_in(w: Writer) -> None:
    """From a tensor to a tile: from somewhere, maybe over an edge."""
    tensors = [t for t in w.inputs if len(t.shape) == 2]
    tiles = [t for t in w.tiles if len(t.shape) == 2]
    if tensors and tiles:
        source, tile = w.one_of(tensors), w.one_of(tiles)
        w.emit(f"T.copy({source.name}[{corner(w, source)}], {tile.name}{options(w)})")


def corner(w: Writer, source: Input) -> str:
    """Where a tile may start in an input."""
    if w.chance(0.4):  # where the block is
        return f"by * {w.bm}, bx * {w.bn}"
    starts = []
    for extent in source.shape:
        names = ["bx", "by", *w.counters]
        options = [
            str(w.between(-2, max(0, extent - 1))),
            f"{w.one_of(names)} * {w.one_of((1, 4, 8, 16))}",
            f"{w.one_of(names)} * {w.one_of((8, 16))} + {w.between(-1, 8)}",
        ]
        starts.append(w.one_of(options))
    return ", ".join(starts)


def options(w: Writer) -> str:
    """Keywords of T.copy that change no number."""
    kind = w.below(12)
    if kind == 0:
        return ", disable_tma=True"
    if kind == 1:
        return f", coalesced_width={w.one_of((1, 2, 4))}"
    policies = ("evict_first", "evict_last", "evict_normal")
    return f', eviction_policy="{w.one_of(policies)}"' if kind == 2 else ""


def copy_slices(w: Writer) -> None:
    """A part of a tensor, written as slices, to a part of a tile."""
    tensors = [t for t in w.inputs if len(t.shape) == 2]
    tiles = [t for t in w.tiles if len(t.shape) == 2]
    if not tensors or not tiles:
        return
    source, tile = w.one_of(tensors), w.one_of(tiles)
    extents, here = part(w, tile.shape)
    start = [w.one_of((str(w.between(-1, 9)), "bx * 8", "by * 4 + 1")) for _ in extents]
    there = ", ".join(f"{s}:{s} + {n}" for s, n in zip(start, extents))
    w.emit(f"T.copy({source.name}[{there}], {tile.name}[{here}])")


def part(w: Writer, shape: Sequence[int], extents: Sequence[int] = ()) -> tuple[list[int], str]:
    """A part of a tile, of these extents or some: its extents, and it as slices."""
    sizes = list(extents) or [w.between(1, e) for e in shape]
    at = [w.between(0, e - n) for e, n in zip(shape, sizes)]
    slices = [
        ":" if n == e and w.chance(0.3) else f"{s}:{s + n}" for s, n, e in zip(at, sizes, shape)
    ]
    return sizes, ", ".join(slices)


def copy_row(w: Writer) -> None:
    """A row or a plane, whose leading index drops."""
    tensors = [t for t in w.inputs if len(t.shape) > 1]
    if not tensors:
        return
    source = w.one_of(tensors)
    tiles = [t for t in w.tiles if len(t.shape) == len(source.shape) - 1]
    if tiles:
        tile = w.one_of(tiles)
        starts = [position(w, Scope((("bx", 4),)))] + [
            str(w.between(0, max(0, e - 1))) for e in source.shape[1:]
        ]
        w.emit(f"T.copy({source.name}[{', '.join(starts)}], {tile.name})")


def copy_whole(w: Writer) -> None:
    """All of a tensor that is no larger than a tile may be, to one of its shape."""
    tensors = [t for t in w.inputs if t.fixed and 0 < math.prod(t.shape) <= 1024]
    if tensors:
        source = w.one_of(tensors)
        tile = w.tile(source.shape, w.one_of((source.dtype, "float32")))
        w.emit(f"T.copy({source.name}, {tile.name})")
        w.tiles.append(tile)


def copy_tiles(w: Writer) -> None:
    """Between two tiles of one shape, with conversion."""
    source = w.one_of(w.tiles)
    others = [t for t in w.tiles if t.shape == source.shape and t is not source]
    tile = w.one_of(others) if others and w.chance(0.7) else fresh(w, source.shape)
    w.emit(f"T.copy({source.name}, {tile.name})")
    if tile not in w.tiles:
        w.tiles.append(tile)


def copy_part(w: Writer) -> None:
    """Between parts of two tiles."""
    source = w.one_of(w.tiles)
    others = [t for t in w.tiles if len(t.shape) == len(source.shape) and t is not source]
    if not others:
        return
    tile = w.one_of(others)
    extents = [w.between(1, min(a, b)) for a, b in zip(source.shape, tile.shape)]
    (_, there), (_, here) = part(w, source.shape, extents), part(w, tile.shape, extents)
    w.emit(f"T.copy({source.name}[{there}], {tile.name}[{here}])")


def fresh(w: Writer, shape: tuple[int, ...]) -> Tile:
    """A new tile of some dtype, which nobody has filled."""
    return w.tile(shape, w.one_of(("float32", "float16", "bfloat16", "int32", "int8", "bool")))


def copy_out(w: Writer) -> None:
    """To this block's part of an output; over its edge, too."""
    output = w.one_of(w.outputs)
    tiles = [t for t in w.tiles if t.shape == output.part]
    if tiles:
        at = ", ".join(output.at)
        w.emit(f"T.copy({w.one_of(tiles).name}, {output.name}[{at}]{options(w)})")


def copy_out_part(w: Writer) -> None:
    """A part of a tile to one of this block's part of an output, from where it is also read."""
    output = w.one_of(w.outputs)
    tiles = [t for t in w.tiles if len(t.shape) == len(output.part)]
    if not tiles:
        return
    tile = w.one_of(tiles)
    extents = [w.between(1, min(a, b)) for a, b in zip(tile.shape, output.part)]
    shifts = [w.between(0, e - n) for e, n in zip(output.part, extents)]
    there = ", ".join(f"{a} + {s}:{a} + {s + n}" for a, s, n in zip(output.at, shifts, extents))
    w.emit(f"T.copy({tile.name}[{part(w, tile.shape, extents)[1]}], {output.name}[{there}])")


def copy_between_tensors(w: Writer) -> None:
    """From a tensor to this block's part of an output, without a tile."""
    tensors = [t for t in w.inputs if len(t.shape) == 2]
    if not tensors:
        return
    source, output = w.one_of(tensors), w.outputs[0]
    there = ", ".join(f"{a}:{a} + {n}" for a, n in zip(output.at, output.part))
    w.emit(f"T.copy({source.name}[{corner(w, source)}], {output.name}[{there}])")


def fill(w: Writer) -> None:
    tile = w.one_of(w.tiles)
    amount = str(w.between(0, 9) if DTYPES[tile.dtype].is_int else w.one_of((0.5, -1.5, 3.0)))
    if "float8" not in tile.dtype and DTYPES[tile.dtype].is_float and w.chance(0.2):
        amount = f'-T.infinity("{tile.dtype}")'
    elif tile.dtype == "bool":
        amount = w.one_of(("True", "False", "1"))
    if w.chance(0.3):
        w.emit(f"T.fill({tile.name}[{part(w, tile.shape)[1]}], {amount})")
    else:
        w.emit(f"T.fill({tile.name}, {amount})")


def clear(w: Writer) -> None:
    w.emit(f"T.clear({w.one_of(w.tiles).name})")


def filled(w: Writer, shape: tuple[int, ...], dtype: str = "") -> Tile:
    """A new tile with numbers in it, made where the program is."""
    made = w.tile(shape, dtype or w.one_of(("float32", "float16", "int32", "bfloat16")))
    tensors = [t for t in w.inputs if len(t.shape) == 2 == len(shape)]
    if tensors and w.chance(0.5):
        source = w.one_of(tensors)
        w.emit(f"T.copy({source.name}[{corner(w, source)}], {made.name}{options(w)})")
        w.tiles.append(made)
        return made
    names = indices(w, len(shape))
    scope = Scope(tuple(zip(names, shape)), made.name)
    with w.block(head(names, shape)):
        w.emit(f"{own_element(made, names)} = {value(w, scope, made.dtype, 1)}")
    w.tiles.append(made)
    return made
