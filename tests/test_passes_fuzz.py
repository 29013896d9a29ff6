"""Random structured programs through the normalising passes, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from interp import run_tile

from tilec.ir import types as t
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Param, Region, Value
from tilec.ir.ops import (
    Alloc,
    Binary,
    BlockIndex,
    Cast,
    Compare,
    Const,
    Copy,
    Fill,
    For,
    If,
    Load,
    Parallel,
    Select,
    Store,
    ThreadIndex,
    Unary,
    While,
    Yield,
)
from tilec.ir.parser import parse_func
from tilec.ir.printer import print_func
from tilec.ir.verify import verify
from tilec.passes.mem2reg import mem2reg
from tilec.passes.recognise_idioms import recognise_idioms
from tilec.passes.simplify import simplify
from tilec.passes.utils.dce import sweep
from tilec.target import TARGETS, Target

TARGET = TARGETS["cuda:sm_90a"]
INT = t.ScalarType(t.INT32)
ROWS, COLS = 5, 7  # of the tensors; the grid covers more


class Writer:
    """Writes one random kernel: scalars of two types, `local` variables, loops, branches, tiles."""

    def __init__(self, rng: np.random.Generator, by_thread: bool) -> None:
        self.rng = rng
        self.by_thread = by_thread
        tensor = t.BufferType((ROWS, COLS), t.INT32, "global")
        self.x, self.y = Value(tensor, "X"), Value(tensor, "Y")
        self.n = Value(INT, "n")
        self.build = Builder()
        self.ints = [self.n]
        self.bools: list[Value] = []
        self.vars: list[Value] = []
        self.loops = 0

    def one_of(self, values: list[Value]) -> Value:
        return values[int(self.rng.integers(len(values)))]

    def const(self, n: int) -> Value:
        return self.build.value(Const, n, t.INT32)

    def kernel(self) -> Func:
        self.ints.append(self.build.value(BlockIndex, 0))
        if self.by_thread:
            self.ints.append(self.build.value(ThreadIndex))
        for _ in range(3):
            self.variable()
        self.tile = self.build.value(Alloc, t.BufferType((4, 4), t.INT32, "shared"), name="S")
        zero = self.const(0)
        whole = Region(self.tile, (zero, zero), (4, 4))
        self.build.emit(Fill, whole, self.one_of(self.ints[:2]))
        self.statements(8, 3)
        for n, v in enumerate(self.vars[:3]):
            self.store(self.const(n), self.build.value(Load, v, (self.const(0),)))
        self.copy_out()
        params = (
            Param(self.x, "tensor", "X"), Param(self.y, "tensor", "Y"), Param(self.n, "scalar", "n")
        )  # fmt: skip
        attrs = {"threads": 4}
        return Func("f", params, Block((), (Yield(),)), self.build.block(), attrs)

    def variable(self) -> None:
        made = self.build.value(Alloc, t.BufferType((1,), t.INT32, "local"), name="v")
        self.build.emit(Store, made, (self.const(0),), self.one_of(self.ints))
        self.vars.append(made)

    def store(self, row: Value, value: Value) -> None:
        """Write where no other block or thread does."""
        column = self.ints[1]
        if self.by_thread:
            eight = self.const(1)
            column = self.build.value(
                Binary, "add", self.ints[2], self.build.value(Binary, "mul", column, eight)
            )
            keep = self.build.value(Compare, "eq", self.ints[1], self.const(0))
            zero = self.const(-1)
            row = self.build.value(Select, keep, row, zero)
        self.build.emit(Store, self.y, (row, column), value)

    def copy_out(self) -> None:
        if self.by_thread:
            return
        inner, outer = Builder(), self.build
        i, j = Value(INT, "i"), Value(INT, "j")
        self.build = inner
        three = self.const(3)
        row = inner.value(Binary, "add", i, three)
        value = inner.value(Load, self.tile, (i, j))
        zero = self.const(0)
        first = inner.value(Compare, "eq", self.ints[1], zero)
        past = self.const(99)
        inner.emit(Store, self.y, (inner.value(Select, first, row, past), j), value)
        self.build = outer
        outer.emit(Parallel, (4, 4), inner.block((i, j)))

    def expression(self) -> None:
        a, b = self.one_of(self.ints), self.one_of(self.ints)
        build = self.build
        match int(self.rng.integers(8)):
            case 0:
                self.ints.append(self.const(int(self.rng.integers(-3, 9))))
            case 1:
                kind = str(self.rng.choice(["lt", "le", "eq", "ne"]))
                self.bools.append(build.value(Compare, kind, a, b))
            case 2 if self.bools:
                self.ints.append(build.value(Select, self.one_of(self.bools), a, b))
            case 3 if self.bools:
                self.bools.append(build.value(Unary, "not", self.one_of(self.bools)))
            case 4:
                self.ints.append(build.value(Load, self.x, (a, b)))
            case 5:
                wide = build.value(Cast, a, t.INT64)
                self.ints.append(build.value(Cast, wide, t.INT32))
            case _:
                kinds = ["add", "sub", "mul", "min", "max", "and", "xor", "floordiv", "mod"]
                self.ints.append(build.value(Binary, str(self.rng.choice(kinds)), a, b))

    def statements(self, count: int, depth: int) -> None:
        for _ in range(count):
            choice = int(self.rng.integers(10))
            if choice < 4:
                self.expression()
            elif choice < 6:
                value = self.one_of(self.ints)
                self.build.emit(Store, self.one_of(self.vars), (self.const(0),), value)
            elif choice < 7:
                loaded = self.build.value(Load, self.one_of(self.vars), (self.const(0),))
                self.ints.append(loaded)
            elif depth and choice == 7:
                self.branch(depth)
            elif depth and choice == 8 and self.loops < 2:
                self.loop(depth)
            elif choice == 9 and not self.by_thread and self.loops == 0:
                self.move()

    def inside(self, depth: int, args: tuple[Value, ...] = ()) -> tuple[Builder, list[Value]]:
        """Statements in a region of their own; its builder and the ints that may be yielded."""
        outer = self.build, self.ints, self.bools, self.vars
        self.build, self.ints, self.bools = Builder(), [*self.ints, *args], list(self.bools)
        self.vars = list(self.vars)
        if self.rng.integers(2):
            self.variable()
        self.statements(int(self.rng.integers(1, 6)), depth - 1)
        made, ints = self.build, self.ints
        self.build, self.ints, self.bools, self.vars = outer
        return made, ints

    def branch(self, depth: int) -> None:
        if not self.bools:
            return
        cond, count = self.one_of(self.bools), int(self.rng.integers(3))
        blocks = []
        for _ in range(2):
            made, ints = self.inside(depth)
            made.emit(Yield, tuple(self.one_of(ints) for _ in range(count)))
            blocks.append(made.block())
        o = self.build.emit(If, cond, blocks[0], blocks[1], (INT,) * count)
        self.ints += o.results

    def loop(self, depth: int) -> None:
        count = int(self.rng.integers(3))
        inits = tuple(self.one_of(self.ints) for _ in range(count))
        args = tuple(Value(INT, "c") for _ in range(count))
        self.loops += 1
        trips = int(self.rng.integers(0, 4))
        if self.rng.integers(2):
            index = Value(INT, "i")
            lo, hi, step = self.const(0), self.const(trips), self.const(1)
            made, ints = self.inside(depth, (index, *args))
            made.emit(Yield, tuple(self.one_of(ints) for _ in range(count)))
            o = self.build.emit(For, "serial", lo, hi, step, inits, made.block((index, *args)))
            self.ints += o.results
        else:
            self.until(depth, trips, inits, args)
        self.loops -= 1

    def until(
        self, depth: int, trips: int, inits: tuple[Value, ...], args: tuple[Value, ...]
    ) -> None:
        """A `while` that counts in a carried value."""
        counter = Value(INT, "k")
        shown = tuple(Value(INT, "d") for _ in inits)
        test, seen = Builder(), Value(INT, "k")
        limit = test.value(Const, trips, t.INT32)
        test.emit(Yield, (test.value(Compare, "lt", seen, limit),))
        made, ints = self.inside(depth, (counter, *args))
        after = made.value(Binary, "add", counter, made.value(Const, 1, t.INT32))
        made.emit(Yield, (after, *(self.one_of(ints) for _ in inits)))
        o = self.build.emit(
            While,
            (self.const(0), *inits),
            test.block((seen, *shown)),
            made.block((counter, *args)),
        )
        self.ints += o.results

    def move(self) -> None:
        """A loop over elements that may be a copy, or nearly one."""
        i, j = Value(INT, "i"), Value(INT, "j")
        rows, cols = (int(n) for n in self.rng.integers(1, 4, 2))
        made, outer = Builder(), self.build
        self.build = made
        a, b = self.one_of(self.ints), self.one_of(self.ints)
        source = [made.value(Binary, "add", i, a), made.value(Binary, "add", b, j)]
        if self.rng.integers(4) == 0:
            source.reverse()
        value = made.value(Load, self.x, tuple(source))
        if self.rng.integers(4) == 0:
            value = made.value(Binary, "mul", value, a)
        up = self.const(int(self.rng.integers(0, 2)))
        dest = (made.value(Binary, "add", i, up), j)
        made.emit(Store, self.tile, dest, value)
        self.build = outer
        outer.emit(Parallel, (rows, cols), made.block((i, j)))


def dce(func: Func, target: Target) -> Func:
    return sweep(func)


ORDERS = [
    (simplify,), (recognise_idioms,), (mem2reg,), (dce,), (mem2reg, simplify, recognise_idioms),
    (simplify, recognise_idioms, mem2reg, simplify), (recognise_idioms, simplify), (dce, mem2reg),
]  # fmt: skip


@pytest.mark.parametrize("by_thread", [False, True], ids=["tiles", "threads"])
def test_random_programs_keep_their_meaning(by_thread: bool, rng: np.random.Generator) -> None:
    changed = raised = 0
    for case in range(150):
        func = Writer(rng, by_thread).kernel()
        verify(func)
        text = print_func(func)
        assert print_func(parse_func(text)) == text
        x = rng.integers(-9, 9, (ROWS, COLS)).astype(np.int32)
        n = int(rng.integers(-2, 9))
        want = run(func, x, n, case)
        order = ORDERS[case % len(ORDERS)]
        done = func
        for apply in order:
            done = apply(done, TARGET)
            verify(done)
            assert apply(done, TARGET) is done or apply is simplify
        changed += done is not func
        raised += any(isinstance(o, Copy) for o in done.body.ops)
        assert np.array_equal(want, run(done, x, n, case)), (order, text, print_func(done))
    assert changed > 100 and (by_thread or raised > 3)


def run(func: Func, x: np.ndarray, n: int, seed: int) -> np.ndarray:
    y = np.full((ROWS, COLS), -77, np.int32)
    run_tile(func, {"X": x.copy(), "Y": y, "n": n}, (COLS + 1,), seed)
    return y
