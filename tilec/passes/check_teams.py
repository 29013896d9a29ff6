"""check_teams: programs that teams cannot share out are refused before any code is made.

Before and after: TILE; nothing is changed. With a plan of several teams, each of them does some
iterations of the loop over blocks, at the same time as the others do theirs, and all of what stands
around the loop. So nothing around it may act on global memory; no iteration may read what another
one left in an on-chip buffer; and where the user wrote the loop himself, it must not matter in
which order its iterations write global memory. Raises ResourceError with the reason."""

from __future__ import annotations

from collections.abc import Iterable

from tilec.ir.core import Block, Func, Value, walk
from tilec.ir.effects import buffers_read, buffers_written, is_seen, written_tensors
from tilec.ir.ops import (
    Alloc,
    Const,
    For,
    If,
    Parallel,
    While,
)
from tilec.passes.utils.accesses import parallel_accesses
from tilec.passes.utils.teams import loop_over_blocks, refusal
from tilec.target import Target


def check_teams(func: Func, target: Target) -> Func:
    """See the module's opening."""
    if int(func.attrs.get("teams", 1)) == 1:
        return func
    loop = loop_over_blocks(func)
    for o in func.body.ops:
        if o is not loop:
            for x in (o, *(y for r in o.regions for y in walk(r))):
                if is_seen(x):
                    raise refusal(func, "this acts outside of its loop over blocks", x.loc)
    found = _Exposed(func, loop).first
    if found is not None:
        why = f"{found.name} hands on what one block leaves in it to the next"
        raise refusal(func, why)
    if not func.attrs.get("persistent"):
        _check_order(func, loop)
    return func


def _check_order(func: Func, loop: For) -> None:
    """Refuse iterations of the user's own loop that read what it writes, or that write in the same
    place each."""
    written = written_tensors(loop.body)
    varies = set(loop.body.args)
    for o in walk(loop.body):
        used = set(o.operands).union(*(x.operands for r in o.regions for x in walk(r)))
        if varies & used:
            varies.update(o.results, *(r.args for r in o.regions))
        for e in () if o.regions else o.effects():
            if e.region is None or e.region.buffer not in written:
                continue
            if e.reads:
                name = e.region.buffer.name
                raise refusal(func, f"this reads {name}, which its blocks write", o.loc)
            if e.writes and not varies.intersection(e.region.offsets):
                raise refusal(func, "this writes the same place for every block", o.loc)


class _Exposed:
    """Finds the first on-chip buffer that lives longer than an iteration of `loop`, is written in
    it, and is read before the same iteration has written all of it."""

    def __init__(self, func: Func, loop: For) -> None:
        outside = (x for o in func.body.ops if o is not loop for x in walk(Block((), (o,))))
        lasting = {o.result for o in outside if isinstance(o, Alloc)}
        self.candidates = lasting.intersection(buffers_written(loop.effects()))
        self.numbers = {o.result: o.value for o in walk(func.body) if isinstance(o, Const)}
        self.first: Value | None = None
        self._scan(loop.body, set())

    def _read(self, values: Iterable[Value], whole: set[Value]) -> None:
        for v in values:
            if self.first is None and v in self.candidates and v not in whole:
                self.first = v

    def _scan(self, block: Block, whole: set[Value]) -> set[Value]:
        """Walk over `block`, where the buffers in `whole` have been written; those written after
        it."""
        for o in block.ops:
            match o:
                case For():
                    after = self._scan(o.body, set(whole))
                    lo, hi = self.numbers.get(o.lo), self.numbers.get(o.hi)
                    if lo is not None and hi is not None and lo < hi:
                        whole = after
                case While():
                    whole = self._scan(o.cond, whole)
                    self._scan(o.body, set(whole))
                case If():
                    then, orelse = (self._scan(r, set(whole)) for r in o.regions)
                    whole = then & orelse
                case Parallel():
                    self._scan(o.body, set(whole))
                    whole |= _covered(o)
                case _:
                    effects = o.effects()
                    self._read(buffers_read(effects), whole)
                    whole.update(buffers_written(effects, whole=True))
        return whole


def _covered(loop: Parallel) -> set[Value]:
    """Buffers of which the loop writes every element, whatever its conditions say."""
    found = set()
    for a in parallel_accesses(loop):
        shape = a.buffer.buffer.shape
        by_index = tuple(loop.extents[d] for d in a.dims)
        if a.write and a.op in loop.body.ops and by_index == tuple(e for e in shape if e != 1):
            found.add(a.buffer)
    return found
