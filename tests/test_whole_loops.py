"""Kernels of mathematics only: T.Parallel loops over whole tensors; tilec makes the grid."""

import re

import numpy as np
import pytest
from philox import Curand
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

M, N, K = T.dynamic("M, N, K")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
PRODUCT = {"cuda:sm_90a": r"wgmma\.mma|mma\.sync", "cuda:sm_80": r"mma\.sync", "hip:gfx942": "mfma"}


@tilec.kernel
def article(
    A: T.Buffer((128, 128), "float16"),
    B: T.Buffer((128, 128), "float16"),
    C: T.Buffer((128, 128), "float16"),
):
    for i in T.Parallel(128):
        for j in T.Parallel(128):
            acc = T.alloc_local((1,), "float")
            T.clear(acc)
            for k in T.serial(128):
                acc[0] += A[i, k].astype("float") * B[k, j].astype("float")
            C[i, j] = acc[0].astype("float16")


@tilec.kernel
def relu_of_product(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float16")
):
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(K):
            acc += T.Cast("float32", A[i, k]) * T.Cast("float32", B[k, j])
        C[i, j] = T.max(acc, 0).astype("float16")


@tilec.kernel
def turned_int8(
    A: T.Tensor((K, M), "int8"), B: T.Tensor((N, K), "int8"), C: T.Tensor((M, N), "int32")
):
    for i, j in T.Parallel(M, N):
        acc = T.alloc_var("int32", 0)
        for k in range(K):
            acc = acc + T.int32(B[j, k]) * T.int32(A[k, i])
        C[i, j] = acc


@tilec.kernel
def batched(
    A: T.Tensor((5, M, K), "float32"),
    B: T.Tensor((5, K, N), "float32"),
    C: T.Tensor((5, M, N), "float32"),
):
    for b, i, j in T.Parallel(5, M, N):
        acc = T.alloc_local((1,), "float32")
        acc[0] = 0
        for k in range(K):
            acc[0] += A[b, i, k] * B[b, k, j]
        if i > 2:
            C[b, i, j] = acc[0] * 2
        else:
            C[b, i, j] = acc[0]


@tilec.kernel
def rounded_products(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(K):
            acc += A[i, k] * B[k, j]  # a product of halves: not what T.gemm computes
        C[i, j] = acc


@tilec.kernel
def part_of_a_product(
    A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"), C: T.Tensor((M, N), "float32")
):
    for i, j in T.Parallel(M - 1, N):
        acc: T.float32 = 0
        for k in range(K - 1):
            acc += A[i, k] * B[k, j]
        C[i + 1, j] = acc


@tilec.kernel
def add_row(
    A: T.Tensor((M, N), "float16"), B: T.Tensor((N,), "float16"), C: T.Tensor((M, N), "float16")
):
    for i, j in T.Parallel(M, N):
        C[i, j] = A[i, j] + B[j]


@tilec.kernel
def turned_elu(A: T.Tensor((M, N, K), "float32")):
    B = T.empty((K, M, N), "float32")
    for i, j, k in T.Parallel(M, N, K):
        x = A[i, j, k]
        if x > 0:
            B[k, i, j] = x
        else:
            B[k, i, j] = T.exp(x)
    return B


@tilec.kernel
def row_sums(A: T.Tensor((M, N), "float32"), S: T.Tensor((M,), "float32")):
    T, block = 0.5, 2  # names of the author's own
    for i in globals_of_the_test.Parallel(M):
        s: globals_of_the_test.float32 = 0
        for j in range(N):
            s += A[i, j] * T * block
        S[i] = s


globals_of_the_test = T


def half(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype("float16")


def single(*shape):
    return np.random.default_rng(4).standard_normal(shape).astype("float32")


def bytes_(*shape):
    return np.random.default_rng(5).integers(-128, 127, shape, dtype="int8")


def wide(a):
    return a.astype(np.int32 if a.dtype == np.int8 else np.float64)


def twice_below(a, b):
    c = wide(a) @ wide(b)
    c[:, 3:] *= 2
    return c


PRODUCTS = {
    "article": (article, (half(128, 128), half(128, 128)), lambda a, b: wide(a) @ wide(b)),
    "relu": (
        relu_of_product,
        (half(100, 72), half(72, 50)),
        lambda a, b: np.maximum(wide(a) @ wide(b), 0),
    ),
    "a single element": (
        relu_of_product,
        (half(1, 1), half(1, 1)),
        lambda a, b: np.maximum(a * b, 0),
    ),
    "turned": (turned_int8, (bytes_(70, 33), bytes_(40, 70)), lambda a, b: wide(a).T @ wide(b).T),
    "batched": (batched, (single(5, 20, 17), single(5, 17, 30)), twice_below),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel, operands, wanted", PRODUCTS.values(), ids=PRODUCTS)
def test_a_sum_of_products_is_a_tiled_product(kernel, operands, wanted, target):
    """On the CPU and a GPU."""
    expected = wanted(*operands)
    result = {"float64": "float16", "int32": "int32"}.get(str(expected.dtype), "float16")
    result = "float32" if operands[0].dtype == np.float32 else result
    c = np.full(expected.shape, 77, result)
    compiled = kernel.compile(*operands, c, target="cpu")
    assert "gemm" in compiled.stages["tile"]
    kernel(*operands, c)
    loose = 1e-4 if result == "float32" else 2e-2
    np.testing.assert_allclose(c, expected, rtol=loose, atol=loose)
    again = np.full_like(c, 77)
    assert tilec.simulate(kernel, *operands, again, target=target).ok
    np.testing.assert_allclose(again, expected, rtol=loose, atol=loose)
    made = kernel.compile(*operands, c, target=target)
    assert "gemm" in made.stages["tile"]
    if result != "float32":
        assert re.search(PRODUCT[target], made.asm)


def test_tiles_are_chosen_or_given():
    names = [p.name for p in article.parameters]
    assert names == ["A", "B", "C", "BM", "BN", "BK"]
    spec = tilec.spec((4096, 4096), "float16")
    large = relu_of_product.compile(spec, spec, spec, target="cuda:sm_90a").stages["tile"]
    (m, n) = re.search(r"alloc fragment<(\d+)x(\d+)x", large).groups()
    assert int(m) * int(n) >= 128 * 128
    small = relu_of_product.compile(spec, spec, spec, BM=64, BN=32, BK=32, target="cuda:sm_90a")
    assert "alloc fragment<64x32xf32>" in small.stages["tile"]


@tilec.kernel
def triangle(
    A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"), C: T.Tensor((M, N), "float32")
):
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(i + 1):
            acc += A[i, k] * B[k, j]
        C[i, j] = acc


@pytest.mark.parametrize("kernel", [rounded_products, part_of_a_product, triangle])
def test_what_a_tiled_product_would_not_give_stays_a_loop(kernel):
    """A part of a product is one, also of as many products as a row's number says."""
    dtype = "float16" if kernel is rounded_products else "float32"
    a, b = half(9, 21).astype(dtype), half(21, 10).astype(dtype)
    c = np.zeros((9, 10), "float32")
    for target in ("cpu", "cuda:sm_90a"):
        made = kernel.compile(a, b, c, target=target).stages["tile"]
        assert ("gemm" in made) == (kernel is not rounded_products)
    if kernel is rounded_products:
        expected = sum((a[:, [k]] * b[k]).astype(np.float32) for k in range(21))
    elif kernel is triangle:
        expected = np.tril(wide(a)) @ wide(b)
    else:
        expected = np.zeros((9, 10))
        expected[1:] = wide(a[:-1, :-1]) @ wide(b[:-1])
    kernel(a, b, c)
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)
    c[:] = 0
    assert tilec.simulate(kernel, a, b, c, target="cuda:sm_90a").ok
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("m, n", [(100, 77), (1, 1), (3, 300), (1000, 8)])
def test_assignments_are_tiles_of_elements(m, n):
    a, b, c = half(m, n), half(n), half(m, n)
    made = add_row.compile(a, b, c, target="cuda:sm_90a")
    assert "parallel" in made.stages["tile"] and "thread_index" not in made.stages["tile"]
    if n % 8 == 0:
        assert "ld.global.nc.v4.b32" in made.asm
    add_row(a, b, c)
    np.testing.assert_array_equal(c, a + b)
    c[:] = 0
    assert tilec.simulate(add_row, a, b, c, target="cuda:sm_90a").ok
    np.testing.assert_array_equal(c, a + b)


def test_conditions_and_three_indices():
    a = single(9, 10, 33)
    expected = np.where(a > 0, a, np.exp(wide(a))).transpose(2, 0, 1)
    np.testing.assert_allclose(turned_elu(a), expected, rtol=1e-5)
    for target in TARGETS:
        turned_elu.compile(a, target=target)


x = np.zeros(3)  # a name that the kernel below gives to a number of its own


def test_methods_of_what_an_iteration_names():
    @tilec.kernel
    def halves(
        X: T.Tensor((N,), "uint64"), Y: T.Tensor((N,), "uint32"), Z: T.Tensor((N,), "uint32")
    ):
        for i in T.Parallel(N):
            x: T.uint64 = X[i]
            x ^= x >> 33
            low = x & 0xFFFFFFFF
            Y[i] = low.astype("uint32")
            Z[i] = (x >> 32).astype("uint32")

    a = np.array([0, 1, 2**64 - 1, 0x123456789ABCDEF0], np.uint64)
    low, high = np.empty(4, np.uint32), np.empty(4, np.uint32)
    halves(a, low, high)
    mixed = a ^ a >> np.uint64(33)
    np.testing.assert_array_equal(low, mixed.astype(np.uint32))
    np.testing.assert_array_equal(high, (mixed >> np.uint64(32)).astype(np.uint32))


@pytest.mark.turns
@pytest.mark.parametrize("target", ("cpu", *TARGETS))
def test_functions_inside_of_the_kernel(target):
    """Those that a loop calls may stand before it, for a product and for loops along rows."""

    @tilec.kernel
    def rectified(
        A: T.Tensor((M, K), "float32"),
        B: T.Tensor((K, N), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):
        def relu(x, least=0.0):
            return T.max(x, least)

        for i, j in T.Parallel(M, N):
            acc: T.float32 = 0
            for k in range(K):
                acc += A[i, k] * B[k, j]
            C[i, j] = relu(acc)

    @tilec.kernel
    def softmax(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        def most(i):
            m: T.float32 = -T.infinity("float32")
            for j in range(N):
                m = T.max(m, X[i, j])
            return m

        for i in T.Parallel(M):
            m = most(i)
            s: T.float32 = 0
            for j in range(N):
                s += T.exp(X[i, j] - m)
            for j in range(N):
                Y[i, j] = T.exp(X[i, j] - m) / s

    a, b = single(9, 70), single(70, 20)
    c, e = np.empty((9, 20), np.float32), np.exp(wide(a))
    assert "gemm" in rectified.compile(a, b, c, target=target).stages["tile"]
    run(rectified, target, a, b, c)
    np.testing.assert_allclose(c, np.maximum(wide(a) @ wide(b), 0), rtol=1e-4, atol=1e-4)
    y = np.empty_like(a)
    run(softmax, target, a, y)
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_what_an_iteration_makes_is_made_once():
    """An array of its own, or a random number, is no name for an extent."""

    @tilec.kernel
    def counts(X: T.Tensor((N,), "int32"), Y: T.Tensor((4, N), "int32")):
        for i in T.Parallel(N):
            own = T.alloc_local((2,), "int32")
            own[0] = 1
            own[1] = 5
            T.rng_init(7, 3, 0)
            drawn = T.rng_rand() % 8
            most = T.max(T.ceildiv(9, 4), 2)
            a: T.int32 = 0
            b: T.int32 = 0
            c: T.int32 = 0
            for j in range(own[0], own[1]):
                a += j * X[i]
            for _ in range(drawn):
                b += 1
            for _ in range(most):
                c += X[i]
            last = 0
            for _ in range(2):
                last = own[0]
                for j in range(2):
                    last += own[j]
            Y[0, i] = a
            Y[1, i] = b - T.int32(drawn) + last - 7
            Y[2, i] = T.int32(T.rng_rand() >> 8)
            Y[3, i] = c

    x, random = np.arange(9, dtype=np.int32), Curand(7, 3)
    second = [random.word(), random.word()][1] >> 8
    for target in ("cpu", "cuda:sm_90a"):
        y = np.full((4, 9), -1, np.int32)
        counts(x, y) if target == "cpu" else tilec.simulate(counts, x, y, target=target)
        np.testing.assert_array_equal(y[[0, 1, 3]], [x * 10, x * 0, x * 3])
        assert (y[2] == second).all()


def test_folds_may_use_any_names():
    a, s = single(301, 50), single(301)
    made = row_sums.compile(a, s, target="cuda:sm_90a")
    assert "reduce" in made.stages["tile"]
    row_sums(a, s)
    np.testing.assert_allclose(s, wide(a).sum(1), rtol=1e-4, atol=1e-4)
    s[:] = 0
    assert tilec.simulate(row_sums, a, s, target="cuda:sm_90a").ok
    np.testing.assert_allclose(s, wide(a).sum(1), rtol=1e-4, atol=1e-4)


def test_nested_loops_are_one():
    @tilec.kernel
    def shift(A: T.Tensor((40, 30, 7), "float32"), B: T.Tensor((40, 30, 7), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(40):
                for j, k in T.Parallel(30, 7):
                    B[i, j, k] = A[i, j, k] + 100 * i + j

    a, b = single(40, 30, 7), single(40, 30, 7)
    assert shift.compile(a, b, target="cpu").stages["tile"].count("parallel") == 1
    shift(a, b)
    expected = a + 100 * np.arange(40)[:, None, None] + np.arange(30)[:, None]
    np.testing.assert_allclose(b, expected, rtol=1e-6)


def test_two_loops_are_two_launches():
    @tilec.kernel
    def two(A: T.Tensor((8,), "float32")):
        for i in T.Parallel(8):
            A[i] = 1
        for i in T.Parallel(8):
            A[i] = A[i] + 2

    a = single(8)
    two(a)
    assert (a == 3).all() and len(two.parts.kernels) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("kernel, operands, wanted", PRODUCTS.values(), ids=PRODUCTS)
def test_products_on_a_gpu(kernel, operands, wanted):
    torch = pytest.importorskip("torch")
    expected = wanted(*operands)
    dtype = {"float16": torch.float16, "float32": torch.float32, "int8": torch.int32}
    given = [torch.from_numpy(o).cuda() for o in operands]
    c = torch.full(expected.shape, 77, dtype=dtype[str(operands[0].dtype)], device="cuda")
    kernel(*given, c)
    loose = 2e-2 if c.dtype is torch.float16 else 1e-4
    np.testing.assert_allclose(c.cpu().numpy(), expected, rtol=loose, atol=loose)


@tilec.kernel
def doubled_elements(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
    for i, j in T.Parallel(M, N):
        B[i, j] = A[i, j] * 2


@tilec.kernel
def summed_rows(A: T.Tensor((M, N), "float32"), B: T.Tensor((M,), "float32")):
    for i in T.Parallel(M):
        total: T.float32 = 0
        for j in range(N):
            total += A[i, j]
        B[i] = total


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("threads", [64, 96, 128, 256])
def test_threads_that_the_launch_asks_for(threads: int, target: str) -> None:
    a = np.random.default_rng(threads).standard_normal((20, 77)).astype(np.float32)
    warp = 64 if target.startswith("hip") else 32
    for kernel, want in ((doubled_elements, a * 2), (summed_rows, a.sum(1, dtype=np.float64))):
        b = np.zeros(want.shape, np.float32)
        found = kernel.compile(a, b, target=target, threads=threads).resources.threads
        assert found == (threads if target == "cpu" else -(-threads // warp) * warp)
        if target == "cpu":
            kernel(a, b, threads=threads)
        else:
            assert tilec.simulate(kernel, a, b, target=target, threads=threads).ok
        np.testing.assert_allclose(b, want, rtol=1e-5, atol=1e-5)


def test_an_element_without_indices() -> None:
    @tilec.kernel
    def kernel(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        for i, j in T.Parallel(M, N):
            T.atomic_add(Y[()], X[i, j])

    with pytest.raises(tilec.CompileError) as caught:
        kernel.compile(*[tilec.spec((4, 4), "float32")] * 2, target="cpu")
    assert not isinstance(caught.value, tilec.ir.errors.InternalError)
    assert "T.atomic_add(Y[()], X[i, j])" in str(caught.value)


def test_a_range_without_bounds() -> None:
    @tilec.kernel
    def kernel(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        for i in T.Parallel(M):
            for j in range():
                Y[i, j] = X[i, j]

    with pytest.raises(tilec.CompileError, match=r"range\(\)|at least 1|takes") as caught:
        kernel.compile(*[tilec.spec((4, 4), "float32")] * 2, target="cpu")
    assert not isinstance(caught.value, tilec.ir.errors.InternalError)
    assert "for j in range():" in str(caught.value)
