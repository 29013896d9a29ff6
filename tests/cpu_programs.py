"""A short way to write TILE functions in tests: `Program` is a builder with a word for each op."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tilec.ir import types as t
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Param, Region, Value
from tilec.ir.loc import Loc
from tilec.ir.ops import (
    Alloc,
    Binary,
    Bitcast,
    BlockIndex,
    Cast,
    Compare,
    Const,
    Copy,
    Fill,
    Fma,
    For,
    Gemm,
    If,
    Load,
    Parallel,
    Select,
    Store,
    Unary,
    While,
    Yield,
)

INT = t.ScalarType(t.INT32)


class Program:
    """A kernel under construction. Numbers given where a value is expected become constants."""

    def __init__(self, name: str = "kernel", threads: int = 128) -> None:
        self.name = name
        self.params: list[Param] = []
        self.attrs = {"threads": threads}
        self.b = Builder(Loc(f"{name}.py", 1))
        self.sizes: dict[str, Value] = {}

    # --- parameters ---

    def tensor(
        self, name: str, shape: Sequence[int | str], dtype: t.DType, strides: Any = None
    ) -> Value:
        made = Value(t.BufferType(tuple(shape), dtype, "global", strides), name)
        self.params.append(Param(made, "tensor", name))
        for role, words in (("size", shape), ("stride", strides or ())):
            for d, word in enumerate(words):
                if isinstance(word, str) and word not in self.sizes:
                    kind = t.INT32 if role == "size" else t.INT64
                    self.sizes[word] = Value(t.ScalarType(kind), word)
                    self.params.append(Param(self.sizes[word], role, name, d))
        return made

    def scalar(self, name: str, dtype: t.DType) -> Value:
        made = Value(t.ScalarType(dtype), name)
        self.params.append(Param(made, "scalar", name))
        return made

    def func(self) -> Func:
        grid = Block((), (Yield(()),))
        return Func(self.name, tuple(self.params), grid, self.b.block(), self.attrs)

    # --- ops ---

    def const(self, value: Any, dtype: t.DType = t.INT32) -> Value:
        return self.b.value(Const, value, dtype)

    def value(self, x: Any, like: Value | None = None) -> Value:
        if isinstance(x, Value):
            return x
        return self.const(x, like.dtype if like is not None else t.INT32)

    def values(self, xs: Sequence[Any]) -> tuple[Value, ...]:
        return tuple(self.value(x) for x in xs)

    def binary(self, kind: str, a: Any, b: Any) -> Value:
        a = a if isinstance(a, Value) else self.value(a, b)
        return self.b.value(Binary, kind, a, self.value(b, a))

    def add(self, a: Any, b: Any) -> Value:
        return self.binary("add", a, b)

    def mul(self, a: Any, b: Any) -> Value:
        return self.binary("mul", a, b)

    def unary(self, kind: str, x: Value) -> Value:
        return self.b.value(Unary, kind, x)

    def compare(self, kind: str, a: Any, b: Any) -> Value:
        return self.b.value(Compare, kind, a, self.value(b, a))

    def select(self, cond: Value, a: Value, b: Value) -> Value:
        return self.b.value(Select, cond, a, b)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.b.value(Fma, a, b, c)

    def cast(self, x: Value, dtype: t.DType) -> Value:
        return self.b.value(Cast, x, dtype)

    def bitcast(self, x: Value, dtype: t.DType) -> Value:
        return self.b.value(Bitcast, x, dtype)

    def block(self, dim: int) -> Value:
        return self.b.value(BlockIndex, dim)

    def alloc(self, shape: Sequence[int], dtype: t.DType, space: str = "shared") -> Value:
        return self.b.value(Alloc, t.BufferType(tuple(shape), dtype, space))

    def load(self, buffer: Value, *indices: Any) -> Value:
        return self.b.value(Load, buffer, self.values(indices))

    def store(self, buffer: Value, *rest: Any) -> None:
        *indices, x = rest
        made = x if isinstance(x, Value) else self.const(x, buffer.dtype)
        self.b.emit(Store, buffer, self.values(indices), made)

    def copy(
        self, a: Value, at: Sequence[Any], shape: Sequence[int], b: Value, to: Any, of: Any = None
    ) -> None:
        source = Region(a, self.values(at), tuple(shape))
        dest = Region(b, self.values(to), tuple(shape if of is None else of))
        self.b.emit(Copy, source, dest)

    def fill(
        self, buffer: Value, x: Any, at: Sequence[Any] = (), shape: Sequence[int] = ()
    ) -> None:
        shape = tuple(shape or buffer.buffer.static_shape)
        made = x if isinstance(x, Value) else self.const(x, buffer.dtype)
        self.b.emit(Fill, Region(buffer, self.values(at or [0] * len(shape)), shape), made)

    def gemm(self, a: Value, b: Value, c: Value, **words: Any) -> None:
        zeros = self.values((0, 0))
        left, right = (Region(v, zeros, v.buffer.static_shape) for v in (a, b))
        self.b.emit(Gemm, left, right, c, **words)

    def emit(self, cls: type[Op], *args: Any, **words: Any) -> Op:
        return self.b.emit(cls, *args, **words)

    # --- regions ---

    @contextmanager
    def region(self) -> Iterator[Builder]:
        kept, self.b = self.b, Builder(self.b.loc)
        yield self.b
        self.b = kept

    @contextmanager
    def parallel(self, *extents: int) -> Iterator[tuple[Value, ...]]:
        index = tuple(Value(INT, f"i{d}") for d in range(len(extents)))
        with self.region() as inner:
            yield index
        self.b.emit(Parallel, tuple(extents), inner.block(index))

    def loop(
        self, lo: Any, hi: Any, inits: Sequence[Value], body: Any, step: Any = 1
    ) -> tuple[Value, ...]:
        """`body(i, *carried)` returns the next carried values."""
        lo, hi, step = self.values((lo, hi, step))
        args = (Value(lo.type, "i"), *(Value(v.type, "c") for v in inits))
        with self.region() as inner:
            self._yield(body(*args))
        made = self.b.emit(For, "serial", lo, hi, step, tuple(inits), inner.block(args))
        return made.results

    def while_(self, inits: Sequence[Value], cond: Any, body: Any) -> tuple[Value, ...]:
        first = tuple(Value(v.type, "c") for v in inits)
        second = tuple(Value(v.type, "c") for v in inits)
        with self.region() as test:
            self._yield([cond(*first)])
        with self.region() as inner:
            self._yield(body(*second))
        return self.b.emit(While, tuple(inits), test.block(first), inner.block(second)).results

    def if_(self, cond: Value, then: Any, orelse: Any = lambda: ()) -> tuple[Value, ...]:
        blocks = []
        for side in (then, orelse):
            with self.region() as inner:
                got = tuple(side() or ())
                self._yield(got)
            blocks.append(inner.block())
        types = tuple(v.type for v in got)
        return self.b.emit(If, cond, blocks[0], blocks[1], types).results

    def _yield(self, values: Sequence[Value] | None) -> None:
        self.b.emit(Yield, tuple(values or ()))
