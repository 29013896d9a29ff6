"""lower_gemm: tile products become instructions.

Before: every `gemm` has a row and warps, its operands and accumulator have layouts. After: none is
left.

- wgmma: descriptors of the shared operands, one op for the whole tile, and a wait unless the
  product is `asynchronous`;
- mma, mfma: for each k step the operands come to registers (8x8 matrices at once where the layout
  allows it, element runs otherwise, converted if the instruction takes another dtype: float32 is
  rounded to TF32), then one instruction per atom of C;
- SIMT: for each k, each register of C gets one fused multiply-add.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.analysis import Facts, facts_of
from tilec.ir.core import Block, Builder, Func, Op, Value, rewrite
from tilec.ir.errors import InternalError
from tilec.ir.instr import MatrixRow, find_row
from tilec.ir.layout import Digit, Layout, has_runs
from tilec.ir.ops import (
    Alloc,
    Binary,
    Cast,
    Const,
    Extract,
    Fma,
    For,
    Gemm,
    Ldmatrix,
    Lookup,
    MemLoad,
    Mma,
    RegRead,
    RegWrite,
    Wgmma,
    WgmmaWait,
    Yield,
)
from tilec.ir.types import BOOL, INT32, BufferType, DType
from tilec.passes.utils.addressing import Numbers, Place, coordinates, shared_offset
from tilec.passes.utils.operands import Operand, operand, plane, wgmma_reads
from tilec.target import Target

CHUNK_BITS = 128  # of a row of a matrix that ldmatrix reads
LDMATRIX_FEEDS = ("mma", "mma_fp8")  # instructions whose operands lie as ldmatrix gives them


def lower_gemm(func: Func, target: Target) -> Func:
    """See the module's opening."""
    packs: dict[Value, int] = {}
    facts = facts_of(func)

    def visit(o: Op) -> None | list[Op]:
        if not isinstance(o, Gemm):
            return None
        o, b = o.turn(), Builder(o.loc)
        if o.clear and not o.is_asynchronous:
            _clear(b, o.c)
        if o.is_asynchronous:
            _wgmma(b, o, packs, facts)
        elif o.row.startswith("simt"):
            _simt(b, o, facts)
        else:
            _matrix(b, o, packs, facts)
        return b.ops

    body = rewrite(func.body, visit)

    def pack(o: Op) -> None | Op:
        if isinstance(o, Alloc) and o.result in packs:
            return replace(o, packed=packs[o.result])
        return None

    return func.with_body(rewrite(body, pack) if packs else body)


def unrolled(b: Builder, count: int, name: str) -> tuple[Value, Builder]:
    """The index and the body of a loop that the emitter unrolls; close it with `close`."""
    return Value(b.value(Const, 0, INT32).type, name), Builder(b.loc)


def close(b: Builder, kind: str, index: Value, count: int, inner: Builder) -> None:
    inner.emit(Yield)
    zero, end, one = (b.value(Const, n, INT32) for n in (0, count, 1))
    b.emit(For, kind, zero, end, one, (), inner.block([index]))


def _clear(b: Builder, c: Value) -> None:
    layout = c.buffer.layout
    assert layout is not None
    r, inner = unrolled(b, layout.size("reg"), "r")
    inner.emit(RegWrite, c, r, inner.value(Const, 0 if c.dtype.is_int else 0.0, c.dtype))
    close(b, "unroll", r, layout.size("reg"), inner)


# --- wgmma ---


def _wgmma(b: Builder, o: Gemm, packs: dict[Value, int], facts: Facts) -> None:
    row = find_row(o.row)
    if (o.a.dtype, o.b.dtype) != (row.a_dtype, row.b_dtype):
        raise InternalError(f"{row.name} of {o.a.buffer.type} and {o.b.buffer.type}", o.loc)
    packs[o.c] = row.packs[2]
    m, n, k = o.shape
    groups_m, groups_n = o.warps[0] // 4, o.warps[1]
    m_blocks = m // groups_m // row.m
    steps = range(0, k, row.k)
    numbers = Numbers(b)
    group = numbers.op("floordiv", Place(b).warp, numbers.const(4))
    at_m = numbers.op("mod", group, numbers.const(groups_m)) if groups_n > 1 else group
    at_n = numbers.op("floordiv", group, numbers.const(groups_m))
    in_registers = o.a.buffer.buffer.space == "fragment"
    a_offset, a_fields, a_transposed = numbers.const(0), 0, False
    a_steps: tuple[int, ...] = ()
    if in_registers:
        packs[o.a.buffer] = row.packs[0]
    else:
        a = _WgmmaOperand(operand(o, "a", facts), m // groups_m)
        a_offset, a_fields = a.offset(numbers, at_m, groups_m), a.fields
        a_steps = tuple(a.units(i * row.m, s) for i in range(m_blocks) for s in steps)
        a_transposed = a.operand.mn_major
    bb = _WgmmaOperand(operand(o, "b", facts), n // groups_n)
    b.emit(
        Wgmma,
        o.row,
        o.c,
        o.a.buffer,
        a_offset,
        o.b.buffer,
        bb.offset(numbers, at_n, groups_n),
        m_blocks,
        a_fields,
        bb.fields,
        a_steps,
        tuple(bb.units(0, s) for s in steps),
        a_transposed,
        bb.operand.mn_major,
        b.value(Const, False, BOOL) if o.clear else o.accumulate,
    )
    if not o.asynchronous:
        b.emit(WgmmaWait, 0, (o.c, o.a.buffer) if in_registers else (o.c,))


class _WgmmaOperand:
    """Where the pieces of a shared operand start, which warpgroups read in shares of `share` along
    M or N."""

    def __init__(self, x: Operand, share: int) -> None:
        layout = x.buffer.buffer.layout
        assert layout is not None
        found = wgmma_reads(x, layout, share)
        if found is None:
            raise InternalError(f"wgmma cannot read {layout}")
        self.operand = x
        self.layout = layout
        self.share = share
        self.offsets = plane(layout).offsets()
        self.fields = found.fields

    def _at(self, mn: int, k: int) -> int:
        return int(self.offsets[(k, mn) if self.operand.mn_major else (mn, k)])

    def offset(self, x: Numbers, index: Value, shares: int) -> Value:
        """Elements from the buffer's start to share number `index`."""
        origin = self.operand.origin(x, self.layout)
        if shares == 1:
            return origin
        starts = [self._at(i * self.share, 0) for i in range(shares)]
        if starts != [i * starts[1] for i in range(shares)]:
            raise InternalError(f"shares of {self.layout} do not start at equal distances")
        return x.op("add", origin, x.op("mul", index, x.const(starts[1])))

    def units(self, mn: int, k: int) -> int:
        """Distance of a piece from the operand's start, in units of 16 bytes."""
        return self._at(mn, k) * self.operand.buffer.dtype.bits // 128


# --- mma and mfma ---


def _matrix(b: Builder, o: Gemm, packs: dict[Value, int], facts: Facts) -> None:
    row = find_row(o.row)
    m, n, k = o.shape
    wm, wn = o.warps
    m_atoms, n_atoms = m // wm // row.m, n // wn // row.n
    place = Place(b)
    _ = place.lane, place.warp
    a_pack, b_pack, c_pack = row.packs
    packs[o.c] = c_pack
    step, inner = unrolled(b, k // row.k, "k")
    parts = {}
    for which, v, pack in (("a", o.a.buffer, a_pack), ("b", o.b.buffer, b_pack)):
        if v.buffer.space == "fragment":
            packs[v] = pack
            parts[which] = (v, k // row.k)
        else:
            fragment = _operand(b, inner, o, operand(o, which, facts), which, step, place, pack)
            parts[which] = (fragment, 1)
    (a, a_steps), (bb, b_steps) = parts["a"], parts["b"]
    a_size, b_size, c_size = (
        layout.size("reg") // pack
        for layout, pack in ((row.a, a_pack), (row.b, b_pack), (row.c, c_pack))
    )
    i, rows = unrolled(inner, m_atoms, "i")
    j, cols = unrolled(rows, n_atoms, "j")
    x = Numbers(cols)
    c_index = x.op(
        "add", x.op("mul", i, x.const(n_atoms * c_size)), x.op("mul", j, x.const(c_size))
    )
    a_index = x.op("mul", i, x.const(a_steps * a_size))
    if a_steps > 1:
        a_index = x.op("add", a_index, x.op("mul", step, x.const(a_size)))
    b_index = x.op("mul", j, x.const(b_size))
    if b_steps > 1:
        b_index = x.op("add", b_index, x.op("mul", step, x.const(n_atoms * b_size)))
    cols.emit(Mma, o.row, o.c, c_index, a, a_index, bb, b_index)
    close(rows, "unroll", j, n_atoms, cols)
    close(inner, "unroll", i, m_atoms, rows)
    # Conversions to another width need registers of their own: written out, they would all be under
    # way at once. What lies in registers for all of K is numbered, which takes a loop that is
    # written out.
    converted = a.dtype.bits != o.a.dtype.bits or bb.dtype.bits != o.b.dtype.bits
    kind = "serial" if converted and a_steps == b_steps == 1 else "unroll"
    close(b, kind, step, k // row.k, inner)


def _operand(
    b: Builder,
    inner: Builder,
    o: Gemm,
    region: Operand,
    which: str,
    step: Value,
    place: Place,
    pack: int,
) -> Value:
    """One k step of an operand, brought from shared memory to a fragment."""
    row = find_row(o.row)
    m, n, _ = o.shape
    wm, wn = o.warps
    v = region.buffer
    atom = row.a if which == "a" else row.b
    if which == "a":
        share, atoms, width = m // wm, m // wm // row.m, row.m
        outer = [
            Digit("reg", atoms, (width, 0)),
            Digit("warp", wm, (share, 0)),
            Digit("warp", wn, (0, 0)),
        ]
        shape = (m, row.k)
    else:
        share, atoms, width = n // wn, n // wn // row.n, row.n
        outer = [
            Digit("reg", atoms, (0, width)),
            Digit("warp", wm, (0, 0)),
            Digit("warp", wn, (0, share)),
        ]
        shape = (row.k, n)
    assert o.c.buffer.layout is not None
    spare = Digit("warp", o.c.buffer.layout.size("warp") // (wm * wn), (0, 0))
    digits = tuple(d for d in (*atom.digits, *outer, spare) if d.radix > 1)
    layout = Layout(shape, digits, (1, 1))
    dtype = row.a_dtype if which == "a" else row.b_dtype
    t = BufferType(shape, dtype, "fragment", layout=layout)
    fragment = b.value(Alloc, t, packed=pack, name=f"{v.name}_{which}")
    memory = v.buffer.layout
    assert memory is not None
    k0 = Numbers(inner).op("mul", step, inner.value(Const, row.k, INT32))
    if _by_matrices(row, region, dtype):
        loaded = fragment
        if dtype != v.dtype:
            loaded = b.value(Alloc, replace(t, dtype=v.dtype), packed=pack, name=f"{v.name}_raw")
        _load_matrices(inner, loaded, region, which, atoms, k0, share, o, place)
        if loaded is not fragment:
            _convert(inner, loaded, fragment, layout.size("reg"))
    else:
        _load_elements(inner, fragment, layout, region, which, k0, place, pack)
    return fragment


def _by_matrices(row: MatrixRow, region: Operand, dtype: DType) -> bool:
    """Whether ldmatrix brings the operand: its elements as wide as the instruction takes them, two
    16-byte chunks of K at a time. An 8x8 matrix of 16 bits is a matrix of 8 rows and 16 bytes for
    it; only 16-bit elements can be transposed on the way."""
    bits = region.buffer.dtype.bits
    return (
        row.feature in LDMATRIX_FEEDS
        and (dtype == region.buffer.dtype or dtype.bits == bits == 32)
        and row.packs[0] * bits == 32  # what a lane gets of a matrix
        and row.k * bits == 2 * CHUNK_BITS
        and (bits == 16 or not region.mn_major)
        and _adjacent(region, CHUNK_BITS // bits)
    )


def _adjacent(region: Operand, count: int) -> bool:
    """Whether every run of `count` elements of the operand's last dimension, from a multiple of
    `count` on, is adjacent in memory and aligned to its size."""
    memory = region.buffer.buffer.layout
    assert memory is not None
    return region.divisors[1] % count == 0 and has_runs(memory, count)


def _load_matrices(
    b: Builder,
    fragment: Value,
    region: Operand,
    which: str,
    atoms: int,
    k0: Value,
    share: int,
    o: Gemm,
    place: Place,
) -> None:
    """ldmatrix: lane l gives row l % 8 of matrix l / 8. A's atom is 2x2 matrices (rows first), two
    of B's atoms are 2x2 (k first), each 8 rows of 16 bytes; `.trans` where K is not the contiguous
    dimension."""
    chunk = CHUNK_BITS // region.buffer.dtype.bits
    x = Numbers(b)
    wm = o.warps[0]
    k_last = not region.mn_major
    lane, warp = place.lane, place.warp
    number = x.op("floordiv", lane, x.const(8))
    row_in = x.op("mod", lane, x.const(8))
    first = x.op("mod", number, x.const(2))
    second = x.op("floordiv", number, x.const(2))
    eight = x.const(8)
    # mn_at, k_at: which of the two matrices along M/N and along K this lane's address belongs to.
    mn_at, k_at = (first, second) if which == "a" else (second, first)
    at = x.op("mod", warp, x.const(wm)) if which == "a" else x.op("floordiv", warp, x.const(wm))
    if which == "b" and o.warps[1] == 1:
        at = x.const(0)
    elif which == "b":
        at = x.op("mod", at, x.const(o.warps[1]))
    base = x.op("mul", at, x.const(share))
    count = 4
    per = 1 if which == "a" else 2
    if which == "b" and atoms % 2:
        per, count = 1, 2
        mn_at = x.const(0)
    i, inner = unrolled(b, atoms // per, "i")
    y = Numbers(inner)
    width = 16 if which == "a" else 8 * per
    mn = y.op("add", y.op("add", base, y.op("mul", i, y.const(width))), y.op("mul", mn_at, eight))
    kk = y.op("add", k0, y.op("mul", k_at, y.const(chunk)))
    # The rows of a stored matrix run along the dimension that is not contiguous.
    if k_last:
        mn = y.op("add", mn, row_in)
    else:
        kk = y.op("add", kk, row_in)
    layout = region.buffer.buffer.layout
    assert layout is not None
    offset = shared_offset(inner, layout, region.coordinates(y, mn, kk))
    register = y.op("mul", i, y.const(count))
    inner.emit(Ldmatrix, fragment, register, region.buffer, offset, count, not k_last)
    close(b, "unroll", i, atoms // per, inner)


def _convert(b: Builder, source: Value, dest: Value, count: int) -> None:
    """The registers of one fragment as those of another of the same layout."""
    r, inner = unrolled(b, count, "r")
    value = inner.value(Cast, inner.value(RegRead, source, r), dest.dtype)
    inner.emit(RegWrite, dest, r, value)
    close(b, "unroll", r, count, inner)


def _load_elements(
    b: Builder,
    fragment: Value,
    layout: Layout,
    region: Operand,
    which: str,
    k0: Value,
    place: Place,
    pack: int,
) -> None:
    """Each thread reads its own elements, `pack` at once where they are adjacent, and converts
    them."""
    v = region.buffer
    memory = v.buffer.layout
    assert memory is not None
    k_of = 1 if which == "a" else 0
    adjacent = not region.mn_major and _adjacent(region, pack)
    r, inner = unrolled(b, layout.size("reg") // pack, "r")
    x = Numbers(inner)
    first = x.op("mul", r, x.const(pack))
    width = pack if adjacent else 1
    for e in range(0, pack, width):
        reg = x.op("add", first, x.const(e))
        c = coordinates(inner, layout, place, reg)
        kk = x.op("add", k0, c[k_of])
        mn = c[1 - k_of]
        offset = shared_offset(inner, memory, region.coordinates(x, mn, kk))
        loaded = inner.value(MemLoad, v, offset, width, width * v.dtype.bits // 8)
        for q in range(width):
            value = loaded if width == 1 else inner.value(Extract, loaded, q)
            if value.dtype != fragment.dtype:
                value = inner.value(Cast, value, fragment.dtype)
            inner.emit(RegWrite, fragment, x.op("add", reg, x.const(q)), value)
    close(b, "unroll", r, layout.size("reg") // pack, inner)


# --- SIMT ---


def _simt(b: Builder, o: Gemm, facts: Facts) -> None:
    """c[m, n] += a[m, k] * b[k, n] in k order; a thread reads each row of A and column of B it
    needs once."""
    layout = o.c.buffer.layout
    assert layout is not None
    place = Place(b)
    place.make(layout)
    k = Value(b.value(Const, 0, INT32).type, "k")
    step = Builder(o.loc)
    table = layout.table("reg")
    parts = {}
    for which, dim, v in (("a", 0, o.a.buffer), ("b", 1, o.b.buffer)):
        if v.buffer.space != "shared":
            raise InternalError(f"a SIMT gemm of {v.type}", o.loc)
        firsts: dict[int, int] = {}
        for number, c in enumerate(table):
            firsts.setdefault(int(c[dim]), number)
        distinct = sorted(firsts)
        line = Layout((len(distinct),), (Digit("reg", len(distinct), (1,)),), (1,))
        if len(distinct) == 1:
            line = Layout((1,), (), (1,))
        t = BufferType((len(distinct),), o.c.dtype, "fragment", layout=line)
        held = b.value(Alloc, t, name=f"{v.name}_line")
        i, inner = unrolled(step, len(distinct), "i")
        register = inner.value(Lookup, tuple(firsts[x] for x in distinct), i)
        at = coordinates(inner, layout, place, register)[dim]
        memory = v.buffer.layout
        assert memory is not None
        region = operand(o, which, facts)
        offset = shared_offset(inner, memory, region.coordinates(Numbers(inner), at, k))
        value = inner.value(MemLoad, v, offset, 1, v.dtype.bits // 8)
        if value.dtype != o.c.dtype:
            value = inner.value(Cast, value, o.c.dtype)
        inner.emit(RegWrite, held, i, value)
        close(step, "unroll", i, len(distinct), inner)
        parts[which] = (held, tuple(distinct.index(int(c[dim])) for c in table))
    r, inner = unrolled(step, len(table), "r")
    x = inner.value(RegRead, parts["a"][0], inner.value(Lookup, parts["a"][1], r))
    y = inner.value(RegRead, parts["b"][0], inner.value(Lookup, parts["b"][1], r))
    old = inner.value(RegRead, o.c, r)
    if o.c.dtype.is_float:
        new = inner.value(Fma, x, y, old)
    else:
        new = inner.value(Binary, "add", inner.value(Binary, "mul", x, y), old)
    inner.emit(RegWrite, o.c, r, new)
    close(step, "unroll", r, len(table), inner)
    step.emit(Yield)
    zero, end, one = (b.value(Const, n, INT32) for n in (0, o.shape[2], 1))
    b.emit(For, "serial", zero, end, one, (), Block((k,), tuple(step.ops)))
