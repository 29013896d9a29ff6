"""lower_gemm: tile products become instructions.

Before: every `gemm` has a row and warps, its operands and accumulator have layouts. After: none is
left.

- wgmma: descriptors of the shared operands, one op for the whole tile, and a wait unless the
  product is `asynchronous`;
- mma, mfma: for each k step the operands come to registers (8x8 matrices at once where the layout
  allows it, element runs otherwise, converted if the instruction takes another dtype: float32 is
  rounded to TF32), then one instruction per atom of C;
- SIMT: for each k, each register of C gets one fused multiply-add (`simt_products`).
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import ops
from tilec.ir.analysis import Facts, facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Value
from tilec.ir.errors import InternalError
from tilec.ir.instr import MatrixInstruction, find_instruction
from tilec.ir.layout import has_runs
from tilec.ir.types import BOOL, BufferType
from tilec.passes.check_registers import room_of_products
from tilec.passes.utils.addressing import Place, coordinates, shared_offset
from tilec.passes.utils.building import load_registers
from tilec.passes.utils.gemm_layouts import operand_layout
from tilec.passes.utils.operands import WGMMA_K_BYTES, Operand, k_bytes, operand, plane, wgmma_reads
from tilec.passes.utils.simt_products import simt_product
from tilec.passes.utils.sparse_metadata import Metadata
from tilec.target import Target

CHUNK_BITS = 128  # of a row of a matrix that ldmatrix reads
# Instructions whose operands lie as ldmatrix gives them.
LDMATRIX_FEEDS = ("mma", "mma_fp8", "mma_sp", "mma_sp_fp8")
BESIDE = 32  # registers of a thread for addresses and the like


def lower_gemm(func: Func, target: Target) -> Func:
    products = [o.swap_operands() for o in func.body.every(ops.Gemm)]
    matrices = [o for o in products if not o.instr.startswith("simt")]
    packs = {o.c: find_instruction(o.instr).packs[2] for o in matrices}
    facts, room = facts_of(func), room_of_products(func, target)

    def visit(o: ops.Gemm) -> list[Op]:
        o, b = o.swap_operands(), Builder(o.loc)
        if o.clear and not o.by_engine:
            _clear(b, o.c)
        if o.by_engine:
            _wgmma(b, o, packs, facts)
        elif o.instr.startswith("simt"):
            simt_product(b, o, facts, room)
        else:
            _matrix(b, o, packs, facts, target)
        return b.ops

    func = func.rewrite(ops.Gemm, visit)

    def pack(o: ops.Alloc) -> None | Op:
        return replace(o, packed=packs[o.result]) if o.result in packs else None

    return func.rewrite(ops.Alloc, pack) if packs else func


def _clear(b: Builder, c: Value) -> None:
    layout = c.buffer.laid_out
    with b.counted(layout.size("reg"), "r") as (r, inner):
        inner.emit(ops.RegWrite, c, r, inner.zero(c.dtype))


def _in_packs(b: Builder, v: Value, pack: int, packs: dict[Value, int]) -> Value:
    """An operand's fragment, or a copy of it where a product that it is the result of, or one in
    front, has other packs of it."""
    if packs.setdefault(v, pack) == pack:
        return v
    made = b.value(ops.Alloc, v.buffer, packed=pack, name=v.name)
    with b.counted(v.buffer.laid_out.size("reg"), "r", "unroll") as (r, inner):
        inner.emit(ops.RegWrite, made, r, inner.value(ops.RegRead, v, r))
    return made


# --- wgmma ---


def _wgmma(b: Builder, o: ops.Gemm, packs: dict[Value, int], facts: Facts) -> None:
    instr = find_instruction(o.instr)
    if (o.a.dtype, o.b.dtype) != (instr.a_dtype, instr.b_dtype):
        raise InternalError(f"{instr.name} of {o.a.buffer.type} and {o.b.buffer.type}", o.loc)
    m, n, k = o.shape
    groups_m, groups_n = o.warps[0] // 4, o.warps[1]
    m_blocks = m // groups_m // instr.m
    steps = range(0, k, instr.k)
    group = b.fold("floordiv", Place(b).warp, 4)
    at_m = b.fold("mod", group, groups_m) if groups_n > 1 else group
    at_n = b.fold("floordiv", group, groups_m)
    in_registers = o.a.type.space == "fragment"
    a_registers = _in_packs(b, o.a.buffer, instr.packs[0], packs) if in_registers else o.a.buffer
    a_offset, a_fields, a_transposed = b.const(0), 0, False
    a_steps: tuple[int, ...] = ()
    if not in_registers:
        a = _WgmmaOperand(operand(o, "a", facts), m // groups_m)
        a_offset, a_fields = a.offset(b, at_m, groups_m), a.fields
        a_steps = tuple(
            a.units(i * instr.m, s * instr.a_k // instr.k) for i in range(m_blocks) for s in steps
        )
        a_transposed = a.operand.mn_major
    bb = _WgmmaOperand(operand(o, "b", facts), n // groups_n, k_bytes(instr))
    described: tuple[Value | None, int] = (None, 1)
    if o.metadata is not None:
        metadata = Metadata(o, instr, Place(b), facts)
        described = metadata.load_all(b, len(steps)), metadata.served
        # The stage of the metadata is freed for TMA once the product has ended, by one thread.
        b.emit(ops.ProxyFence)
    places = a_registers, a_offset, o.b.buffer, bb.offset(b, at_n, groups_n)
    pieces = a_fields, bb.fields, a_steps, tuple(bb.units(0, s) for s in steps)
    transposed = a_transposed, bb.operand.mn_major
    adds = b.const(False, BOOL) if o.clear else o.accumulate
    b.emit(ops.Wgmma, o.instr, o.c, *places, m_blocks, *pieces, *transposed, adds, *described)
    if not o.asynchronous:
        registers = (o.c, a_registers if in_registers else None, described[0])
        b.emit(ops.WgmmaWait, 0, tuple(v for v in registers if v is not None))


class _WgmmaOperand:
    """Where the pieces of a shared operand start, which warpgroups read in shares of `share` along
    M or N."""

    def __init__(self, x: Operand, share: int, depth: int = WGMMA_K_BYTES) -> None:
        layout = x.buffer.buffer.laid_out
        found = wgmma_reads(x, layout, share, depth)
        if found is None:
            raise InternalError(f"wgmma cannot read {layout}")
        self.operand = x
        self.layout = layout
        self.share = share
        self.offsets = plane(layout).offsets()
        self.fields = found.fields

    def _at(self, mn: int, k: int) -> int:
        return int(self.offsets[(k, mn) if self.operand.mn_major else (mn, k)])

    def offset(self, x: Builder, index: Value, shares: int) -> Value:
        """Elements from the buffer's start to share number `index`."""
        origin = self.operand.origin(x, self.layout)
        if shares == 1:
            return origin
        starts = [self._at(i * self.share, 0) for i in range(shares)]
        if starts != [i * starts[1] for i in range(shares)]:
            raise InternalError(f"shares of {self.layout} do not start at equal distances")
        return x.fold("add", origin, x.fold("mul", index, starts[1]))

    def units(self, mn: int, k: int) -> int:
        """Distance of a piece from the operand's start, in units of 16 bytes."""
        return self._at(mn, k) * self.operand.buffer.dtype.bits // 128


# --- mma, mfma and wmma ---


def _matrix(b: Builder, o: ops.Gemm, packs: dict[Value, int], facts: Facts, target: Target) -> None:
    instr = find_instruction(o.instr)
    m, n, k = o.shape
    m_atoms, n_atoms = m // o.warps[0] // instr.m, n // o.warps[1] // instr.n
    place = Place(b)
    _ = place.lane, place.warp
    steps = k // instr.k
    held = {
        which: _in_packs(b, x.buffer, pack, packs)
        for which, x, pack in zip("ab", (o.a, o.b), instr.packs)
        if x.type.space == "fragment"
    }
    # Conversions to another width need registers of their own: written out, they would all be under
    # way at once. What lies in registers for all of K is numbered, which takes a loop that is
    # written out.
    widths = {(o.a.dtype.bits, instr.a_dtype.bits), (o.b.dtype.bits, instr.b_dtype.bits)}
    late = any(own != taken for own, taken in widths)
    late = late or _crowded(instr, m_atoms, n_atoms, steps, target)
    a_size, b_size, c_size = instr.registers
    kind = "serial" if late and not held else "unroll"

    def multiply(
        inner: Builder, step: Value, words: Value | None = None, selector: int = 0
    ) -> None:
        a, bb = (
            held.get(which) or _Step(o, which, place, facts).load(b, inner, step) for which in "ab"
        )
        with inner.counted(m_atoms, "i") as (i, rows), rows.counted(n_atoms, "j") as (j, columns):
            a_index = columns.fold("mul", i, a_size * (steps if "a" in held else 1))
            if "a" in held:
                a_index = columns.fold("add", a_index, columns.fold("mul", step, a_size))
            b_index = columns.fold("mul", j, b_size)
            if "b" in held:
                b_index = columns.fold("add", b_index, columns.fold("mul", step, n_atoms * b_size))
            first = columns.fold("mul", i, n_atoms * c_size)
            c_index = columns.fold("add", first, columns.fold("mul", j, c_size))
            word = None if words is None else columns.value(ops.RegRead, words, i)
            columns.emit(ops.Mma, o.instr, o.c, c_index, a, a_index, bb, b_index, word, selector)

    if instr.metadata is None:
        with b.counted(steps, "k", kind) as (step, inner):
            multiply(inner, step)
        return
    metadata = Metadata(o, instr, place, facts)
    with b.counted(steps // metadata.served, "k", kind) as (group, inner):
        words = metadata.alloc(b, 1)
        metadata.load(inner, words, group)
        for selector in range(metadata.served):
            first = inner.fold("mul", group, metadata.served)
            multiply(inner, inner.fold("add", first, selector), words, selector)


def _crowded(
    instr: MatrixInstruction, m_atoms: int, n_atoms: int, steps: int, target: Target
) -> bool:
    """Whether a thread's sums and the operands of all steps are more than its registers, where the
    code generator would ask for all of them first."""
    a, b, c = (
        layout.size("reg") * dtype.bits
        for layout, dtype in (
            (instr.a, instr.a_dtype), (instr.b, instr.b_dtype), (instr.c, instr.c_dtype),
        )
    )  # fmt: skip
    taken = m_atoms * n_atoms * c + steps * (m_atoms * a + n_atoms * b)
    most = 32 * (target.max_registers_per_thread - BESIDE)
    return taken > most and not target.has("orders_by_registers")


class _Step:
    """One k step of operand `which` of a product, brought from shared memory to a fragment."""

    def __init__(self, o: ops.Gemm, which: str, place: Place, facts: Facts) -> None:
        self.is_a = which == "a"
        self.instr = instr = find_instruction(o.instr)
        self.warps = o.warps
        self.place = place
        self.region = operand(o, which, facts)
        self.pack = instr.packs[0 if self.is_a else 1]
        self.share = o.shape[0] // o.warps[0] if self.is_a else o.shape[1] // o.warps[1]
        self.layout = operand_layout(o, which, instr.k, o.c.buffer.laid_out.size("warp"))
        dtype = instr.a_dtype if self.is_a else instr.b_dtype
        self.depth = instr.a_k if self.is_a else instr.k  # elements along K of one step
        self.type = BufferType(self.layout.shape, dtype, "fragment", layout=self.layout)
        self.name = f"{self.region.buffer.name}_{which}"

    def load(self, b: Builder, inner: Builder, step: Value) -> Value:
        """The fragment, made at `b`, whose registers `inner` fills."""
        fragment = b.value(ops.Alloc, self.type, packed=self.pack, name=self.name)
        k0 = inner.fold("mul", step, inner.const(self.depth))
        own = self.region.buffer.dtype
        if not self._by_matrices():
            self._elements(inner, fragment, k0)
        elif own == fragment.dtype:
            self._matrices(inner, fragment, k0)
        else:
            raw = replace(self.type, dtype=own)
            loaded = b.value(ops.Alloc, raw, packed=self.pack, name=f"{self.name}_raw")
            self._matrices(inner, loaded, k0)
            with inner.counted(self.layout.size("reg"), "r") as (r, each):
                value = each.cast(each.value(ops.RegRead, loaded, r), fragment.dtype)
                each.emit(ops.RegWrite, fragment, r, value)
        return fragment

    def _by_matrices(self) -> bool:
        """Whether ldmatrix brings the operand: its elements as wide as the instruction takes them,
        two 16-byte chunks of K at a time (four of B beside a compressed A). An 8x8 matrix of 16
        bits is a matrix of 8 rows and 16 bytes for it; only 16-bit elements can be transposed on
        the way."""
        instr, own, dtype = self.instr, self.region.buffer.dtype, self.type.dtype
        return (
            instr.feature in LDMATRIX_FEEDS
            and (dtype == own or dtype.bits == own.bits == 32)
            and instr.packs[0] * own.bits == 32  # what a lane gets of a matrix
            and self._chunks(own.bits) in (2, 4)
            and (own.bits == 16 or not self.region.mn_major)
            and self._adjacent(CHUNK_BITS // own.bits)
        )

    def _chunks(self, bits: int) -> int:
        """Chunks of 16 bytes along K of one step, of elements of `bits` bits."""
        return self.depth * bits // CHUNK_BITS

    def _adjacent(self, count: int) -> bool:
        """Whether every run of `count` elements of the operand's last dimension, from a multiple of
        `count` on, is adjacent in memory and aligned to its size."""
        return self.region.divisors[1] % count == 0 and has_runs(
            self.region.buffer.buffer.laid_out, count
        )

    def _offset(self, x: Builder, mn: Value, k: Value) -> Value:
        """Where an element of the operand lies in shared memory."""
        memory = self.region.buffer.buffer.laid_out
        return shared_offset(x, memory, self.region.coordinates(x, mn, k))

    def _matrices(self, b: Builder, fragment: Value, k0: Value) -> None:
        """ldmatrix: lane l gives row l % 8 of matrix l / 8. A's atom is 2x2 matrices (rows first),
        two of B's atoms are 2x2 (k first), or one is 4 along k, each 8 rows of 16 bytes; `.trans`
        where K is not the contiguous dimension."""
        wm, wn = self.warps
        lane, warp = self.place.lane, self.place.warp
        number = b.fold("floordiv", lane, 8)
        row_in = b.fold("mod", lane, 8)
        first = b.fold("mod", number, 2)
        second = b.fold("floordiv", number, 2)
        # mn_at, k_at: which of the two matrices along M/N and along K this lane's address is of.
        if self.is_a:
            mn_at, k_at = first, second
            at = b.fold("mod", warp, wm)
            per, count, width = 1, 4, self.instr.m
        else:
            mn_at, k_at = second, first
            at = b.fold("floordiv", warp, wm)
            at = b.fold("mod", at, wn) if wn > 1 else b.const(0)
            per, count, width = 2, 4, self.instr.n
        atoms = self.share // width
        if not self.is_a and self._chunks(fragment.dtype.bits) == 4:
            per, mn_at, k_at = 1, b.const(0), number
        elif atoms % per:
            per, count, mn_at = 1, 2, b.const(0)
        base = b.fold("mul", at, self.share)
        with b.counted(atoms // per, "i") as (i, inner):
            start = inner.fold("add", base, inner.fold("mul", i, width * per))
            mn = inner.fold("add", start, inner.fold("mul", mn_at, 8))
            chunk = CHUNK_BITS // fragment.dtype.bits
            k = inner.fold("add", k0, inner.fold("mul", k_at, chunk))
            # The rows of a stored matrix run along the dimension that is not contiguous.
            if self.region.mn_major:
                k = inner.fold("add", k, row_in)
            else:
                mn = inner.fold("add", mn, row_in)
            offset = self._offset(inner, mn, k)
            register = inner.fold("mul", i, count)
            source, transposed = self.region.buffer, self.region.mn_major
            inner.emit(ops.Ldmatrix, fragment, register, source, offset, count, transposed)

    def _elements(self, b: Builder, fragment: Value, k0: Value) -> None:
        """Each thread reads its own elements, `pack` at once where they are adjacent, or chunks of
        16 bytes, and converts them."""
        v, pack = self.region.buffer, self.pack
        runs = (w for w in (pack, CHUNK_BITS // v.dtype.bits) if pack % w == 0)
        width = 1 if self.region.mn_major else next(filter(self._adjacent, runs), 1)
        with b.counted(self.layout.size("reg") // pack, "r") as (r, inner):
            first = inner.fold("mul", r, pack)
            for e in range(0, pack, width):
                register = inner.fold("add", first, e)
                at = coordinates(inner, self.layout, self.place, register)
                mn, k = at if self.is_a else reversed(at)
                offset = self._offset(inner, mn, inner.fold("add", k0, k))
                load_registers(inner, v, offset, width, fragment, register)
