"""Loops in which threads wait for tile products: what they do there is not hidden by the loop's own
next iteration, but by other warpgroups of the multiprocessor, or by an order of the statements."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Block, walk
from tilec.ir.effects import effects_in


def is_mixed(loop: ops.For) -> bool:
    """Whether a pipelined loop holds several tile products, and threads compute there with what one
    of them gives."""
    sums = {o.c for o in loop.body.ops if isinstance(o, ops.Gemm)}
    if loop.kind != "pipelined" or sum(isinstance(o, ops.Gemm) for o in loop.body.ops) < 2:
        return False
    others = Block((), tuple(o for o in loop.body.ops if not isinstance(o, ops.Gemm)))
    return any(e.buffer in sums for _, e in effects_in(others))


def waits_for_products(loop: ops.For) -> bool:
    """Whether threads wait for a loop's products, or for their operands, with nothing to do:
    several of a pipelined loop stand under a condition, or a loop that is not pipelined has one."""
    here = any(isinstance(o, ops.Gemm) for o in loop.body.ops)
    if loop.kind == "serial":
        return here
    inside = sum(isinstance(o, ops.Gemm) for o in walk(loop.body))
    return loop.kind == "pipelined" and inside > 1 and not here
