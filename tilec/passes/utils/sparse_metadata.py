"""The metadata of products with a compressed A, brought from shared memory to the registers in
which mma.sp and wgmma.sp take them (`MatrixInstruction`)."""

from __future__ import annotations

from tilec.ir.analysis import Facts
from tilec.ir.builder import Builder
from tilec.ir.core import Value
from tilec.ir.instr import MatrixInstruction
from tilec.ir.layout import has_runs
from tilec.ir.ops import Alloc, Bitcast, Extract, Gemm, MemLoad, RegWrite
from tilec.ir.types import DTYPES, UINT32, BufferType
from tilec.passes.utils.addressing import Place, coordinates, shared_offset
from tilec.passes.utils.distribution import each_thread
from tilec.passes.utils.operands import Operand

# Of a word: the low bit of each pattern.
_LOW = 0x11111111


class Metadata:
    """The metadata of the product `o`, whose row is `instr`."""

    def __init__(self, o: Gemm, instr: MatrixInstruction, place: Place, facts: Facts) -> None:
        assert o.metadata is not None and instr.metadata is not None
        more = o.c.buffer.laid_out.size("warp") // instr.warps
        self.instr = instr
        self.layout = instr.metadata.replicate(more, "warp") if more > 1 else instr.metadata
        self.groups = o.warps[0] // instr.warps  # along M, of the warps of one instruction
        self.share = o.shape[0] // self.groups
        self.place = place
        steps = o.shape[2] // instr.k
        self.served = instr.selectors if steps % instr.selectors == 0 else 1
        self.region = Operand.of(o.metadata, int(o.transpose_metadata), facts)

    def alloc(self, b: Builder, times: int) -> Value:
        """A fragment, made at `b`, for `times` words for each atom along M, one atom after the
        other."""
        count = self.share // self.instr.m * times
        t = BufferType((count,), UINT32, "fragment", layout=each_thread((count,)))
        return b.value(Alloc, t, name=f"{self.region.buffer.name}_words")

    def load_all(self, b: Builder, steps: int) -> Value:
        """The words for all `steps` along K."""
        times = steps // self.served
        words = self.alloc(b, times)
        with b.counted(times, "k") as (group, inner):
            self.load(inner, words, group, times)
        return words

    def load(self, inner: Builder, words: Value, step: Value, times: int = 1) -> None:
        """Fill the words of `words` that are for the instructions `step * served` and those behind
        it, which is one of `times`. What nobody wrote counts as (0, 1)."""
        instr, layout = self.instr, self.layout
        units = layout.shape[1] * self.served // instr.selectors
        own = []
        for r in range(layout.size("reg")):
            row, unit = coordinates(inner, layout, self.place, inner.const(r))
            if units < layout.shape[1]:  # all lanes have what the first selector asks for
                unit = inner.fold("mod", unit, units)
            own.append((row, inner.fold("add", inner.fold("mul", step, units), unit)))
        group = inner.fold("floordiv", self.place.warp, instr.warps)
        group = inner.fold("mod", group, self.groups)
        first = inner.fold("mul", group, self.share)
        with inner.counted(self.share // instr.m, "i") as (i, each):
            top = each.fold("add", first, each.fold("mul", i, instr.m))
            parts = [self._unit(each, each.fold("add", top, row), unit) for row, unit in own]
            word = _joined(each, parts, instr.unit)
            op = each.binary
            either = op("or", op("shr", word, 2), op("shr", word, 3))
            nothing = op("xor", op("and", either, _LOW), _LOW)
            word = op("or", word, op("shl", nothing, 2))
            at = each.fold("mul", i, times)
            at = at if times == 1 else each.fold("add", at, step)
            each.emit(RegWrite, words, at, word)

    def _unit(self, x: Builder, row: Value, unit: Value) -> Value:
        """Unit number `unit` along K of a row, as a word."""
        bits, wanted = self.region.buffer.dtype.bits, self.instr.unit
        if bits > wanted:
            per = bits // wanted
            whole = self._elements(x, row, x.fold("floordiv", unit, per), 1)[0]
            place = x.fold("mul", x.fold("mod", unit, per), wanted)
            return x.binary("and", x.binary("shr", whole, x.cast(place, UINT32)), (1 << wanted) - 1)
        count = wanted // bits
        column = x.fold("mul", unit, count)
        return _joined(x, self._elements(x, row, column, count), bits)

    def _elements(self, b: Builder, row: Value, column: Value, count: int) -> list[Value]:
        """`count` neighbours along K, by one load where they are adjacent in memory, as words."""
        v = self.region.buffer
        memory, bits = v.buffer.laid_out, v.dtype.bits
        own = DTYPES[f"uint{bits}"]
        runs = not self.region.mn_major and has_runs(memory, count)
        width = count if runs and self.region.divisors[1] % count == 0 else 1
        found = []
        for e in range(0, count, width):
            at = self.region.coordinates(b, row, b.fold("add", column, e))
            offset = shared_offset(b, memory, at)
            loaded = b.value(MemLoad, v, offset, width, width * bits // 8)
            for q in range(width):
                value = loaded if width == 1 else b.value(Extract, loaded, q)
                value = value if value.dtype == own else b.value(Bitcast, value, own)
                found.append(b.cast(value, UINT32))
        return found


def _joined(b: Builder, parts: list[Value], bits: int) -> Value:
    """Words that have `bits` bits each, side by side, the first one lowest."""
    word = parts[0]
    for i, part in enumerate(parts[1:], 1):
        word = b.binary("or", word, b.binary("shl", part, i * bits))
    return word
