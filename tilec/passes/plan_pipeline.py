"""plan_pipeline: which copies of a pipelined loop run ahead, and how many versions their buffers
get.

Before: `for` loops of kind "pipelined" carry the user's `num_stages`, and perhaps `order` and
`stage`. After: a copy that may run ahead has `ahead=True` and its shared buffer has that many
versions; a loop in which nothing may run ahead is "serial"; shared buffers of any other stand
before it, for its iterations overlap. A buffer gets versions only if each
iteration overwrites it whole before reading it, it is used nowhere else, and what its copy needs
can be computed ahead of time; otherwise it has one version and orders the loop."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.agents import REGISTER_VERSIONS, Agents
from tilec.ir.analysis import acting
from tilec.ir.core import Block, Func, Op, Substitution, Value, rewrite, walk
from tilec.ir.effects import buffers_written, written_tensors
from tilec.ir.ops import Alloc, Const, Copy, For
from tilec.passes.utils.slicing import NotClonable, Slice
from tilec.target import Target


def plan_pipeline(func: Func, target: Target) -> Func:
    """See the module's opening."""
    uses: dict[Value, list[Op]] = {}
    for o in walk(func.body):
        for v in set(o.operands):
            uses.setdefault(v, []).append(o)
    written = written_tensors(func.body)
    allocs = {o.result for o in walk(func.body) if isinstance(o, Alloc)}
    zeros = {o.result for o in walk(func.body) if isinstance(o, Const) and o.value == 0}
    ahead: set[Copy] = set()
    versions: dict[Value, int] = {}
    agents = Agents(func, target)
    boxes = bool(func.attrs.get("specialise"))
    for loop in [o for o in walk(func.body) if isinstance(o, For) and o.kind == "pipelined"]:
        if loop.num_stages < 2:
            continue
        inside = set(walk(loop.body))
        copies = [
            o
            for o in _candidates(loop)
            if (v := o.dest.buffer) in allocs
            and o.dest.is_whole
            and zeros.issuperset(o.dest.offsets)
            and o.source.buffer not in written
            and all(u in inside for u in uses[v])
            and not any(u is not o and v in buffers_written(u.effects()) for u in uses[v])
            and _comes_first(loop.body, o, uses[v])
            and can_run_ahead(loop, o)
        ]
        ahead.update(copies)
        fewer = agents.through_registers(copies, boxes)
        for o in copies:
            waits = fewer and agents.of(o, boxes) != "tma"
            count = min(loop.num_stages, REGISTER_VERSIONS) if waits else loop.num_stages
            versions[o.dest.buffer] = 1 if func.attrs.get("single_buffer") else count
    subst: Substitution = {}

    def visit(o: Op) -> None | Op | list[Op]:
        match o:
            case Alloc(type=t) if o.result in versions:
                typed = replace(t, versions=versions[o.result])
                subst[o.result] = Value(typed, o.result.name)
                return replace(o, type=typed, results=(subst[o.result],))
            case For(kind="pipelined"):
                if not any(isinstance(x, Copy) and x.ahead for x in o.body.ops):
                    return replace(o, kind="serial", num_stages=0, order=(), stage=())
                inside = [x for x in o.body.ops if _is_shared(x)]
                if inside:
                    body = replace(o.body, ops=tuple(x for x in o.body.ops if x not in inside))
                    return [*inside, replace(o, body=body)]
            case Copy() if any(o.dest.buffer is subst.get(a.dest.buffer) for a in ahead):
                return replace(o, ahead=True)
        return None

    return func.with_body(rewrite(func.body, visit, subst))


def _is_shared(o: Op) -> bool:
    return isinstance(o, Alloc) and o.type.space == "shared"


def _candidates(loop: For) -> list[Copy]:
    """Copies into shared memory at the top of the body that the user's `stage` does not hold
    back."""
    statements = acting(loop.body)
    copies = [
        o
        for o in statements
        if isinstance(o, Copy)
        and o.source.buffer.buffer.space == "global"
        and o.dest.buffer.buffer.space == "shared"
    ]
    if loop.stage and len(loop.stage) == len(statements):
        last = max(loop.stage)
        copies = [o for o in copies if loop.stage[statements.index(o)] < last]
    return copies


def _comes_first(body: Block, copy: Op, uses: list[Op]) -> bool:
    """Whether every other use of the copy's buffer stands after it in the body."""
    at = body.ops.index(copy)
    before = set(walk(Block((), body.ops[:at])))
    return not any(u in before for u in uses)


def can_run_ahead(loop: For, copy: Op) -> bool:
    """Whether the copy's operands can be computed for a later iteration: no carried value is
    needed."""
    try:
        needed = Slice(loop.body, [copy])
    except NotClonable:
        return False
    carried = set(loop.body.args[1:])
    return not carried & needed.needed
