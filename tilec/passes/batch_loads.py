"""batch_loads: what several iterations of a loop load is asked for together.

Before: SCHEDULED, copies are loops over elements; a serial loop whose iterations load elements of
tensors, and change registers only, as in

    for k: for i, j: part[i, j] += A[y + i, k * BN + j]

An iteration waits for its loads, so that a thread has few of them on their way. After: where the
elements of the next `count` iterations lie inside of their tensors, these iterations stand one
behind the other without a test between them, and the assembler has all loads before the first
result is used. Their order is what it was. At an edge, where a block may be in all iterations, they
stand so, too, with a test for each load. The rest of the iterations run as they did. Where an
iteration asks first whether all of its elements are wanted (`version_loops`), so do these: of
`count` that are, none asks again."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Effect, Func, Op, Substitution, Value, walk
from tilec.ir.effects import effects_in
from tilec.ir.layout import leading_run
from tilec.passes.utils.addressing import clone_expression
from tilec.passes.utils.memory_access import MemoryFacts
from tilec.target import Target

MOST_TOGETHER = 8  # iterations
BYTES_TOGETHER = 128
"""Of a thread, on their way at once: 32 KB a multiprocessor where it has 256 threads."""
REGISTERS = 48
"""That a thread may hold for it, so that 1024 of them, with what addresses take, have room."""
LOADS_TOGETHER = 32
MOST_OPS = 2048  # as they stand before they are simplified


def batch_loads(func: Func, target: Target) -> Func:
    known = MemoryFacts(func)

    return func.rewrite(ops.For, lambda o: _batched(o, known) if _only_loads(o) else None)


def _usual(o: ops.For) -> tuple[Block, list[Value]]:
    """What an iteration does where the conditions hold that its branches ask for."""
    statements: list[Op] = []
    conds: list[Value] = []
    for x in o.body.ops:
        if isinstance(x, ops.If) and not x.types:
            conds.append(x.cond)
            statements += x.then.statements
        else:
            statements.append(x)
    return replace(o.body, ops=tuple(statements)), conds


def _only_loads(o: ops.For) -> bool:
    """Whether the loop's iterations change nothing but fragments."""
    if o.kind != "serial" or o.inits:
        return False
    body, _ = _usual(o)
    for x in walk(body):
        match x:
            case ops.For():
                if x.kind != "unroll" or x.inits:
                    return False
            case ops.Parallel():
                if x.engine:
                    return False
            case ops.Shuffle() | ops.ShuffleXor() | ops.WarpMma():
                pass
            case _ if x.region_fields or not all(_stays_in_registers(e) for e in x.effects()):
                return False
    return all(
        x.pure or isinstance(x, (ops.Alloc, ops.For, ops.Parallel, ops.Yield)) for x in body.ops
    )


def _stays_in_registers(e: Effect) -> bool:
    """Whether it changes registers at most, and at once."""
    if e.region is None or e.engine != "threads":
        return False
    return e.kind == "read" or e.region.type.space in ("fragment", "local")


def _together(o: ops.For, known: MemoryFacts) -> int:
    """How many iterations are worth asking for at once."""
    size = loads = statements = narrow = 0
    body, _ = _usual(o)
    for p in body.ops:
        if isinstance(p, ops.For):
            statements += sum(1 for _ in walk(p.body)) * (known.facts.constant(p.hi) or MOST_OPS)
        if not isinstance(p, ops.Parallel) or p.layout is None:
            continue
        dim, run = leading_run(p.layout)
        arg, registers = (p.body.args[dim] if dim >= 0 else None), p.layout.size("reg")
        statements += sum(1 for _ in walk(p.body)) * registers
        for x in p.body.every(ops.Load):
            if x.source.space == "global":
                size += registers * x.source.dtype.bits // 8
                width = known.memory(x, arg, run).width
                loads += registers // width
                narrow = max(narrow, width if x.source.dtype.bits < 32 else 0)
    if not size:
        return 1
    # What is narrow is converted, one access at a time.
    room = min(BYTES_TOGETHER, 4 * max(REGISTERS - _carried(o) - narrow, 0))
    most = min(MOST_TOGETHER, room // size, LOADS_TOGETHER // loads, MOST_OPS // statements)
    trips = known.facts.constant(o.hi)
    if trips is not None:
        most = min(most, trips)
    return 1 << max(most, 1).bit_length() - 1


def _carried(o: ops.For) -> int:
    """Registers of a thread that hold what one iteration leaves to the next."""
    found: set[Value] = set()
    written: set[Value] = set()
    for _, e in effects_in(o.body):
        if e.buffer is not None:
            (found if e.reads and e.buffer not in written else written).add(e.buffer)
    return sum(v.buffer.registers for v in found if v.space == "fragment")


def _batched(o: ops.For, known: MemoryFacts) -> list[Op] | None:
    count = _together(o, known)
    if count == 1 or known.facts.constant(o.step) != 1:
        return None
    b, inner, fast, slow = (Builder(o.loc) for _ in range(4))
    first = Value(o.body.args[0].type, o.body.args[0].name)
    end = inner.binary("add", first, count)
    conds = [inner.compare("le", end, o.hi)]
    defs = o.body.defs
    body, asked = _usual(o)
    for number in range(count):
        at: Substitution = {}
        at[o.body.args[0]] = inner.binary("add", first, number)
        for cond in asked:
            wanted = clone_expression(inner, cond, defs, {**at})
            if wanted is None:
                return None
            conds.append(wanted)
        for p in body.ops:
            if isinstance(p, ops.Parallel):
                found = known.inside_at_corners(inner, p, defs, at)
                if found is None:
                    return None
                conds += found
        for x in body.statements:
            x = replace(x, inside=True) if isinstance(x, ops.Parallel) else x
            fast.ops.append(x.clone(at))
    last = slow.binary("min", end, o.hi)
    slow.ops.append(replace(o, lo=first, hi=last))
    if not asked:
        tested = Builder(o.loc)
        for number in range(count):
            at = {o.body.args[0]: tested.fold("add", first, number)}
            for x in o.body.statements:
                x = replace(x, outside=True) if isinstance(x, ops.Parallel) else x
                tested.ops.append(x.clone(at))
        left, slow = slow, Builder(o.loc)
        slow.branch(conds[0], tested.ops, left.ops)
    inner.branch(inner.conjunction(conds), fast.ops, slow.ops)
    inner.emit(ops.Yield)
    b.emit(ops.For, "serial", o.lo, o.hi, b.const(count, first.dtype), (), inner.block([first]))
    return b.ops
