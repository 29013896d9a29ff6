"""A block of a launch: its threads' memory, barriers and engines, and who they are to the user."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilec.ir.core import Func, Op, Value, walk
from tilec.ir.llvm import Function, Inst
from tilec.ir.ops import MemLoad, MemStore
from tilec.ir.uniformity import Level, uniformity_of
from tilec.sim.barriers import Barriers
from tilec.sim.buffers import RegisterBuffer, SharedBuffer, shared_buffers
from tilec.sim.clocks import Clocks
from tilec.sim.counts import Counts
from tilec.sim.engines import Engines
from tilec.sim.findings import Findings
from tilec.sim.intrinsics import DISPATCH_PACKET, intrinsic
from tilec.sim.memory import BlockMemory, Updates
from tilec.sim.program import LoadStore, Program
from tilec.sim.regions import GlobalMemory
from tilec.sim.tensors import GlobalTensor, TensorMap
from tilec.sim.threads import BlockInfo, Coordinates, Threads
from tilec.sim.trace import Tracer
from tilec.target import Target

_GRID_OF_PACKET = 12  # bytes from the packet's start to the grid's three sizes, in threads


@dataclass(frozen=True)
class Launch:
    """A resolved launch: `function` are the records of `func` (LOWERED), `program` the same made
    ready to run. `parameters` in the function's order as NumPy scalars: values, addresses, numbers
    of `maps`. `grid`: the blocks that are launched; `cluster`: how many of them form a cluster.
    `at_launch`: the registers of a thread when its block begins."""

    name: str
    func: Func
    function: Function
    strings: Mapping[str, str]
    program: Program
    registers: tuple[RegisterBuffer, ...]
    target: Target
    plan: str
    parameters: tuple[Any, ...]
    tensors: tuple[GlobalTensor, ...]
    maps: tuple[TensorMap, ...]
    grid: Coordinates
    cluster: Coordinates
    at_launch: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return int(self.func.attrs["launch_threads"])


@dataclass
class Setting:
    """What all blocks of one run have in common. `granule`: bytes of the narrowest access to shared
    memory. `seed` makes the noise in memory that nobody has written."""

    launch: Launch
    globals: GlobalMemory
    findings: Findings
    counts: Counts
    granule: int = 1
    checks: bool = True
    seed: int = 0
    tracer: Tracer | None = None
    printed: list[str] = field(default_factory=list)

    @functools.cached_property
    def updates(self) -> Updates:
        """Stores of which no two threads may make the same one."""
        return updates(self.launch.func)

    @functools.cached_property
    def buffers(self) -> list[SharedBuffer]:
        """The buffers that each block has in shared memory."""
        return shared_buffers(self.launch.func)


class ThreadBlock(BlockInfo):
    """One block. `memories` and `barriers`: those of its cluster by rank, to which its own are
    added."""

    def __init__(
        self,
        setting: Setting,
        index: Coordinates,
        clocks: Clocks,
        memories: list[BlockMemory],
        barriers: list[Barriers],
    ) -> None:
        self.setting, self.index = setting, index
        launch = setting.launch
        self.func, self.registers, self.target = launch.func, launch.registers, launch.target
        self.grid, self.cluster_dims, self.threads = launch.grid, launch.cluster, launch.threads
        self.findings, self.checks = setting.findings, setting.checks
        self.warp_size = launch.target.warp_size
        self.order = clocks.order(len(memories))
        self.steps: Callable[[], int] = int  # segments that the cluster has run
        self.executing = None
        self.memory = self._memory(memories)
        self.barriers = Barriers(self, barriers, launch.at_launch)
        self.engines = Engines(self, self.memory, self.barriers, launch.maps)

    def _memory(self, memories: list[BlockMemory]) -> BlockMemory:
        s = self.setting
        return BlockMemory(
            self.order,
            s.globals,
            int(s.launch.func.attrs["shared_bytes"]),
            s.buffers,
            granule=s.granule,
            cluster=memories,
            counts=s.counts if s.checks else None,
            checks=s.checks,
            seed=s.seed + self.order.clocks.party,
            updates=s.updates if s.checks else frozenset(),
            tracer=s.tracer,
            step=lambda: self.steps(),
        )

    def finish(self) -> None:
        """All threads have ended."""
        self.barriers.finish()
        self.engines.finish()

    def leave(self) -> None:
        """Its cluster has come to an end. What its parts know of one another goes, so that they
        take no search for cycles to go."""
        self.memory.cluster.clear()
        self.memory.shared.shadow = None
        self.barriers.cluster.clear()
        self.memory.step = self.steps = int
        self.order.clocks.across = None
        del self.memory, self.barriers, self.engines

    # --- what threads ask for ---

    def semantics(self, inst: Inst) -> Callable[..., Any]:
        """What a row or intrinsic does."""
        found: Callable[..., Any] | None = inst.semantics or intrinsic(inst.instr)
        assert found is not None  # or the program would not have been read
        return found

    def constant(self, at: Any, access: LoadStore) -> Any:
        """A load of what the launch has put beside the arguments: AMD's dispatch packet, of which
        the grid's size in threads is known."""
        dim = (int(at) - DISPATCH_PACKET - _GRID_OF_PACKET) // 4
        return np.int32(self.grid[dim] * (self.threads if dim == 0 else 1))

    def print_line(self, active: Threads, name: str, values: tuple[Any, ...]) -> None:
        """T.print, of each of the threads: on stdout, and kept for the report."""
        for line in lines_of(self.setting.launch.strings[name], values, len(active.lanes)):
            self.setting.printed.append(line)
            print(line)

    def written_register(self, active: Threads, inst: Inst, slot: str, value: Any) -> None:
        """A stack slot that is traced has got a value."""
        assert self.setting.tracer is not None
        self.setting.tracer.register_written(
            slot, value, active.lanes, self.index, inst.loc, self.steps()
        )


# --- T.print ---
#
# C's formats applied to the values of each thread.

_DIRECTIVE = re.compile(r"%(%|lld|llu|\.\d+g)")


def lines_of(text: str, values: Sequence[Any], threads: int) -> Iterator[str]:
    """The line that each of `threads` threads prints, without its end. `text` holds the directives
    that emitters write: %lld, %llu, %.9g, %.17g and %%; each value is a NumPy scalar (the same in
    all threads) or an array over them."""
    for i in range(threads):
        yield _line(text.removesuffix("\n"), [v[i] if np.ndim(v) else v for v in values])


def _line(text: str, values: Sequence[Any]) -> str:
    left = iter(values)

    def spell(found: re.Match[str]) -> str:
        return "%" if found[1] == "%" else _number(found[1], next(left))

    return _DIRECTIVE.sub(spell, text)


def _number(word: str, value: Any) -> str:
    if not isinstance(value, np.generic):
        return str(value)  # never written
    if word == "llu":
        return str(int(value) & 2**64 - 1)
    return str(int(value)) if word == "lld" else f"%{word}" % float(value)


# --- updates ---
#
# Which stores put back what they have read: `h[bin[t]] += 1`, by each thread for itself.
#
# That several threads store one value to one element is harmless in itself, and common. Here it is
# not: each has computed it from what was there before, so that all but one of the results are lost.


def updates(func: Func) -> Updates:
    """The updates of a LOWERED function in which the element depends on the thread. (Where it does
    not, all threads act as one.)"""
    made = func.body.defs
    uniformity = uniformity_of(func)
    return frozenset(
        (o.loc, o.dest.name)
        for o in walk(func.body)
        if isinstance(o, MemStore)
        and uniformity.level(o.offset) > Level.BLOCK
        and _reads(o.value, (o.dest, o.offset), made)
    )


def _reads(value: Value, place: tuple[Value, Value], made: dict[Value, Op]) -> bool:
    """Whether `value` is computed from what is loaded from `place`: a buffer and an offset."""
    seen: set[Value] = set()
    todo = [value]
    while todo:
        v = todo.pop()
        o = made.get(v)
        if v in seen or o is None:
            continue
        seen.add(v)
        if isinstance(o, MemLoad):
            if (o.source, o.offset) == place:
                return True
        todo += o.operands
    return False
