"""Control flow of the CPU target, and how a `parallel` loop becomes vector code.

A parallel loop is a nest of counted loops around the one index that runs along the lanes:

    if every guard holds over the whole loop:        (one comparison per dimension of each tensor)
        for i …: for j in steps of `lanes`: body     unguarded
                 body for the lanes left over        masked by a constant
    else:
        for i …: for j in steps of `lanes`: body     each access masked by its own guard

Inside vector code a branch whose condition differs between lanes runs both sides under masks, and a
loop runs until no lane is left in it; where all lanes agree, branches and loops are real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilec.codegen.cpu_access import Index, Ramp, memory_type_bytes
from tilec.codegen.cpu_emitter import Emitter
from tilec.codegen.cpu_parallel import Check, LoopFacts, varying
from tilec.codegen.lanes import constant, iota, lanes_of, mangled, shaped, splat
from tilec.ir.affine import Affine
from tilec.ir.core import Block, Op, Value, walk
from tilec.ir.errors import CompileError
from tilec.ir.llvm import Phi, Val, int_val
from tilec.ir.ops import Const, For, Gemm, If, Load, Parallel, Print, Store, While, Yield
from tilec.ir.types import BOOL

# --- branches and sequential loops ---------------------------------------------------------------


def emit_if(e: Emitter, o: If) -> None:
    cond = e.env[o.cond]
    assert isinstance(cond, Val)
    if lanes_of(cond.type) > 1:
        _masked_if(e, o, cond)
        return
    if cond.literal is not None:
        _bind(e, o.results, e.block(o.then if cond.literal else o.orelse))
        return
    fn = e.fn
    then, orelse, done = fn.label("then"), fn.label("else"), fn.label("endif")
    fn.cbr(cond, then, orelse, done)
    ends: list[tuple[list[Val], str]] = []
    for label, region in ((then, o.then), (orelse, o.orelse)):
        fn.start(label)
        got = e.block(region)
        ends.append(([e.shaped_as(v, r) for v, r in zip(got, o.results)], fn.block.label))
        fn.br(done)
    fn.start(done)
    for i, phi in enumerate(e.phis(o.results)):
        phi.incoming = [(values[i], label) for values, label in ends]


def _masked_if(e: Emitter, o: If, cond: Val) -> None:
    """Both sides, each for its own lanes."""
    inverse = e.fn.binary("xor", cond, constant(cond.type, 1))
    with e.running(e.access.both(e.mask, cond)):
        then = [e.access.vector(v, e.lanes) for v in e.block(o.then)]
    with e.running(e.access.both(e.mask, inverse)):
        orelse = [e.access.vector(v, e.lanes) for v in e.block(o.orelse)]
    for r, a, b in zip(o.results, then, orelse):
        e.env[r] = e.fn.select(cond, a, b)


def _bind(e: Emitter, targets: Sequence[Value], values: Sequence[Index]) -> None:
    e.env.update(zip(targets, values))


def emit_for(e: Emitter, o: For) -> None:
    if not all(e.is_uniform(v) for v in (o.lo, o.hi, o.step)):
        _masked_for(e, o)
        return
    fn = e.fn
    lo, hi, step = (e.scalar(v) for v in (o.lo, o.hi, o.step))
    inits = [e.shaped_as(e.env[v], a) for v, a in zip(o.inits, o.body.args[1:])]
    head, body, done = fn.label("for"), fn.label("do"), fn.label("endfor")
    before = fn.block.label
    fn.br(head)
    fn.start(head)
    (index,), carried = e.phis(o.body.args[:1]), e.phis(o.body.args[1:])
    fn.cbr(_goes_on(e, index.result, hi, step, o.lo.dtype.kind == "int"), body, done, done)
    fn.start(body)
    got = e.block(o.body)
    after = [e.shaped_as(v, a) for v, a in zip(got, o.body.args[1:])]
    advanced = fn.add(index.result, step)
    fn.br(head)
    _close([index, *carried], [lo, *inits], before, [advanced, *after], fn.block.label)
    fn.start(done)
    _bind(e, o.results, [p.result for p in carried])


def _goes_on(e: Emitter, index: Val, hi: Val, step: Val, signed: bool) -> Val:
    """index < hi, or index > hi where the step is negative."""
    fn, sign = e.fn, "s" if signed else "u"
    up = fn.icmp(f"{sign}lt", index, hi)
    if not signed or (step.literal is not None and step.literal > 0):
        return up
    rising = fn.icmp("sgt", step, constant(step.type, 0))
    return fn.select(rising, up, fn.icmp(f"{sign}gt", index, hi))


def _close(
    phis: Sequence[Phi], first: Sequence[Val], before: str, after: Sequence[Val], end: str
) -> None:
    for phi, a, b in zip(phis, first, after):
        phi.incoming = [(a, before), (b, end)]


def emit_while(e: Emitter, o: While) -> None:
    if any(a in e.varying for a in o.cond.args) or _uneven(e, o):
        _masked_while(e, o)
        return
    fn = e.fn
    inits = [e.shaped_as(e.env[v], a) for v, a in zip(o.inits, o.cond.args)]
    head, body, done = fn.label("while"), fn.label("do"), fn.label("endwhile")
    before = fn.block.label
    fn.br(head)
    fn.start(head)
    carried = e.phis(o.cond.args)
    (cond,) = e.block(o.cond)
    assert isinstance(cond, Val)
    fn.cbr(cond, body, done, done)
    fn.start(body)
    _bind(e, o.body.args, [p.result for p in carried])
    after = [e.shaped_as(v, a) for v, a in zip(e.block(o.body), o.cond.args)]
    fn.br(head)
    _close(carried, inits, before, after, fn.block.label)
    fn.start(done)
    _bind(e, o.results, [p.result for p in carried])


def _uneven(e: Emitter, o: While) -> bool:
    return e.lanes > 1 and any(a in e.varying for a in o.results)


def _masked_while(e: Emitter, o: While) -> None:
    def test() -> Val:
        (cond,) = e.block(o.cond)
        return e.access.vector(cond, e.lanes)

    _run_lanes(e, o.inits, o.cond.args, o.body.args, o.results, test, lambda: e.block(o.body))


def _masked_for(e: Emitter, o: For) -> None:
    """A loop whose bounds differ between lanes: a while loop over the index."""
    index = o.body.args[0]
    hi, step = e.vector(o.hi), e.vector(o.step)
    signed = o.lo.dtype.kind == "int"

    def test() -> Val:
        return _goes_on(e, e.vector(index), hi, step, signed)

    def body() -> tuple[Index, ...]:
        got = e.block(o.body)
        return (e.fn.add(e.vector(index), step), *got)

    args = o.body.args
    results = (Value(index.type, "index"), *o.results)
    _run_lanes(e, (o.lo, *o.inits), args, args, results, test, body)


def _run_lanes(
    e: Emitter,
    inits: Sequence[Value],
    head_args: Sequence[Value],
    body_args: Sequence[Value],
    results: Sequence[Value],
    test: Callable[[], Val],
    body: Callable[[], Sequence[Index]],
) -> None:
    """Repeat `body` for the lanes for which `test` has held so far; a lane keeps its values when it
    leaves.
    """
    fn = e.fn
    start = [e.vector(v) for v in inits]
    mask_type = shaped("i1", e.lanes)
    alive = e.mask if e.mask is not None else constant(mask_type, 1)
    head, inner, done = fn.label("lanes"), fn.label("do"), fn.label("endlanes")
    before = fn.block.label
    fn.br(head)
    fn.start(head)
    running = fn.phi(mask_type)
    carried = [fn.phi(v.type) for v in start]
    _bind(e, head_args, [p.result for p in carried])
    with e.running(running.result):
        now = fn.binary("and", running.result, test())
        some = fn.intrinsic("i1", f"llvm.vector.reduce.or.{mangled(mask_type)}", [now])
        fn.cbr(some, inner, done, done)
        fn.start(inner)
        _bind(e, body_args, [p.result for p in carried])
        with e.running(now):
            got = [e.access.vector(v, e.lanes) for v in body()]
    after = [fn.select(now, new, old.result) for new, old in zip(got, carried)]
    fn.br(head)
    _close([running, *carried], [alive, *start], before, [now, *after], fn.block.label)
    fn.start(done)
    _bind(e, results, [p.result for p in carried])


# --- parallel loops -----------------------------------------------------------------------------


def emit_parallel(e: Emitter, o: Parallel) -> None:
    if any(extent == 0 for extent in o.extents):
        return
    for inner in walk(o.body):
        if isinstance(inner, Gemm):
            raise CompileError(
                "a tile product inside of a parallel loop", inner.loc, "move it out of the loop"
            )
    if e.lanes > 1:
        _nest(e, o, len(o.extents), 1, False)
        return
    loop = LoopFacts(o, e.facts)
    dimension = loop.vector_dimension()
    lanes = _lanes(e, o, dimension)
    fast, slow, checks, units = _guards(loop)
    condition = _holds(e, checks, units)
    if condition is None or condition.literal == 1:
        _variant(e, o, dimension, lanes, fast, True)
        return
    slow_lanes = lanes if _element_bytes(o)[0] >= (e.machine.masked_bytes or 99) else 1
    if condition.literal == 0:
        _variant(e, o, dimension, slow_lanes, slow, False)
        return
    fn = e.fn
    inside, edge, done = fn.label("inside"), fn.label("edge"), fn.label("endparallel")
    fn.cbr(condition, inside, edge, done)
    fn.start(inside)
    _variant(e, o, dimension, lanes, fast, True)
    fn.br(done)
    fn.start(edge)
    _variant(e, o, dimension, slow_lanes, slow, False)
    fn.br(done)
    fn.start(done)


def _element_bytes(o: Parallel) -> tuple[int, int, int]:
    """(least, most, computed) bytes of the elements that the body moves; `computed`, of those that
    it computes with, of which narrow floats take 4 (0: elements are only moved)."""
    moved: list[int] = []
    data: list[Value] = []
    defined: dict[Value, Op] = {}
    for i in walk(o.body):
        defined.update((r, i) for r in i.results)
        match i:
            case Load():
                moved.append(memory_type_bytes(i.result.dtype))
            case Store():
                moved.append(memory_type_bytes(i.dest.dtype))
                data.append(i.value)
            case _ if i.region_fields or isinstance(i, Yield):
                data.extend(i.operands)
    computed, seen = 0, set(data)
    while data:
        v = data.pop()
        made = defined.get(v)
        if isinstance(made, (Load, Const)):
            continue
        if v.dtype != BOOL:
            computed = max(computed, v.dtype.bytes, 4 if v.dtype.is_float else 1)
        for x in made.operands if made is not None else ():
            if x not in seen:
                seen.add(x)
                data.append(x)
    return min(moved, default=4), max(moved, default=4), computed


def _lanes(e: Emitter, o: Parallel, dimension: int) -> int:
    """How many iterations one vector holds: a power of two."""
    if any(isinstance(i, Print) for i in walk(o.body)):
        return 1
    _, most, computed = _element_bytes(o)
    fitting = e.machine.vector_bytes // max(most, computed)
    extent = o.extents[dimension]
    return max(1, min(fitting, 1 << (extent - 1).bit_length()))


Proofs = dict[int, tuple[bool, ...]]


def _guards(loop: LoopFacts) -> tuple[Proofs, Proofs, list[Check], list[str]]:
    """What each access may take for granted if all checks hold, and if not; the checks, without
    repetition; and the stride parameters that must be 1 for the fast form.
    """
    fast: Proofs = {}
    slow: Proofs = {}
    checks: list[Check] = []
    units: dict[str, None] = {}
    for o in walk(loop.loop.body):
        if not isinstance(o, (Load, Store)):
            continue
        buffer = (o.source if isinstance(o, Load) else o.dest).buffer
        if buffer.space != "global":
            continue
        found = [loop.check(i, extent) for i, extent in zip(o.indices, buffer.shape)]
        fast[id(o)] = tuple(c is not None for c in found)
        slow[id(o)] = tuple(c is True for c in found)
        checks += [c for c in found if isinstance(c, Check) and c not in checks]
        last = (buffer.strides or (1,))[-1]
        if isinstance(last, str):
            units[last] = None
    return fast, slow, checks, list(units)


def _holds(e: Emitter, checks: Sequence[Check], units: Sequence[str]) -> Val | None:
    """Whether all checks hold; None if there is nothing to check."""
    fn = e.fn
    made: Val | None = None
    for c in checks:
        if c.low is not None:
            made = e.access.both(made, fn.icmp("sge", _sum(e, c.low), int_val(0, "i64")))
        if c.high is not None:
            made = e.access.both(made, fn.icmp("slt", _sum(e, c.high), e.extent(c.extent)))
    for name in units:
        made = e.access.both(made, fn.icmp("eq", e.extent(name), int_val(1, "i64")))
    return made


def _sum(e: Emitter, sum: Affine) -> Val:
    total = int_val(sum.const, "i64")
    for value, factor in sum.terms.items():
        (wide,) = e.indices([value])
        assert isinstance(wide, Val)
        total = e.fn.add(total, e.fn.mul(wide, int_val(factor, "i64")))
    return total


def _variant(
    e: Emitter, o: Parallel, dimension: int, lanes: int, proofs: Proofs, inside: bool
) -> None:
    """One form of the loop. `inside`: all checks hold."""
    kept = e.lanes, e.proved, e.unit_strides, e.varying
    e.lanes, e.proved, e.unit_strides = lanes, {**e.proved, **proofs}, inside
    e.varying = varying(o.body, [o.body.args[dimension]]) if lanes > 1 else set()
    _nest(e, o, dimension, lanes, inside)
    e.lanes, e.proved, e.unit_strides, e.varying = kept


def _nest(e: Emitter, o: Parallel, dimension: int, lanes: int, inside: bool) -> None:
    """Loops over all indices, that of `dimension` innermost and by vectors."""
    order = [d for d in range(len(o.extents)) if d != dimension]

    def level(n: int) -> None:
        if n < len(order):
            d = order[n]

            def body(index: Val) -> None:
                e.env[o.body.args[d]] = index
                level(n + 1)

            counted(e, o.extents[d], 1, body)
        elif dimension < len(o.extents):
            _vectors(e, o.body, o.body.args[dimension], o.extents[dimension], lanes, inside)
        else:
            e.block(o.body)

    level(0)


def _vectors(e: Emitter, block: Block, arg: Value, extent: int, lanes: int, inside: bool) -> None:
    """The innermost loop: whole vectors, then the lanes left over; where accesses are masked
    anyway, one loop for both.
    """
    rest = extent % lanes

    def body(index: Val) -> None:
        e.env[arg] = Ramp(index, 1) if lanes > 1 else index
        if inside or not rest:
            e.block(block)
            return
        left = e.fn.binary("sub", int_val(extent), index)
        with e.running(e.fn.icmp("slt", iota(lanes), splat(e.fn, left, lanes))):
            e.block(block)

    if not inside:
        counted(e, extent, lanes, body)
        return
    counted(e, extent - rest, lanes, body)
    if rest and e.machine.masked_bytes:
        e.env[arg] = Ramp(int_val(extent - rest), 1)
        with e.running(e.fn.icmp("slt", iota(lanes), constant(shaped("i32", lanes), rest))):
            e.block(block)
    elif rest:
        _one_by_one(e, block, arg, extent - rest, extent)


def _one_by_one(e: Emitter, block: Block, arg: Value, first: int, end: int) -> None:
    """Iterations `first` to `end` without vectors."""
    kept = e.lanes, e.varying
    e.lanes, e.varying = 1, set()

    def body(index: Val) -> None:
        e.env[arg] = e.fn.add(index, int_val(first))
        e.block(block)

    counted(e, end - first, 1, body)
    e.lanes, e.varying = kept


def counted(e: Emitter, extent: int, step: int, body: Callable[[Val], Any]) -> None:
    """`body` for 0, step, … below `extent`, as a loop that LLVM leaves rolled."""
    if extent <= 0:
        return
    if extent <= step:
        body(int_val(0))
        return
    fn = e.fn
    head, done = fn.label("loop"), fn.label("endloop")
    before = fn.block.label
    fn.br(head)
    fn.start(head)
    index = fn.phi("i32")
    body(index.result)
    after = fn.binary("add", index.result, int_val(step), "nuw nsw")
    fn.cbr(fn.icmp("slt", after, int_val(extent)), head, done, done, loop="keep")
    index.incoming = [(int_val(0), before), (after, fn.block.label)]
    fn.start(done)
