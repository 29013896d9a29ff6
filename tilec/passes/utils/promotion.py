"""A operands of products that are the same in all iterations of a loop, in registers: columns of a
shared tile that is filled once, as far as registers go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilec.ir.core import Builder, Op, Region, Value
from tilec.ir.dependence import modref
from tilec.ir.ops import Copy, Gemm
from tilec.ir.types import BufferType
from tilec.passes.utils.accesses import covered
from tilec.passes.utils.addressing import Numbers
from tilec.passes.utils.building import whole

STEP_BYTES = 32  # of a row that one instruction takes


@dataclass(frozen=True)
class Promoted:
    """A tile's columns: those of `cuts[i]` to `cuts[i + 1]` in `buffers[i]`, fragments but for the
    last one (`rest`), which is in shared memory, where not all of them are in registers."""

    cuts: tuple[int, ...]
    buffers: tuple[Value, ...]
    rest: Value | None

    def parts(self) -> Iterator[tuple[Value, int, int]]:
        """What holds columns of the tile, from which one and up to which."""
        return zip(self.buffers, self.cuts, self.cuts[1:])

    def piece(self, b: Builder, lo: int, hi: int) -> Region:
        """Columns from one of the cuts to another at most."""
        n = next(i for i, at in enumerate(self.cuts) if lo < at) - 1
        r = whole(b, self.buffers[n])
        if r.extents[-1] == hi - lo:
            return r
        numbers = Numbers(b)
        return replace(
            r,
            offsets=(*r.offsets[:-1], numbers.const(lo - self.cuts[n])),
            extents=(*r.extents[:-1], hi - lo),
        )

    def filled(self, o: Copy) -> list[Op]:
        """The copies that fill the parts, instead of the one that filled the tile."""
        b = Builder(o.loc)
        last = o.source.offsets[-1]
        for v, lo, hi in self.parts():
            n = Numbers(b, last.dtype)
            source = replace(
                o.source,
                offsets=(*o.source.offsets[:-1], n.op("add", last, lo)),
                extents=(*o.source.extents[:-1], hi - lo),
            )
            b.emit(Copy, source, whole(b, v))
        return b.ops


def promote(
    statements: Sequence[Op], products: Sequence[Op], registers: int, threads: int, pieces: int = 4
) -> dict[Value, Promoted]:
    """For tiles that one copy of `statements` fills and only products read, as A, what of them fits
    into so many `registers` of each of `threads` threads. Fragments hold `1 / pieces` of the
    columns at most: products read them whole."""
    found: dict[Value, Promoted] = {}
    for o in statements:
        if not isinstance(o, Copy) or o.source.buffer.buffer.space != "global":
            continue
        v = o.dest.buffer
        uses = [x for x in statements if v in modref(x, covered)]
        readers = [x for x in uses if x is not o]
        if v.buffer.space != "shared" or not o.dest.is_whole or not readers or o in products:
            continue
        if not all(x in products and _takes_whole(x, v) for x in readers):
            continue
        rows, columns = v.buffer.static_shape
        step = STEP_BYTES * 8 // v.dtype.bits
        each = rows * STEP_BYTES // 4 // threads
        most = columns // pieces
        if not each or most % step or registers < each:
            continue
        held = min(columns, registers // each * step)
        registers -= held // step * each
        cuts = [*range(0, held, most), held]
        parts = [
            Value(BufferType((rows, hi - lo), v.dtype, "fragment"), f"{v.name}_{n}")
            for n, (lo, hi) in enumerate(zip(cuts, cuts[1:]))
        ]
        rest = None
        if held < columns:
            cuts.append(columns)
            rest = Value(BufferType((rows, columns - held), v.dtype, "shared"), f"{v.name}_rest")
            parts.append(rest)
        found[v] = Promoted(tuple(cuts), tuple(parts), rest)
    return found


def _takes_whole(o: Op, v: Value) -> bool:
    return (
        isinstance(o, Gemm)
        and o.a.buffer is v
        and o.a.is_whole
        and not o.transpose_a
        and o.b.buffer is not v
    )
