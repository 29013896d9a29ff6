"""The layouts that the instruction of a tile product fixes for its operands and its result."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from tilec.ir.instr import find_instruction
from tilec.ir.layout import Digit, Layout, padded, swizzled
from tilec.ir.ops import Gemm
from tilec.ir.types import PAD_BYTES, BufferType
from tilec.passes.utils.distribution import fewest_registers

SWIZZLES = (128, 64, 32)  # bytes
READ_BITS = 128  # that a thread reads of shared memory at once


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
        return simt_layout(o, total_warps, warp_size)
    instr = find_instruction(o.instr)
    return spread(instr.c, (instr.m, instr.n), (m, n), o, total_warps)


def simt_layout(o: Gemm, warps: int, warp_size: int) -> Layout:
    """Layout of the C that threads sum by themselves: each has a rectangle of it, whose rows of A
    and columns of B it reads once a step, so that a squarer one takes fewer reads. Along M or N, a
    thread's elements are neighbours where the operand's are, which come at once; where it is K that
    is contiguous, lanes have every so many, and what they read lies in banks of its own."""
    m, n, _ = o.shape
    sides = (o.a.dtype.bits, o.transpose_a), (o.b.dtype.bits, not o.transpose_b)
    best: tuple[tuple[float, ...], Layout] | None = None
    for (lanes_m, lanes_n), (warps_m, warps_n) in itertools.product(
        _splits(warp_size), _splits(warps)
    ):
        if (warps_n if o.policy == "full_row" else warps_m if o.policy == "full_col" else 1) > 1:
            continue
        if m % (lanes_m * warps_m) or n % (lanes_n * warps_n):
            continue
        own = m // (lanes_m * warps_m), n // (lanes_n * warps_n)
        run_m, run_n = (
            gcd(size, READ_BITS // bits) if along else 1 for size, (bits, along) in zip(own, sides)
        )
        price = sum(
            _read_price(size, run, bits, lanes)
            for size, run, (bits, _), lanes in zip(own, (run_m, run_n), sides, (lanes_m, lanes_n))
        )
        told = own[0] * lanes_m + own[1] * lanes_n
        digits = (
            Digit("reg", run_n, (0, 1)),
            Digit("reg", run_m, (1, 0)),
            Digit("lane", lanes_n, (0, run_n)),
            Digit("lane", lanes_m, (run_m, 0)),
            Digit("reg", own[1] // run_n, (0, run_n * lanes_n)),
            Digit("reg", own[0] // run_m, (run_m * lanes_m, 0)),
            Digit("warp", warps_n, (0, own[1] * lanes_n)),
            Digit("warp", warps_m, (own[0] * lanes_m, 0)),
        )
        key = price, told, -lanes_n * run_n
        if best is None or key < best[0]:
            best = key, Layout((m, n), tuple(d for d in digits if d.radix > 1))
    return best[1] if best else fewest_registers((m, n), warp_size, warps, 4)


def _splits(count: int) -> Iterator[tuple[int, int]]:
    """Each two numbers whose product it is."""
    return ((n, count // n) for n in range(1, count + 1) if count % n == 0)


def _read_price(size: int, run: int, bits: int, lanes: int) -> float:
    """Cycles of a step's reads of so many elements of a thread, `run` of them side by side, or, if
    that is 1, with as many of the next steps as come at once: shared memory gives 128 bytes in a
    cycle, and as many as that to a warp whose lanes share what they read."""
    together = run if run > 1 else READ_BITS // bits
    length = together * bits // 8
    return size / together * max(1.0, length / 8, lanes * length / 128)


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
