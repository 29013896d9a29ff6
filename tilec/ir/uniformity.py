"""Over which group of threads a value is the same (`Uniformity`): what decides whether threads meet
at a barrier, and whether one of them may do something for all; and which values differ between the
lanes, or threads, that run a block side by side (`varying`). And whether it shows in what a kernel
does that threads do it, or how many: where it does not, passes choose as they like."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from enum import IntEnum

from tilec.ir import ops
from tilec.ir.core import Block, Func, Op, Value, walk


class Level(IntEnum):
    """The largest group of threads in which a value is the same for all. A warp is the target's."""

    BLOCK = 0
    WARP = 1
    THREAD = 2


LANES = 32
"""Of a warp, where the function's attribute `warp_size` says no other number."""
# thread < n is the same for a warp where n is a multiple of its lanes; thread <= n where n + 1 is.
_BEHIND = {"lt": 0, "ge": 0, "le": 1, "gt": 1}
_COMMUTATIVE = ("add", "mul", "min", "max", "and", "or", "xor")


_LEVELS = {
    "thread_index": Level.THREAD,
    "lane": Level.THREAD,
    "warp": Level.WARP,
    "reg_read": Level.THREAD,
    "mem_load": Level.THREAD,
    "atomic": Level.THREAD,
    "mem_atomic": Level.THREAD,
    "asm": Level.THREAD,  # which may read the thread's index
    "asm_effect": Level.THREAD,
    "extern": Level.THREAD,
    "extern_effect": Level.THREAD,
}


class Uniformity:
    """The `Level` of every scalar of `func`, and of what a `local` buffer holds.

    Uniform by meaning, not by place: an element read at a uniform index is uniform, whichever
    thread holds it. What is computed under a condition is no more uniform than the condition.
    """

    def __init__(self, func: Func) -> None:
        self._levels: dict[Value, Level] = {}
        self._around: dict[Op, Level] = {}
        self._lanes = int(func.attrs.get("warp_size") or LANES)
        self._constants: dict[Value, int] = {}
        self._quotients: dict[Value, int] = {}  # the thread's index // the number
        self._swapped: dict[Value, tuple[Value, int]] = {}  # what, and by which bits of the lane
        self._alike: dict[Value, int] = {}  # of lanes that differ in these bits
        self._again = True  # a value was raised that ops before it in the text use
        while self._again:
            self._again = False
            self._block(func.body, Level.BLOCK)

    def level(self, value: Value) -> Level:
        return self._levels.get(value, Level.BLOCK)

    def around(self, o: Op) -> Level:
        """The largest group whose threads come to `o`, which has an effect or regions, together."""
        return self._around[o]

    def _raise(self, value: Value, level: Level) -> bool:
        if level > self._levels.get(value, Level.BLOCK):
            self._levels[value] = level
            return True
        return False

    def _highest(self, values: Sequence[Value]) -> Level:
        found = Level.BLOCK
        for v in values:
            level = self._levels.get(v)
            if level is not None and level > found:
                found = level
        return found

    def _block(self, block: Block, around: Level) -> None:
        raised = self._levels.keys()
        for o in block.ops:
            if not o.region_fields:
                if not o.pure:
                    self._effects(o, around)
                elif isinstance(o, ops.Const) and isinstance(o.value, int):
                    self._constants[o.result] = o.value
                own = _LEVELS.get(o.opname, Level.BLOCK)
                if own is Level.BLOCK and raised.isdisjoint(o.operands):
                    continue
                level = max(own, self._highest(o.operands))
                if level is Level.THREAD and self._same_for_a_warp(o):
                    level = Level.WARP
                for r in o.results:
                    self._raise(r, level)
                continue
            self._hand_on(o)
            self._around[o] = around
            inside = around
            match o:
                case ops.For():
                    self._raise(o.body.args[0], self._highest(ops.decides(o)))
                case ops.Parallel():
                    inside = Level.THREAD
                    for arg in o.body.args:
                        self._raise(arg, Level.THREAD)
                case ops.Scope():
                    inside = Level.BLOCK
            for region in o.regions:
                self._block(region, max(inside, self._highest(ops.decides(o))))
            self._again = self._hand_on(o) or self._again

    def _same_for_a_warp(self, o: Op) -> bool:
        """Whether `o` is the thread's index // a multiple of a warp's lanes, or compares it with
        one, or is what all lanes have brought together by exchanges."""
        match o:
            case ops.ThreadIndex():
                self._quotients[o.result] = 1
            case ops.Cast(operand=v) if v in self._quotients and o.dtype.bits >= 32:
                self._quotients[o.result] = self._quotients[v]
            case ops.Binary(kind="floordiv" | "shr" as kind, lhs=v, rhs=r) if v in self._quotients:
                by = self._constants.get(r, 0)
                by = 1 << by if kind == "shr" and 0 <= by < 31 else by
                if by > 0:
                    self._quotients[o.result] = self._quotients[v] * by
                    return self._quotients[o.result] % self._lanes == 0
            case ops.Compare(lhs=v, rhs=r, kind=kind) if self._quotients.get(v) == 1:
                end = self._constants.get(r, 1) + _BEHIND.get(kind, 0)
                return kind in _BEHIND and r in self._constants and end % self._lanes == 0
            case ops.Shuffle():
                return self._levels.get(o.lane, Level.BLOCK) < Level.THREAD
            case ops.ShuffleXor(value=v, mask=bits):
                if bits & (bits - 1) == 0:
                    self._swapped[o.result] = (v, bits)
            case ops.Binary(kind=kind, lhs=v, rhs=r) if kind in _COMMUTATIVE:
                for own, other in ((v, r), (r, v)):
                    source, bits = self._swapped.get(other, (None, 0))
                    if source is own:
                        self._alike[o.result] = self._alike.get(own, 0) | bits
                        return self._alike[o.result] == self._lanes - 1
        return False

    def _hand_on(self, o: Op) -> bool:
        """A carried value is as uniform as all that flows into it; after the loop, or the branch,
        as what decides about it, too, and so where a `while` ends. Whether an argument was
        raised."""
        decided, raised = self._highest(ops.decides(o)), False
        for sources, (*args, result) in ops.handed_on(o):
            level = self._highest(sources)
            for arg in args:
                raised = self._raise(arg, level) or raised
            if isinstance(o, ops.While):
                raised = self._raise(args[0], decided) or raised
            self._raise(result, max(level, decided))
        return raised

    def _effects(self, o: Op, around: Level) -> None:
        for e in o.effects():
            if e.writes or e.kind == "output":
                self._around[o] = around
            if e.writes and e.region and e.region.type.space == "local":
                level = max(self._highest(o.operands), around)
                self._again = self._raise(e.region.buffer, level) or self._again


@functools.lru_cache(maxsize=8)
def uniformity_of(func: Func) -> Uniformity:
    """The uniformity of `func`: the verifier and the next pass ask the same."""
    return Uniformity(func)


def level_within(func: Func) -> Callable[[Value], Level]:
    """As `Uniformity.level`, outside of parallel loops: in most of TILE nothing tells threads
    apart, nor is theirs alone, and so nothing is looked for."""
    if any(cls.opname in _LEVELS for cls in func.body.kinds) or any(
        o.type.space == "local" for o in func.body.every(ops.Alloc)
    ):
        return lambda value: uniformity_of(func).level(value)
    return lambda value: Level.BLOCK


def varying(
    block: Block, sources: Iterable[Value], allocs: bool = True, same: Container[Value] = ()
) -> set[Value]:
    """The values inside `block` that may differ between lanes, given that `sources` do, and those
    of `same` do not. With `allocs`, buffers allocated inside are each lane's own: what is read from
    them differs."""
    found = set(sources)
    for o in walk(block):
        if allocs and isinstance(o, ops.Alloc):
            found.update(o.results)
    size = -1
    while size != len(found):
        size = len(found)
        _spread(block, found, same)
    return found


def parted(
    block: Block, differs: Container[Value], around: Op | None = None
) -> Iterator[tuple[Op, Op]]:
    """The ops in `block` to which not all may come, or not as often, for what `differs`: each with
    the innermost op that asks for some of that."""
    for o in block.ops:
        if around is not None:
            yield o, around
        inside = o if any(v in differs for v in ops.decides(o)) else around
        for region in o.regions:
            yield from parted(region, differs, inside)


def _spread(block: Block, found: set[Value], same: Container[Value], alone: bool = True) -> None:
    """`alone`: each lane does for itself what stands here, and does not share iterations."""
    for o in block.ops:
        for region in o.regions:
            _spread(region, found, same, alone and not isinstance(o, ops.Parallel))
        uneven = not found.isdisjoint(ops.decides(o))
        for sources, holders in ops.handed_on(o):
            if uneven or not found.isdisjoint(sources):
                found.update(holders)
        if isinstance(o, ops.For) and uneven:
            found.add(o.body.args[0])
        if alone and isinstance(o, ops.Atomic):  # each finds what the one before has left
            found.update(o.results)
        if not isinstance(o, (ops.For, ops.While, ops.If)) and not found.isdisjoint(o.operands):
            found.update(r for r in o.results if r not in same)


# --- whether threads show ---


def asks_for_threads(func: Func) -> bool:
    """Whether it shows in what the user's code does, as it is written in TILE, that each thread
    does it: it asks for the thread index, or has atomics that are no iteration's."""
    return any(func.body.every(ops.ThreadIndex)) or _has_own_atomics(func.body)


def threads_show(func: Func) -> bool:
    """Whether what the kernel (TILE) does hangs on how many threads there are: barriers count them,
    too, operands that each has its part of, layouts that its author has made for them, and what he
    has written for an assembler."""
    by_warps = any(
        isinstance(o, ops.WarpMma | ops.LoadMatrices | ops.Asm | ops.AsmEffect)
        or (isinstance(o, ops.AnnotateLayout) and o.dest.space == "fragment")
        for o in walk(func.body)
    )
    return by_warps or asks_for_threads(func) or ops.is_by_hand(func.body)


def _has_own_atomics(block: Block) -> bool:
    for o in block.ops:
        if isinstance(o, ops.Atomic):
            return True
        if not isinstance(o, ops.Parallel) and any(map(_has_own_atomics, o.regions)):
            return True
    return False
