"""Which loops the GPU emitter unrolls, and which register files must be arrays.

Registers have no addresses: an index into a fragment or a local buffer has to be a number when the
instruction is printed. It is one if it comes from constants and from the indices (or carried
values) of loops that are unrolled. So every loop of which a register index is made is unrolled, if
its bounds are numbers; a buffer that still has an index known at run time only becomes an array on
the stack: right, and slow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.ir import ops
from tilec.ir.core import Block, Func, Op, Value, made_in, walk
from tilec.ir.types import ScalarType

LONGEST_SERIAL = 256
"""Iterations up to which a loop that the user did not mark is unrolled for its register indices."""

_WISHED = ("unroll", "vectorized")
_FOLDED = (ops.Const, ops.Binary, ops.Compare, ops.Select, ops.Cast, ops.Lookup)
"""What the emitter folds when all operands are numbers."""


@dataclass
class RegisterPlan:
    """`unrolled`: loops whose bounds are numbers when they are printed and that are to be unrolled.
    `arrays`: fragments and local buffers with an index that is not a number."""

    unrolled: set[Op] = field(default_factory=set)
    arrays: set[Value] = field(default_factory=set)


def plan_registers(func: Func) -> RegisterPlan:
    """See the module's opening."""
    body = func.body
    made = body.defs
    loop_of = {a: o for o in body.every(ops.For) for a in o.body.args}
    uses = [use for o in walk(body) for use in register_uses(o)]
    wanted: set[Op] = {o for o in body.every(ops.For) if o.kind in _WISHED}
    wanted |= _selecting([i for _, i in uses], made, loop_of)
    known = _known(body, wanted)
    plan = RegisterPlan()
    plan.unrolled = {o for o in wanted if isinstance(o, ops.For) and {o.lo, o.hi, o.step} <= known}
    plan.arrays = {buffer for buffer, index in uses if buffer is not None and index not in known}
    return plan


def register_uses(o: Op) -> list[tuple[Value | None, Value]]:
    """(buffer, index) of each register that `o` selects; a lookup selects from no buffer."""
    match o:
        case ops.RegRead() | ops.RegWrite():
            return [(o.fragment, o.index)]
        case _ if isinstance(o, ops.ElementAccess) and o.buffer.space == "local":
            return [(o.buffer, i) for i in o.indices]
        case ops.Ldmatrix():
            return [(o.dest, o.register)]
        case ops.Mma():
            return [(o.c, o.c_register), (o.a, o.a_register), (o.b, o.b_register)]
        case ops.Lookup():
            return [(None, o.index)]
        case _:
            return []


def _selecting(
    indices: list[Value], made: dict[Value, Op], loop_of: dict[Value, ops.For]
) -> set[Op]:
    """The loops whose index or carried values reach one of `indices`."""
    loops: set[Op] = set()
    seen: set[Value] = set()
    todo = list(indices)
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        loop, o = loop_of.get(v), made.get(v)
        if loop is not None:
            if _is_short(loop, made):
                loops.add(loop)
            at = loop.body.args.index(v)
            if at:
                todo += [loop.inits[at - 1], ops.yielded(loop.body)[at - 1]]
        elif isinstance(o, ops.If):
            at = o.results.index(v)
            todo += [o.cond, *(ops.yielded(side)[at] for side in o.regions)]
        elif isinstance(o, ops.For):
            todo.append(o.body.args[1 + o.results.index(v)])
        elif o is not None and o.pure:
            todo += o.operands
    return loops


def _is_short(loop: ops.For, made: dict[Value, Op]) -> bool:
    def number(v: Value) -> object:
        o = made.get(v)
        return o.value if isinstance(o, ops.Const) else None

    indices = loop.indices(number)
    # What is not known is perhaps a number once an outer loop is unrolled.
    return indices is None or len(indices) <= LONGEST_SERIAL


def _known(body: Block, wanted: set[Op]) -> set[Value]:
    """The values that are numbers when they are printed: the largest set that its rules keep."""
    known = made_in(body)

    def rules(o: Op) -> list[tuple[Value, bool]]:
        """Each value that `o` makes and whether it can still be a number."""
        if isinstance(o, ops.For):
            fixed = o in wanted and {o.lo, o.hi, o.step} <= known
            sources = zip(o.body.args[1:], o.results, o.inits, ops.yielded(o.body))
            found = [(o.body.args[0], fixed)]
            for arg, result, first, following in sources:
                number = fixed and first in known and following in known
                found += [(arg, number), (result, number)]
            return found
        if isinstance(o, ops.If):
            sides = zip(o.results, *(ops.yielded(side) for side in o.regions))
            return [(r, o.cond in known and {a, b} <= known) for r, a, b in sides]
        number = isinstance(o, _FOLDED) and all(v in known for v in o.operands)
        made = (*o.results, *(a for region in o.regions for a in region.args))
        return [(v, number and isinstance(v.type, ScalarType) and v.dtype.is_int) for v in made]

    left, changed = list(walk(body)), True
    while changed:
        changed, asked, left = False, left, []  # what makes no number is not asked again
        for o in asked:
            some = False
            for v, number in rules(o):
                if v in known and not number:
                    known.discard(v)
                    changed = True
                some = some or v in known
            if some:
                left.append(o)
    return known
