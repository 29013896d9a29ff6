"""T.Parallel with extents that only a call gives: a tile of iterations after the other.

    for i, j in T.Parallel(m, n):   for rows in T.serial(T.ceildiv(m, 16)):
        BODY                            for tile in T.serial(T.ceildiv(n, 128)):
                                    ->      for y, x, e in T.Parallel(16, 16, 8):
                                                if rows * 16 + y < m and tile * 16 + x < n // 8:
                                                    i, j = rows * 16 + y, (tile * 16 + x) * 8 + e
                                                    BODY

So is one over compile-time extents whose iterations give more, to elements that they share, than
threads hold (`builtins.reducers`): those that do not name an element are cut.

The last two such extents are cut, those before them are loops of their own. A tile has up to eight
iterations for each thread of the block, no more than about as many as there are (the variant knows
about how large sizes are that are extents of T.Parallel, and whether eight divides them). Of what
is not known so, a tile has as many iterations as the block has threads, and no rows. The names of
the loops are none that a program can have.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tilec.frontend.arithmetic import affine_of, static_int
from tilec.frontend.memory import Memory
from tilec.frontend.values import LoopHeader, Number, Scalar, as_syntax
from tilec.ir.core import Op, Value, makers
from tilec.ir.ops import Binary, Const
from tilec.ir.types import RUN, next_power_of_2
from tilec.support.syntax import all_of

USUAL_THREADS = 128


def is_open(extent: object) -> bool:
    """Whether an extent is an integer that only a call gives."""
    run_time = isinstance(extent, Scalar) and not extent.dtype.is_float
    return run_time and static_int(extent) is None


class _Cut(NamedTuple):
    """An extent in tiles of `size` iterations, in runs of `unit` that are all inside or none."""

    size: int
    unit: int = 1


def loop_over_tiles(
    t: Memory, node: ast.For, targets: Sequence[ast.expr], header: LoopHeader, opened: Sequence[int]
) -> ast.For:
    """The loop that stands for `node`, a T.Parallel whose extents `opened` are to be cut."""
    if header.arguments.get("loop_layout") is not None:
        message = "a T.Parallel with run-time extents has no loop_layout"
        hint = "loop over a compile-time tile, or leave it out"
        raise t.error(message, hint, header.place("loop_layout"))
    extents: Any = header.arguments["extents"]
    cuts = _cuts(t, extents, opened)
    outside: list[tuple[ast.expr, LoopHeader]] = []
    inside: list[tuple[ast.expr, Any]] = []
    guards: list[ast.expr] = []
    indices: list[ast.stmt] = []
    for d, (target, extent) in enumerate(zip(targets, extents)):
        if d not in opened:
            inside.append((target, extent))
            continue
        if d not in cuts:
            outside.append((target, header.counted(d)))
            continue
        size, unit = cuts[d]
        number, within, element = (
            ast.Name(f".{word}{d}_{id(node)}", ast.Load()) for word in ("number", "inside", "unit")
        )
        stop = t.to_index(extent) if is_open(extent) else static_int(extent)
        assert stop is not None
        outside.append((number, header.counted(d, t.binary("ceildiv", stop, size))))
        index: ast.expr = _sum(number, size // unit, within)
        runs = stop if unit == 1 else t.binary("floordiv", stop, unit)
        guards.append(ast.Compare(index, [ast.Lt()], [as_syntax(runs)]))
        inside.append((within, size // unit))
        if unit > 1:
            inside.append((element, unit))
            index = _sum(index, unit, element)
        indices.append(ast.Assign([target], index))
    variables, sizes = zip(*inside)
    tile = LoopHeader("Parallel", {**header.arguments, "extents": sizes}, header.loc, header.places)
    body = ast.If(all_of(guards), [*indices, *node.body], [])
    made = ast.For(ast.Tuple([*variables], ast.Store()), as_syntax(tile), [body], [])
    for variable, loop in reversed(outside):
        made = ast.For(variable, as_syntax(loop), [made], [])
    return ast.fix_missing_locations(ast.copy_location(made, node.iter))


def _sum(number: ast.expr, size: int, within: ast.expr) -> ast.BinOp:
    return ast.BinOp(ast.BinOp(number, ast.Mult(), ast.Constant(size)), ast.Add(), within)


def _cuts(t: Memory, extents: Sequence[Any], opened: Sequence[int]) -> Mapping[int, _Cut]:
    """How the last of the open extents, and maybe the one before it, are cut."""
    *outer, last = opened
    threads = t.threads or USUAL_THREADS
    others = math.prod(static_int(e) or 1 for d, e in enumerate(extents) if d not in opened)
    about, unit = _about(t, extents[last])
    if not about:
        return {last: _Cut(max(1, threads // others))}
    most = max(1, threads * RUN // others)
    size = min(about, 1 << most.bit_length() - 1)
    found = {last: _Cut(size, min(unit, size))}
    if outer:
        rows = _about(t, extents[outer[-1]])[0]
        size = min(rows, 1 << (most // size).bit_length() - 1) if most > size else 1
        if size > 1:
            found[outer[-1]] = _Cut(size)
    return found


def _about(t: Memory, extent: Number) -> tuple[int, int]:
    """A power of two that is no smaller than an extent, and one up to `RUN` that divides it; (0, 1)
    where nothing is known of it."""
    known, made, form = t.known_sizes, makers(t.builder.ops), affine_of(extent)
    total, unit = form.const, form.const
    for value, factor in form.terms.items():
        size, divisor = known.get(value) or _part(made.get(value), known, made)
        if not size:
            return 0, 1
        total += size * factor
        unit = math.gcd(unit, divisor * factor)
    return next_power_of_2(max(1, total)), math.gcd(unit, RUN)


def _part(
    o: Op | None, known: Mapping[Value, tuple[int, int]], made: Mapping[Value, Op]
) -> tuple[int, int]:
    """The same of a size that is divided by a power of two."""
    by = made.get(o.rhs) if isinstance(o, Binary) and o.kind == "floordiv" else None
    if not isinstance(o, Binary) or not isinstance(by, Const) or o.lhs not in known:
        return 0, 1
    (size, unit), n = known[o.lhs], int(by.value)
    return (max(1, size // n), max(1, unit // n)) if n > 0 and n & (n - 1) == 0 else (0, 1)
