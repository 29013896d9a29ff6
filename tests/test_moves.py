"""T.transpose and T.dp4a: loops and sums of elements."""

import ml_dtypes
import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
M, N = T.dynamic("M, N")


def integers(*shape, dtype="float32", seed=5):
    return np.random.default_rng(seed).integers(-60, 60, shape).astype(dtype)


# --- T.transpose ----------------------------------------------------------------------------------


def transposing(m, n, dtype, out, source, dest, threads):
    @tilec.kernel
    def turned(A: T.Tensor((M, N), dtype), B: T.Tensor((N, M), out)):
        with T.Kernel(T.ceildiv(N, n), T.ceildiv(M, m), threads=threads) as (bx, by):
            if source == "shared":
                x = T.alloc_shared((m, n), dtype)
            else:
                x = T.alloc_fragment((m, n), dtype)
            if dest == "shared":
                y = T.alloc_shared((n, m), out)
            else:
                y = T.alloc_fragment((n, m), out)
            T.copy(A[by * m, bx * n], x)
            T.transpose(x, y)
            T.copy(y, B[bx * n, by * m])

    return turned


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("shape", "tile", "dtype", "out", "source", "dest", "threads"),
    [
        ((64, 48), (32, 16), "float16", "float16", "shared", "shared", 128),
        ((37, 29), (16, 24), "float32", "float32", "shared", "shared", 64),
        ((20, 70), (17, 33), "int8", "int32", "shared", "fragment", 32),
        ((64, 64), (32, 64), "bfloat16", "float32", "fragment", "shared", 128),
        ((33, 65), (32, 32), "float32", "float16", "fragment", "fragment", 256),
        ((5, 9), (1, 9), "float64", "float64", "shared", "shared", 32),
        ((1, 1), (1, 1), "uint8", "uint8", "shared", "shared", 32),
    ],
)
def test_transposed_tiles(target, shape, tile, dtype, out, source, dest, threads):
    kernel = transposing(*tile, dtype, out, source, dest, threads)
    named = {"bfloat16": ml_dtypes.bfloat16}
    a = np.abs(integers(*shape)).astype(named.get(dtype, dtype))
    b = np.zeros(shape[::-1], named.get(out, out))
    run_compiled(kernel, target, a, b)
    assert np.array_equal(b.astype("float64"), a.T.astype("float64"))


@tilec.kernel
def batches(A: T.Tensor((3, 32, 40), "float32"), B: T.Tensor((3, 40, 32), "float32")):
    """In a loop that fills its tile ahead; from and to tensors, with leading extents."""
    with T.Kernel(1, threads=64):
        x = T.alloc_shared((32, 40), "float32")
        y = T.alloc_shared((1, 40, 32), "float32")
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[k, 0, 0], x)
            T.transpose(x, y[0, 0:40, 0:32])
            T.copy(y, B[k, 0, 0])
        T.transpose(A[2, 0:32, 0:40], B[2, 0, 0])


@pytest.mark.parametrize("target", TARGETS)
def test_transposed_in_a_pipeline(target):
    a, b = integers(3, 32, 40), np.zeros((3, 40, 32), np.float32)
    run_compiled(batches, target, a, b)
    assert np.array_equal(b, a.transpose(0, 2, 1))


def test_a_barrier_stands_between_writes_and_transposed_reads():
    kernel = transposing(32, 16, "float16", "float16", "shared", "shared", 128)
    a, b = integers(64, 48, dtype="float16"), np.zeros((48, 64), np.float16)
    text = kernel.compile(a, b, target="cuda:sm_80").stages["insert_sync"]
    assert text.count("barrier") >= 2


@tilec.kernel
def square(A: T.Tensor((8, 8), "float32"), which: T.constexpr):
    with T.Kernel(1, threads=32):
        x = T.alloc_shared((8, 8), "float32")
        y = T.alloc_shared((8, 4), "float32")
        z = T.alloc_local((8, 8), "float32")
        v = T.alloc_shared((8,), "float32")
        if which == "itself":
            T.transpose(x, x)
        elif which == "extents":
            T.transpose(x, y)
        elif which == "local":
            T.transpose(x, z)
        elif which == "one dimension":
            T.transpose(x, v)
        elif which == "two starts":
            T.transpose(A[0, 0], A[1, 1])
        else:
            for _ in T.Parallel(8):
                T.transpose(x, y)


TRANSPOSED = {
    "itself": ("onto itself", "another buffer"),
    "extents": ("onto y (shared (8, 4) float32)", "a tile of (8, 8)"),
    "local": ("dst of T.transpose is z", "T.grid"),
    "one dimension": ("v (shared (8,) float32), which has one dimension", "two at least"),
    "two starts": ("says where a tile of A", "name the extents"),
    "loop": ("cannot stand in T.Parallel", "move it out"),
}


@pytest.mark.parametrize("which", TRANSPOSED)
def test_what_cannot_be_transposed(which):
    with pytest.raises(tilec.CompileError) as e:
        square.compile(np.zeros((8, 8), np.float32), which=which, target="cpu")
    assert all(text in str(e.value) for text in TRANSPOSED[which]), e.value


# --- T.copy within a buffer ----------------------------------------------------------------------


@tilec.kernel
def shifted(A: T.Tensor((M, 32), "float32"), by: T.constexpr, place: T.constexpr):
    with T.Kernel(2, threads=32) as bx:
        x = T.alloc_shared((4, 32), "float32")
        T.copy(A[0, 0], x)
        if place == "row":
            T.copy(x[1, 0:16], x[1, by : by + 16])
        elif place == "rows":
            T.copy(x[0:2, :], x[by : by + 2, :])
        elif place == "tensor":
            T.copy(A[bx : bx + 2, :], A[bx + by : bx + by + 2, :])
        T.copy(x, A[0, 0])


@pytest.mark.parametrize("place", ["row", "rows", "tensor"])
def test_a_copy_onto_a_part_of_itself(place):
    a = np.zeros((8, 32), np.float32)
    with pytest.raises(tilec.CompileError, match=r"onto a part of itself: (.*\n)+.*another buffer"):
        shifted.compile(a, by=1, place=place, target="cpu")
    for apart in (0, 16 if place == "row" else 2):
        shifted.compile(a, by=apart, place=place, target="cpu")


# --- T.dp4a ---------------------------------------------------------------------------------------


@tilec.kernel
def dots(A: T.Tensor((M, 32), "int8"), B: T.Tensor((M, 32), "int8"), C: T.Tensor((M,), "int32")):
    with T.Kernel(T.ceildiv(M, 64), threads=64) as bx:
        row = bx * 64 + T.get_thread_binding(0)
        a = T.alloc_local((2, 16), "int8")
        b = T.alloc_local((2, 16), "int8")
        acc = T.alloc_local((1,), "int32")
        acc[0] = 0
        for h in T.serial(2):
            for v in T.vectorized(16):
                a[h, v] = A[row, h * 16 + v]
                b[h, v] = B[row, h * 16 + v]
        for k in T.serial(8):
            T.dp4a(a[k // 4, k % 4 * 4], b[k // 4, k % 4 * 4], acc[0])
        C[row] = acc[0]


@tilec.kernel
def dots_in_shared(A: T.Tensor((8, 16), "int8"), C: T.Tensor((8,), "int32")):
    with T.Kernel(1, threads=32):
        s = T.alloc_shared((8, 16), "int8")
        T.copy(A, s)
        for i in T.Parallel(8):
            for k in T.serial(4):
                T.dp4a(s[i, k * 4], s[i, k * 4], C[i])


@pytest.mark.parametrize("target", TARGETS)
def test_products_of_bytes(target):
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-128, 128, (77, 32)).astype(np.int8) for _ in "ab")
    c = np.zeros(77, np.int32)
    run_compiled(dots, target, a, b, c)
    assert np.array_equal(c, (a.astype(int) * b).sum(1))
    d = np.arange(8, dtype=np.int32)
    run_compiled(dots_in_shared, target, a[:8, :16].copy(), d)
    assert np.array_equal(d, np.arange(8) + (a[:8, :16].astype(int) ** 2).sum(1))


@tilec.kernel
def wrong(
    A: T.Tensor((8,), "uint8"),
    C: T.Tensor((1,), "int32"),
    F: T.Tensor((1,), "float32"),
    which: T.constexpr,
):
    with T.Kernel(1, threads=32):
        a = T.alloc_local((6,), "int8")
        if which == "input":
            T.dp4a(A[0], A[4], C[0])
        elif which == "sum":
            T.dp4a(a, a, F)
        else:
            T.dp4a(a[0], a[3], C[0])


BYTES = {
    "input": ("A of T.dp4a is an element of A (global (8,) uint8), not an element of int8",),
    "sum": ("C of T.dp4a is F (global (1,) float32), not an element of int32",),
    "end": ("reads index 6 in dimension 0 of a (local (6,) int8)", "valid indices are 0 to 5"),
}


@pytest.mark.parametrize("which", BYTES)
def test_what_dp4a_is_not(which):
    given = [np.zeros(8, np.uint8), np.zeros(1, np.int32), np.zeros(1, np.float32)]
    with pytest.raises(tilec.CompileError) as e:
        wrong.compile(*given, which=which, target="cpu")
    assert all(text in str(e.value) for text in BYTES[which]), e.value
