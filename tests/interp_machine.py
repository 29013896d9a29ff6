"""The state of one block in the reference interpreter, and the table of what each op does to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilec.ir import types as t
from tilec.ir.core import Block, Func, Op, Value
from tilec.ir.ops import control

Results = tuple[np.ndarray, ...]


class InterpError(Exception):
    """The program did something that has no meaning (an on-chip access out of bounds, …)."""


@dataclass
class Memory:
    """One buffer's elements. `per_lane`: the first axis is the lane. `safe`: what reads out of
    bounds give.
    """

    data: np.ndarray
    type: t.BufferType
    per_lane: bool = False
    safe: Any = None


def lane_of(x: Any, lane: int) -> Any:
    """One lane's element of a value, one lane's copy of a buffer."""
    if isinstance(x, Memory):
        return Memory(x.data[lane], x.type, False, x.safe) if x.per_lane else x
    return x[lane] if x.ndim else x


@dataclass
class Machine:
    """One block's state. `lanes` is 0 where one thread of control runs; `mask` (or None) the
    lanes that do.
    """

    func: Func
    env: dict[Value, Any]
    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    threads: int
    lanes: int
    noise: np.random.Generator
    printed: list[str]
    mask: np.ndarray | None = None
    first_warp: int = 0

    def get(self, value: Value) -> np.ndarray:
        return self.env[value]

    def memory(self, value: Value) -> Memory:
        return self.env[value]

    def fork(self, env: dict[Value, Any], lanes: int) -> Machine:
        """A machine in the same place with its own environment, lanes and no mask."""
        return type(self)(
            self.func, env, self.block, self.grid, self.threads, lanes, self.noise, self.printed
        )

    def of_lane(self, lane: int) -> Machine:
        """A machine of one lane: what is an array over the lanes is that lane's element there."""
        env = {v: lane_of(x, lane) for v, x in self.env.items()}
        return self.fork(env, 0)

    def active(self) -> np.ndarray:
        return np.ones(self.lanes, bool) if self.mask is None else self.mask

    def scalar(self, value: Value) -> int:
        """A value that must be the same in all active lanes, as an int."""
        got = self.get(value)
        if got.ndim == 0:
            return int(got)
        found = np.unique(got[self.active()])
        if found.size != 1:
            raise InterpError(
                f"{value} differs between lanes where one value is needed: {found[:4]}"
            )
        return int(found[0])

    @contextmanager
    def masked(self, mask: np.ndarray) -> Iterator[None]:
        kept, self.mask = self.mask, mask
        yield
        self.mask = kept

    def run(self, block: Block) -> Results:
        """Execute a region; the values its Yield hands over."""
        for o in block.ops:
            if isinstance(o, control.Yield):
                return tuple(self.get(v) for v in o.values)
            execute = EXECUTE.get(type(o)) or EXECUTE[Op]
            got = execute(self, o)
            for r, x in zip(o.results, got or (), strict=True):
                self.env[r] = x
        return ()


EXECUTE: dict[type[Op], Callable[[Machine, Any], Sequence[Any] | None]] = {}


def executes(cls: type[Op]) -> Callable[[Any], Any]:
    """The decorated function executes ops of class `cls`: (machine, op) -> values of its
    results.
    """

    def register(fn: Any) -> Any:
        EXECUTE[cls] = fn
        return fn

    return register
