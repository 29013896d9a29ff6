"""Ops on elements of memory that no other thread comes between.

They order nothing but themselves; what else is to be seen behind them, fences say
(`device_fence`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self, cast

from tilec.ir.core import Op, Region, Value
from tilec.ir.errors import InternalError
from tilec.ir.op_classes import op
from tilec.ir.types import DType, scalar_type

__all__ = [
    "ATOMICS", "FOLDS", "atomicrmw", "ElementAccess", "Atomic", "AtomicTile", "MemAtomic", "MemRed",
]  # fmt: skip

FOLDS = ("add", "max", "min", "and", "or", "xor")  # which come to the same in any order
ATOMICS = (*FOLDS, "exchange")
_OF_INTS = {"max": "max", "min": "min", "exchange": "xchg"}
_OF_UINTS = {"max": "umax", "min": "umin", "exchange": "xchg"}
_OF_FLOATS = {"add": "fadd", "max": "fmax", "min": "fmin", "exchange": "xchg"}


def atomicrmw(kind: str, dtype: DType) -> str:
    """What LLVM calls `kind` (one of `ATOMICS`) of elements of `dtype`."""
    if dtype.is_float:
        return _OF_FLOATS[kind]
    return (_OF_INTS if dtype.kind == "int" else _OF_UINTS).get(kind, kind)


class ElementAccess(Op):
    """Of one element of `buffer`, at `indices`."""

    indices: tuple[Value, ...]

    @property
    def buffer(self) -> Value:
        return cast(Value, getattr(self, self.operand_fields[0]))

    def at(self, buffer: Value, indices: tuple[Value, ...]) -> Self:
        """The same, of an element of another buffer."""
        changed: dict[str, Any] = {self.operand_fields[0]: buffer, "indices": indices}
        return replace(self, **changed)


@op("atomic", updates="dest", result="dest[]")
class Atomic(ElementAccess):
    """Combine element `indices` of a global or shared buffer with `value`, of its dtype, by `kind`
    (one of `ATOMICS`), or by "cas" replace it with that where it is `compare`. Gives what it was.
    Out of a global tensor's bounds: nothing, and 0."""

    dest: Value
    indices: tuple[Value, ...]
    value: Value
    kind: str
    compare: Value | None = None

    def verify(self) -> None:
        known = self.kind in ATOMICS if self.compare is None else self.kind == "cas"
        if not known:
            raise InternalError(f"an atomic of kind {self.kind}", self.loc)
        for value in (self.value, self.compare or self.value):
            if value.type != scalar_type(self.dest.dtype):
                raise InternalError(f"atomic of {value.type} into {self.dest.type}", self.loc)


@op("atomic_tile", reads="source", updates="dest")
class AtomicTile(Op):
    """Combine each element of a region with that of `source`, by atomics. `engine` "tma_store": TMA
    shall do it (`select_copies` makes a copy with a reduction of that, where it can); otherwise
    threads do."""

    source: Region
    dest: Region
    kind: str
    engine: str = ""


@op("mem_atomic", updates="dest", result="dest[]")
class MemAtomic(Op):
    """`atomic` at `offset` (elements); where `guard` is false nothing is done, and it gives 0."""

    dest: Value
    offset: Value
    value: Value
    kind: str
    guard: Value | None = None
    compare: Value | None = None


@op("mem_red", updates="dest")
class MemRed(Op):
    """Add a vector to the elements from `offset` on, each by an atomic of its own; where `guard` is
    false nothing is done. Nobody is told what they were."""

    dest: Value
    offset: Value
    value: Value
    guard: Value | None = None

    def verify(self) -> None:
        if self.value.dtype != self.dest.dtype:
            raise InternalError(f"adds {self.value.type} to {self.dest.type}", self.loc)
