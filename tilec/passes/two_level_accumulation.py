"""two_level_accumulation: products whose instruction sums coarsely are added up in float32.

Before: `gemm` ops, some of which the user wrote with `fast_accum=False`. After: where the target
has an instruction for one of these whose running sum keeps fewer bits than C's dtype, its K is cut
into blocks of at most 128; each block's product goes into a fragment of its own, which an ordinary
loop adds to C. Any other product is left as it is.

Method: DeepSeek-V3 technical report (arXiv 2412.19437), section 3.3.2, "Increasing accumulation
precision"; 128 is the length from which the coarse sum is seen in the result."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op
from tilec.ir.instr import instructions_of
from tilec.ir.ops import Gemm
from tilec.passes.utils.operand_factors import scaled_sum
from tilec.passes.utils.operands import part_of_sum
from tilec.target import Target

BLOCK = 128  # elements of K in one coarse sum


def two_level_accumulation(func: Func, target: Target) -> Func:
    def visit(o: Gemm) -> None | list[Op]:
        if o.fast_accum:
            return None
        rows = instructions_of(o.a.dtype, o.b.dtype, o.c.dtype)
        if not any(row.coarse_sum and target.has(row.feature) for row in rows):
            return None
        b = Builder(o.loc)
        k = o.shape[2]
        for start in range(0, k, BLOCK):
            part = part_of_sum(b, o, start, min(BLOCK, k - start))
            part = replace(part, fast_accum=True)
            if o.clear and start == 0:
                b.ops.append(part)
            else:
                b.ops += scaled_sum(part)
        return b.ops

    return func.rewrite(Gemm, visit)
