"""Blocks of threads of any number and up to three dimensions."""

import numpy as np
import pytest

import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
COUNTS = (1, 2, 16, 31, 33, 48, 100, 1000)


def vector_add(threads):
    @tilec.kernel
    def add(
        A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")
    ):
        with T.Kernel(T.ceildiv(N, threads), threads=threads) as bx:
            i = bx * threads + T.get_thread_binding(0)
            C[i] = A[i] + B[i]

    return add


def counted(threads):
    """Each thread notes itself, in shared memory, in a tensor, by atomics; the last reads back."""

    @tilec.kernel
    def count(total: T.Tensor((1,), "int32"), seen: T.Tensor((4096,), "int32")):
        with T.Kernel(1, threads=threads):
            notes = T.alloc_shared((threads,), "int32")
            tx = T.get_thread_binding(0)
            notes[tx] = tx + 1
            T.sync_threads()
            T.atomic_add(total[0], 1)
            seen[tx] = notes[threads - 1 - tx]

    return count


def tiles(threads):
    @tilec.kernel
    def row_sums(A: T.Tensor((M, 70), "float32"), S: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, 8), threads=threads) as bx:
            x = T.alloc_shared((8, 70), "float32")
            f = T.alloc_fragment((8, 70), "float32")
            s = T.alloc_fragment((8,), "float32")
            T.copy(A[bx * 8, 0], x)
            T.copy(x, f)
            for i, j in T.Parallel(8, 70):
                f[i, j] = f[i, j] * 2
            T.reduce_sum(f, s, dim=1)
            T.copy(s, S[bx * 8])

    return row_sums


@tilec.kernel
def level3(
    A: T.Buffer((40, 50), "float16"),
    B: T.Buffer((50, 35), "float16"),
    C: T.Buffer((40, 35), "float16"),
):
    with T.Kernel(T.ceildiv(35, 16), T.ceildiv(40, 16), threads=(16, 16)) as (bx, by):
        tx, ty = T.get_thread_binding(0), T.get_thread_binding(1)
        i, j = by * 16 + ty, bx * 16 + tx
        acc = T.alloc_local((1,), "float")
        T.clear(acc)
        for ko in T.serial(T.ceildiv(50, 8)):
            for kk in T.serial(8):
                k = ko * 8 + kk
                if i < 40 and j < 35 and k < 50:
                    acc[0] += A[i, k].astype("float") * B[k, j].astype("float")
        if i < 40 and j < 35:
            C[i, j] = acc[0].astype("float16")


@tilec.kernel
def cube(C: T.Tensor((60,), "int32")):
    with T.Kernel(1, threads=(3, 4, 5)):
        x, y, z = T.get_thread_bindings()
        again, too = T.thread_binding(0, 5, "threadIdx.z"), T.thread_binding(4, "threadIdx.y")
        C[(z * 4 + y) * 3 + x] = 100 * z + 10 * y + x + 1000 * again + 10000 * too


def random(*shape):
    return np.random.default_rng(6).standard_normal(shape).astype("float32")


def check(kernel, *arrays, out, wanted, rtol=1e-5):
    """On the CPU and in the simulator of each GPU; compiled for all of them."""
    for target in ("cpu", *TARGETS):
        given = [a.copy() for a in arrays]
        if target == "cpu":
            kernel(*given)
        else:
            kernel.compile(*given, target=target)
            report = tilec.simulate(kernel, *given, target=target)
            assert report.ok, report
        for which, expected in zip(out, wanted):
            np.testing.assert_allclose(given[which], expected, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("threads", COUNTS)
def test_thread_code(threads):
    a, b = random(3 * threads - 1), random(3 * threads - 1)
    check(vector_add(threads), a, b, a * 0, out=[2], wanted=[a + b])


@pytest.mark.parametrize("threads", COUNTS)
def test_each_thread_that_was_asked_for_and_no_other(threads):
    seen = np.full(4096, -1, "int32")
    wanted = seen.copy()
    wanted[:threads] = np.arange(threads)[::-1] + 1
    total = np.zeros(1, "int32")
    check(counted(threads), total, seen, out=[0, 1], wanted=[[threads], wanted])


@pytest.mark.parametrize("threads", COUNTS)
def test_tile_words(threads):
    a = random(19, 70)
    wanted = 2 * a.astype("float64").sum(1)
    check(tiles(threads), a, random(19), out=[1], wanted=[wanted], rtol=1e-4)


@pytest.mark.parametrize("threads", [1, 32, 33])
def test_product(threads):
    """Also of fewer threads than a warp has."""

    @tilec.kernel
    def product(
        A: T.Tensor((32, 32), "float16"),
        B: T.Tensor((32, 32), "float16"),
        C: T.Tensor((32, 32), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((32, 32), "float16")
            b = T.alloc_shared((32, 32), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c)
            T.copy(c, C)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (32, 32)).astype("float16") for _ in range(2))
    wanted = a.astype("float32") @ b.astype("float32")
    check(product, a, b, np.empty_like(wanted), out=[2], wanted=[wanted])


def test_the_block_is_whole_warps():
    made = counted(33).compile(np.zeros(1, "i4"), np.zeros(4096, "i4"), target="cuda:sm_90a")
    assert made.resources.threads == 64
    assert '"nvvm.maxntid"="64"' in made.stages["llvm"] or ".maxntid 64" in made.asm
    assert "compare.lt" in made.stages["normalised"] if "normalised" in made.stages else True


def test_two_dimensions():
    rng = np.random.default_rng(1)
    a = rng.standard_normal((40, 50)).astype("float16")
    b = rng.standard_normal((50, 35)).astype("float16")
    wanted = a.astype("float64") @ b.astype("float64")
    check(level3, a, b, np.zeros((40, 35), "float16"), out=[2], wanted=[wanted], rtol=2e-2)


def test_three_dimensions():
    z, y, x = np.meshgrid(np.arange(5), np.arange(4), np.arange(3), indexing="ij")
    wanted = (1100 * z + 10010 * y + x).ravel()
    check(cube, np.zeros(60, "int32"), out=[0], wanted=[wanted])


@tilec.kernel
def own_loops(A: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32")):
    with T.Kernel(T.ceildiv(N, 24), threads=24) as bx:
        tx = T.get_thread_binding(0)
        i = bx * 24 + tx
        left = 24 - tx
        steps = 0
        while left != 0:  # below 0 for a thread that nobody has asked for
            left -= 1
            steps += A[i]
        C[i] += steps


@tilec.kernel
def own_loops_and_tiles(A: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32")):
    with T.Kernel(T.ceildiv(N, 24), threads=24) as bx:
        tile = T.alloc_shared((24,), "int32")
        tx = T.get_thread_binding(0)
        i = bx * 24 + tx
        T.copy(A[bx * 24], tile)
        left = 24 - tx
        steps = 0
        while left != 0:
            left -= 1
            steps += tile[tx]
        C[i] += steps


@pytest.mark.parametrize("kernel", [own_loops, own_loops_and_tiles], ids=lambda k: k.name)
def test_loops_of_each_thread(kernel):
    """Threads that fill up the last warp do not run them, and read nothing of the next block's."""
    a = np.arange(60, dtype="int32") + 3
    check(kernel, a, a * 2, out=[1], wanted=[a * 2 + a * (24 - np.arange(60) % 24)])


@pytest.mark.parametrize(
    "threads, says", [((4, 5, 6, 7), "one to three"), ((64, 64), "4096"), ((8, 0), "one to three")]
)
def test_wrong_blocks(threads, says):
    @tilec.kernel
    def wrong(C: T.Tensor((60,), "int32")):
        with T.Kernel(1, threads=threads):
            C[0] = 1

    with pytest.raises(tilec.CompileError, match=says):
        wrong.compile(np.zeros(60, "int32"), target="cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("threads", COUNTS)
def test_on_a_gpu(threads):
    torch = pytest.importorskip("torch")
    total = torch.zeros(1, dtype=torch.int32, device="cuda")
    seen = torch.full((4096,), -1, dtype=torch.int32, device="cuda")
    counted(threads)(total, seen)
    assert total.item() == threads
    assert seen[:threads].flip(0).tolist() == list(range(1, threads + 1))
    assert (seen[threads:] == -1).all()
    a = torch.randn(19, 70, device="cuda")
    s = torch.empty(19, device="cuda")
    tiles(threads)(a, s)
    torch.testing.assert_close(s, 2 * a.sum(1), rtol=1e-4, atol=1e-4)
