"""Matrix instructions of a warp, by shuffles, for targets that lack them.

Which lane holds which element, in which of its registers, is what the instruction's own layouts
say (PTX ISA, "Matrix Fragments for mma.m16n8k16"). Lane l has of C the rows l / 4 and (of 16) l / 4
+ 8 in the columns 2 (l % 4) and the next; for each step along k it is sent the elements of A and B
that these need."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.core import Builder, Op, Value
from tilec.ir.instr import find_instruction
from tilec.ir.ops import Cast, Shuffle, ThreadIndex, WarpMma
from tilec.ir.types import FLOAT32, INT32
from tilec.target import Target

LANES = 32


def by_shuffles(o: WarpMma, target: Target) -> list[Op]:
    """What `o` computes, each product and sum in float32, float64 or int32."""
    b, instr = Builder(o.loc), find_instruction(o.instr)
    dtype = o.c[0].dtype
    wide = dtype if dtype.bits == 64 else FLOAT32 if dtype.is_float else INT32
    halves = instr.m // 8

    thread = b.value(ThreadIndex)
    lane = b.binary("mod", thread, LANES)
    warp = LANES if target.max_threads == 1 else target.warp_size
    first = b.binary("sub", b.binary("mod", thread, warp), lane)
    row = b.binary("floordiv", lane, 4)
    column = b.binary("mul", b.binary("mod", lane, 4), 2)
    per = max(1, 32 // o.a[0].dtype.bits)  # elements of a register
    reach = 4 * per  # of the registers of four lanes along k

    def sent(value: Value, place: Value) -> Value:
        """`value` as a lane of this thread's 32 has it."""
        return b.cast(b.value(Shuffle, value, b.binary("add", first, place)), wide)

    sums = [b.cast(v, wide) for v in o.c]
    for k in range(instr.k):
        part, at = k // reach, k % reach // per
        of_row = b.binary("add", b.binary("mul", row, 4), at)
        a = [sent(o.a[(part * halves + h) * per + k % per], of_row) for h in range(halves)]
        right = []
        for c in range(2):
            place = b.binary("add", b.binary("mul", b.binary("add", column, c), 4), at)
            right.append(sent(o.b[part * per + k % per], place))
        for i in range(2 * halves):
            product = b.binary("mul", a[i // 2], right[i % 2])
            sums[i] = b.binary("add", sums[i], product)
    named = {}
    for result, total in zip(o.results, sums):
        if result.dtype is wide:
            named[total] = result
        else:
            b.ops.append(Cast(total, result.dtype, results=(result,), loc=o.loc))
    return [
        replace(x, results=(named[x.result],)) if x.results and x.results[0] in named else x
        for x in b.ops
    ]
