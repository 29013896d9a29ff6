"""Builds small LOWERED functions for the tests of the GPU code generators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tilec.codegen import Assembled, assemble, emit
from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Param, Value
from tilec.ir.layout import Digit, Layout
from tilec.ir.loc import Loc
from tilec.ir.types import (
    BOOL,
    FLOAT32,
    INT32,
    INT64,
    BufferType,
    DType,
    ScalarType,
    TensorMapType,
)
from tilec.support.tools import find_ptxas
from tilec.target import find_target

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
HERE = Loc(__file__, 12, 4, 9)


class Kernel:
    """A function in the making: `k.op(ops.X, …)` appends an op and gives its result."""

    def __init__(self, threads: int = 128, **attrs: Any) -> None:
        self.params: list[Param] = []
        self.b = Builder(HERE)
        self.attrs = {"threads": threads, "launch_threads": threads, **attrs}

    # --- parameters ---

    def tensor(self, name: str, dtype: DType = FLOAT32, align: int = 16) -> Value:
        t = BufferType((f"{name}_size",), dtype, "global", (1,), align)
        return self._param(Value(t, name), "tensor", name)

    def scalar(self, name: str, dtype: DType = INT32) -> Value:
        return self._param(Value(ScalarType(dtype), name), "scalar", name)

    def size(self, name: str, of: str) -> Value:
        return self._param(Value(ScalarType(INT32), name), "size", of, 0)

    def map(self, of: str, dtype: DType, box: tuple[int, ...], swizzle: int = 128) -> Value:
        t = TensorMapType(of, tuple(range(len(box))), box, swizzle, dtype)
        return self._param(Value(t, f"{of}_map"), "tensor_map", of)

    def _param(self, v: Value, role: str, arg: str, dim: int = -1) -> Value:
        self.params.append(Param(v, role, arg, dim))
        return v

    # --- ops ---

    def op(self, cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = self.b.emit(cls, *args, **kwargs)
        return made.results[0] if len(made.results) == 1 else made

    def i32(self, n: int) -> Value:
        return self.op(ops.Const, n, INT32)

    def i64(self, n: int) -> Value:
        return self.op(ops.Const, n, INT64)

    def f32(self, x: float) -> Value:
        return self.op(ops.Const, x, FLOAT32)

    def flag(self, x: bool) -> Value:
        return self.op(ops.Const, x, BOOL)

    def binary(self, kind: str, a: Value, b: Value) -> Value:
        return self.op(ops.Binary, kind, a, b)

    def wide(self, v: Value) -> Value:
        return self.op(ops.Cast, v, INT64)

    def tid(self) -> Value:
        return self.wide(self.op(ops.ThreadIndex))

    def alloc(self, t: BufferType, name: str = "b", **kwargs: Any) -> Value:
        return self.op(ops.Alloc, t, name=name, **kwargs)

    def shared(
        self, count: int, dtype: DType, address: int, name: str = "s", **kwargs: Any
    ) -> Value:
        return self.alloc(BufferType((count,), dtype, "shared", **kwargs), name, address=address)

    def barriers(self, count: int, address: int, name: str = "bar") -> Value:
        return self.alloc(BufferType((count,), INT64, "barrier"), name, address=address)

    def fragment(
        self, count: int, dtype: DType = FLOAT32, packed: int = 1, name: str = "r"
    ) -> Value:
        t = BufferType((count,), dtype, "fragment", layout=line(count))
        return self.alloc(t, name, packed=packed)

    # --- regions ---

    def block(self, body: Callable[..., Any], *args: Value) -> Block:
        """What `body(*args)` appends; the values it returns are yielded."""
        outer, self.b = self.b, Builder(HERE)
        got = body(*args)
        if isinstance(got, Value):
            got = (got,)
        elif not isinstance(got, tuple):  # nothing, or an op without a result
            got = ()
        self.b.emit(ops.Yield, got)
        inner, self.b = self.b, outer
        return inner.block(args)

    def loop(
        self,
        hi: int | Value,
        body: Callable[..., Any],
        *inits: Value,
        kind: str = "serial",
        lo: int | Value = 0,
        step: int | Value = 1,
    ) -> Any:
        bounds = [self.i32(v) if isinstance(v, int) else v for v in (lo, hi, step)]
        args = [Value(ScalarType(INT32), "i"), *(Value(v.type, "c") for v in inits)]
        return self.op(ops.For, kind, *bounds, inits, self.block(body, *args))

    def when(
        self,
        cond: Value,
        then: Callable[[], Any],
        orelse: Callable[[], Any] = lambda: None,
        types: tuple[Any, ...] = (),
    ) -> Any:
        return self.op(ops.If, cond, self.block(then), self.block(orelse), types)

    @contextmanager
    def scope(self, name: str, first: int, warps: int, registers: int = 0) -> Iterator[None]:
        outer, self.b = self.b, Builder(HERE)
        yield
        self.b.emit(ops.Yield)
        inner, self.b = self.b, outer
        self.op(ops.Scope, name, first, warps, inner.block(), registers)

    # --- compiling ---

    def func(self) -> Func:
        grid = Builder(HERE)
        one = grid.value(ops.Const, 1, INT32)
        grid.emit(ops.Yield, (one, one, one))
        return Func("k", tuple(self.params), grid.block(), self.b.block(), self.attrs, HERE)

    def llvm(self, target: str) -> str:
        return emit(self.func(), find_target(target))

    def compile(self, target: str) -> Assembled:
        """Machine code; no spills, no advice of the assembler, no stack."""
        made = assemble(self.llvm(target), find_target(target))
        assert made.advisories == (), made.advisories
        if find_ptxas() or target.startswith("hip"):
            assert made.spilled_bytes == 0 and made.stack_bytes == 0
        return made


def line(count: int) -> Layout:
    """`count` elements in the registers of each thread."""
    digits = (Digit("reg", count, (1,)),) if count > 1 else ()
    return Layout((count,), digits)
