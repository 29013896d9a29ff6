"""Addresses of elements, and what threads load, store and copy at them by hand."""

import linecache
from typing import Any

import numpy as np
import pytest
from frontend_help import ops, traced
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.ops import Bitcast, CpAsyncCommit, CpAsyncWait, If, Load

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
N = T.dynamic("N")


@tilec.kernel
def through_words(
    x: T.Tensor((256,), "float16"), y: T.Tensor((256,), "float16"), bits: T.constexpr
):
    with T.Kernel(1, threads=64):
        shared = T.alloc_shared((256,), "float16")
        tx = T.get_thread_binding(0)
        if bits == 32:
            for r in T.serial(2):
                T.sts32(
                    shared[r * 128 + tx * 2], T.ldg32(x[r * 128 + tx * 2 : r * 128 + tx * 2 + 2])
                )
        elif bits == 64:
            T.sts64(shared[tx * 4], T.ldg64(x[tx * 4]))
        else:
            if tx < 32:
                T.sts128(T.access_ptr(shared[tx * 8], "w", 8), T.ldg128(T.address_of(x[tx * 8])))
        T.sync_threads()
        if bits == 32:
            for r in T.serial(2):
                T.stg32(y[r * 128 + tx * 2], T.lds32(shared[255 - r * 128 - tx * 2 - 1]))
        elif bits == 64:
            T.stg64(y[tx * 4 : tx * 4 + 4], T.lds64(shared[252 - tx * 4]))
        else:
            if tx < 16:
                lower, upper = T.lds128(shared[tx * 16]), T.lds128(shared[tx * 16 + 8])
                both = [upper[n] for n in (0, 1, 2, 3)] + [lower[n] for n in (0, 1, 2, 3)]
                T.stg256(y[tx * 16], both)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("bits", [32, 64, 128])
def test_words_of_several_elements(target: str, bits: int) -> None:
    x = np.random.default_rng(0).standard_normal(256).astype(np.float16)
    y = np.zeros_like(x)
    run(through_words, target, x, y, bits=bits)
    if bits == 128:
        expected = x.reshape(16, 2, 8)[:, ::-1].reshape(256)
    else:
        group = bits // 16
        expected = x.reshape(-1, group)[::-1].reshape(256)
    np.testing.assert_array_equal(y, expected)


DTYPES = ("int8", "uint8", "float16", "int32", "float32", "int64", "float64")


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_words_are_the_bits_of_elements(target: str, dtype: str) -> None:
    @tilec.kernel
    def read(x: T.Tensor((N,), dtype), w: T.Tensor((2, 8), "uint32"), z: T.Tensor((N,), dtype)):
        with T.Kernel(1, threads=32):
            words = T.ldg256(x)
            for n in (0, 1, 2, 3, 4, 5, 6, 7):
                w[0, n] = words[n]
            T.stg256(z, words)
            early = T.ldg64(x[N - 1], pred=N < 100)
            w[1, 0:2] = early
            w[1, 2] = T.ldg64(x, pred=N > 100)[0]

    count = 256 // np.dtype(dtype).itemsize // 8 + 1
    x = np.random.default_rng(1).integers(-100, 100, count).astype(dtype)
    w, z = np.zeros((2, 8), np.uint32), np.zeros_like(x)
    run(read, target, x, w, z)
    np.testing.assert_array_equal(w[0], np.frombuffer(x.tobytes()[:32], np.uint32))
    np.testing.assert_array_equal(z[:-1], x[:-1])
    assert z[-1] == 0
    last = np.frombuffer((x[-1:].tobytes() + bytes(8))[:8], np.uint32)
    np.testing.assert_array_equal(w[1, :3], [last[0], last[1], 0])


@tilec.kernel
def stored_where(y: T.Tensor((2, 16), "float32"), n: T.int32):
    with T.Kernel(1, threads=32):
        tx = T.get_thread_binding(0)
        T.stg32(y[tx // 16, tx % 16], 1.5, pred=tx < n)
        for i in T.Parallel(4):
            T.stg64(y.access_ptr("w", offset=16 + i * 2), (T.uint32(i), T.uint32(7)), pred=i > 1)


@pytest.mark.parametrize("target", TARGETS)
def test_stores_under_a_condition(target: str) -> None:
    y = np.zeros((2, 16), np.float32)
    run(stored_where, target, y, n=13)
    np.testing.assert_array_equal(y[0], np.where(np.arange(16) < 13, 1.5, 0))
    np.testing.assert_array_equal(y[1].view(np.uint32)[:10], [0, 0, 0, 0, 2, 7, 3, 7, 0, 0])
    func = traced(stored_where.function, {"y": y})
    assert len(ops(func, If)) == 2


@tilec.kernel
def copied(A: T.Tensor((4, N), "float16"), B: T.Tensor((4, 64), "float16")):
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((2, 4, 64), "float16")
        tx = T.get_thread_binding(0)
        for r in T.unroll(2):
            row, column = tx // 16 + 0 * r, tx % 16 * 4
            T.ptx_cp_async(
                T.access_ptr(tile[r, row, column], "w", 4),
                T.access_ptr(A[row, column + r * 64], "r", 4),
                4,
                column + r * 64 < 100,
            )
            T.ptx_commit_group()
        T.ptx_wait_group(0)
        T.sync_threads()
        for i, j in T.Parallel(4, 64):
            B[i, j] = tile[0, i, j] + tile[1, i, j]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("length", [128, 90])
def test_copies_between_places(target: str, length: int) -> None:
    A = np.random.default_rng(2).standard_normal((4, length)).astype(np.float16)
    B = np.zeros((4, 64), np.float16)
    run(copied, target, A, B)
    whole = np.zeros((4, 128), np.float16)
    whole[:, : min(length, 100)] = A[:, :100]
    np.testing.assert_array_equal(B, whole[:, :64] + whole[:, 64:])
    func = traced(copied.function, {"A": A, "B": B})
    assert (len(ops(func, CpAsyncCommit)), len(ops(func, CpAsyncWait))) == (1, 1)


@tilec.kernel
def carried(A: T.Tensor((8, 3), "uint8"), B: T.Tensor((3,), "uint32"), n: T.int32):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(3):
            B[i] = T.ldg32(A[2 * i, n])
        tile = T.alloc_shared((4, 2), "uint32")
        T.fill(tile, 5)
        for _ in T.Parallel(1):
            T.atomic_add(T.address_of(tile[1, 1]), 3)
            T.atomic_add(T.access_ptr(B, "rw", offset=2), tile[1, 1] - 8)


@pytest.mark.parametrize("target", TARGETS[:1])
def test_words_longer_than_a_row(target: str) -> None:
    A = np.arange(24, dtype=np.uint8).reshape(8, 3)
    B = np.zeros(3, np.uint32)
    run(carried, target, A, B, n=1)
    at = np.array([1, 7, 13])
    expected = sum((A.ravel()[at + k].astype(np.uint32) << (8 * k)) for k in range(4))
    np.testing.assert_array_equal(B, expected)


MISTAKES = {
    "T.ldg32(s[0])": ("src of T.ldg32 is in s .*, not in global memory", "in a tensor"),
    "T.lds64(x[0])": ("src of T.lds64 is in x .*, not in shared memory", "in a shared buffer"),
    "T.ldg32(1.0)": ("src of T.ldg32 is the float 1.0, no place in a buffer", "write A"),
    "T.ldg32(d[0])": ("moves 32 bits, elements of d .* have 64", "8, 16, 32 or 64"),
    "T.stg64(x[0], T.uint32(1))": (
        "writes 64 bits, its value is",
        "give 2 uint32, or what T.ldg64",
    ),
    "T.ptx_cp_async(s[0], d[0], 2)": ("copies bytes: src is in d", "places of one dtype"),
    "T.ptx_cp_async(x[0], x[0], 2)": ("dst of T.ptx_cp_async is in x .*, not in shared", ""),
    "T.ptx_cp_async(s[0], x[0], n)": ("num_elems of T.ptx_cp_async must be a compile-time", ""),
}


@pytest.mark.parametrize("written", MISTAKES)
def test_places_that_do_not_fit(written: str) -> None:
    source = (
        "import tilec.language as T\n\n\n"
        'def k(x: T.Tensor((64,), "float32"), d: T.Tensor((64,), "float64"), n: T.int32):\n'
        "    with T.Kernel(1, threads=32):\n"
        '        s = T.alloc_shared((64,), "float32")\n'
        f"        {written}\n"
    )
    name = f"<{written}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope: dict[str, Any] = {}
    exec(compile(source, name, "exec"), scope)
    message, hint = MISTAKES[written]
    arrays = {"x": np.zeros(64, np.float32), "d": np.zeros(64, np.float64)}
    with pytest.raises(tilec.CompileError, match=message) as error:
        traced(scope["k"], arrays)
    assert hint in error.value.hint
    assert error.value.loc is not None and error.value.loc.line == 7


def test_a_word_is_loads_and_bits() -> None:
    arrays = {"x": np.zeros(256, np.float16), "y": np.zeros(256, np.float16)}
    func = traced(through_words.function, arrays, bits=64)
    assert len(ops(func, Load)) == 8 and len(ops(func, Bitcast)) == 16


@pytest.mark.gpu
def test_words_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(256, device="cuda", dtype=torch.float16)
    for bits in (32, 64, 128):
        y = torch.zeros_like(x)
        through_words(x, y, bits=bits)
        assert sorted(y.tolist()) == sorted(x.tolist())
    A = torch.randn(4, 90, device="cuda", dtype=torch.float16)
    B = torch.zeros(4, 64, device="cuda", dtype=torch.float16)
    copied(A, B)
    upper = torch.nn.functional.pad(A[:, 64:], (0, 38))
    torch.testing.assert_close(B, A[:, :64] + upper)


@tilec.kernel
def halved(
    x: T.Tensor((64,), "float32"), y: T.Tensor((64,), "float32"), h: T.Tensor((64,), "float16")
):
    with T.Kernel(1, threads=16):
        tx = T.get_thread_binding(0)
        values = T.reinterpret(T.ldg128(x[tx * 4 : tx * 4 + 4]), T.float32x4)
        T.stg128(y[tx * 4], values * 0.5)
        T.stg64(h[tx * 4], T.cast(values, "float16x4"))


@pytest.mark.parametrize("target", TARGETS)
def test_words_as_short_vectors(target: str) -> None:
    x = np.random.default_rng(4).standard_normal(64).astype(np.float32)
    y, h = np.zeros(64, np.float32), np.zeros(64, np.float16)
    run(halved, target, x, y, h)
    np.testing.assert_array_equal(y, x / 2)
    np.testing.assert_array_equal(h, x.astype(np.float16))


@tilec.kernel
def neighbours(
    x: T.Tensor((8, 4), "float32"),
    d: T.Tensor((8, 4), "float32"),
    before: T.Tensor((6,), "float32"),
):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(8):
            T.atomic_addx4(d[i, 0:4], x[i, 0:4])
        for i in T.Parallel(8):
            T.atomic_addx2(T.address_of(d[i, 2]), x[i, 0])
        T.sync_threads()
        if T.get_thread_binding(0) == 0:
            before[0:2] = T.atomic_addx2(d[0, 0:2], x[1, 0:2], return_prev=True)
            before[2:6] = T.atomic_addx4(d[7, 0], x[0, 0], return_prev=True)


@pytest.mark.parametrize("target", TARGETS)
def test_atomics_on_neighbours_at_a_place(target: str) -> None:
    x = np.random.default_rng(3).random((8, 4), dtype=np.float32)
    d = np.zeros_like(x)
    before = np.zeros(6, np.float32)
    run(neighbours, target, x, d, before)
    expected = x.copy()
    expected[:, 2:] += x[:, :2]
    np.testing.assert_array_equal(before, [*expected[0, :2], *expected[7]])
    expected[0, :2] += x[1, :2]
    expected[7] += x[0]
    np.testing.assert_array_equal(d, expected)
