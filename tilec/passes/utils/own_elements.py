"""What threads' own code does that needs no order among them: each, or each warp, reads and writes
elements of its own; places that a counter gives out it gives out once; and sums of atomics are the
same in any order."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from tilec.ir import ops
from tilec.ir.affine import Affine
from tilec.ir.analysis import Facts, facts_of
from tilec.ir.core import Block, Func, Op, Value, within
from tilec.ir.uniformity import Level, Uniformity
from tilec.passes.utils.thread_masks import ThreadMasks

MOST_ELEMENTS = 1 << 18
"""Accesses of all threads that are looked at for one statement."""
MOST_DIMENSIONS = 3
"""Of those that say whose an element is: their indices, of 20 bits each, make one number."""


def is_unordered(o: Op, facts: Facts) -> bool:
    """Whether threads may do `o`, which updates an element, or stores one in shared memory where a
    counter says, in any order and in whatever iterations. A counter's resets are told by
    barriers."""
    if isinstance(o, ops.Atomic):
        return o.kind in ops.FOLDS
    if not isinstance(o, ops.Store) or o.dest.space != "shared":
        return False
    for index in o.indices:
        form = facts.form(index)
        made = [facts.made_by(v) for v, step in form.terms.items() if abs(step) == 1]
        counter = made[0] if len(form.terms) == 1 and made else None
        if not isinstance(counter, ops.Atomic) or counter.kind != "add":
            continue
        by = facts.constant(counter.value) if counter.value.is_integer else None
        fixed = all(facts.constant(i) is not None for i in counter.indices)
        if by and fixed and counter.dest.space == "shared":
            return True
    return False


def own_places(o: ops.Store, facts: Facts, uniformity: Uniformity) -> tuple[int, ...]:
    """Which elements of a tensor a thread writes by `o`, where no other writes them by a statement
    of which the same is told: those of one dimension that are as far from a multiple of all
    threads' as its own number says. () where that is not known."""
    found: tuple[int, ...] = ()
    for d, form in enumerate(map(facts.form, o.indices)):
        own = [v for v in form.terms if isinstance(facts.made_by(v), ops.ThreadIndex)]
        if any(uniformity.level(v) != Level.BLOCK for v in form.terms if v not in own):
            return ()
        if own:
            most = facts.range(own[0])[1]
            if found or len(own) > 1 or most is None:
                return ()
            step, others = form.terms[own[0]], form.without(own[0])
            all_ = abs(step) * (most + 1)
            if Affine(0, others.terms).divisor(facts.divisor) % all_:
                return ()
            found = d, step, form.const % all_
    return found


Around = tuple[ops.For | ops.Scope | ops.If, ...]  # of a condition: where it holds
Access = tuple[ops.ElementAccess, Around]


def own_elements(
    func: Func,
    roots: Mapping[Value, Value],
    tensors: Container[Value],
    uniformity: Uniformity,
    lanes: int,
) -> dict[Value, int]:
    """The shared buffers, and those of `tensors`, of which no element is accessed by the statements
    of two threads of a block (tile ops and loops over tiles aside), whatever they do it for, and in
    whatever iteration: threads need not meet for them; or only of two that are `lanes` of one warp.
    With how many threads share an element at most: 1 or `lanes`. `roots`: the ring that a stage
    belongs to."""
    accesses: dict[Value, list[Access]] = {}
    for o, around in within(func.body):
        if not isinstance(o, ops.ElementAccess) or any(isinstance(x, ops.Parallel) for x in around):
            continue
        if o.buffer.space == "shared" or o.buffer in tensors:
            groups = tuple(x for x in around if isinstance(x, ops.For | ops.Scope))
            accesses.setdefault(roots.get(o.buffer, o.buffer), []).append((o, groups))
    table = _Table(func, uniformity, lanes)
    found = {v: table.owners(each) for v, each in accesses.items()}
    return {v: owners for v, owners in found.items() if owners}


def phases(
    func: Func, roots: Mapping[Value, Value], uniformity: Uniformity, lanes: int
) -> dict[Op, object]:
    """The accesses of shared buffers that need no order among those of the same phase: between two
    barriers of the author's, where of no element that is written there two threads have any access.
    Each with what stands for its phase. A loop with a barrier in its body has one between its
    iterations, too; what other loops do is of the phase that they stand in."""
    found: dict[tuple[object, Value], list[Access]] = {}
    apart: dict[object, Around] = {}

    def walk(block: Block, phase: object, around: Around) -> None:
        if any(map(_all_meet, block.ops)):
            phase = object()
        apart.setdefault(phase, around)
        for o in block.ops:
            if _all_meet(o):
                phase = object()
                apart[phase] = around
            elif isinstance(o, ops.ElementAccess) and o.buffer.space == "shared":
                found.setdefault((phase, roots.get(o.buffer, o.buffer)), []).append((o, around))
            elif not isinstance(o, ops.Parallel):
                for region in o.regions:
                    inner = around
                    if isinstance(o, ops.For) or (isinstance(o, ops.If) and region is o.then):
                        inner = (*around, o)
                    walk(region, phase, inner)

    if not any(map(_all_meet, func.body.every(ops.Barrier))) or any(func.body.every(ops.Scope)):
        return {}
    walk(func.body, object(), ())
    table = _Table(func, uniformity, lanes)
    return {
        o: phase
        for (phase, _), each in found.items()
        if any(isinstance(o, ops.Store) for o, _ in each) and table.is_apart(each, apart[phase])
        for o, _ in each
    }


def _all_meet(o: Op) -> bool:
    return isinstance(o, ops.Barrier) and not (o.id or o.threads) and o.number is None


class _Table:
    def __init__(self, func: Func, uniformity: Uniformity, lanes: int) -> None:
        self.func, self.uniformity, self.lanes = func, uniformity, lanes
        self.facts = facts_of(func)
        self.threads = [o.result for o in func.body.every(ops.ThreadIndex)]
        self.blocks = {o.result for o in func.body.every(ops.BlockIndex)}

    def _only_adds_blocks(self, v: Value) -> bool:
        """Whether where a block begins changes nothing about which threads share an element."""
        others = self.facts.form(v).terms.keys() - self.blocks
        return all(self.blocks.isdisjoint(self.facts.origins.of(x)) for x in others)

    def owners(self, accesses: Sequence[Access]) -> int:
        """Whether each element is accessed by one thread (1), or one warp (`lanes`); 0 where it may
        be by others. Where all threads have the same index in a dimension it says nothing."""
        if not self.threads or any(isinstance(o, ops.Atomic) for o, _ in accesses):
            return 0
        rank = len(accesses[0][0].indices)
        told = [
            d for d in range(rank) if not all(self._is_uniform(o.indices[d]) for o, _ in accesses)
        ]
        if not told or len(told) > MOST_DIMENSIONS:
            return 0
        found = self._all_of(accesses, told)
        if found is None:
            return 0
        at, who, _ = found
        return next((n for n in (1, self.lanes) if not len(_shared(at, who // n))), 0)

    def is_apart(self, accesses: Sequence[Access], apart: Around) -> bool:
        """Whether no two threads access an element that is written, in one iteration of the loops
        `apart`."""
        if not self.threads or any(isinstance(o, ops.Atomic) for o, _ in accesses):
            return False
        dims = range(len(accesses[0][0].indices))
        asked = self.facts.origins.of_all(i for o, _ in accesses for i in o.indices)
        told = [x for x in apart if isinstance(x, ops.For) and x.body.args[0] in asked]
        if len(dims) + len(told) > MOST_DIMENSIONS:
            return False
        found = self._all_of(accesses, dims, told)
        if found is None:
            return False
        at, who, written = found
        return not np.isin(_shared(at, who), at[written]).any()

    def _all_of(
        self, accesses: Sequence[Access], dims: Sequence[int], told: Sequence[ops.For] = ()
    ) -> tuple[Any, Any, Any] | None:
        """The elements of all accesses in their order, by which threads, and whether these write
        them; None where that is not known of one."""
        places, owners, written = [], [], []
        for o, around in accesses:
            found = self._elements(o, around, dims, told)
            if found is None:
                return None
            places.append(found[0])
            owners.append(found[1])
            written.append(np.full(len(found[0]), isinstance(o, ops.Store)))
        order = np.argsort(at := np.concatenate(places), kind="stable")
        return at[order], np.concatenate(owners)[order], np.concatenate(written)[order]

    def _is_uniform(self, v: Value) -> bool:
        return self.uniformity.level(v) == Level.BLOCK

    def _elements(
        self, o: ops.ElementAccess, around: Around, dims: Sequence[int],
        told: Sequence[ops.For] = (),
    ) -> tuple[Any, Any] | None:  # fmt: skip
        """The elements that are accessed, and by which threads; None where that is not known. In
        each iteration of the loops `told` they are others."""
        values = ThreadMasks(self.func)
        threads = range(values.threads)
        axes: list[tuple[Value, range]] = []
        counted = self.facts.origins.of_all(o.indices[d] for d in dims)
        for x in around:
            if isinstance(x, ops.For):
                index, each = x.body.args[0], x.indices(self.facts.constant)
                if each is not None and (index in counted or x in told):
                    axes.append((index, each))
            elif isinstance(x, ops.Scope) and x.name not in ("consumer", "producer"):
                threads = range(self.lanes * x.first_warp, self.lanes * (x.first_warp + x.warps))
        shape = (len(threads), *(len(each) for _, each in axes))
        if np.prod(shape, dtype=float) > MOST_ELEMENTS:
            return None

        def along(numbers: range, axis: int) -> Any:
            found = np.array(numbers, np.int32)
            return found.reshape([-1 if d == axis else 1 for d in range(len(shape))])

        thread = along(threads, 0)
        values.known = dict.fromkeys(self.threads, thread)
        values.known |= {v: along(each, n) for n, (v, each) in enumerate(axes, 1)}
        shared = o.buffer.space == "shared"
        if not shared and all(self._only_adds_blocks(o.indices[d]) for d in dims):
            values.known |= {v: np.zeros((), np.int32) for v in self.blocks}
        number: Any = np.zeros(shape, np.int64)
        inside: Any = np.ones(shape, bool)
        for x in around:
            holds = values.evaluate(x.cond) if isinstance(x, ops.If) else None
            inside = inside if holds is None else inside & holds
        for d in dims:
            at = values.evaluate(o.indices[d])
            if at is None:
                return None
            if shared:
                inside &= (at >= 0) & (at < o.buffer.buffer.static_shape[d])
            number = number * (1 << 20) + at
        for x in told:
            if x.body.args[0] not in values.known:
                return None
            number = number * (1 << 20) + values.known[x.body.args[0]]
        return number[inside], np.broadcast_to(thread, shape)[inside]


def _shared(at: Any, who: Any) -> Any:
    """The elements, in their order, that have several owners."""
    return at[1:][(at[1:] == at[:-1]) & (who[1:] != who[:-1])]
