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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tilec.frontend.arithmetic import static_int
from tilec.frontend.memory import Memory
from tilec.frontend.values import LoopHeader, Scalar

_USUAL_THREADS = 128


def is_open(extent: object) -> bool:
    """Whether an extent is an integer that only a call gives."""
    run_time = isinstance(extent, Scalar) and not extent.dtype.is_float
    return run_time and static_int(extent) is None


@contextmanager
def loop_over_tiles(
    t: Memory, node: ast.For, targets: Sequence[ast.expr], header: LoopHeader
) -> Iterator[ast.For]:
    """The loop that stands for `node`, a T.Parallel, while its headers have their names."""
    if header.arguments.get("loop_layout") is not None:
        raise t.error(
            "a T.Parallel with run-time extents has no loop_layout",
            "loop over a compile-time tile, or leave it out",
            header.place("loop_layout"),
        )
    extents: Any = header.arguments["extents"]
    *outer, last = (d for d, e in enumerate(extents) if is_open(e))
    size = max(1, (t.threads or _USUAL_THREADS) // math.prod(static_int(e) or 1 for e in extents))
    kept = [d for d in range(len(extents)) if d not in outer]
    inner = {**header.arguments, "extents": tuple(size if d == last else extents[d] for d in kept)}
    stop = t.to_index(extents[last])

    def counted(count: object, d: int) -> LoopHeader:
        bounds = {"start": 0, "stop": count, "step": 1}
        return LoopHeader("serial", bounds, header.loc, {"stop": header.place(f"extents[{d}]")})

    hidden = {
        "stop": stop,
        "tiles": counted(t.binary("ceildiv", stop, size), last),
        "tile": LoopHeader("Parallel", inner, header.loc, header.places),
        **{f"outer{d}": counted(extents[d], d) for d in outer},
    }
    names = {word: f".{word}{id(node)}" for word in (*hidden, "number", "inside")}

    def loop(target: ast.expr, over: str, body: list[ast.stmt]) -> ast.For:
        return ast.For(target, _read(names[over]), body, [])

    index = ast.BinOp(
        ast.BinOp(_read(names["number"]), ast.Mult(), ast.Constant(size)),
        ast.Add(),
        _read(names["inside"]),
    )
    within = ast.Compare(index, [ast.Lt()], [_read(names["stop"])])
    body = [ast.Assign([targets[last]], index), *node.body]
    inside: ast.expr = ast.Name(names["inside"], ast.Store())
    variables = [inside if d == last else targets[d] for d in kept]
    made = loop(ast.Tuple(variables, ast.Store()), "tile", [ast.If(within, body, [])])
    made = loop(ast.Name(names["number"], ast.Store()), "tiles", [made])
    for d in reversed(outer):
        made = loop(targets[d], f"outer{d}", [made])
    for n in ast.walk(made):
        if isinstance(n, ast.expr | ast.stmt) and not hasattr(n, "lineno"):
            ast.copy_location(n, node.iter)
    t.names.update({names[word]: value for word, value in hidden.items()})
    yield made
    for name in names.values():
        t.names.pop(name, None)


def _read(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())
