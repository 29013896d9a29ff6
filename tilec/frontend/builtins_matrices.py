"""Builtins for matrix instructions by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilec import language as T
from tilec.frontend.builtins import Call, builtin, number_argument
from tilec.frontend.builtins_threads import of_threads
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import Buffer, Number, Region, Scalar, describe
from tilec.ir.ops import WarpMma
from tilec.ir.types import FLOAT32, TFLOAT32
from tilec.support.lazy import Lazy

if TYPE_CHECKING:
    from tilec.ir import instr as instructions
else:  # loaded by kernels that ask for it
    instructions = Lazy("tilec.ir.instr")


@builtin(T.ptx_mma)
def ptx_mma(t: Expressions, c: Call) -> None:
    of_threads(t, c)
    buffers = [_local(t, c, n) for n in ("multiplicand_a", "multiplicand_b", "accumulator")]
    first = [number_argument(t, c, n) for n in ("a_index", "b_index", "c_index")]
    if (c["A_layout"], c["B_layout"]) != ("row", "col"):
        raise t.error(
            f"T.ptx_mma of layouts {describe(c['A_layout'])} and {describe(c['B_layout'])}",
            'write "row", "col": what each lane holds does not depend on how memory is laid out',
        )
    dtypes = [b.type.dtype for b in buffers]
    taken = [TFLOAT32 if d is FLOAT32 else d for d in dtypes[:2]]
    found = [
        i
        for i in instructions.instructions_of(taken[0], taken[1], dtypes[2])
        if isinstance(i, instructions.MmaInstruction)
    ]
    shapes = {f"m{i.m}n{i.n}k{i.k}": i for i in found}
    if c["shape"] not in shapes:
        known = ", ".join(shapes) or "none"
        names = ", ".join(d.name for d in dtypes)
        raise t.error(
            f"there is no mma {c['shape']} of {names} (A, B, C); there are: {known}",
            'write "m16n8k16" of float16 or bfloat16 with float32, "m16n8k8" of float32, '
            '"m16n8k32" of float8 with float32 or of int8 with int32, "m8n8k4" of float64',
            c.place("shape"),
        )
    instr = shapes[c["shape"]]
    counts = [n * pack for n, pack in zip(instr.registers, instr.packs)]
    operands = [
        [t.convert(t.load(_element(t, b, at, k)), dtype).value for k in range(count)]
        for b, at, count, dtype in zip(buffers, first, counts, (*taken, dtypes[2]))
    ]
    made = t.emit(WarpMma, instr.name, *map(tuple, operands))
    for k, result in enumerate(made.results):
        t.store(_element(t, buffers[2], first[2], k), t.scalar(result))


def _local(t: Expressions, c: Call, name: str) -> Buffer:
    found = c[name]
    if not isinstance(found, Buffer) or found.type.space != "local" or found.type.rank != 1:
        raise t.error(
            f"{name} of T.ptx_mma is {describe(found)}, not a local buffer of one dimension",
            'allocate one: T.alloc_local((8,), "float16")',
            c.place(name),
        )
    return found


def _element(t: Expressions, buffer: Buffer, first: Number, k: int) -> Region:
    at = t.binary("add", first, k)
    assert not isinstance(at, float)
    index: int | Scalar = at
    return Region(buffer, (index,), (None,), t.loc)
