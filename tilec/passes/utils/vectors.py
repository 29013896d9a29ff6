"""The registers of a fragment as vectors of 16 bytes, in which they are left for others in memory:
each thread's vector next to those of its neighbours. The same thread holds the same elements in all
blocks."""

from __future__ import annotations

from tilec.ir.core import Builder, Value
from tilec.ir.ops import Binary, Const, RegRead, ThreadIndex
from tilec.passes.utils.rings import const

VECTOR_BITS = 128


class Vectors:
    """Those of one fragment, in each of `threads` threads: `lanes` elements each; `full` of them,
    and one more for the `left` elements."""

    def __init__(self, fragment: Value, threads: int) -> None:
        layout = fragment.buffer.layout
        assert layout is not None
        self.fragment = fragment
        self.threads = threads
        self.lanes = VECTOR_BITS // fragment.dtype.bits
        self.full, self.left = divmod(layout.size("reg"), self.lanes)

    @property
    def count(self) -> int:
        """Vectors of a thread; the last one may hold fewer elements."""
        return self.full + bool(self.left)

    @property
    def size(self) -> int:
        """Elements of all threads' vectors."""
        return self.count * self.threads * self.lanes

    @property
    def words(self) -> int:
        """Registers that they take."""
        return self.count * VECTOR_BITS // 32

    def offset(self, b: Builder, vector: Value) -> Value:
        """Where this thread's vector stands."""
        before = b.value(Binary, "mul", vector, const(b, self.threads * self.lanes))
        own = b.value(Binary, "mul", b.value(ThreadIndex), const(b, self.lanes))
        return b.value(Binary, "add", before, own)

    def register(self, b: Builder, vector: Value, element: int) -> Value:
        first = b.value(Binary, "mul", vector, const(b, self.lanes))
        return b.value(Binary, "add", first, const(b, element))

    def registers(self, b: Builder, vector: Value, elements: int) -> list[Value]:
        """The first `elements` of a vector, and zeros behind them."""
        v = self.fragment
        empty = b.value(Const, 0 if v.dtype.is_int else 0.0, v.dtype)
        values = [b.value(RegRead, v, self.register(b, vector, e)) for e in range(elements)]
        return values + [empty] * (self.lanes - elements)
