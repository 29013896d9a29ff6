"""What ops work on: values, boxes of buffers, and what an op does to these (`tilec.ir.core`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilec.ir.errors import InternalError
from tilec.ir.types import BufferType, DType, ScalarType, Type


class Value:
    """An SSA value: the result of one op, a block argument, or a parameter. Compared by
    identity."""

    __slots__ = ("name", "type")

    def __init__(self, type: Type, name: str = "") -> None:
        self.type = type
        self.name = name

    @property
    def dtype(self) -> DType:
        """Element type of a scalar, vector or buffer value."""
        try:  # asked millions of times: cheaper than a look for what is nearly always there
            dtype: DType | None = self.type.dtype
        except AttributeError:
            dtype = None
        if dtype is None:
            raise InternalError(f"%{self.name}: {self.type} has no element type")
        return dtype

    @property
    def buffer(self) -> BufferType:
        """The type, which must be a buffer's."""
        if not isinstance(self.type, BufferType):
            raise InternalError(f"%{self.name} is {self.type}, not a buffer")
        return self.type

    @property
    def space(self) -> str:
        """Where a buffer is; "" for what is none."""
        return self.type.space if isinstance(self.type, BufferType) else ""

    @property
    def is_integer(self) -> bool:
        """Whether it is one integer, or bool."""
        t = self.type
        return type(t) is ScalarType and t.dtype.is_int

    def __repr__(self) -> str:
        return f"%{self.name or hex(id(self))[-5:]}: {self.type}"


def squeeze(extents: Iterable[int]) -> tuple[int, ...]:
    """`extents` without its ones."""
    return tuple(e for e in extents if e != 1)


@dataclass(frozen=True, eq=False, slots=True)
class Region:
    """A box of a buffer: one offset (a scalar) per dimension, and one compile-time extent each;
    without them, somewhere in the buffer."""

    buffer: Value
    offsets: tuple[Value, ...] = ()
    extents: tuple[int, ...] = ()

    @property
    def type(self) -> BufferType:
        """Of its buffer."""
        return self.buffer.buffer

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents without ones."""
        return squeeze(self.extents)

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the buffer (no box that is as large begins elsewhere)."""
        return self.extents == self.type.shape

    def cut(self, dim: int, offset: Value, extent: int) -> Region:
        """The box that begins at `offset` along one dimension, where it has this extent."""
        offsets, extents = list(self.offsets), list(self.extents)
        offsets[dim], extents[dim] = offset, extent
        return Region(self.buffer, tuple(offsets), tuple(extents))

    def within(self, buffer: Value, index: Value) -> Region:
        """The same box of what stands at `index` in a buffer of one dimension more."""
        return Region(buffer, (index, *self.offsets), (1, *self.extents))


@dataclass(frozen=True, eq=False, slots=True)
class Effect:
    """One thing that an op does.

    `kind`: "read", "write", or "update" a region, the last being both at once (an accumulation);
    "allocate" a buffer; "describe" it, or the kernel, for the compiler; "order" what threads or
    engines do before and after; "output", what is seen outside of the kernel by other ways than
    its tensors. `engine`: who accesses the region: "threads", or "cp_async", "tma", "wgmma", which
    are not in order with them. `private`: each warp has a part of the region for itself, and keeps
    its accesses in order."""

    kind: str
    region: Region | None = None
    engine: str = "threads"
    private: bool = False

    @property
    def buffer(self) -> Value | None:
        return self.region.buffer if self.region else None

    @property
    def reads(self) -> bool:
        return self.kind in ("read", "update")

    @property
    def writes(self) -> bool:
        return self.kind in ("write", "update")

    @property
    def is_once(self) -> bool:
        """Whether one thread must do it for all that hold the same elements (replicas): done again
        it would change memory, or be seen, again. Registers are each thread's own."""
        if self.region is None or self.kind != "update":
            return self.kind == "output"
        return self.region.type.space not in ("fragment", "local")

    @property
    def is_seen(self) -> bool:
        """Whether it can be seen from outside of the block of threads."""
        if self.region is None or not self.writes:
            return self.kind == "output"
        return self.region.type.space == "global"


Effects = tuple[Effect, ...]
