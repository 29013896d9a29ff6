"""T.Parallel with extents that only a call gives: a tile of iterations after the other.

    for i, j in T.Parallel(m, n):      for i in T.serial(m):
        BODY                      ->       for tile in T.serial(T.ceildiv(n, 128)):
                                               for x in T.Parallel(128):
                                                   if tile * 128 + x < n:
                                                       j = tile * 128 + x
                                                       BODY

The last such extent is cut into tiles of as many iterations as the block has threads, those before
it are loops of their own. The names of the loops are none that a program can have.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import Any

from tilec.frontend.arithmetic import static_int
from tilec.frontend.memory import Memory
from tilec.frontend.values import LoopHeader, Scalar, as_syntax

_USUAL_THREADS = 128


def is_open(extent: object) -> bool:
    """Whether an extent is an integer that only a call gives."""
    run_time = isinstance(extent, Scalar) and not extent.dtype.is_float
    return run_time and static_int(extent) is None


def loop_over_tiles(
    t: Memory, node: ast.For, targets: Sequence[ast.expr], header: LoopHeader
) -> ast.For:
    """The loop that stands for `node`, a T.Parallel."""
    if header.arguments.get("loop_layout") is not None:
        message = "a T.Parallel with run-time extents has no loop_layout"
        hint = "loop over a compile-time tile, or leave it out"
        raise t.error(message, hint, header.place("loop_layout"))
    extents: Any = header.arguments["extents"]
    *outer, last = (d for d, e in enumerate(extents) if is_open(e))
    size = max(1, (t.threads or _USUAL_THREADS) // math.prod(static_int(e) or 1 for e in extents))
    kept = [d for d in range(len(extents)) if d not in outer]
    inner = {**header.arguments, "extents": tuple(size if d == last else extents[d] for d in kept)}
    stop = t.to_index(extents[last])
    tiles = header.counted(last, t.binary("ceildiv", stop, size))
    tile = LoopHeader("Parallel", inner, header.loc, header.places)
    number, inside = (ast.Name(f".{word}{id(node)}", ast.Load()) for word in ("number", "inside"))
    index = ast.BinOp(ast.BinOp(number, ast.Mult(), ast.Constant(size)), ast.Add(), inside)
    within = ast.Compare(index, [ast.Lt()], [as_syntax(stop)])
    body = ast.If(within, [ast.Assign([targets[last]], index), *node.body], [])
    variables = [inside if d == last else targets[d] for d in kept]
    made = ast.For(ast.Tuple(variables, ast.Store()), as_syntax(tile), [body], [])
    made = ast.For(number, as_syntax(tiles), [made], [])
    for d in reversed(outer):
        made = ast.For(targets[d], as_syntax(header.counted(d)), [made], [])
    return ast.fix_missing_locations(ast.copy_location(made, node.iter))
