"""What the simulator makes of each hardware row, against NumPy: matrix instructions, matrices in
shared memory, wgmma's descriptors, TMA boxes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from instruction_rows import registers_of
from sim_bench import Bench

from tilec.ir import types as dt
from tilec.ir.instr import (
    MATRIX_INSTRUCTIONS,
    MfmaInstruction,
    MmaInstruction,
    cluster,
    find_instruction,
    sync,
    wgmma_wait,
)
from tilec.ir.instr import memory as moves
from tilec.ir.layout import swizzled
from tilec.ir.layout.descriptors import wgmma_operand
from tilec.ir.semantics import numpy_dtype
from tilec.sim.buffers import SHARED_BASE
from tilec.sim.tensors import TensorMap
from tilec.sim.undefined import UNDEF
from tilec.target import TARGETS

RNG = np.random.default_rng(7)


def numbers(shape, kind):
    kind = np.dtype(kind)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return RNG.integers(max(info.min, -100), min(info.max, 100), shape).astype(kind)
    return RNG.integers(-8, 9, shape).astype(np.float32).astype(kind) / kind.type(2)


def packed(layout, tile, pack_bits):
    """Registers (one array over all threads each) of a tile: int32, float32 or float64."""
    held = np.ascontiguousarray(np.moveaxis(registers_of(layout, tile), 0, -1))  # lane, warp, reg
    held = np.ascontiguousarray(held.transpose(1, 0, 2)).reshape(-1, held.shape[-1])
    word = {32: np.int32, 64: np.int64}[pack_bits]
    return list(held.view(word).T)


def as_kind(words, kind):
    return [np.ascontiguousarray(w).view(kind) for w in words]


SOME = [n for n, r in MATRIX_INSTRUCTIONS.items() if isinstance(r, MmaInstruction)]


@pytest.mark.parametrize("name", SOME)
def test_mma(name):
    row = find_instruction(name)
    bench = Bench(64, "cuda:sm_80")
    active = bench.active()
    kinds = [numpy_dtype(t) for t in (row.a_dtype, row.b_dtype, row.c_dtype)]
    shapes = ((row.m, row.k), (row.k, row.n), (row.m, row.n))
    per_warp, want = [], []
    for _ in range(2):
        a, b, c = (numbers(s, k) for s, k in zip(shapes, kinds))
        want.append(row.semantics(a, b, c))
        layouts = (row.a, row.b, row.c)
        bits = 64 if row.a_dtype == dt.FLOAT64 else 32
        per_warp.append([w for x, l in zip((a, b, c), layouts) for w in packed(l, x, bits)])
    words = [np.concatenate(both) for both in zip(*per_warp)]
    form = row.asm()
    llvm = {"i32": np.int32, "float": np.float32, "double": np.float64}
    words = [w.view(llvm[t]) for w, t in zip(words, form.inputs, strict=True)]
    got = bench.run(active, form, *words)
    assert [x.dtype for x in got] == [llvm[t] for t in form.outputs]
    for w in range(2):
        mine = [x[32 * w : 32 * w + 32] for x in got]
        wanted = packed(row.c, want[w], 64 if row.c_dtype == dt.FLOAT64 else 32)
        for g, x in zip(mine, wanted, strict=True):
            assert g.tobytes() == x.tobytes()
    assert not bench.kinds


AMD = [t for t in TARGETS.values() if t.kind == "hip"]


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(n, t.name, id=f"{n}-{t.arch}")
        for n, r in MATRIX_INSTRUCTIONS.items()
        for t in AMD
        if isinstance(r, MfmaInstruction) and t.has(r.feature)
    ],
)
def test_mfma(name, target):
    row = find_instruction(name)
    bench = Bench(128, target)
    fnuz = bench.target.has("float8_fnuz")
    kinds = [numpy_dtype(t, fnuz) for t in (row.a_dtype, row.b_dtype, row.c_dtype)]
    shapes = ((row.m, row.k), (row.k, row.n), (row.m, row.n))
    form = row.intrinsic()
    operands, want = [[], [], []], []
    for _ in range(2):
        tiles = [numbers(s, k) for s, k in zip(shapes, kinds)]
        want.append(row.semantics(*tiles))
        for x, layout, held in zip(tiles, (row.a, row.b, row.c), operands):
            held.append(registers_of(layout, x)[..., 0].T)  # lane, reg
    llvm = {"half": np.float16, "i16": np.int16, "i32": np.int32, "float": np.float32}
    llvm |= {"i64": np.int64, "double": np.float64, "bfloat": ml_dtypes.bfloat16}

    def value(parts, type):
        held = np.ascontiguousarray(np.concatenate(parts))
        if type.startswith("<"):
            elem = llvm[type[1:-1].split(" x ")[1]]
            return tuple(np.ascontiguousarray(held.view(elem).T))
        return np.ascontiguousarray(held).view(llvm[type])[:, 0]

    args = [value(h, t) for h, t in zip(operands, form.inputs)]
    (got,) = bench.run(bench.active(), form, *args, *map(np.int32, form.constants))
    for w in range(2):
        wanted = registers_of(row.c, want[w])[..., 0]
        for g, x in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(g[64 * w : 64 * w + 64], x)
    assert not bench.kinds


# --- ldmatrix, stmatrix ---


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_and_stmatrix(count, transposed):
    bench = Bench(64)
    active = bench.active()
    tiles = numbers((2, 8 * count, 8), np.int16)
    where = RNG.permutation(64)[: 2 * 8 * count].reshape(2, -1) * 16
    for w in range(2):
        for r in range(8 * count):
            bench.put(int(where[w, r]), tiles[w, r])
    lane = np.arange(64) % 32
    rows = np.where(lane < 8 * count, lane, 0)
    address = (SHARED_BASE + where[np.arange(64) // 32, rows]).astype(np.int32)
    address[lane >= 8 * count] = 12345  # nobody looks
    row = moves.ldmatrix(count, transposed)
    got = bench.run(active, row, address)
    assert len(got) == count and not bench.kinds
    for w in range(2):
        wanted = row.semantics(tiles[w])  # (2 * count, 32)
        pairs = np.stack([x[32 * w : 32 * w + 32].view(np.int16).reshape(32, 2) for x in got], 1)
        np.testing.assert_array_equal(pairs.reshape(32, -1).T, wanted)
    base = 8192
    elsewhere = (SHARED_BASE + base + where[np.arange(64) // 32, rows]).astype(np.int32)
    assert bench.run(active, moves.stmatrix(count, transposed), elsewhere, *got) is None
    for w in range(2):
        for r in range(8 * count):
            at = base + where[w, r]
            np.testing.assert_array_equal(bench.bytes()[at : at + 16].view(np.int16), tiles[w, r])
    assert not bench.kinds


def test_ldmatrix_of_half_a_warp_is_reported():
    bench = Bench(64)
    bench.put(0, numbers(256, np.int16))
    active = bench.active(range(20))
    got = bench.run(active, moves.ldmatrix(2), np.full(20, SHARED_BASE, np.int32))
    assert got[0].shape == (20,) and bench.kinds == ["barrier divergence"]


# --- wgmma ---


def stored(bench, offset, tile, bits, width):
    """Store a tile, its last dimension contiguous, swizzled; gives its memory layout."""
    layout = swizzled(tile.shape, bits, width)
    flat = np.zeros(tile.size, tile.dtype)
    flat[layout.offsets().ravel()] = tile.ravel()
    bench.put(offset, flat)
    return layout


def descriptor(operand, address):
    return np.uint64(operand.fields | address >> 4).view(np.int64)


WGMMA = [
    ("wgmma.m64n32k16.f16", 128), ("wgmma.m64n64k16.bf16", 64), ("wgmma.m64n16k16.f16.f16", 32),
    ("wgmma.m64n24k8.tf32", 128), ("wgmma.m64n32k32.i8", 64), ("wgmma.m64n32k32.u8xi8", 128),
    ("wgmma.m64n16k32.e4m3xe5m2", 128), ("wgmma.m64n16k32.e5m2.f16", 64),
]  # fmt: skip


@pytest.mark.parametrize("accumulate", ["always", "never", "if"])
@pytest.mark.parametrize(("name", "width"), WGMMA)
@pytest.mark.parametrize("place", ["shared", "fragment"])
def test_wgmma_k_major(name, width, place, accumulate):
    row = find_instruction(name)
    bits = row.a_dtype.bits
    k = width * 8 // bits * 2
    steps = k // row.k
    bench = Bench(256)
    active = bench.active()
    kinds = [numpy_dtype(t) for t in (row.a_dtype, row.b_dtype, row.c_dtype)]
    a, c = numbers((2, 64, k), kinds[0]), numbers((2, 64, row.n), kinds[2])
    b = numbers((row.n, k), kinds[1])
    layout = None
    for g in range(2):
        layout = stored(bench, 4096 * 4 * g, a[g], bits, width)
    of_a = wgmma_operand(layout, bits, "k")
    of_b = wgmma_operand(stored(bench, 40960, b, bits, width), bits, "k")
    form = row.product(
        1,
        () if place == "fragment" else of_a.k_steps,
        of_b.k_steps,
        accumulate=accumulate,
        a_place=place,
    )
    where = (SHARED_BASE + 4096 * 4 * (np.arange(256) // 128)) >> 4
    args = [descriptor(of_a, 0) | where.astype(np.int64)]
    if place == "fragment":
        args = []
        for s in range(steps):
            part = [packed(row.a, a[g][:, s * row.k : (s + 1) * row.k], 32) for g in range(2)]
            args += [np.concatenate(both) for both in zip(*part)]
    args.append(descriptor(of_b, SHARED_BASE + 40960))
    if accumulate == "if":
        args.append(np.int32(0))
    held = [packed(row.c, c[g], 32) for g in range(2)]
    like = {"float": np.float32, "i32": np.int32}[form.outputs[0]]
    registers = as_kind([np.concatenate(both) for both in zip(*held)], like)
    if accumulate == "if":
        registers = [UNDEF] * len(registers)  # what is overwritten may be anything
    if accumulate != "never":
        args += registers
    got = bench.run(active, form, *args)
    assert not list(bench.findings)
    for g in range(2):
        start = c[g] if accumulate == "always" else np.zeros_like(c[g])
        want = packed(row.c, row.semantics(a[g], b.T, start), 32)
        for x, y in zip(got, want, strict=True):
            assert x[128 * g : 128 * g + 128].tobytes() == y.tobytes()


@pytest.mark.parametrize("width", [128, 64, 32])
@pytest.mark.parametrize("transposed", [(True, True), (False, True), (True, False)])
def test_wgmma_mn_major(width, transposed):
    """Two m blocks, both operands with either dimension contiguous."""
    row, k = find_instruction("wgmma.m64n64k16.f16"), 64
    bench = Bench(128)
    a, b = numbers((128, k), np.float16), numbers((k, 64), np.float16)
    parts = []
    for offset, x, major in ((0, a, transposed[0]), (32768, b.T, transposed[1])):
        tile = np.ascontiguousarray(x.T if major else x)
        layout = stored(bench, offset, tile, 16, width)
        parts.append(wgmma_operand(layout, 16, "mn" if major else "k"))
    of_a, of_b = parts
    steps = [s + block * of_a.mn_step(64) for block in range(2) for s in of_a.k_steps]
    form = row.product(
        2, tuple(steps), of_b.k_steps, a_transposed=transposed[0], b_transposed=transposed[1],
        accumulate="never",
    )  # fmt: skip
    args = []
    for offset, o in ((0, of_a), (32768, of_b)):
        args.append(descriptor(o, SHARED_BASE + offset))
    got = bench.run(bench.active(), form, *args)
    half = len(got) // 2
    for block in range(2):
        want = a[64 * block : 64 * block + 64].astype(np.float32) @ b.astype(np.float32)
        for x, y in zip(got[half * block :][:half], packed(row.c, want, 32), strict=True):
            assert x.tobytes() == y.tobytes()
    assert not bench.kinds


def test_wgmma_keeps_shared_memory_until_it_is_waited_for():
    row = find_instruction("wgmma.m64n8k16.f16")
    for wait in (False, True):
        bench = Bench(128)
        active = bench.active()
        a, b = numbers((64, 64), np.float16), numbers((8, 64), np.float16)
        layouts = stored(bench, 0, a, 16, 128), stored(bench, 8192, b, 16, 128)
        of_a, of_b = (wgmma_operand(x, 16, "k") for x in layouts)
        form = row.product(1, of_a.k_steps, of_b.k_steps, accumulate="never")
        descriptors = descriptor(of_a, SHARED_BASE), descriptor(of_b, SHARED_BASE + 8192)
        got = bench.run(active, form, *descriptors)
        if wait:
            bench.run(active, wgmma_wait(0, ["f"] * len(got)), *got)
        bench.run(
            active, moves.stmatrix(1),
            np.int32(SHARED_BASE) + 16 * (np.arange(128) % 8).astype("i4")
            + 1024 * (np.arange(128) // 32).astype("i4"), np.zeros(128, np.int32),
        )  # fmt: skip
        assert ("overwritten before read" in bench.kinds) is not wait


def test_wgmma_reads_what_a_proxy_fence_has_shown():
    row = find_instruction("wgmma.m64n8k16.f16")
    for fence in (False, True):
        bench = Bench(128)
        active = bench.active()
        bench.put(0, numbers((64 + 8, 64), np.float16))
        lanes = np.arange(128)
        address = (SHARED_BASE + 2048 * (lanes // 32) + 16 * (lanes % 32)).astype(np.int32)
        bench.run(active, moves.stmatrix(4), address, *np.zeros((4, 128), np.int32))
        if fence:
            bench.run(active, sync.PROXY_FENCE)
        bench.pass_(active, sync.BARRIER_SYNC, np.int32(0), np.int32(128))
        form = row.product(1, (0,), (0,), accumulate="never")
        field = 1 << 62 | 64 << 32 | 1 << 16
        bench.run(active, form, *(
            np.int64(field | SHARED_BASE + at >> 4) for at in (0, 8192)
        ))  # fmt: skip
        assert ("missing proxy fence" in bench.kinds) is not fence


# --- TMA ---


def map_of(bench, a, dims, box, swizzle, dtype):
    """A descriptor of tensor 0; `dims`: innermost first."""
    t = bench.tensors[0]
    bench.maps.append(
        TensorMap(
            t, t.address, tuple(a.shape[d] for d in dims), tuple(a.strides[d] for d in dims[1:]),
            box, swizzle, dtype,
        )
    )  # fmt: skip


def arm(bench, active, at, bytes):
    """Make an mbarrier of one arrival that expects `bytes`."""
    one = bench.active([0], bench.blocks.index(active.block))
    bench.run(one, sync.mbarrier_init(1), np.int32(at))
    bench.run(one, sync.MBARRIER_INIT_FENCE)
    bench.pass_(active, sync.BARRIER_SYNC, np.int32(0), np.int32(active.block.threads))
    bench.run(one, sync.mbarrier_expect(bytes), np.int32(at))
    return one


GATE = SHARED_BASE + 90000


def load(bench, active, at, corner):
    """The box of map 0 at a corner of two coordinates, to address `at`."""
    words = *map(np.int32, corner), np.int32(GATE)
    bench.run(active, moves.tma_load(2), np.int32(at), np.int64(0), *words)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("corner", [(0, 0), (-8, 5), (16, -2), (56, 7)])
def test_tma_load_2d(swizzle, corner):
    box = ((swizzle or 64) // 2, 12)
    a = numbers((17, 72), np.float16)
    bench = Bench(64, arrays={"A": a})
    map_of(bench, a, (1, 0), box, swizzle, dt.FLOAT16)
    active = bench.active()
    bytes = 2 * box[0] * box[1]
    one = arm(bench, active, GATE, bytes)
    at = SHARED_BASE + 2048
    load(bench, one, at, corner)
    bench.pass_(active, sync.MBARRIER_WAIT, np.int32(GATE), np.int32(0))
    want = np.zeros(box[::-1], np.float16)
    for y in range(box[1]):
        for x in range(box[0]):
            i, j = corner[1] + y, corner[0] + x
            if 0 <= i < 17 and 0 <= j < 72:
                want[y, x] = a[i, j]
    linear = np.arange(want.size).reshape(want.shape) * 2 + at
    place = linear ^ (((linear >> 7) & (max(swizzle, 16) // 16 - 1)) << 4)
    got = bench.bytes()[place[..., None] - SHARED_BASE + np.arange(2)].view(np.float16)[..., 0]
    np.testing.assert_array_equal(got, want)
    assert not list(bench.findings)


def test_a_tma_store_ends_at_a_multiple_of_16_bytes():
    """Of a tensor with rows of 19 elements in 20, it writes the 20th."""
    a = numbers((4, 20), np.int32)
    bench = Bench(32, arrays={"A": a})
    map_of(bench, a[:, :19], (1, 0), (16, 4), 0, dt.INT32)
    bench.put(1024, numbers((4, 16), np.int32))
    one = bench.active([0])
    for column in (0, 16):
        assert not list(bench.findings)
        words = np.int32(column), np.int32(0), np.int32(SHARED_BASE + 1024)
        bench.run(one, moves.tma_store(2), np.int64(0), *words)
    (found,) = bench.findings
    assert found.kind == "out of bounds"
    assert "rows of A have 19 elements, and the 4 bytes behind them" in found.message


@pytest.mark.parametrize("dims", [1, 3, 4, 5])
@pytest.mark.parametrize("store", [False, True])
def test_tma_of_other_ranks(dims, store):
    shape = (3, 2, 4, 3, 20)[-dims:]
    box = (16, 2, 3, 2, 2)[:dims]
    a = numbers(shape, np.int32)
    before = a.copy()
    bench = Bench(32, arrays={"A": a})
    order = tuple(reversed(range(dims)))
    map_of(bench, a, order, box, 0, dt.INT32)
    active = bench.active()
    corner = [8, 1, 1 if store else -1, 0, 2][:dims]
    count = int(np.prod(box))
    tile = numbers(box[::-1], np.int32)
    at = SHARED_BASE + 1024
    if store:
        bench.put(1024, tile)
        one = bench.active([0])
        words = *map(np.int32, corner), np.int32(at)
        bench.run(one, moves.tma_store(dims), np.int64(0), *words)
        bench.run(active, moves.tma_store(dims, True), np.int64(0), *words, np.int32(0))
        bench.run(one, moves.TMA_STORE_COMMIT)
        bench.run(one, moves.tma_store_wait(0, False))
    else:
        one = arm(bench, active, GATE, 4 * count)
        words = *map(np.int32, corner), np.int32(GATE)
        bench.run(one, moves.tma_load(dims), np.int32(at), np.int64(0), *words)
    want = np.zeros(box[::-1], np.int32)
    for index in np.ndindex(*box[::-1]):
        source = tuple(i + c for i, c in zip(index, corner[::-1]))
        if all(0 <= s < n for s, n in zip(source, shape)):
            want[index] = before[source]
            before[source] = tile[index] if store else before[source]
    if not store:
        got = bench.bytes()[1024 : 1024 + 4 * count].view(np.int32).reshape(want.shape)
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(a, before)
    bench.blocks[0].engines.finish()
    assert not list(bench.findings)


def test_tma_rounds_to_tf32():
    a = RNG.standard_normal((8, 32)).astype(np.float32)
    a[0, :5] = [np.nan, np.inf, -np.inf, 3.4028e38, 1e-41]
    bench = Bench(32, arrays={"A": a})
    map_of(bench, a, (1, 0), (32, 8), 0, dt.TFLOAT32)
    one = arm(bench, bench.active(), GATE, 1024)
    load(bench, one, SHARED_BASE, (0, 0))
    got = bench.bytes()[:1024].view(np.uint32).reshape(8, 32)
    assert (got & 0x1FFF == 0).all() and got[0, 0] == 0x7FFFE000
    near = got[1:].view(np.float32)
    assert (np.abs(near - a[1:]) <= np.abs(a[1:]) * 2.0**-11).all()
    assert got[0, 1:4].view(np.float32).tolist() == [np.inf, -np.inf, np.inf]


def test_tma_to_several_blocks():
    a = numbers((16, 16), np.float16)
    bench = Bench(64, arrays={"A": a}, blocks=4)
    map_of(bench, a, (1, 0), (16, 16), 32, dt.FLOAT16)
    halves = [bench.active(block=r) for r in range(4)]
    ones = [arm(bench, m, GATE, 512) for m in halves]
    waits = [bench.run(m, cluster.CLUSTER_BARRIER) for m in halves]
    for w in waits:
        assert w.ready().all()
        w.finish(w.ready())
    words = np.int32(0), np.int32(0), np.int32(GATE), np.int32(0b1010)
    bench.run(ones[1], moves.tma_load(2, True), np.int32(SHARED_BASE), np.int64(0), *words)
    for r, m in enumerate(halves):
        wait = bench.run(m, sync.MBARRIER_WAIT, np.int32(GATE), np.int32(0))
        assert wait.ready().all() == (r in (1, 3))
    np.testing.assert_array_equal(bench.bytes(1)[:512], bench.bytes(3)[:512])
    linear = np.arange(256).reshape(16, 16) * 2 + SHARED_BASE
    place = (linear ^ ((linear >> 7 & 1) << 4)) - SHARED_BASE
    got = bench.bytes(3)[place[..., None] + np.arange(2)].view(np.float16)[..., 0]
    np.testing.assert_array_equal(got, a)
    assert not list(bench.findings)


@pytest.mark.parametrize("fence", [True, False])
@pytest.mark.parametrize("reader", ["ldmatrix", "a thread of another block", "stmatrix"])
def test_a_tma_load_over_what_threads_have_used(reader, fence):
    """The threads' barrier, or the cluster's, orders them; a proxy fence orders the engine too."""
    a = numbers((16, 16), np.float16)
    bench = Bench(32, arrays={"A": a}, blocks=2)
    map_of(bench, a, (1, 0), (16, 16), 0, dt.FLOAT16)
    active, peer = (bench.active(block=r) for r in range(2))
    one = arm(bench, active, GATE, 512)
    load(bench, one, SHARED_BASE, (0, 0))
    bench.pass_(active, sync.MBARRIER_WAIT, np.int32(GATE), np.int32(0))
    meet(bench, active, peer)
    place = (SHARED_BASE + 16 * np.arange(32)).astype(np.int32)
    user = active
    if reader == "ldmatrix":
        bench.run(active, moves.ldmatrix(4), place)
    elif reader == "stmatrix":
        bench.run(active, moves.stmatrix(4), place, *np.zeros((4, 32), np.int32))
    else:
        user = peer
        bench.run(peer, cluster.cluster_load(4), place, np.int32(0))
    if fence:
        bench.run(user, sync.PROXY_FENCE)
    meet(bench, active, peer)
    assert not bench.kinds
    bench.run(one, sync.mbarrier_expect(512), np.int32(GATE))
    load(bench, one, SHARED_BASE, (0, 0))
    assert bench.kinds == ([] if fence else ["missing proxy fence"])


def meet(bench, *halves):
    """All threads of the cluster."""
    waits = [bench.run(m, cluster.CLUSTER_BARRIER) for m in halves]
    for wait in waits:
        wait.finish(wait.ready())


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("column", [-9, -8, -1, 0, 1, 4, 7, 8, 11])
def test_a_tma_box_begins_at_16_bytes_of_a_row(column, store):
    """As on an H200, with rows of 1, 2 and 4 bytes an element: anything else is an illegal
    instruction there, and so is a store in front of a row."""
    a = numbers((16, 32), np.float16)
    bench = Bench(32, arrays={"A": a})
    map_of(bench, a, (1, 0), (16, 16), 0, dt.FLOAT16)
    bench.put(0, numbers((16, 16), np.float16))
    if store:
        words = np.int32(column), np.int32(0), np.int32(SHARED_BASE)
        bench.run(bench.active([0]), moves.tma_store(2), np.int64(0), *words)
    else:
        load(bench, arm(bench, bench.active(), GATE, 512), SHARED_BASE, (column, 0))
    kinds = ["misaligned access"] if column % 8 else []
    assert bench.kinds == kinds + ["out of bounds"] * (store and column < 0)


def test_a_tma_box_must_be_aligned():
    a = numbers((16, 16), np.float16)
    bench = Bench(32, arrays={"A": a})
    map_of(bench, a, (1, 0), (16, 16), 0, dt.FLOAT16)
    one = arm(bench, bench.active(), GATE, 512)
    load(bench, one, SHARED_BASE + 16, (0, 0))
    assert bench.kinds == ["misaligned access"]


# --- cp.async ---


@pytest.mark.parametrize("bytes", [4, 8, 16])
@pytest.mark.parametrize("wait", [False, True])
def test_cp_async(bytes, wait):
    a = numbers(64 * 16, np.int8)
    bench = Bench(64, "cuda:sm_80", {"A": a})
    active = bench.active()
    source = bench.tensors[0].address + bytes * RNG.permutation(64)
    dest = (SHARED_BASE + bytes * RNG.permutation(64)).astype(np.int32)
    valid = RNG.integers(0, bytes + 1, 64).astype(np.int32)
    bench.run(active, moves.cp_async(bytes, True), dest, source, valid)
    bench.run(active, moves.CP_ASYNC_COMMIT)
    bench.run(active, moves.cp_async(bytes), dest + np.int32(4096), source)
    bench.run(active, moves.CP_ASYNC_COMMIT)
    if wait:
        bench.run(active, moves.cp_async_wait(1))
    bench.pass_(active, sync.BARRIER_SYNC, np.int32(0), np.int32(64))
    for lane in range(64):
        at, first = dest[lane] - SHARED_BASE, source[lane] - bench.tensors[0].address
        want = a[first : first + bytes].copy()
        np.testing.assert_array_equal(bench.bytes()[at + 4096 :][:bytes].view(np.int8), want)
        want[valid[lane] :] = 0
        np.testing.assert_array_equal(bench.bytes()[at:][:bytes].view(np.int8), want)
    assert not bench.kinds
    at = np.full(64, SHARED_BASE, np.int32)
    bench.blocks[0].memory.warp_read(active, at, bytes)
    assert bench.kinds == ([] if wait else ["read before wait"])
    bench.blocks[0].memory.warp_read(active, at + 4096, bytes)
    assert "read before wait" in bench.kinds


def test_float8_is_the_targets():
    assert numpy_dtype(dt.FLOAT8_E4M3) == ml_dtypes.float8_e4m3fn
    assert numpy_dtype(dt.FLOAT8_E4M3, fnuz=True) == ml_dtypes.float8_e4m3fnuz
