"""A pipelined loop whose author orders its tiles by barriers has as many of both as he asks for
stages. The author of such a loop thinks of one tile and its
barriers, and of stages as T.Pipelined has them:

    for k in T.Pipelined(n, num_stages=2):         for k in T.serial(n):
        T.barrier_wait(free, (k + 1) % 2)              T.barrier_wait(free[k % 2], k // 2 + 1)
        T.tma_copy(A[k * K], S, barrier=full)   ->     T.tma_copy(A[k * K], S[k % 2], full[k % 2])
        …                                              …
        T.barrier_wait(full, k % 2)                    T.barrier_wait(full[k % 2], k // 2)
        T.gemm(S, …)                                   T.gemm(S[k % 2], …)
        T.barrier_arrive(free)                         T.barrier_arrive(free[k % 2])

An iteration then waits for the one that used its stage before, not for the last one. That is the
same to the author where all that the loop's groups of threads exchange are such tiles: each is
filled whole by TMA in every iteration, and read by those alone who have waited, in the same
iteration, for the phase that counts its bytes. Every barrier has a phase for each iteration, which
is what its parities say. Other loops stay as they are, and so do stages for which there is no
shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Region, Value, walk, with_boxes
from tilec.ir.effects import effects_in
from tilec.ir.types import INT32, BufferType
from tilec.passes.utils.building import with_types
from tilec.passes.utils.dependence import once, paths
from tilec.passes.utils.thread_masks import ThreadMasks
from tilec.target import Target

MOST_LOOKED_AT = 4096
"""Iterations whose parities are computed, of loops of a number that is not known."""

_AT_BARRIERS = (
    ops.MbarrierArrive, ops.MbarrierExpect, ops.MbarrierExpectTx, ops.MbarrierWait, ops.TmaCopy,
)  # fmt: skip
_OF_TILES = (ops.Copy, ops.Gemm, ops.Load, ops.TmaCopy)  # whatever the rank of their buffers is
Slot = tuple[Value, int]  # a barrier, and which of them


def with_stages_by_hand(func: Func, target: Target) -> Func:
    if not target.has("mbarrier"):
        return func
    for loop in [*func.body.every(ops.For)]:
        if loop.kind == "pipelined" and loop.num_stages > 1 and loop.body.has(ops.MbarrierWait):
            staged = _Staged(func, loop, target)
            if staged.may():
                return with_stages_by_hand(staged.rewritten(), target)
    return func


class _Staged:
    """A loop, and what it is rewritten by: `late[wait]` is how many iterations (0 or 1) the phase
    is behind its own that a wait is for."""

    def __init__(self, func: Func, loop: ops.For, target: Target) -> None:
        self.func, self.loop, self.target = func, loop, target
        self.count = loop.num_stages
        self.values = ThreadMasks(func)
        self.values.known |= {o.result: None for o in func.body.every(ops.ThreadIndex)}
        self.trips = loop.indices(lambda v: self.values.evaluate(v))
        looked_at = MOST_LOOKED_AT if self.trips is None else min(len(self.trips), MOST_LOOKED_AT)
        self.values.known[loop.body.args[0]] = np.arange(looked_at)
        self.inside = [*walk(loop.body)]
        self.barriers = {o.barrier for o in self.inside if isinstance(o, _AT_BARRIERS)}
        filled = (o.dest.buffer for o in self.inside if isinstance(o, ops.TmaCopy))
        self.tiles = {v for v in filled if v.space == "shared"}
        self.late: dict[ops.MbarrierWait, int] = {}

    def may(self) -> bool:
        return (
            not self.loop.inits
            and [self._number(v) for v in (self.loop.lo, self.loop.step)] == [0, 1]
            and self._only_here()
            and self._phases_known()
            and self._exchange_tiles_only()
            and self._fits()
        )

    def _number(self, v: Value) -> int | None:
        found = self.values.evaluate(v)
        return None if found is None or np.ndim(found) else int(found)

    def _only_here(self) -> bool:
        """Whether nothing outside of the loop knows of its tiles and barriers."""
        inside = {*self.inside}
        made = ops.Alloc | ops.MbarrierInit
        outside = (o for o in walk(self.func.body) if o not in inside and not isinstance(o, made))
        used = {v for o in outside for v in o.operands}
        if not used.isdisjoint(self.tiles | self.barriers):
            return False
        for o in self.inside:
            if isinstance(o, ops.Alloc) and o.result in self.tiles:
                return False
            if isinstance(o, ops.TmaCopy) and o.gate is not None:
                return False
            if not self.tiles.isdisjoint(o.operands) and not isinstance(o, _OF_TILES):
                return False
        return True

    def _phases_known(self) -> bool:
        """Whether each barrier is waited for once, for the phase of an iteration or the last."""
        index = self.values.known[self.loop.body.args[0]]
        slots: set[Slot] = set()
        for o in self.inside:
            if not isinstance(o, _AT_BARRIERS):
                continue
            slot = self._number(o.stage)
            if slot is None:
                return False
            if not isinstance(o, ops.MbarrierWait):
                continue
            parity: Any = self.values.evaluate(o.parity)
            late = [n for n in (0, 1) if np.array_equal(parity, (index + n) % 2)]
            if (o.barrier, slot) in slots or len(late) != 1:
                return False
            slots.add((o.barrier, slot))
            self.late[o] = late[0]
        waits = (o for o in once(self.loop.body) if isinstance(o, ops.MbarrierWait))
        return all(o in self.late for o in waits)

    def _exchange_tiles_only(self) -> bool:
        """Whether threads have nothing from others but what TMA brings them in an iteration."""
        again = {*self.inside}.difference(once(self.loop.body))
        if any(isinstance(o, _AT_BARRIERS) for o in again):
            return False
        full = {v: {*self._filled(v)} for v in self.tiles}
        if not all(full.values()):
            return False
        for _, e in effects_in(self.loop.body):
            if e.region is None:
                continue
            v, space = e.region.buffer, e.region.type.space
            if space == "global" and e.writes:
                return False
            if space == "shared" and v not in self.tiles and e.writes:
                return False
            if v in self.tiles and e.kind == "update":
                return False
        return self._read_when_full(full)

    def _filled(self, tile: Value) -> Iterator[Slot]:
        """The barriers that count the bytes of a tile; none where something else writes it."""
        for o, e in effects_in(self.loop.body):
            if e.region is not None and e.region.buffer is tile and e.writes:
                if not isinstance(o, ops.TmaCopy) or not e.region.is_whole:
                    return
        for o in self.inside:
            if isinstance(o, ops.TmaCopy) and o.dest.buffer is tile:
                slot = self._number(o.stage)
                if slot is not None:
                    yield o.barrier, slot

    def _read_when_full(self, full: dict[Value, set[Slot]]) -> bool:
        """Whether who reads a tile has waited for what fills it."""
        for path, o in paths(self.loop.body):
            before = (x for block, i in path for x in block.ops[:i])
            waits = (x for x in before if isinstance(x, ops.MbarrierWait) and not self.late[x])
            waited = {(x.barrier, self._number(x.stage)) for x in waits}
            for e in () if o.pure or o.region_fields else o.effects():
                tile = e.region.buffer if e.region and e.reads else None
                if tile in full and not full[tile] <= waited:
                    return False
        return True

    def _fits(self) -> bool:
        allocs = [o.result for o in self.func.body.every(ops.Alloc)]
        bytes = sum(
            v.buffer.stage_bytes * (self.count if v in self.tiles | self.barriers else 1)
            for v in allocs
            if v.space in ("shared", "barrier")
        )
        return bool(self.tiles) and bytes <= self.target.shared_bytes

    # --- rewriting ---

    def rewritten(self) -> Func:
        loop = self._loop()

        def visit(o: Op) -> None | Op | list[Op]:
            if isinstance(o, ops.MbarrierInit) and o.barrier in self.barriers:
                per = o.barrier.buffer.size
                slots = range(per) if o.slot < 0 else (o.slot,)
                at = [n * per + slot for n in range(self.count) for slot in slots]
                return [replace(o, slot=slot) for slot in at]
            return loop if o is self.loop else None

        types = {v: self._with_stages(v) for v in self.tiles | self.barriers}
        return self.func.with_body(with_types(self.func.body.rewrite(Op, visit), types))

    def _with_stages(self, v: Value) -> BufferType:
        t = v.buffer
        shape = (self.count, *t.shape) if v in self.tiles else (self.count * t.size,)
        return BufferType(shape, t.dtype, t.space)

    def _loop(self) -> ops.For:
        """The loop with an iteration's stage in each access."""
        index = self.loop.body.args[0]
        top = Builder(self.loop.loc)
        stage, turn = (top.binary(kind, index, self.count) for kind in ("mod", "floordiv"))
        slot, turn = top.cast(stage, INT32), top.cast(turn, INT32)
        parities = [top.binary("and", top.binary("add", turn, n), 1) for n in (0, 1)]
        stages = {index.dtype: stage, INT32: slot}

        def region(r: Region) -> Region:
            tile = r.buffer in self.tiles
            return r.within(r.buffer, stages[r.offsets[0].dtype]) if tile else r

        def visit(o: Op) -> None | Op | list[Op]:
            if isinstance(o, ops.Load) and o.source in self.tiles:
                return o.at(o.source, (stages[o.indices[0].dtype], *o.indices))
            if not isinstance(o, _AT_BARRIERS):
                return with_boxes(o, region)
            b = Builder(o.loc)
            first = b.binary("mul", slot, o.barrier.buffer.size)
            stage = b.binary("add", first, o.stage)
            at: dict[str, Any] = {"stage": stage}
            if isinstance(o, ops.MbarrierWait):
                at["parity"] = parities[self.late[o]]
            return [*b.ops, replace(with_boxes(o, region), **at)]

        body = self.loop.body.rewrite(Op, visit)
        return replace(self.loop.in_order(), body=body.with_ops([*top.ops, *body.ops]))
