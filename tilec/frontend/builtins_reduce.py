"""Builtins that combine the elements of tiles."""

from __future__ import annotations

from tilec import language as T
from tilec.frontend.arithmetic import static_int
from tilec.frontend.builtins import Call, bool_argument, builtin, choice_argument, int_argument
from tilec.frontend.builtins_tile import tile_level
from tilec.frontend.expressions import Expressions
from tilec.frontend.memory import Tile
from tilec.frontend.values import describe
from tilec.ir.core import squeeze
from tilec.ir.ops import Reduce
from tilec.ir.ops.tile import REDUCTIONS


@builtin(T.reduce)
def reduce(t: Expressions, c: Call) -> None:
    _reduce(t, c, choice_argument(t, c, "reduce_type", REDUCTIONS))


def _of_kind(kind: str) -> None:
    builtin(getattr(T, f"reduce_{kind}"))(lambda t, c: _reduce(t, c, kind))


for _kind in REDUCTIONS:
    _of_kind(_kind)


def _reduce(t: Expressions, c: Call, kind: str) -> None:
    tile_level(t, c)
    source, dest = _tile(t, c, "buffer"), _tile(t, c, "out")
    dim = dimension(t, c, "dim", source)
    kept = tuple(e for d, e in enumerate(source.extents) if d != dim)
    allowed = (kept or (1,), (*source.extents[:dim], 1, *source.extents[dim + 1 :]))
    if squeeze(dest.extents) != squeeze(kept):
        shapes = " or ".join(map(str, dict.fromkeys(allowed)))
        raise t.error(
            f"T.{c.builtin} of {t.tile_text(source)} along dimension {dim} gives a tile of "
            f"{shapes}, but out is {t.tile_text(dest)}",
            f"allocate out with shape {allowed[0]}",
            c.place("out"),
        )
    for tile in (source, dest):
        if kind.startswith("bit") and tile.buffer.type.dtype.is_float:
            raise t.error(
                f"T.{c.builtin} combines the bits of ints, {tile.buffer.name} is "
                f"{describe(tile.buffer)}",
                "use T.reduce_max or T.reduce_sum, or an int tile",
            )
    int_argument(t, c, "batch", 1)
    nan = "nan_propagate" in c.values and bool_argument(t, c, "nan_propagate")
    clear = bool_argument(t, c, "clear")
    t.emit(Reduce, t.box(source), t.box(dest), dim, kind, clear=clear, nan=nan)


def _tile(t: Expressions, c: Call, name: str) -> Tile:
    with t.at(c.place(name)):
        tile = t.tile(c[name], f"{name} of T.{c.builtin}")
        if tile.buffer.type.space not in ("shared", "fragment"):
            raise t.error(
                f"{name} of T.{c.builtin} is {describe(tile.buffer)}; it must be a fragment or a "
                "shared tile",
                "copy the tensor's tile first: T.copy(A[i, j], tile)"
                if tile.buffer.is_global
                else "allocate it with T.alloc_fragment",
            )
        return tile


def dimension(t: Expressions, c: Call, name: str, tile: Tile) -> int:
    """A compile-time dimension of `tile`, from 0; a negative one counts from the end."""
    rank, dim = len(tile.extents), static_int(c[name])
    if dim is not None and -rank <= dim < rank:
        return dim % rank
    raise t.error(
        f"{name} of T.{c.builtin} is {describe(c[name])}, but {t.tile_text(tile)} has "
        f"{rank} dimension{'s' * (rank != 1)}",
        f"write {name}={rank - 1}" if rank < 2 else f"write {name}=0 to {name}={rank - 1}",
        c.place(name),
    )
