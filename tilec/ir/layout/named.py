"""Layouts with names: the memory layouts, the coalesced fragment, and the fragments of matrix
instructions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from math import gcd, prod

from tilec.ir.errors import LayoutError
from tilec.ir.layout.core import Layout, dims_text, name_constants, named, parse_dims
from tilec.ir.layout.normal import Digit

__all__ = [
    "LayoutRequest", "row_major", "padded", "swizzled", "swizzle_of", "blocked", "mma_a", "mma_b",
    "MMA16_A", "MMA16_B", "MMA_C", "MMA8_A", "MMA8_B", "MMA32_A", "MMA32_B", "MMA4_A", "MMA4_B",
    "MMA4_C", "wgmma_c", "wgmma_a", "WGMMA_A", "mfma_a", "mfma_c", "WMMA_A", "WMMA_C",
    "mma_sp_metadata", "wgmma_sp_metadata", "FRAGMENTS",
]  # fmt: skip

CHUNK_BITS = 128
"""Swizzles move whole chunks of 16 bytes."""

SWIZZLES = (128, 64, 32)
"""Row lengths, in bytes, that TMA and wgmma can swizzle; widest first."""


@dataclass(frozen=True)
class LayoutRequest:
    """A layout the user asks for by what it is for; each target resolves it for itself."""

    name: str


# --- memory ---


@functools.lru_cache(maxsize=4096)
def row_major(shape: tuple[int, ...]) -> Layout:
    """Dense, last dimension fastest."""
    return Layout(shape, tuple(_dense(shape, "offset")))


@functools.lru_cache(maxsize=4096)
def padded(shape: tuple[int, ...], every: int, skip: int) -> Layout:
    """Row-major, but after every `every` elements `skip` are left out."""
    return Layout(shape, row_major(shape).digits, pad=(every, skip))


@functools.lru_cache(maxsize=4096)
def swizzled(shape: tuple[int, ...], bits: int, swizzle_bytes: int) -> Layout:
    """What TMA boxes of a swizzle mode write (CUDA driver API, `CUtensorMapSwizzle`).

    The last dimension is cut into boxes of `swizzle_bytes` (32, 64 or 128); box q lies at offset q
    * rows * swizzle_bytes, where rows counts all other dimensions together. Inside a box rows
    follow one another, and the 16-byte chunk of an element is XORed with the number of its 128-byte
    line, modulo the chunks of a row: in bytes, `b ^ ((b >> 7 & swizzle_bytes / 16 - 1) << 4)`.

    Raises LayoutError if the last dimension is not whole boxes, or the others do not split into
    whole swizzles.
    """
    if swizzle_bytes not in SWIZZLES or bits not in (4, 8, 16, 32, 64):
        raise LayoutError(
            f"no {swizzle_bytes}-byte swizzle of {bits}-bit elements (32, 64 or 128 bytes)"
        )
    width, chunk = swizzle_bytes * 8 // bits, CHUNK_BITS // bits
    if not shape or shape[-1] % width:
        raise LayoutError(
            f"a {swizzle_bytes}-byte swizzle needs rows of whole {width} elements; "
            f"the shape is {shape}"
        )
    rank = len(shape)
    last = tuple(int(i == rank - 1) for i in range(rank))
    digits = [Digit("offset", width, last)]
    lines_per_row, chunks = 128 // swizzle_bytes, swizzle_bytes // 16
    atom = [width if i == rank - 1 else 1 for i in range(rank)]
    # What follows a row of a box in memory: rows, then the next box.
    above = [(i, shape[i], 1) for i in reversed(range(rank - 1))]
    row = 1
    for i, extent, step in (*above, (rank - 1, shape[-1] // width, width)):
        left = extent
        while left > 1 and row < lines_per_row * chunks:
            if left % 2:
                raise LayoutError(
                    f"a {swizzle_bytes}-byte swizzle repeats every {lines_per_row * chunks} rows, "
                    f"which does not divide shape {shape}"
                )
            along = [step if j == i else 0 for j in range(rank)]
            along[-1] += row // lines_per_row * chunk
            digits.append(Digit("offset", 2, tuple(along)))
            left, step, row = left // 2, 2 * step, 2 * row
        atom[i] = max(atom[i], step)
        digits.append(Digit("offset", left, tuple(step if j == i else 0 for j in range(rank))))
    return Layout(shape, tuple(digits), tuple(atom), align=8 * swizzle_bytes)


def _dense(shape: tuple[int, ...], owner: str) -> list[Digit]:
    unit = [tuple(int(i == j) for j in range(len(shape))) for i in range(len(shape))]
    return [Digit(owner, shape[i], unit[i]) for i in reversed(range(len(shape)))]


@named("row_major", lambda text: row_major(parse_dims(text)))
def _row_major_text(layout: Layout) -> str | None:
    return f"row_major({dims_text(layout.shape)})" if layout == row_major(layout.shape) else None


def _of_numbers(make: Callable[..., Layout], count: int) -> Callable[[str], Layout]:
    """Reads a shape and the numbers behind it, of which a layout is made."""

    def parse(text: str) -> Layout:
        dims, *numbers = text.split(", ")
        if len(numbers) != count:
            raise ValueError(f"{len(numbers)} numbers behind {dims}, not {count}")
        return make(parse_dims(dims), *map(int, numbers))

    return parse


@named("padded", _of_numbers(padded, 2))
def _padded_text(layout: Layout) -> str | None:
    if layout.pad is None or layout != padded(layout.shape, *layout.pad):
        return None
    return f"padded({dims_text(layout.shape)}, {layout.pad[0]}, {layout.pad[1]})"


@named("swizzled", _of_numbers(swizzled, 2))
def _swizzled_text(layout: Layout) -> str | None:
    found = swizzle_of(layout)
    return f"swizzled({dims_text(layout.shape)}, {found[0]}, {found[1]})" if found else None


@functools.lru_cache(maxsize=4096)
def swizzle_of(layout: Layout) -> tuple[int, int] | None:
    """(bits, swizzle_bytes) if the layout is `swizzled(layout.shape, bits, swizzle_bytes)`, else
    None."""
    swizzle = layout.align // 8
    if swizzle not in SWIZZLES or not layout.shape or not layout.of("offset"):
        return None
    for bits in (16, 32, 8, 64, 4):
        try:
            if layout == swizzled(layout.shape, bits, swizzle):
                return bits, swizzle
        except LayoutError:
            continue
    return None


# --- registers ---


@functools.lru_cache(maxsize=4096)
def blocked(shape: tuple[int, ...], warp_size: int, warps: int, vector: int) -> Layout:
    """A fragment that is read and written in coalesced pieces.

    Each thread holds `vector` consecutive elements of the last dimension (or the largest part of
    `vector` that divides it), the lanes follow along the row, then along the rows, then the warps;
    what is left is in registers. Any shape will do: where lanes or warps do not divide what is left
    of it, some hold copies.
    """
    rank = len(shape)
    step, left = [1] * rank, list(shape)
    digits: list[Digit] = []

    def take(owner: str, dim: int, count: int) -> None:
        digits.append(Digit(owner, count, tuple(step[dim] if i == dim else 0 for i in range(rank))))
        step[dim] *= count
        left[dim] //= count

    if rank:
        take("reg", rank - 1, gcd(vector, shape[-1]))
    for owner, idle in (("lane", warp_size), ("warp", warps)):
        for dim in reversed(range(rank)):
            count = gcd(idle, left[dim])
            take(owner, dim, count)
            idle //= count
        digits.append(Digit(owner, idle, (0,) * rank))
    for dim in reversed(range(rank)):
        take("reg", dim, left[dim])
    return Layout(shape, tuple(digits))


@named("blocked", _of_numbers(blocked, 3))
def _blocked_text(layout: Layout) -> str | None:
    if layout.is_memory or not layout.shape:
        return None
    lanes, warps = layout.size("lane"), layout.size("warp")
    if lanes * warps * layout.size("reg") < prod(layout.shape):
        return None
    for vector in (1, 2, 4, 8, 16):
        if layout == blocked(layout.shape, lanes, warps, vector):
            return f"blocked({dims_text(layout.shape)}, {lanes}, {warps}, {vector})"
    return None


def _bits(owner: str, *steps: tuple[int, int]) -> tuple[Digit, ...]:
    return tuple(Digit(owner, 2, s) for s in steps)


_QUAD = _bits("lane", (0, 2), (0, 4), (1, 0), (2, 0), (4, 0))


@functools.cache
def mma_a(bits: int, k: int) -> Layout:
    """PTX ISA, "Matrix fragments for mma.m16n8k…", A (16, k) of `bits`-bit elements: a register
    holds the neighbours along k that fit in 32 bits, four lanes follow along k, eight along m; then
    registers for the lower eight rows and for the second half of k, where there is one."""
    pack = 32 // bits
    inside = [(0, 1 << i) for i in range(pack.bit_length() - 1)]
    halves = [(0, 4 * pack)] if k == 8 * pack else []
    lanes = _bits("lane", (0, pack), (0, 2 * pack), (1, 0), (2, 0), (4, 0))
    return Layout((16, k), (*_bits("reg", *inside, (8, 0), *halves), *lanes))


@functools.cache
def mma_b(bits: int, k: int) -> Layout:
    """PTX ISA, "Matrix fragments for mma.m16n8k…", B (k, 8): as `mma_a`, with n for m and no lower
    half; of mma.sp there are four parts of k."""
    pack = 32 // bits
    inside = [(1 << i, 0) for i in range(pack.bit_length() - 1)]
    parts = [(4 * pack << i, 0) for i in range((k // (4 * pack)).bit_length() - 1)]
    lanes = _bits("lane", (pack, 0), (2 * pack, 0), (0, 1), (0, 2), (0, 4))
    return Layout((k, 8), (*_bits("reg", *inside, *parts), *lanes))


@functools.cache
def mma_sp_metadata(unit: int) -> Layout:
    """PTX ISA, "Matrix fragments for sparse mma", metadata of 16 rows in units of `unit` bits along
    K: of two rows in a lane, the units of two instructions side by side (16), or of a row each
    (32)."""
    rows = [(1, 0), (2, 0), (4, 0)]
    if unit == 16:
        return Layout((16, 4), (*_bits("reg", (8, 0)), *_bits("lane", (0, 1), (0, 2), *rows)))
    return Layout((16, 2), _bits("lane", (8, 0), (0, 1), *rows))


# PTX ISA, "Matrix fragments for mma.m16n8k16" with 16-bit types; A is (M, K), B (K, N), C (M, N).
MMA16_A, MMA16_B = mma_a(16, 16), mma_b(16, 16)
MMA_C = Layout((16, 8), (*_bits("reg", (0, 1), (8, 0)), *_QUAD))

# PTX ISA, "Matrix fragments for mma.m16n8k8" with .tf32.
MMA8_A, MMA8_B = mma_a(32, 8), mma_b(32, 8)

# PTX ISA, "Matrix fragments for mma.m16n8k32" with 8-bit types.
MMA32_A, MMA32_B = mma_a(8, 32), mma_b(8, 32)

# PTX ISA, "Matrix fragments for mma.m8n8k4" with .f64.
MMA4_A = Layout((8, 4), _bits("lane", (0, 1), (0, 2), (1, 0), (2, 0), (4, 0)))
MMA4_B = Layout((4, 8), _bits("lane", (1, 0), (2, 0), (0, 1), (0, 2), (0, 4)))
MMA4_C = Layout((8, 8), (*_bits("reg", (0, 1)), *_QUAD))


@functools.cache
def wgmma_c(n: int) -> Layout:
    """PTX ISA, "Matrix fragments for wgmma.mma_async.m64nNk16": D, four warps of 16 rows."""
    warp = Digit("warp", 4, (16, 0))
    return Layout((64, 8), (*MMA_C.digits, warp)).tile((1, n // 8), "reg")


@functools.cache
def wgmma_a(bits: int) -> Layout:
    """PTX ISA, "Register fragments" of wgmma.mma_async: A (64, 256 / bits), four warps of 16
    rows."""
    k = 256 // bits
    return Layout((64, k), (*mma_a(bits, k).digits, Digit("warp", 4, (16, 0))))


WGMMA_A = wgmma_a(16)


@functools.cache
def wgmma_sp_metadata(unit: int) -> Layout:
    """PTX ISA, "Matrix fragments for sparse wgmma.mma_async", metadata: `mma_sp_metadata`, four
    warps of 16 rows."""
    one = mma_sp_metadata(unit)
    return Layout((64, one.shape[1]), (*one.digits, Digit("warp", 4, (16, 0))))


@functools.cache
def mfma_a(size: int, per_lane: int) -> Layout:
    """AMD matrix instruction calculator, A of v_mfma_*_{16x16,32x32}: a lane holds row lane % size
    and `per_lane` consecutive k; B is its transpose."""
    lanes_along_k = 64 // size
    return Layout(
        (size, lanes_along_k * per_lane),
        (
            Digit("reg", per_lane, (0, 1)),
            Digit("lane", size, (1, 0)),
            Digit("lane", lanes_along_k, (0, per_lane)),
        ),
    )


@functools.cache
def mfma_c(size: int, rows: int = 4) -> Layout:
    """AMD matrix instruction calculator, D of v_mfma_*: a lane holds column lane % size, `rows`
    rows at a time (4; 1 of float64)."""
    lanes_along_m = 64 // size
    return Layout(
        (size, size),
        (
            Digit("reg", rows, (1, 0)),
            Digit("reg", size // (rows * lanes_along_m), (rows * lanes_along_m, 0)),
            Digit("lane", size, (0, 1)),
            Digit("lane", lanes_along_m, (rows, 0)),
        ),
    )


# RDNA3 ISA, "Wave Matrix Multiply Accumulate": A, B is its transpose, and D. Both halves of a wave
# hold all of A and B.
WMMA_A = Layout(
    (16, 16), (Digit("reg", 16, (0, 1)), Digit("lane", 16, (1, 0)), Digit("lane", 2, (0, 0)))
)
WMMA_C = Layout(
    (16, 16), (Digit("reg", 8, (2, 0)), Digit("lane", 16, (0, 1)), Digit("lane", 2, (1, 0)))
)


FRAGMENTS: dict[str, Layout] = {
    "MMA16_A": MMA16_A, "MMA16_B": MMA16_B, "MMA_C": MMA_C, "MMA8_A": MMA8_A, "MMA8_B": MMA8_B,
    "MMA32_A": MMA32_A, "MMA32_B": MMA32_B, "MMA4_A": MMA4_A, "MMA4_B": MMA4_B, "MMA4_C": MMA4_C,
    "WGMMA_A": WGMMA_A, "WGMMA8_A": wgmma_a(32), "WGMMA32_A": wgmma_a(8),
    **{f"WGMMA_C{n}": wgmma_c(n) for n in range(8, 257, 8)}, "MFMA16_A": mfma_a(16, 4),
    "MFMA16_B": mfma_a(16, 4).transpose(), "MFMA16_C": mfma_c(16), "MFMA32_A": mfma_a(32, 4),
    "MFMA32_B": mfma_a(32, 4).transpose(), "MFMA32_C": mfma_c(32), "WMMA_A": WMMA_A,
    "WMMA_B": WMMA_A.transpose(), "WMMA_C": WMMA_C,
}  # fmt: skip
name_constants(FRAGMENTS)
