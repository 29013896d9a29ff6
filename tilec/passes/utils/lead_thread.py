"""What one thread of a group does, written so that all lanes of its warp run the loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tilec.ir.core import Block, Builder, Op, Value, upstream
from tilec.ir.effects import is_clonable
from tilec.ir.ops import (
    Alloc,
    Atomic,
    Binary,
    Compare,
    Const,
    For,
    If,
    Lane,
    Shuffle,
    Warp,
    While,
    Yield,
    yielded,
)
from tilec.passes.utils.building import or_zero

Wanted = Callable[[For], If | None]


class LeadThread:
    """`by_warp` takes the branch of the first thread of a warp, as in

        if lane == 0 and warp == 0: before; for n in range(lo, hi): if c(n): body; behind

    with a loop that is `wanted` (whose branch `wanted` gives), and makes of it

        before, behind: only the first lane does what others see
        if warp == 0: for n in range(lo, hi): if c(n): if lane == 0 …: body

    Where such a loop stands in another one over what the first lane takes from a counter (a
    persistent block's tiles), the others are told what it has got.

    Each lane has registers and `local` buffers of its own: those of the others hold what is not
    looked at, for all that the loop itself depends on is computed without them."""

    def __init__(self, defs: Mapping[Value, Op], written: set[Value], wanted: Wanted) -> None:
        self.defs, self.written, self.wanted = defs, written, wanted

    def by_warp(self, branch: If) -> list[Op] | None:
        """None where `branch` is no such one."""
        warp = self._warp(branch)
        if warp is None or branch.results or len(branch.orelse.ops) > 1:
            return None
        places = (x for o in branch.then.ops for x in (o, *self._repeated(o)))
        if not any(isinstance(o, For) and self.wanted(o) for o in places):
            return None
        made = self._spread(branch.then.ops, branch.cond)
        return made and [replace(branch, cond=warp, then=Block((), (*made, Yield(loc=branch.loc))))]

    def _warp(self, branch: If) -> Value | None:
        """The condition on the warp of `lane == 0 and warp == n`."""
        both = self.defs.get(branch.cond)
        if not isinstance(both, Binary) or both.kind != "and":
            return None
        for lane, warp in ((both.lhs, both.rhs), (both.rhs, both.lhs)):
            if self._is_index(lane, Lane) and self._is_index(warp, Warp):
                return warp
        return None

    def _is_index(self, cond: Value, kind: type[Op]) -> bool:
        """Whether `cond` is "this lane (or warp) is the one with that number"."""
        o = self.defs.get(cond)
        return (
            isinstance(o, Compare)
            and o.kind == "eq"
            and isinstance(self.defs.get(o.lhs), kind)
            and isinstance(self.defs.get(o.rhs), Const)
        )

    def _spread(self, ops: Iterable[Op], lead: Value) -> list[Op] | None:
        """The ops for all lanes; what is seen from outside is done where `lead` holds."""
        made: list[Op] = []
        held: list[Op] = []

        def flush() -> None:
            if held:
                made.append(_guarded(held, lead))
                held.clear()

        for o in ops:
            if isinstance(o, Yield):
                continue
            branch = self.wanted(o) if isinstance(o, For) else None
            if branch is not None and isinstance(o, For):
                if not self._agreed(o, branch):
                    return None
                flush()
                *inside, end = branch.then.ops
                led = replace(branch, then=Block((), (_guarded(inside, lead), end)))
                body = tuple(led if x is branch else x for x in o.body.ops)
                made.append(replace(o, body=replace(o.body, ops=body)))
            elif isinstance(o, While) and self._repeated(o):
                flush()
                told = self._told(o, lead)
                if told is None:
                    return None
                made.append(replace(o, body=told))
            elif isinstance(o, Atomic):
                flush()
                made.append(or_zero(lead, o))
            elif o.pure or isinstance(o, Alloc):
                made.append(o)  # nothing that is held back gives it a value
            elif self._is_own(o):
                flush()
                made.append(o)
            elif o.results:
                return None
            else:
                held.append(o)
        flush()
        return made

    def _repeated(self, o: Op) -> tuple[Op, ...]:
        """What a `while` does again and again, for whose end nothing has to be done."""
        return o.body.ops if isinstance(o, While) and all(x.pure for x in o.cond.ops[:-1]) else ()

    def _told(self, loop: While, lead: Value) -> Block | None:
        """The body of a `while`, whose next values the first lane tells the others."""
        made = self._spread(loop.body.ops, lead)
        if made is None:
            return None
        b = Builder(loop.loc)
        b.ops += made
        first = b.const(0)
        b.emit(Yield, tuple(b.value(Shuffle, v, first) for v in yielded(loop.body)))
        return b.block(loop.body.args)

    def _agreed(self, loop: For, branch: If) -> bool:
        """Whether all lanes compute the same bounds and conditions."""
        given = loop.lo, loop.hi, branch.cond
        return all(is_clonable(x, self.written) for x in upstream(given, self.defs))

    def _is_own(self, o: Op) -> bool:
        """Whether `o` is about registers and buffers of its own thread, or reads what nobody
        writes."""
        return not o.region_fields and all(
            e.region is not None
            and (e.region.buffer.buffer.space == "local" or is_clonable(o, self.written))
            for e in o.effects()
        )


def _guarded(ops: Sequence[Op], lead: Value) -> Op:
    b = Builder(ops[0].loc)
    b.branch(lead, ops)
    return b.ops[0]
