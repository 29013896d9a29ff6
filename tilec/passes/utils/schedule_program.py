"""What `check_schedule` executes of a function, in small: the ops that decide what is done, and
what they decide."""

from __future__ import annotations

import math

from tilec.ir import ops
from tilec.ir.clusters import groups_of
from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.types import TensorMapType


class Program:
    """The function, and of its ops those that decide what is done, and what they decide."""

    def __init__(self, func: Func) -> None:
        self.func = func
        self.defs = func.body.defs
        self.threads = int(func.attrs["threads"] or 0)
        self.consumer_groups = groups_of(func)
        self.rings = {
            o.result
            for o in func.body.every(ops.Alloc)
            if o.type.space == "shared" and o.type.stages > self.consumer_groups
        }
        self.root = {o.result: o.root for o in func.body.every(ops.RingStage)}
        loads = [o for o in func.body.every(ops.TmaLoad)]
        self.rings |= {self.root[o.dest] for o in loads if o.dest in self.root}
        # What stores leave through is no ring: `lower_stores` waits for it, behind this pass.
        copies = [o for o in func.body.every(ops.Copy)]
        self.rings -= {self.root.get(v, v) for o in copies if (v := o.staging) is not None}
        # Numbers that producers tell the others.
        producers = [o for o in func.body.every(ops.Scope) if o.name == "producer"]
        stores = [o for x in producers for o in x.body.every(ops.Store)]
        self.told = {self.root[o.dest] for o in stores if o.dest in self.root} & self.rings
        arrived = [o for o in func.body.every(ops.MbarrierArrive) if not o.publish]
        expected = [o for o in func.body.every(ops.MbarrierExpect)]
        self.barriers = {o.barrier for o in expected} | {o.barrier for o in arrived}  # of one block
        # Of a tile that blocks of a cluster load for one another, each loads one of so many parts.
        self.parts = {o.dest: self._receivers(o.blocks) for o in loads if o.blocks}
        self.stages = max((v.buffer.stages for v in self.rings), default=1)
        self.wanted = self._wanted()
        self.relevant: dict[Block, tuple[Op, ...]] = {}

    def _receivers(self, blocks: Value) -> int:
        """How many bits of the number are set: it is a literal, or one that is shifted."""
        made = self.defs[blocks]
        made = self.defs[made.lhs] if isinstance(made, ops.Binary) else made
        assert isinstance(made, ops.Const)
        return int(made.value).bit_count()

    def _wanted(self) -> set[Value]:
        """The scalars that control flow, stages and barriers depend on."""
        left: list[Value] = []
        stores: dict[Value, list[Value]] = {}
        carried: dict[Value, tuple[Value, ...]] = {}
        for o in walk(self.func.body):
            left += ops.decides(o)
            for sources, holders in ops.handed_on(o):
                carried.update(dict.fromkeys(holders, sources))
            match o:
                case ops.RingStage():
                    left.append(o.stage)
                case (
                    ops.MbarrierWait() | ops.MbarrierExpect() | ops.MbarrierArrive() | ops.TmaLoad()
                ):
                    left += [v for v in o.operands if v not in getattr(o, "coords", ())]
                case ops.Store() if self.is_known(o.dest):
                    stores.setdefault(self.root.get(o.dest, o.dest), []).append(o.value)
        found: set[Value] = set()
        while left:
            v = left.pop()
            if v in found:
                continue
            found.add(v)
            made = self.defs.get(v)
            if (
                isinstance(made, ops.Load)
                and (held := self.root.get(made.source, made.source)) in stores
            ):
                left += (*stores[held], held)
            if made is not None and not made.region_fields:
                left += made.operands
            left += carried.get(v, ())
        return found

    def is_known(self, v: Value) -> bool:
        """Whether what is stored there is executed as it is: in a variable, or where a producer
        tells it."""
        return v.space == "local" or self.root.get(v) in self.told

    def ops(self, block: Block) -> tuple[Op, ...]:
        """What has to be executed of `block`."""
        found = self.relevant.get(block)
        if found is None:
            found = self.relevant[block] = tuple(o for o in block.ops if self._is_relevant(o))
        return found

    def _is_relevant(self, o: Op) -> bool:
        if isinstance(o, ops.Parallel):
            return True
        if o.region_fields:
            inside = any(self.ops(region) for region in o.regions)
            return inside or any(r in self.wanted for r in o.results)
        if isinstance(o, ops.Store) and self.is_known(o.dest):
            return self.root.get(o.dest, o.dest) in self.wanted
        if isinstance(o, ops.RingStage):
            return self.root[o.result] in self.rings
        if o.pure or isinstance(o, ops.Load):
            return any(r in self.wanted for r in o.results)
        return o.opname != "yield" and bool(o.effects())


def box_bytes(o: ops.TmaLoad) -> int:
    t = o.map.type
    assert isinstance(t, TensorMapType)
    return math.prod(t.box) * t.dtype.bits // 8
