"""What hardware makes of layouts: widths, bank conflicts, conversions, 8x8 matrices, TMA, wgmma."""

import itertools
import time

import numpy as np
import pytest

from tilec.ir.errors import LayoutError
from tilec.ir.layout import (
    MMA16_A,
    MMA16_B,
    MMA_C,
    Digit,
    Layout,
    bank_conflicts,
    bank_passes,
    blocked,
    conversion,
    ldmatrix_ok,
    matrix_access,
    matrix_rows,
    mfma_a,
    mfma_c,
    padded,
    row_major,
    stmatrix_ok,
    swizzled,
    tma_box,
    vector_width,
    wgmma_c,
    wgmma_operand,
)


def brute_vector(fragment, memory, limit):
    at = memory.offsets().ravel()[fragment.flat("reg", "lane", "warp")]
    best = 1
    for v in (2, 4, 8, 16):
        ok = v <= limit and len(at) % v == 0 and all(
            at[r + j, l, w] == at[r, l, w] + j and at[r, l, w] % v == 0
            for r in range(0, len(at), v) for j in range(v)
            for l in range(at.shape[1]) for w in range(at.shape[2])
        )  # fmt: skip
        best = v if ok else best
    return best


@pytest.mark.parametrize(
    "fragment,memory,limit,want",
    [
        (blocked((16, 64), 32, 1, 8), swizzled((16, 64), 16, 128), 8, 8),
        (blocked((16, 64), 32, 1, 8), row_major((16, 64)), 4, 4),
        (blocked((16, 64), 32, 1, 8), row_major((64, 16)).transpose(), 8, 1),
        (blocked((16, 64), 32, 1, 16), swizzled((16, 64), 16, 128), 16, 8),
        (MMA_C.tile((1, 8), "reg"), row_major((16, 64)), 8, 2),
        (blocked((16, 60), 32, 1, 4), padded((16, 60), 60, 2), 4, 2),
        (blocked((16, 60), 32, 1, 4), padded((16, 60), 60, 4), 4, 4),
    ],
)
def test_vector_width(fragment, memory, limit, want):
    assert vector_width(fragment, memory, limit) == want == brute_vector(fragment, memory, limit)


def test_bank_conflicts():
    fragment = blocked((32, 64), 32, 1, 8)
    assert bank_conflicts(fragment, row_major((32, 64)), 16, 8) == 1
    columns = Layout((32, 32), (Digit("lane", 32, (1, 0)), Digit("reg", 32, (0, 1))))
    assert bank_conflicts(columns, row_major((32, 32)), 32, 1) == 32
    assert bank_conflicts(columns, padded((32, 32), 32, 1), 32, 1) == 1
    assert bank_conflicts(columns, row_major((32, 32)), 16, 1) == 16
    same = Layout((32,), (Digit("lane", 32, (0,)), Digit("reg", 32, (1,))))
    assert bank_conflicts(same, row_major((32,)), 32, 1) == 1


def test_bank_conflicts_of_wide_accesses_go_in_phases():
    lanes = Layout((32, 8), (Digit("reg", 8, (0, 1)), Digit("lane", 32, (1, 0))))
    assert bank_conflicts(lanes, row_major((32, 8)), 16, 8) == 1
    rows = Layout((32, 64), (*lanes.digits, Digit("reg", 8, (0, 8))))
    assert bank_conflicts(rows, row_major((32, 64)), 16, 8) == 8
    assert bank_conflicts(rows, swizzled((32, 64), 16, 128), 16, 8) == 1
    assert bank_conflicts(rows, swizzled((32, 64), 16, 64), 16, 8) == 1
    assert bank_conflicts(rows, padded((32, 64), 64, 4), 16, 4) == 1


def test_conversions():
    two = MMA_C.tile((1, 2), "reg")
    assert conversion(two, MMA16_A).kind == "same"
    assert conversion(mfma_c(16).transpose(), mfma_a(16, 4)).kind == "same"
    swapped = Layout((16, 8), (*MMA_C.digits[1:2], *MMA_C.digits[:1], *MMA_C.digits[2:]))
    moved = conversion(MMA_C, swapped)
    assert (moved.kind, moved.registers) == ("registers", (0, 2, 1, 3))
    shuffled = conversion(blocked((16, 16), 32, 1, 8), MMA16_A)
    assert shuffled.kind == "shuffle" and shuffled.price > 0
    a = Layout((4, 32), (Digit("lane", 32, (0, 1)), Digit("warp", 4, (1, 0))))
    b = Layout(
        (4, 32), (Digit("lane", 32, (0, 1)), Digit("warp", 2, (2, 0)), Digit("warp", 2, (1, 0)))
    )
    assert conversion(a, b).kind == "shared" and conversion(a, b).price > shuffled.price / 8
    with pytest.raises(LayoutError, match="other shape, lanes or warps"):
        conversion(MMA_C, MMA16_A)


def test_broadcast_needs_no_lane():
    """Every thread has the whole vector: any layout of it is a choice of registers or a shuffle."""
    whole = Layout((8,), (Digit("reg", 8, (1,)), Digit("lane", 32, (0,))))
    half = Layout((8,), (Digit("reg", 8, (1,)), Digit("lane", 32, (0,)))).tile((1,), "reg")
    assert conversion(whole, half).kind == "same"
    spread = Layout((8,), (Digit("lane", 8, (1,)), Digit("lane", 4, (0,))))
    assert conversion(whole, spread).kind == "shuffle"
    assert conversion(spread, whole).kind == "shuffle"


@pytest.mark.parametrize("columns", [64, 128])
def test_ldmatrix_of_mma_operands(columns):
    memory = swizzled((64, columns), 16, 128)
    a = MMA16_A.tile((4, columns // 16), "reg")
    got = matrix_access(a, memory, 16)
    assert (got.count, got.transposed) == (4, False)
    assert bank_conflicts(got.rows, memory, 16, 8) == 1
    for lane in range(32):  # the address rule of PTX ISA's ldmatrix.x4 for A
        assert got.rows(lane=lane) == (lane % 16, lane // 16 * 8)
    b = MMA16_B.tile((4, columns // 8), "reg")
    across = matrix_access(b, memory, 16)
    assert across.transposed and across.count == 4
    stored = swizzled((columns, 64), 16, 128)
    along = matrix_access(b.transpose(), stored, 16)
    assert not along.transposed
    assert bank_conflicts(across.rows, memory, 16, 8) == 1
    assert bank_conflicts(along.rows, stored, 16, 8) == 1
    assert not ldmatrix_ok(a, memory, 8) and ldmatrix_ok(a, memory, 16)
    assert not ldmatrix_ok(a, padded((64, columns), columns, 2), 16)
    assert ldmatrix_ok(a, padded((64, columns), columns, 8), 16)


@pytest.mark.parametrize("n", [64, 176])
def test_stmatrix_of_wgmma_results(n):
    c = wgmma_c(n)
    memory = swizzled((64, n), 16, 128 if n % 64 == 0 else 32)
    got = matrix_access(c, memory, 16)
    assert stmatrix_ok(c, memory, 16) and not got.transposed and got.count == 4
    assert stmatrix_ok(c, memory.transpose().transpose(), 16)
    assert not stmatrix_ok(c.drop(1), row_major((64,)), 16)


def test_stmatrix_into_one_of_several_tiles():
    c = wgmma_c(64)
    assert stmatrix_ok(c, swizzled((3, 64, 64), 16, 128), 16)
    assert not stmatrix_ok(c, padded((3, 64, 64), 64, 2), 16)  # rows begin at multiples of 4 bytes
    with pytest.raises(LayoutError, match="against memory of shape"):
        stmatrix_ok(c, row_major((64, 3, 64)), 16)


def test_matrix_rows_hold_what_the_fragment_holds():
    """The rows of a lane, dealt out as ldmatrix does, are the fragment's registers."""
    for fragment in (MMA16_A, MMA_C.tile((2, 2), "reg"), wgmma_c(16)):
        for count, transposed in itertools.product((1, 2, 4), (False, True)):
            rows = matrix_rows(fragment, count, transposed)
            if rows is None:
                assert fragment.size("reg") < 2 * count
                continue
            table, given_rows = (
                fragment.table("reg", "lane", "warp"),
                rows.table("reg", "lane", "warp"),
            )
            for group in range(fragment.size("reg") // (2 * count)):
                for i, lane, e in itertools.product(range(count), range(32), range(2)):
                    row, col = lane // 4, 2 * (lane % 4) + e
                    row, col = (col, row) if transposed else (row, col)
                    want = given_rows[8 * group + col, 8 * i + row]
                    assert np.array_equal(table[2 * (group * count + i) + e, lane], want)


def test_other_fragments_are_no_8x8_matrices():
    reg, lane = (Digit("reg", 3, (0, 1)), Digit("reg", 2, (8, 0))), Digit("lane", 4, (0, 3))
    thirds = Layout((16, 12), (*reg, lane, Digit("lane", 8, (1, 0))))
    assert matrix_rows(thirds, 1, False) is None
    assert matrix_rows(blocked((16, 16), 64, 1, 2), 1, False) is None
    assert matrix_access(mfma_c(16), row_major((16, 16)), 16) is None


# --- TMA and wgmma ---


@pytest.mark.parametrize(
    "layout,bits,want",
    [
        (swizzled((128, 64), 16, 128), 16, ((128, 64), 128)),
        (swizzled((64, 256), 16, 128), 16, ((64, 64), 128)),
        (swizzled((384, 64), 16, 128), 16, ((192, 64), 128)),
        (swizzled((64, 32), 16, 64), 16, ((64, 32), 64)),
        (swizzled((96, 48), 16, 32), 16, ((96, 16), 32)),
        (swizzled((2, 64, 64), 16, 128), 16, ((2, 64, 64), 128)),
        (swizzled((4, 64), 16, 128), 16, ((4, 64), 128)),
        (swizzled((64, 32), 32, 128), 32, ((64, 32), 128)),
        (row_major((64, 64)), 16, ((64, 64), 0)),
        (row_major((512, 8)), 16, ((256, 8), 0)),
        (row_major((1024,)), 32, ((256,), 0)),
        (row_major((6, 32, 8)), 16, ((6, 32, 8), 0)),
        (row_major((6, 512, 8)), 16, ((1, 256, 8), 0)),
        (row_major((4, 7)), 16, None),
        (row_major((514, 8)), 16, None),
        (row_major((480,)), 32, ((160,), 0)),
        (row_major((300, 8)), 32, ((100, 8), 0)),
        (row_major((512, 3, 4)), 32, ((256, 3, 4), 0)),
        (padded((64, 64), 64, 8), 16, None),
        (swizzled((64, 64), 16, 128), 32, None),
        (swizzled((64, 64), 16, 128).transpose(), 16, None),
        (MMA_C, 16, None),
    ],
)
def test_tma_boxes(layout, bits, want):
    assert tma_box(layout, bits) == want


@pytest.mark.parametrize(
    "layout,bits",
    [
        (swizzled((64, 256), 16, 128), 16),
        (swizzled((384, 128), 16, 128), 16),
        (swizzled((96, 96), 16, 64), 16),
        (row_major((512, 16)), 16),
        (row_major((6, 300, 8)), 32),
        (row_major((480,)), 32),
        (row_major((3, 480)), 32),
        (swizzled((3, 8, 128), 8, 64), 8),
    ],
)
def test_tma_boxes_fill_the_tile(layout, bits):
    """Write the tile box by box as TMA does; every element must land where the layout says."""
    box, swizzle = tma_box(layout, bits)
    memory = np.full(layout.span(), -1)
    tile = np.arange(np.prod(layout.shape)).reshape(layout.shape)
    for corner in itertools.product(*(range(0, e, b) for e, b in zip(layout.shape, box))):
        values = tile[tuple(slice(c, c + b) for c, b in zip(corner, box))].ravel()
        base = layout.offset(corner) * bits // 8
        assert base % (8 * swizzle or 128) == 0
        byte = base + np.arange(values.size) * bits // 8
        byte ^= (byte >> 7 & max(swizzle // 16 - 1, 0)) << 4
        memory[byte * 8 // bits] = values
    assert np.array_equal(memory[layout.offsets()], tile)


def check_descriptor(layout, major, m_or_n):
    """Read the operand as PTX ISA's "Matrix Descriptor" says and compare with the tile, element by
    element."""
    got = wgmma_operand(layout, 16, major)
    width = got.swizzle // 2
    offsets = layout.offsets()
    lbo, sbo = (got.fields >> 16 & 0x3FFF) * 8, (got.fields >> 32 & 0x3FFF) * 8
    assert got.fields >> 62 == {128: 1, 64: 2, 32: 3}[got.swizzle]
    for step, units in enumerate(got.k_steps):
        for mn, k in itertools.product(range(0, m_or_n, 3), range(16)):
            if major == "k":
                plain = units * 8 + mn // 8 * sbo + mn % 8 * width + k
                at = (mn, 16 * step + k)
            else:
                plain = units * 8 + mn // width * lbo + k // 8 * sbo + k % 8 * width + mn % width
                at = (16 * step + k, mn)
            byte = 2 * plain
            byte ^= (byte >> 7 & got.swizzle // 16 - 1) << 4
            assert offsets[at] * 2 == byte, (layout, major, at)
    return got


@pytest.mark.parametrize(
    "rows,columns,swizzle",
    [(128, 64, 128), (64, 128, 128), (176, 64, 128), (64, 32, 64), (96, 16, 32)],
)
def test_wgmma_k_major(rows, columns, swizzle):
    got = check_descriptor(swizzled((rows, columns), 16, swizzle), "k", min(rows, 256))
    assert (got.lbo, got.sbo, got.swizzle) == (1, 8 * swizzle // 16, swizzle)
    per_box = swizzle // 32
    want = [i // per_box * rows * swizzle // 16 + i % per_box * 2 for i in range(columns // 16)]
    assert list(got.k_steps) == want
    assert got.mn_step(64) == 64 * swizzle // 16
    if swizzle == 128:
        assert got.fields == 1 << 62 | 64 << 32 | 1 << 16


@pytest.mark.parametrize(
    "bk,columns,swizzle",
    [(64, 256, 128), (64, 64, 128), (48, 192, 128), (32, 96, 64), (16, 48, 32)],
)
def test_wgmma_mn_major(bk, columns, swizzle):
    got = check_descriptor(swizzled((bk, columns), 16, swizzle), "mn", columns)
    boxes = columns // (swizzle // 2)
    assert got.lbo == (bk * swizzle // 16 if boxes > 1 else 1)
    assert got.sbo == 8 * swizzle // 16
    assert list(got.k_steps) == [swizzle * i for i in range(bk // 16)]


def test_wgmma_reads_parts_of_tiles():
    whole = swizzled((64, 256), 16, 128)
    part = wgmma_operand(whole.restrict((64, 128)), 16, "mn")
    assert part == wgmma_operand(whole, 16, "mn")
    rows = wgmma_operand(swizzled((128, 128), 16, 128).restrict((64, 128)), 16, "k")
    assert rows.k_steps == (0, 2, 4, 6, 1024, 1026, 1028, 1030)


@pytest.mark.parametrize(
    "layout,bits,major",
    [
        (row_major((64, 64)), 16, "k"),
        (padded((64, 64), 64, 8), 16, "k"),
        (swizzled((64, 64), 16, 128), 32, "k"),
        (swizzled((64, 32), 32, 128), 32, "mn"),
        (swizzled((4, 64), 16, 128), 16, "k"),
        (Layout((64, 64), swizzled((64, 64), 16, 128).digits, (8, 64), align=16), 16, "k"),
    ],
)
def test_what_wgmma_cannot_read(layout, bits, major):
    assert wgmma_operand(layout, bits, major) is None


def test_queries_are_quick():
    """A tile of a real kernel: making and asking takes fractions of a millisecond (bounds are ten
    times that)."""
    swizzled.cache_clear()
    vector_width.cache_clear()
    start = time.process_time()
    for i in range(20):
        memory = swizzled((64 + 8 * i, 64), 16, 128)
        assert memory.inverse_terms()
        vector_width(blocked(memory.shape, 32, 4, 8), memory, 8)
    assert (time.process_time() - start) / 20 < 0.02


def test_bank_passes_count_accesses_as_wide_as_they_are():
    lane = np.arange(32)[None, :]
    at = np.arange(8)[:, None] + lane * 8  # 8 halves side by side in each lane: 16 bytes
    assert bank_passes(at, 16) == 4  # 512 bytes
    assert bank_passes(at * 2, 16) == 8 * 8  # one by one: lanes 32 bytes apart, 4 of 32 banks
    rows = np.arange(4)[:, None] + lane // 4 * 64 + lane % 4 * 4  # words of 8 rows of 64 bytes
    assert bank_passes(rows, 8) == 4  # those of even rows lie in the same banks
    assert bank_passes(rows // 4 * 4 + np.zeros((4, 1), int), 32) == 4 * 8
