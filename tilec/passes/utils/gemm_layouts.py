"""The layouts that the instruction of a tile product fixes for its operands and its result."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.instr import find_instruction
from tilec.ir.layout import Digit, Layout, padded, swizzled
from tilec.ir.ops import Gemm
from tilec.ir.types import PAD_BYTES, BufferType
from tilec.passes.utils.distribution import fewest_registers

SWIZZLES = (128, 64, 32)  # bytes


def spread(
    row_layout: Layout,
    atom: tuple[int, int],
    shape: tuple[int, int],
    o: Gemm,
    total: int,
    divided: tuple[bool, bool] = (True, True),
) -> Layout:
    """A row's operand layout repeated over a tile of a gemm: its warps' shares along (dim 0, dim 1)
    where these are `divided` between them, else all of it; each warp's share in registers, dim 1
    before dim 0; warps left over repeat the work."""
    warps = o.warps[0] // find_instruction(o.instr).warps, o.warps[1]
    share0, share1 = (e // n if cut else e for e, n, cut in zip(shape, warps, divided))
    digits = [
        *row_layout.digits,
        Digit("reg", share1 // atom[1], (0, atom[1])),
        Digit("reg", share0 // atom[0], (atom[0], 0)),
        Digit("warp", warps[0], (share0 * divided[0], 0)),
        Digit("warp", warps[1], (0, share1 * divided[1])),
        Digit("warp", total // (o.warps[0] * o.warps[1]), (0, 0)),
    ]
    return Layout(shape, tuple(d for d in digits if d.radix > 1), (1, 1))


def accumulator_type(o: Gemm, total_warps: int, warp_size: int) -> BufferType:
    """The fragment in which the row of a gemm sums C."""
    layout = accumulator_layout(o, total_warps, warp_size)
    return replace(o.c.buffer, dtype=find_instruction(o.instr).c_dtype, layout=layout)


def operand_type(o: Gemm, which: str, total_warps: int) -> BufferType:
    """The fragment in which the row of a gemm takes an A or B from registers."""
    instr, t = find_instruction(o.instr), (o.a if which == "a" else o.b).type
    first = (which == "a") != o.operands_swapped
    dtype = instr.a_dtype if first else instr.b_dtype
    return replace(t, dtype=dtype, layout=operand_fragment_layout(o, which, total_warps))


def accumulator_layout(o: Gemm, total_warps: int, warp_size: int) -> Layout:
    """Layout of the C fragment of a gemm whose row and warps are chosen."""
    if o.operands_swapped:
        return accumulator_layout(o.swap_operands(), total_warps, warp_size).transpose()
    m, n, _ = o.shape
    if o.instr.startswith("simt"):
        return fewest_registers((m, n), warp_size, total_warps, 4)
    instr = find_instruction(o.instr)
    return spread(instr.c, (instr.m, instr.n), (m, n), o, total_warps)


def operand_fragment_layout(o: Gemm, which: str, total_warps: int) -> Layout:
    """Layout of a whole A or B operand, as its buffer has it (transposed or not), held in
    registers; the warps along the other dimension hold the same elements."""
    if o.operands_swapped:
        return operand_fragment_layout(o.swap_operands(), "b" if which == "a" else "a", total_warps)
    held = operand_layout(o, which, o.shape[2], total_warps)
    transposed = o.transpose_a if which == "a" else o.transpose_b
    return held.transpose() if transposed else held


def operand_layout(o: Gemm, which: str, k: int, total_warps: int) -> Layout:
    """Layout of `k` elements of the sums of A, as (M, k), or of B, as (k, N), in registers; of a
    compressed A those that are kept."""
    m, n, _ = o.shape
    instr = find_instruction(o.instr)
    if which == "a":
        atom, own = (instr.m, instr.a_k), (m, k * instr.a_k // instr.k)
        return spread(instr.a, atom, own, o, total_warps, (True, False))
    return spread(instr.b, (instr.k, instr.n), (k, n), o, total_warps, (False, True))


def swizzle_of(o: Gemm, which: str) -> int:
    """The widest swizzle in which a product can read its operand "a" or "b": a warpgroup that has a
    part of what is contiguous in memory reads whole rows of swizzles of it."""
    across = o.transpose_a if which == "a" else not o.transpose_b
    return o.swizzle if across else SWIZZLES[0]


def operand_shared_layout(
    shape: tuple[int, ...], bits: int, instr: str, most: int = SWIZZLES[0]
) -> Layout:
    """How a shared operand tile lies: 16-byte chunks swizzled within rows of 128, 64 or 32 bytes,
    `most` at most, for matrix instructions, rows set apart by 16 bytes where these do not divide
    and for SIMT."""
    if not instr.startswith("simt") and shape[-2] % 8 == 0:
        for width in SWIZZLES[SWIZZLES.index(most) :]:
            if shape[-1] * bits // 8 % width == 0:
                return swizzled(shape, bits, width)
    return padded(shape, shape[-1], PAD_BYTES * 8 // bits)
