"""Whole programs on the CPU target: those in `programs`, and random ones.

Each random program has a few tensors of ragged sizes and a few on-chip tiles, and does random
things with them: copies that run over edges, element-wise loops with indices shifted, swapped,
scaled and wrapped, conditions, inner loops, products. Numbers are small whole ones, so that every
result is exact and can be compared bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cpu_helper import Compiled, check, same
from cpu_programs import Program
from interp import run_tile
from programs import PROGRAMS, expected

from tilec.ir import semantics as num
from tilec.ir import types as t
from tilec.ir.core import Block, Func, Value
from tilec.ir.ops import Store, Yield
from tilec.ir.parser import parse_func
from tilec.target import TARGETS
from tilec.tune.fit import first_fit

DTYPES = (t.FLOAT32, t.FLOAT16, t.BFLOAT16, t.INT32, t.INT8, t.FLOAT64)
LIMIT = 8  # every stored number lies in [-LIMIT, LIMIT]


class Maker:
    """Builds one random program."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.p = Program("fuzz")
        self.args: dict[str, Any] = {}
        self.tensors = [self.tensor(name) for name in "ABC"[: self.upto(3)]]
        self.tiles = [self.tile() for _ in range(self.upto(3))]
        self.start = [
            self.p.add(self.p.mul(self.p.block(d), 5), self.between(-3, 4)) for d in (0, 1)
        ]

    def upto(self, n: int) -> int:
        return int(self.rng.integers(1, n + 1))

    def between(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high))

    def one_of(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def tensor(self, name: str) -> Value:
        shape = tuple(self.upto(40) for _ in range(2))
        dtype = self.one_of(DTYPES)
        data = self.rng.integers(-LIMIT, LIMIT + 1, shape).astype(num.numpy_dtype(dtype))
        strides = None
        if self.rng.random() < 0.3:
            data, strides = data.T, (f"{name}_s0", f"{name}_s1")
        self.args[name] = data
        extents = tuple(
            int(e) if self.rng.random() < 0.3 else f"{name}{d}" for d, e in enumerate(data.shape)
        )
        return self.p.tensor(name, extents, dtype, strides)

    def tile(self) -> Value:
        dtype = self.one_of(DTYPES)
        made = self.p.alloc(
            (self.upto(20), self.upto(40)), dtype, self.one_of(("shared", "fragment"))
        )
        self.p.fill(made, self.between(-LIMIT, LIMIT))
        return made

    # --- statements ---

    def program(self) -> tuple[Func, dict[str, Any]]:
        for _ in range(self.upto(6)):
            self.one_of((self.copy, self.copy, self.loop, self.loop, self.product))()
        self.p.copy(self.tiles[0], (0, 0), self.tiles[0].buffer.static_shape, *self.target())
        return self.p.func(), self.args

    def target(self) -> tuple[Value, list[Any]]:
        tensor = self.one_of(self.tensors)
        return tensor, [self.start[0], self.start[1]]

    def copy(self) -> None:
        tile = self.one_of(self.tiles)
        extents = tuple(self.upto(e) for e in tile.buffer.static_shape)
        corner = [self.between(0, e - n + 1) for e, n in zip(tile.buffer.static_shape, extents)]
        tensor, at = self.target()
        if self.rng.random() < 0.5:
            self.p.copy(tensor, at, extents, tile, corner)
        else:
            self.p.copy(tile, corner, extents, tensor, at)

    def product(self) -> None:
        m, n, k = self.upto(12), self.upto(40), self.upto(9)
        left, right = bool(self.between(0, 2)), bool(self.between(0, 2))
        p, kinds = (
            self.p,
            self.one_of(((t.FLOAT16, t.FLOAT32), (t.FLOAT32,) * 2, (t.INT8, t.INT32))),
        )
        a = p.alloc((k, m) if left else (m, k), kinds[0])
        b = p.alloc((n, k) if right else (k, n), kinds[0])
        c = p.alloc((m, n), kinds[1], "fragment")
        for tile in (a, b):
            p.fill(tile, 2)
            self.write(tile)
        p.fill(c, 1)
        p.gemm(a, b, c, transpose_a=left, transpose_b=right, clear=bool(self.between(0, 2)))
        p.copy(c, (0, 0), (m, n), *self.target())

    def loop(self) -> None:
        self.write(self.one_of([*self.tiles, *self.tensors]))

    def write(self, dest: Value) -> None:
        """A parallel loop in which each iteration writes its own element of `dest`."""
        p, on_chip = self.p, dest.buffer.space != "global"
        extents = dest.buffer.static_shape if on_chip else (self.upto(9), self.upto(50))
        swap = bool(self.between(0, 2))
        with p.parallel(*(extents[::-1] if swap else extents)) as index:
            i, j = index[::-1] if swap else index
            at = (i, j) if on_chip else (p.add(self.start[0], i), p.add(j, self.start[1]))
            value = self.value(index, dest.dtype, dest, 3)
            if self.rng.random() < 0.3:
                p.if_(self.condition(index), lambda: p.store(dest, *at, value))
            else:
                p.store(dest, *at, value)

    # --- expressions ---

    def value(self, index: Any, dtype: t.DType, dest: Value, depth: int) -> Value:
        """Of `dtype`, in [-LIMIT, LIMIT]; reads anything but `dest`."""
        p = self.p
        kind = self.between(0, 7) if depth else self.between(0, 2)
        if kind == 0:
            return p.const(self.between(-LIMIT, LIMIT), dtype)
        if kind == 1:
            made = p.cast(p.binary("mod", self.one_of(index), self.upto(LIMIT)), dtype)
            return made
        if kind == 2:
            return p.select(
                self.condition(index), *(self.value(index, dtype, dest, depth - 1) for _ in "ab")
            )
        if kind == 3:
            a, b = (self.value(index, dtype, dest, depth - 1) for _ in "ab")
            return self.clamped(p.binary(self.one_of(("add", "sub", "mul")), a, b))
        if kind == 4:
            total = self.value(index, dtype, dest, depth - 1)
            hi = self.one_of((self.upto(4), p.binary("mod", self.one_of(index), 4)))
            (made,) = p.loop(
                self.between(-1, 2), hi, (total,),
                lambda k, s: (self.clamped(p.add(s, p.cast(k, dtype))),), self.upto(2),
            )  # fmt: skip
            return made
        sources = [b for b in (*self.tiles, *self.tensors) if b is not dest]
        return self.read(index, self.one_of(sources), dtype) if sources else p.const(1, dtype)

    def read(self, index: Any, source: Value, dtype: t.DType) -> Value:
        p, where = self.p, []
        for d, extent in enumerate(source.buffer.shape):
            i = self.one_of((index[d], index[1 - d], index[d]))
            i = p.add(p.mul(i, self.one_of((1, 1, 1, 2, -1))), self.between(-3, 4))
            if source.buffer.space != "global":
                i = p.binary("mod", i, extent)
            where.append(i)
        return p.cast(p.load(source, *where), dtype)

    def condition(self, index: Any) -> Value:
        p = self.p
        a = p.add(p.mul(self.one_of(index), self.between(-1, 3)), p.block(0))
        return p.compare(self.one_of(("lt", "ge", "eq", "ne")), a, self.between(-2, 20))

    def clamped(self, v: Value) -> Value:
        low, high = (self.p.const(n, v.dtype) for n in (-LIMIT, LIMIT))
        return self.p.binary("max", self.p.binary("min", v, high), low)


@pytest.mark.parametrize("seed", range(30))
def test_random_programs(seed: int) -> None:
    func, args = Maker(np.random.default_rng(seed)).program()
    arch = ("host", "x86-64-v3", "x86-64")[seed % 3]
    check(func, {k: v.copy(order="K") for k, v in args.items()}, (3, 2), arch)


def grid_of(func: Func, args: dict[str, Any]) -> tuple[int, ...]:
    """The grid that a kernel asks for: its grid block, run by the interpreter as a kernel of one
    block that stores what it yields."""
    p = Program("grid")
    out = p.tensor("grid", (3,), t.INT32)
    *ops, last = func.grid.ops
    assert isinstance(last, Yield)
    zeros = [p.const(d) for d in range(len(last.values))]
    stores = tuple(Store(out, (i,), v) for i, v in zip(zeros, last.values))
    body = Block((), (*p.b.ops, *ops, *stores))
    found = np.ones(3, np.int32)
    params = (*p.params, *func.params)
    run_tile(Func("grid", params, Block((), (Yield(()),)), body), {**args, "grid": found}, (1,))
    return tuple(int(n) for n in found)


@pytest.mark.covering(1)
@pytest.mark.parametrize("arch", ["host", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_programs_as_written_and_after_the_passes(
    name: str, arch: str, rng: np.random.Generator
) -> None:
    text, make = PROGRAMS[name]
    args = make(rng)
    func = parse_func(text)
    for form in (func, first_fit(func, TARGETS["cpu"])):
        mine = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
        Compiled(form, arch)(mine, grid_of(func, args))
        for output, want in expected(name, args).items():
            close = {
                "rtol": 2e-3 if name == "matmul" else 2e-5,
                "atol": 2e-2 if name == "matmul" else 1e-5,
            }
            same(mine[output], want.astype(mine[output].dtype), f"{name} {output}", **close)
