"""plan_pipeline: which copies run ahead of their readers, and how many stages their buffers get.

Before: `for` loops of kind "pipelined" carry the user's `num_stages`, and perhaps `order` and
`stage`. After: a copy that may run ahead has `ahead=True` and its shared buffer its stages; a
loop in which nothing runs ahead is "serial"; shared buffers of any other stand before it, for its
iterations overlap. `attrs["not_ahead"]` says why copies in loops with stages do not: (line,
what they fill, text).

A buffer's copies run ahead if each of them fills it whole, everything that is read of it lies in
live ranges that they begin (`passes/utils/dependence.py`), and what they need can be computed ahead
of time. It has a stage for each stage of the loops that they stand in, at the top or under a
condition; several loops may share it. Where producer warps bring it by TMA, its copies may stand
anywhere: before a loop, in a loop in it, in a `while`; outside of loops with stages it has one
stage. What comes behind a loop with stages is not brought ahead: it lies where the loop's buffers
were."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.ir.clusters import groups_of, residents_of
from tilec.ir.copy_engines import REGISTER_STAGES, CopyEngines
from tilec.ir.core import Func, Op, Value, walk
from tilec.ir.effects import acting
from tilec.ir.ops import Alloc, Copy, For, If, While, constants
from tilec.passes.utils.building import is_shared
from tilec.passes.utils.dependence import LiveRange, Unclear, live_ranges, once
from tilec.passes.utils.plans import pipelined, shared_of
from tilec.passes.utils.rings import fills_tile, ring_copies, with_stages
from tilec.passes.utils.slicing import can_run_ahead, is_separable
from tilec.target import Target


def plan_pipeline(func: Func, target: Target) -> Func:
    if not pipelined(func.body):
        return func
    boxes, groups = bool(func.attrs.get("specialise")), groups_of(func)
    rings = Rings(func, CopyEngines(func, target))
    chosen = rings.chosen(boxes, groups)
    sizes = {o.result: o.type.stage_bytes for o in func.body.every(Alloc) if is_shared(o)}
    beside = sum(n for v, n in sizes.items() if v not in chosen) + staging_bytes(
        int(func.attrs["threads"] or 0) * groups, bool(func.attrs.get("staged_store")), target
    )
    stages = buffer_stages(
        rings.depths(chosen, boxes), lambda loop: loop.num_stages, rings.across(chosen), sizes,
        room_for_rings(target, beside, residents_of(func)),
    )  # fmt: skip
    if func.attrs.get("single_buffer"):
        stages = dict.fromkeys(stages, 1)
    if reasons := rings.reasons(chosen):
        func = func.with_attrs(not_ahead=tuple(reasons))
    func = with_stages(func, stages, ahead=True)

    def visit(o: For) -> None | Op | list[Op]:
        if o.kind != "pipelined":
            return None
        if not ring_copies(o):
            return o.in_order()
        inside = [x for x in o.body.ops if is_shared(x)]
        body = replace(o.body, ops=tuple(x for x in o.body.ops if x not in inside))
        return [*inside, replace(o, body=body)] if inside else None

    return func.rewrite(For, visit)


def buffer_stages(
    depths: Mapping[Value, Sequence[Depth]],
    stages: Callable[[For], int],
    across: Collection[Value],
    sizes: Mapping[Value, int],
    room: int,
) -> dict[Value, int]:
    """The stages of each buffer, where loops have so many stages. Those filled once for each tile
    of a persistent loop (`across`) have two, so that the next tile's are on their way, if `room`
    bytes hold them: loops' buffers give up what they have over two stages, the last ones first, for
    what these get comes soon."""
    found = {
        v: max([1, *(min(stages(loop), most) for loop, most in depth)])
        for v, depth in depths.items()
    }
    more = found | {v: max(2, found[v]) for v in across}
    while across and sum(sizes[v] * n for v, n in more.items()) > room:
        deepest = max(more.values())
        if deepest <= 2:
            return found
        more[[v for v, n in more.items() if n == deepest][-1]] -= 1
    return more


def room_for_rings(target: Target, beside: int, blocks: int) -> int:
    """Bytes of shared memory for what is filled ahead of time, `beside` what else there is and the
    barriers, in each of so many `blocks` of a multiprocessor."""
    return shared_of(blocks, target) - beside - BARRIER_BYTES


def staging_bytes(threads: int, staged_store: bool, target: Target) -> int:
    """What tiles go through that TMA stores."""
    return threads // target.warp_size * STAGED_BYTES if staged_store else 0


def has_stages(o: For) -> bool:
    """Whether a loop has stages, or may have as many as the plan says."""
    return o.kind == "pipelined" and o.num_stages not in (0, 1)


BARRIER_BYTES = 1024  # for the barriers of rings, and where buffers begin
STAGED_BYTES = 2048  # of a warp, for what it stores by TMA
Depth = tuple[For, int]  # a loop whose stages a buffer has as stages, and the most of these
NO_LIMIT = 1 << 30


@dataclass
class Filled:
    """A shared buffer that copies fill: `ranges`, what they leave; `loops`, for each the loop with
    stages that it may run ahead in, None for one that only producer warps can bring; `by_tma`,
    whether they may bring all; `changed`, whether threads change what has come, where it lies."""

    ranges: list[LiveRange]
    loops: list[For | None]
    by_tma: bool = False
    changed: bool = False

    @property
    def copies(self) -> list[Copy]:
        return [r.fill for r in self.ranges if isinstance(r.fill, Copy)]


class Rings:
    """The shared buffers of `func` whose copies may run ahead, and what their stages follow."""

    def __init__(self, func: Func, engines: CopyEngines) -> None:
        self.func = func
        self.engines = engines
        self.loops = [o for o in func.body.every(For) if has_stages(o)]
        self.zeros = {v for v, n in constants(func.body).items() if n == 0}
        self.allocs = {o.result for o in func.body.every(Alloc)}
        self.refused: dict[Value, str] = {}
        self.buffers = self._buffers()

    def chosen(self, boxes: bool, groups: int) -> dict[Value, Filled]:
        """Those under a plan with producer warps (`boxes`) or without, for so many groups."""
        found = {v: x for v, x in self.buffers.items() if None not in x.loops and not x.changed}
        found |= self.changed if boxes else {}
        return found | self._by_producers(found) if boxes and groups == 1 else found

    @property
    def changed(self) -> dict[Value, Filled]:
        """Those that threads change where they lie: only producer warps fill another stage then."""
        return {
            v: x for v, x in self.buffers.items() if x.changed and x.by_tma and None not in x.loops
        }

    def depths(self, chosen: Mapping[Value, Filled], boxes: bool) -> dict[Value, list[Depth]]:
        """For each of the chosen buffers the loops whose stages it follows."""
        by_loop: dict[For, list[Copy]] = {}
        for x in chosen.values():
            for o, loop in zip(x.copies, x.loops):
                if loop is not None:
                    by_loop.setdefault(loop, []).append(o)
        fewer = {
            loop
            for loop, copies in by_loop.items()
            if self.engines.through_registers(copies, boxes)
        }
        found: dict[Value, list[Depth]] = {}
        for v, x in chosen.items():
            found[v] = []
            for r, loop in zip(x.ranges, x.loops):
                if loop in fewer and not (boxes and x.by_tma):
                    found[v].append((loop, REGISTER_STAGES))
                elif (around := innermost(r)) is not None:
                    found[v].append((around, NO_LIMIT))
        return found

    def across(self, chosen: Mapping[Value, Filled], persistent: bool = False) -> list[Value]:
        """Those of the chosen buffers that no loop with stages fills, but a persistent one; or one
        that will be around all."""

        def is_across(r: LiveRange) -> bool:
            loops = (o for o in r.around if isinstance(o, For))
            return innermost(r) is None and (
                persistent or any(o.kind == "persistent" for o in loops)
            )

        filled_once = (v for v, x in chosen.items() if set(x.loops) == {None})
        return [v for v in filled_once if all(map(is_across, chosen[v].ranges))]

    # --- what may ---

    def _buffers(self) -> dict[Value, Filled]:
        """The buffers all of whose writers are copies that fill them, with clear live ranges."""
        copies = [o for o in walk(self.func.body) if fills_tile(o)]
        found: dict[Value, Filled] = {}
        wanted = {o.dest.buffer for o in copies if o.dest.buffer in self.allocs}
        for v, ranges in live_ranges(self.func.body, wanted, fills_tile).items():
            if isinstance(ranges, Unclear):
                self.refused[v] = f"line {ranges.op.loc.line} {ranges.why}"
                continue
            why = next((w for r in ranges if (w := self._refusal(r.fill))), None)
            if why is not None:
                self.refused[v] = why
                continue
            loops = [self._loop(r) for r in ranges]
            if len(set(loops)) < len(loops):  # threads have one stage of it in an iteration
                loops = [None] * len(loops)
            x = found[v] = Filled(ranges, loops)
            x.by_tma = all(self.engines.of(o, True) == "tma" for o in x.copies)
            x.changed = any(r.changed for r in ranges)
            if x.changed:
                self.refused[v] = "threads change it where it lies"
        return found

    def _refusal(self, fill: Op) -> str | None:
        """Why an op that fills a buffer cannot do so ahead of time."""
        if not fills_tile(fill):
            return f"line {fill.loc.line} writes it too"
        if fill.source.buffer in self.engines.written:
            return f"the kernel writes {fill.source.buffer.name}"
        if not self.zeros.issuperset(fill.dest.offsets):
            return "where it begins in its buffer is computed"
        return None

    def _loop(self, r: LiveRange) -> For | None:
        """The loop with stages in which a copy may run ahead by its threads: it stands in no other
        loop inside, the user's `stage` does not hold it back, and what it needs is not carried."""
        assert isinstance(r.fill, Copy)
        ops = [*r.around, r.fill]
        inside = [n for n, o in enumerate(ops) if isinstance(o, (For, While))]
        if not inside:
            return None
        loop, *branches, _ = ops[inside[-1] :]
        if not isinstance(loop, For) or not has_stages(loop):
            return None
        if not all(isinstance(o, If) for o in branches):
            return None
        if any(o.result is r.fill.dest.buffer for x in branches for o in x.every(Alloc)):
            return None
        top = ops[inside[-1] + 1]
        return loop if not _held_back(loop, top) and can_run_ahead(loop, r.fill) else None

    def _by_producers(self, chosen: Mapping[Value, Filled]) -> dict[Value, Filled]:
        """Buffers with copies that only producer warps can bring ahead of time, where these bring
        others in any case."""
        rings = {loop for x in chosen.values() if x.by_tma for loop in x.loops}
        if not rings:
            return {}
        found = {
            v: x
            for v, x in self.buffers.items()
            if v not in chosen
            and x.by_tma
            and not any(r.is_behind(rings) for r in x.ranges)
            and not any(_is_held(r) for r in x.ranges)
        }
        copies = [o for x in found.values() for o in x.copies]
        if copies and not is_separable(self.func.body, copies):
            found = {v: x for v, x in found.items() if is_separable(self.func.body, x.copies)}
        return found

    def reasons(self, chosen: Mapping[Value, Filled]) -> list[tuple[int, str, str]]:
        """(line, buffer, text) for copies of loops with stages that do not run ahead."""
        ahead = {o for x in chosen.values() for o in x.copies}
        found: list[tuple[int, str, str]] = []
        for loop in self.loops:
            for o in copies_of(loop):
                if o in ahead:
                    continue
                name = str(o.dest.buffer.name)
                if not o.dest.is_whole:
                    found.append((o.loc.line, name, f"it fills a part of {name}"))
                elif o.dest.buffer in self.refused:
                    found.append((o.loc.line, name, self.refused[o.dest.buffer]))
                elif not loop.stage:
                    why = f"{name} is filled more than once, or where it comes from is not known"
                    found.append((o.loc.line, name, f"{why} before the iteration"))
        return found


def copies_of(loop: For) -> Iterator[Copy]:
    """The copies that bring tiles in an iteration of a loop with stages: its own, those under its
    conditions, and those of loops inside that fill tiles part by part."""
    for o in once(loop.body):
        if fills_tile(o):
            yield o
        elif isinstance(o, For) and not has_stages(o):
            yield from (x for x in copies_of(o) if not x.dest.is_whole)


def _held_back(loop: For, top: Op) -> bool:
    """Whether the user's `stage` puts a statement at the top of the loop's body into the last
    stage."""
    statements = acting(loop.body) if loop.stage else []
    if not statements or len(loop.stage) != len(statements):
        return False
    return loop.stage[statements.index(top)] == max(loop.stage)


def _is_held(r: LiveRange) -> bool:
    """Whether the user's `stage` holds back what begins a range, in any loop around."""
    pairs = zip(r.around, [*r.around[1:], r.fill])
    return any(isinstance(loop, For) and _held_back(loop, top) for loop, top in pairs)


def innermost(r: LiveRange) -> For | None:
    """The innermost loop around the copy, if it has stages."""
    loop = next((o for o in reversed(r.around) if isinstance(o, (For, While))), None)
    return loop if isinstance(loop, For) and has_stages(loop) else None
