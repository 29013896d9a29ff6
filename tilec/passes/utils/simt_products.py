"""Products of tiles that threads multiply and add by themselves.

For each k a thread reads each row of A and each column of B that it needs once, and adds to each of
its registers of C, in k order. Neighbours in memory come at once: of an operand whose M or N is
contiguous those that the thread has side by side, of one whose K is the elements of several steps,
as many as it has registers for: of a 128x128 tile of 256 threads 4 loads to 64 multiply-adds, where
one element at a time takes 16."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tilec.ir import ops
from tilec.ir.analysis import Facts
from tilec.ir.builder import Builder
from tilec.ir.core import Value
from tilec.ir.errors import InternalError
from tilec.ir.layout import Layout, has_runs
from tilec.ir.types import BufferType, DType
from tilec.passes.utils.addressing import Place, coordinates, shared_offset
from tilec.passes.utils.building import load_registers
from tilec.passes.utils.distribution import each_thread
from tilec.passes.utils.gemm_layouts import READ_BITS
from tilec.passes.utils.operands import Operand, operand

_WRITTEN_OUT = 4  # steps in a body of the loop, whose loads hide behind one another's additions


def simt_product(b: Builder, o: ops.Gemm, facts: Facts, room: int) -> None:
    """c[m, n] += a[m, k] * b[k, n] in k order. `room`: registers of a thread for the operands."""
    layout, c = o.c.buffer.laid_out, o.c.dtype
    place = Place(b)
    place.make(layout)
    lines = [_Line(operand(o, which, facts), layout, dim) for dim, which in enumerate("ab")]
    depth = next(d for d in (4, 2, 1) if d == 1 or _fits(lines, o, d, room))
    steps = max(n for n in (_WRITTEN_OUT, 2, 1) if o.shape[2] % n == 0)
    held = [line.alloc(b, c, depth) for line in lines]
    with b.counted(o.shape[2] // steps, "k", "serial") as (n, step):
        first = step.fold("mul", n, steps)
        for q in range(steps):
            at = step.fold("add", first, q)
            for line, fragment in zip(lines, held):
                if line.x.mn_major:
                    line.read(step, fragment, place, at, 1)
                elif q % depth == 0:
                    line.read(step, fragment, place, at, depth)
            _add(step, o, lines, held, depth, q % depth)


def _add(
    step: Builder, o: ops.Gemm, lines: list[_Line], held: list[Value], depth: int, q: int
) -> None:
    """What step `q` of those at hand adds to each register of C."""
    at = [line.registers(depth, q) for line in lines]
    with step.counted(len(at[0]), "r") as (r, inner):
        x, y = (
            inner.value(ops.RegRead, fragment, inner.value(ops.Lookup, numbers, r))
            for fragment, numbers in zip(held, at)
        )
        old = inner.value(ops.RegRead, o.c, r)
        if o.c.dtype.is_float:
            new = inner.value(ops.Fma, x, y, old)
        else:
            new = inner.binary("add", inner.binary("mul", x, y), old)
        inner.emit(ops.RegWrite, o.c, r, new)


def _fits(lines: list[_Line], o: ops.Gemm, depth: int, room: int) -> bool:
    """Whether a load can bring the elements of so many steps of an operand whose K is contiguous:
    they lie side by side, and there is room."""
    along = [line for line in lines if not line.x.mn_major]
    words = max(o.c.dtype.bits // 32, 1)
    taken = sum(len(line.distinct) * (1 if line.x.mn_major else depth) for line in lines)
    whole = all(line.adjacent(depth) for line in along) and o.shape[2] % depth == 0
    return whole and words * taken <= room


@dataclass(frozen=True)
class _Line:
    """The elements of a step of K that a thread needs of an operand, which runs along dimension
    `dim` of C; `layout` is C's."""

    x: Operand
    layout: Layout
    dim: int

    def __post_init__(self) -> None:
        if self.x.buffer.space != "shared":
            raise InternalError(f"a SIMT gemm of {self.x.buffer.type}")

    @functools.cached_property
    def rows(self) -> tuple[int, ...]:
        """Where along the dimension each of the first thread's registers of C is."""
        return tuple(int(c[self.dim]) for c in self.layout.table("reg"))

    @functools.cached_property
    def distinct(self) -> tuple[int, ...]:
        """Each of them once."""
        return tuple(sorted({*self.rows}))

    @functools.cached_property
    def together(self) -> int:
        """How many of these a load brings, as they are neighbours in memory in each thread."""
        own = [int(c[self.dim]) for owner in ("lane", "warp") for c in self.layout.table(owner)]
        width = READ_BITS // self.x.buffer.dtype.bits if self.x.mn_major else 1
        while width > 1:
            runs = [self.distinct[n : n + width] for n in range(0, len(self.distinct), width)]
            whole = all(
                run == tuple(range(run[0], run[0] + width)) and run[0] % width == 0 for run in runs
            )
            if whole and not any(n % width for n in own) and self.adjacent(width):
                break
            width //= 2
        return width

    def adjacent(self, count: int) -> bool:
        """Whether every so many elements of the operand's last dimension lie side by side."""
        bits = self.x.buffer.dtype.bits
        memory, divisor = self.x.buffer.buffer.laid_out, self.x.divisors[1]
        return count * bits <= READ_BITS and divisor % count == 0 and has_runs(memory, count)

    def alloc(self, b: Builder, dtype: DType, depth: int) -> Value:
        """Registers for the elements of `depth` steps, or of one where M or N is contiguous."""
        count = len(self.distinct) * (1 if self.x.mn_major else depth)
        t = BufferType((count,), dtype, "fragment", layout=each_thread((count,)))
        return b.value(ops.Alloc, t, name=f"{self.x.buffer.name}_line")

    def registers(self, depth: int, q: int) -> tuple[int, ...]:
        """Which of these each register of C needs for step `q`."""
        each, at = (1, 0) if self.x.mn_major else (depth, q)
        return tuple(self.distinct.index(row) * each + at for row in self.rows)

    def read(self, step: Builder, held: Value, place: Place, k: Value, depth: int) -> None:
        """Bring the elements of `depth` steps from `k` on."""
        v = self.x.buffer
        width = self.together if self.x.mn_major else depth
        firsts = tuple(self.rows.index(row) for row in self.distinct[:: self.together])
        with step.counted(len(firsts), "i") as (i, inner):
            register = inner.value(ops.Lookup, firsts, i)
            mn = coordinates(inner, self.layout, place, register)[self.dim]
            at = self.x.coordinates(inner, mn, k)
            offset = shared_offset(inner, v.buffer.laid_out, at)
            load_registers(inner, v, offset, width, held, inner.fold("mul", i, width))
