"""Statements that combine the elements of tiles: reductions, running sums, conditions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilec.fuzz.tiles import filled, part
from tilec.fuzz.writer import INTS, Buffer, Writer, statement
from tilec.ir.types import DTYPES

OF_NUMBERS = ("sum", "max", "min", "abssum", "absmax")
OF_BITS = ("bitand", "bitor", "bitxor")
ELEMENTS = 512  # of a tile that is made to be combined: on all targets, by a simulator, too


@statement(weight=2)
def reduction(w: Writer) -> None:
    """A tile, or a part of one, along one dimension, into a tile that may hold something."""
    source = _source(w)
    dim = w.below(len(source.shape))
    extents, text = _box(w, source)
    kept = tuple(e for d, e in enumerate(extents) if d != dim) or (1,)
    if w.chance(0.25):
        kept = (*extents[:dim], 1, *extents[dim + 1 :])
    dest, clear = _dest(w, source, kept), True
    if w.chance(0.4):
        clear = False
    _emit_reduction(w, source, text, dest.name, dim - w.one_of((0, len(source.shape))), clear)


def _emit_reduction(w: Writer, source: Buffer, text: str, dest: str, dim: int, clear: bool) -> None:
    whole = not DTYPES[source.dtype].is_float and not _is_float(w, dest)
    kind = w.one_of((*OF_NUMBERS, *OF_BITS) if whole else OF_NUMBERS)
    options = [f"dim={dim}"] if dim != -1 or w.chance(0.5) else []
    if not clear or w.chance(0.2):
        options.append(f"clear={clear}")
    if w.chance(0.4):
        options.append(f"batch={w.one_of((1, 2, 4))}")
    extremes = kind in ("max", "min", "absmax")
    if w.chance(0.2):
        options.append("nan_propagate=True") if extremes else None
        given = ", ".join([text, dest, w.one_of((f'"{kind}"', f'reduce_type="{kind}"')), *options])
        w.emit(f"T.reduce({given})")
        return
    if extremes and w.chance(0.2):
        options.append(f"nan_propagate={w.one_of((True, False))}")
    w.emit(f"T.reduce_{kind}({', '.join([text, dest, *options])})")


def _is_float(w: Writer, name: str) -> bool:
    return any(t.name == name and DTYPES[t.dtype].is_float for t in w.tiles)


def _source(w: Writer) -> Buffer:
    """A tile whose elements can be combined."""
    tiles = [t for t in w.tiles if t.counts and math.prod(t.shape) <= ELEMENTS]
    if tiles and w.chance(0.6):
        return w.one_of(tiles)
    shape = w.one_of(((w.size(100),), (w.size(20), w.size(24)), (2, w.size(8), w.size(12))))
    dtypes = ("float32", "float16", "bfloat16", "float64", *INTS)
    return filled(w, shape, w.one_of(dtypes))


def _box(w: Writer, tile: Buffer) -> tuple[tuple[int, ...], str]:
    """Extents and text of a tile, sometimes of a part of it."""
    if tile.space == "fragment" or w.chance(0.8):
        return tile.shape, tile.name
    extents, text = part(w, tile.shape)
    return tuple(extents), f"{tile.name}[{text}]"


def _dest(w: Writer, source: Buffer, shape: Sequence[int]) -> Buffer:
    """A tile with numbers in it that is not the source."""
    found = [t for t in w.tiles if t.shape == tuple(shape) and t.counts and t is not source]
    if found and w.chance(0.6):
        return w.one_of(found)
    floats = ("float32", "float32", "float16", "bfloat16", "float64")
    dtypes = floats if DTYPES[source.dtype].is_float else (*INTS, "float32", "float16")
    return filled(w, tuple(shape), w.one_of((source.dtype, *dtypes)))


@statement()
def scan(w: Writer) -> None:
    """Running sums and maxima, in place or into another tile."""
    source = _source(w)
    dim = w.below(len(source.shape))
    extents, text = _box(w, source)
    arguments = [text]
    if w.chance(0.6):
        arguments.append(_dest(w, source, extents).name)
    shown = dim - w.one_of((0, len(source.shape)))
    if shown or w.chance(0.5):
        arguments.append(f"dim={shown}")
    if w.chance(0.4):
        arguments.append(f"reverse={w.one_of((True, True, False))}")
    w.emit(f"T.{w.one_of(('cumsum', 'cumsum', 'cummax'))}({', '.join(arguments)})")


@statement(deepest=4)
def together(w: Writer) -> None:
    """A condition on all elements of a small region, around statements or kept as a number."""
    tiles = [t for t in w.tiles if t.counts or t.dtype == "bool"]
    source = w.one_of(tiles)
    extents = [w.between(1, min(e, 6)) for e in source.shape]
    text = f"{source.name}[{part(w, source.shape, extents)[1]}]"
    if math.prod(source.shape) <= 24:
        text = w.one_of((text, source.name))
    condition = f"T.{w.one_of(('any_of', 'all_of'))}({text})"
    if w.chance(0.5):
        name = w.name("s")
        w.emit(f"{name} = {condition}")
        w.scalars.append((name, "bool"))
        return
    with w.block(f"if {w.one_of(('', 'not '))}{condition}:"):
        w.inner()
