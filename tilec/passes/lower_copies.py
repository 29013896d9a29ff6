"""lower_copies: copies, fills and their like become parallel loops, boxes and fragments' own
transfers.

Before: `copy` and `fill` ops with engines, and what else is `elementwise`. After: none is left.
What threads do to a region is a parallel loop over it, in the layout of the fragment on one side
(between two fragments: of the one that is written) or else coalesced over the block; fragments
whose elements change lanes exchange them by shuffles (`lower_exchanges`); matrices go to shared
memory by `stmatrix` (`lower_matrices`); a fragment that leaves through TMA is staged warp by warp
(`lower_stores`)."""

from __future__ import annotations

from tilec.ir.analysis import facts_of
from tilec.ir.core import Func, Op, Region, rewrite
from tilec.ir.element_loops import ELEMENTWISE, boxes, is_private, loop_of
from tilec.ir.errors import InternalError
from tilec.ir.layout import Layout
from tilec.ir.ops import Copy, Fill
from tilec.ir.uniformity import Uniformity, uniformity_of
from tilec.passes.recognise_gathers import with_places
from tilec.passes.utils.distribution import along_rows, covering, each_thread
from tilec.passes.utils.groups import warps_of
from tilec.passes.utils.lower_exchanges import exchange_registers, rename_registers
from tilec.passes.utils.lower_matrices import (
    is_matrix_load,
    is_matrix_store,
    load_matrices,
    matrix_inputs,
    store_matrices,
)
from tilec.target import Target

WIDEST_BITS = 128  # a thread's widest access


def lower_copies(func: Func, target: Target) -> Func:
    """See the module's opening."""
    warps = warps_of(func, target)
    facts, uniformity = facts_of(func), uniformity_of(func)
    inputs = matrix_inputs(func)

    def visit(o: Op) -> None | list[Op]:
        match o:
            case Copy(engine="registers"):
                return rename_registers(o, facts)
            case Copy(engine="shuffle"):
                return exchange_registers(o)
            case Copy() if is_matrix_store(o, target):
                return store_matrices(o)
            case Copy() if is_matrix_load(o, inputs, target):
                return load_matrices(o)
            case Copy(engine="tma_store"):
                return None
            case Fill(replaced=True):
                return []
            case _ if type(o) in ELEMENTWISE:
                return [_loop(o, warps(o), target, uniformity)]
        return None

    return func.with_body(with_places(rewrite(func.body, visit)))


def _loop(o: Op, warps: int, target: Target, uniformity: Uniformity) -> Op:
    """The op's loop over elements, whose layout is that of a fragment taking part, without its
    dimensions of extent 1; coalesced without one."""
    sides = boxes(o)
    vector = o.vector if isinstance(o, Copy) else WIDEST_BITS // sides[0].dtype.bits
    if is_private(o, uniformity):
        layout = each_thread(sides[0].shape or (1,))
    else:
        layout = _layout(sides, vector, warps, target)
    return loop_of(o, layout, "cp_async" if isinstance(o, Copy) and o.engine == "cp_async" else "")


def _layout(sides: list[Region], vector: int, warps: int, target: Target) -> Layout:
    extents = sides[0].shape or (1,)
    for side in sides:
        t = side.buffer.buffer
        if t.space == "fragment":
            if t.layout is None:
                raise InternalError(f"{t} has no layout")
            return t.layout if t.layout.shape == extents else t.layout.reshape(extents)
    vector = max(1, vector)
    while vector > 1 and extents[-1] % vector:
        vector //= 2
    dest = sides[0].buffer.buffer
    narrow = dest.space == "global" and vector * dest.dtype.bits < WIDEST_BITS
    spread = along_rows if narrow else covering
    return spread(extents, target.warp_size, warps, vector)
