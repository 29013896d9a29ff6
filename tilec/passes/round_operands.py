"""round_operands: who rounds the float32 operands of TF32 products, nearest even.

A matrix instruction ignores the low 13 bits of a TF32 operand, so what it reads must have been
rounded before. Before: products have instructions; the buffers of those with `allow_tf32` may be
float32. After: a buffer that nothing but such products reads is tfloat32 wherever that costs
nothing, and whatever writes to it rounds:

- a fragment, by whoever fills it;
- a shared tile that TMA brings, which rounds on the way;
- a shared tile that its instruction reads in place (`select_gemm` chose none such for others), by
  the threads that bring it.

A float32 operand that is left comes to its instruction through registers and is rounded there
(`convert_operands`, `lower_gemm`): tiles that cp.async brings, and those with other readers, who
see them unrounded."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.builder import Builder
from tilec.ir.copy_engines import CopyEngines
from tilec.ir.core import Func, Op, Region, Value, walk
from tilec.ir.instr import find_instruction
from tilec.ir.ops import Alloc, AnnotateLayout, Copy, Fill, Gemm, Store
from tilec.ir.types import FLOAT32, TFLOAT32
from tilec.passes.utils.building import with_types
from tilec.target import Target


def round_operands(func: Func, target: Target) -> Func:
    chosen = _chosen(func, target)
    if not chosen:
        return func

    def visit(o: Op) -> None | list[Op]:
        match o:
            case Store() | Fill() if o.dest.dtype == TFLOAT32 and o.value.dtype != TFLOAT32:
                b = Builder(o.loc)
                rounded = b.cast(o.value, TFLOAT32)
                return [*b.ops, replace(o, value=rounded)]
        return None

    typed = {v: replace(v.buffer, dtype=TFLOAT32) for v in chosen}
    return func.with_body(with_types(func.body, typed).rewrite(Op, visit))


def takes_tf32(o: Gemm) -> bool:
    """Whether the product may round its operands to TF32 (one of them may be tfloat32 already)."""
    return o.allow_tf32 and {o.a.dtype, o.b.dtype} <= {FLOAT32, TFLOAT32}


def roundable(func: Func) -> frozenset[Value]:
    """The float32 buffers whose elements may be rounded where they lie: nothing but TF32 products
    reads them, or copies to buffers of which the same holds."""
    found = {o.result for o in func.body.every(Alloc) if o.type.dtype == FLOAT32}
    if not found:
        return frozenset()
    found &= {v for o in walk(func.body) for v in _read(o)}
    while True:
        kept = found - {
            v for o in walk(func.body) for v in found & {*o.operands} if not _allows(o, v, found)
        }
        if kept == found:
            return frozenset(v for v in found if v.space in ("shared", "fragment"))
        found = kept


def _read(o: Op) -> tuple[Value, ...]:
    match o:
        case Gemm():
            return o.a.buffer, o.b.buffer
        case Copy():
            return (o.source.buffer,)
    return ()


def _allows(o: Op, v: Value, found: set[Value]) -> bool:
    """Whether `o` computes what it should if the elements of `v` are rounded."""
    match o:
        case Gemm():
            return o.c is not v and takes_tf32(o)
        case Copy() if o.source.buffer is v:
            dest = o.dest.buffer
            return dest is not v and (dest in found or dest.dtype == TFLOAT32)
        case Copy() | Store() | Fill() | AnnotateLayout():
            return True
    return False


def _chosen(func: Func, target: Target) -> set[Value]:
    candidates = roundable(func)
    if not candidates:
        return set()
    engines, by_tma = CopyEngines(func, target), bool(func.attrs.get("specialise"))
    used: set[Value] = set()  # by a product that computes in TF32
    in_place: set[Value] = set()
    by_threads: set[Value] = set()  # filled by others than TMA
    for o in reversed(list(walk(func.body))):
        match o:
            case Gemm() if find_instruction(o.instr).a_dtype == TFLOAT32:
                used |= {o.a.buffer, o.b.buffer}
                in_place |= _read_in_place(o)
            case Copy():
                if o.dest.buffer in used:
                    used.add(o.source.buffer)
                if not (o.ahead and by_tma and engines.tma_may_load(o, TFLOAT32)):
                    by_threads.add(o.dest.buffer)
            case Store(dest=v) | Fill(dest=Region(buffer=v)):
                by_threads.add(v)
    return {
        v
        for v in candidates & used
        if v.space == "fragment" or v in in_place or v not in by_threads
    }


def _read_in_place(o: Gemm) -> set[Value]:
    """The operands that the product's instruction reads in shared memory."""
    seen, instr = o.swap_operands(), find_instruction(o.instr)
    sides = ((seen.a.buffer, instr.a_places), (seen.b.buffer, instr.b_places))
    return {v for v, places in sides if v.space == "shared" and "shared" in places}
