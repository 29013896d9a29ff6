"""Making ops: a `Builder` collects them into a block."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tilec.ir.core import Block, Op
from tilec.ir.loc import UNKNOWN, Loc
from tilec.ir.op_classes import OPS
from tilec.ir.types import INT32, DType, ScalarType
from tilec.ir.values import Region, Value


class Builder:
    """Collects ops into a block; `emit` makes the op's results from its `infer`."""

    def __init__(self, loc: Loc = UNKNOWN, ops: Iterable[Op] = ()) -> None:
        self.ops: list[Op] = [*ops]
        self.loc = loc
        self.known: dict[Value, bool | int | float] = {}  # the literals made here

    def emit(
        self, cls: type[Op], *args: Any, name: str = "", loc: Loc | None = None, **kwargs: Any
    ) -> Op:
        made = cls(*args, loc=loc or self.loc, **kwargs)
        types = made.infer()
        if types:
            made.results = tuple([Value(t, name) for t in types])  # type: ignore[misc]
        self.ops.append(made)
        return made

    def value(
        self, cls: type[Op], *args: Any, name: str = "", loc: Loc | None = None, **kwargs: Any
    ) -> Value:
        """`emit` of an op with one result; returns that result."""
        return self.emit(cls, *args, name=name, loc=loc, **kwargs).result

    def const(self, number: bool | int | float, dtype: DType = INT32) -> Value:
        """A literal."""
        made = self.value(OPS["const"], number, dtype)
        self.known[made] = number
        return made

    def binary(self, kind: str, lhs: Value, rhs: Value | bool | int | float, **more: Any) -> Value:
        """A `Binary`; a number on the right is a literal of the left side's dtype."""
        rhs = rhs if isinstance(rhs, Value) else self.const(rhs, lhs.dtype)
        return self.value(OPS["binary"], kind, lhs, rhs, **more)

    def fold(self, kind: str, x: Value, y: Value | int, **more: Any) -> Value:
        """A `Binary` of integers, if it is not what the literals made here make it."""
        a, c = self.known.get(x), self.known.get(y) if isinstance(y, Value) else y
        if (kind in ("add", "xor", "sub") and c == 0) or (kind in ("mul", "floordiv") and c == 1):
            return x
        if kind == "mul" and (a == 0 or c == 0):
            return self.const(0, x.dtype)
        if (kind in ("add", "xor") and a == 0) or (kind == "mul" and a == 1):
            return y if isinstance(y, Value) else self.const(y, x.dtype)
        return self.binary(kind, x, y, **more)

    def compare(self, kind: str, lhs: Value, rhs: Value | bool | int | float, **more: Any) -> Value:
        """A `Compare`, likewise."""
        rhs = rhs if isinstance(rhs, Value) else self.const(rhs, lhs.dtype)
        return self.value(OPS["compare"], kind, lhs, rhs, **more)

    def select(self, cond: Value, on_true: Value, on_false: Value, **more: Any) -> Value:
        """A `Select`."""
        return self.value(OPS["select"], cond, on_true, on_false, **more)

    def cast(self, value: Value, dtype: DType) -> Value:
        """`value` as `dtype`; no op where it is."""
        return value if value.dtype == dtype else self.value(OPS["cast"], value, dtype)

    def whole(self, v: Value) -> Region:
        """All of an on-chip buffer."""
        shape = v.buffer.static_shape
        return Region(v, tuple(self.const(0) for _ in shape), shape)

    def zero(self, dtype: DType) -> Value:
        """The number 0 of a dtype."""
        return self.const(0.0 if dtype.is_float else 0, dtype)

    def conjunction(self, conds: Sequence[Value]) -> Value | None:
        """All of the conditions; None if there are none."""
        return self.all_of(*conds) if conds else None

    def all_of(self, *conds: Value) -> Value:
        """All of some conditions."""
        return functools.reduce(lambda x, y: self.binary("and", x, y), conds)

    def any_of(self, *conds: Value) -> Value:
        """Any of some conditions."""
        return functools.reduce(lambda x, y: self.binary("or", x, y), conds)

    def branch(self, cond: Value | None, then: Iterable[Op], orelse: Iterable[Op] = ()) -> None:
        """The ops `then` where `cond` holds (None: it does), else `orelse`."""
        if cond is None:
            self.ops += then
            return
        end = OPS["yield"](loc=self.loc)
        self.emit(OPS["if"], cond, Block((), (*then, end)), Block((), (*orelse, end)))

    @contextmanager
    def when(self, cond: Value | None) -> Iterator[Builder]:
        """The builder of what is done where `cond` holds (None: it does)."""
        inner = Builder(self.loc)
        yield inner
        self.branch(cond, inner.ops)

    @contextmanager
    def counted(
        self, count: Value | int, name: str, kind: str = "unroll"
    ) -> Iterator[tuple[Value, Builder]]:
        """A loop of `count` iterations: its index, and the builder of its body."""
        index, inner = Value(ScalarType(INT32), name), Builder(self.loc)
        yield index, inner
        inner.emit(OPS["yield"])
        end = (self.const(0), self.const(count) if isinstance(count, int) else count)
        self.emit(OPS["for"], kind, *end, self.const(1), (), inner.block([index]))

    @contextmanager
    def each_element(
        self, extents: Sequence[int], **how: Any
    ) -> Iterator[tuple[Builder, tuple[Value, ...]]]:
        """A loop over elements: the builder of its body, and its indices. `how`: attributes."""
        at = tuple(Value(ScalarType(INT32), f"i{d}") for d in range(len(extents)))
        inner = Builder(self.loc)
        yield inner, at
        self.emit(OPS["parallel"], tuple(extents), inner.block(at), **how)

    def carried(
        self, begin: Value, end: Value, first: Value, step: Callable[[Builder, Value, Value], Value]
    ) -> Value:
        """What a serial loop makes of `first`: `step` gives the next value for an index and the
        value so far."""
        index, so_far = Value(ScalarType(INT32), "k"), Value(first.type, "so_far")
        inner = Builder(self.loc)
        inner.emit(OPS["yield"], (step(inner, index, so_far),))
        body = inner.block((index, so_far))
        return self.value(OPS["for"], "serial", begin, end, self.const(1), (first,), body)

    def block(self, args: Iterable[Value] = ()) -> Block:
        return Block(tuple(args), tuple(self.ops))
