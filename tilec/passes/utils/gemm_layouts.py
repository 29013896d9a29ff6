"""The layouts that the instruction of a tile product fixes for its operands and its result."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.instr import find_row
from tilec.ir.layout import Digit, Layout, padded, swizzled
from tilec.ir.memory import PAD_BYTES
from tilec.ir.ops import Gemm
from tilec.ir.types import BufferType
from tilec.passes.utils.distribution import fewest_registers


def spread(
    row_layout: Layout,
    atom: tuple[int, int],
    shape: tuple[int, int],
    warps: tuple[int, int],
    row_warps: int,
    total: int,
) -> Layout:
    """A row's operand layout repeated over a tile: `warps` shares along (dim 0, dim 1), each
    warp's share in registers, dim 1 before dim 0; warps left over repeat the work."""
    w0, w1 = warps[0] // row_warps, warps[1]
    share0, share1 = shape[0] // w0, shape[1] // w1
    digits = [
        *row_layout.digits,
        Digit("reg", share1 // atom[1], (0, atom[1])),
        Digit("reg", share0 // atom[0], (atom[0], 0)),
        Digit("warp", w0, (share0, 0)),
        Digit("warp", w1, (0, share1)),
        Digit("warp", total // (warps[0] * w1), (0, 0)),
    ]
    return Layout(shape, tuple(d for d in digits if d.radix > 1), (1, 1))


def accumulator_type(o: Gemm, total_warps: int, warp_size: int) -> BufferType:
    """The fragment in which the row of a gemm sums C."""
    layout = accumulator_layout(o, total_warps, warp_size)
    return replace(o.c.buffer, dtype=find_row(o.row).c_dtype, layout=layout)


def operand_type(o: Gemm, which: str, total_warps: int) -> BufferType:
    """The fragment in which the row of a gemm takes an A or B from registers."""
    row, t = find_row(o.row), (o.a if which == "a" else o.b).buffer.buffer
    first = (which == "a") != o.turned
    dtype = row.a_dtype if first else row.b_dtype
    return replace(t, dtype=dtype, layout=operand_fragment_layout(o, which, total_warps))


def accumulator_layout(o: Gemm, total_warps: int, warp_size: int) -> Layout:
    """Layout of the C fragment of a gemm whose row and warps are chosen."""
    if o.turned:
        return accumulator_layout(o.turn(), total_warps, warp_size).transpose()
    m, n, _ = o.shape
    if o.row.startswith("simt"):
        return fewest_registers((m, n), warp_size, total_warps, 4)
    row = find_row(o.row)
    return spread(row.c, (row.m, row.n), (m, n), (o.warps[0], o.warps[1]), row.warps, total_warps)


def operand_fragment_layout(o: Gemm, which: str, total_warps: int) -> Layout:
    """Layout of a whole A or B operand, as its buffer has it (transposed or not), held in
    registers; the warps along the other dimension hold the same elements."""
    if o.turned:
        return operand_fragment_layout(o.turn(), "b" if which == "a" else "a", total_warps)
    m, n, k = o.shape
    row = find_row(o.row)
    wm, wn = o.warps[0] // row.warps, o.warps[1]
    if which == "a":
        shape, layout, atom = (m, k), row.a, (row.m, row.k)
        digits = [Digit("warp", wm, (m // wm, 0)), Digit("warp", wn, (0, 0))]
        share = (m // wm, k)
    else:
        shape, layout, atom = (k, n), row.b, (row.k, row.n)
        digits = [Digit("warp", wm, (0, 0)), Digit("warp", wn, (0, n // wn))]
        share = (k, n // wn)
    inner = [
        *layout.digits,
        Digit("reg", share[1] // atom[1], (0, atom[1])),
        Digit("reg", share[0] // atom[0], (atom[0], 0)),
    ]
    spare = [Digit("warp", total_warps // (o.warps[0] * wn), (0, 0))]
    held = Layout(shape, tuple(d for d in (*inner, *digits, *spare) if d.radix > 1), (1, 1))
    transposed = o.transpose_a if which == "a" else o.transpose_b
    return held.transpose() if transposed else held


def operand_shared_layout(shape: tuple[int, ...], bits: int, row: str) -> Layout:
    """How a shared operand tile lies: 16-byte chunks swizzled within rows of 128, 64 or 32 bytes
    for matrix instructions, rows set apart by 16 bytes where these do not divide and for SIMT."""
    if not row.startswith("simt") and shape[-2] % 8 == 0:
        for width in (128, 64, 32):
            if shape[-1] * bits // 8 % width == 0:
                return swizzled(shape, bits, width)
    return padded(shape, shape[-1], PAD_BYTES * 8 // bits)
