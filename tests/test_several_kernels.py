"""Several T.Kernel in one function: launches in their order, with memory that they share."""

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.runtime.cpu import CpuKernel

pytestmark = pytest.mark.turns

M, N = T.dynamic("M, N")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")


@T.macro
def doubled(A, W):
    with T.Kernel(T.ceildiv(A.shape[0], 64), threads=64) as bx:
        for i in T.Parallel(64):
            W[bx * 64 + i] = A[bx * 64 + i] * 2


@tilec.kernel
def turned(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
    """What one block writes another block of the next kernel reads."""
    W = T.alloc_global((N,), "float32")
    doubled(A, W)
    with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
        for i in T.Parallel(64):
            B[bx * 64 + i] = W[N - 1 - bx * 64 - i] + 1


@tilec.kernel
def normalised(A: T.Tensor((M, 40), "float32")):
    W = T.empty((M,), "float32")
    B = T.empty((M, 4, 10), "float32")
    with T.Kernel(M, threads=64) as bx:
        f = T.alloc_fragment((40,), "float32")
        s = T.alloc_fragment((1,), "float32")
        T.copy(A[bx, :], f)
        T.reduce_sum(f, s, dim=0)
        W[bx] = s[0]
    with T.Kernel(M, threads=64) as bx:
        for i, j in T.Parallel(4, 10):
            B[bx, i, j] = A[bx, i * 10 + j] / W[bx]
    return B, W


@tilec.kernel(out=["C"])
def three(A: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32"), n: T.int32 = 3):
    """The second has another number of threads, the third changes what the first wrote."""
    with T.Kernel(T.ceildiv(N, 32), threads=32) as bx:
        for i in T.Parallel(32):
            C[bx * 32 + i] = A[bx * 32 + i] + n
    P = T.alloc_global((N // 2, 2), "int32")
    with T.Kernel(T.ceildiv(N // 2, 128), threads=128) as bx:
        for i, j in T.Parallel(128, 2):
            P[bx * 128 + i, j] = C[2 * (bx * 128 + i) + 1 - j]
    with T.Kernel(T.ceildiv(N // 2, 128), threads=64) as bx:
        for i, j in T.Parallel(128, 2):
            C[2 * (bx * 128 + i) + j] += P[bx * 128 + i, j] * 100


@tilec.kernel
def either(A: T.Tensor((N,), "float32"), up: T.constexpr = True):
    if up:
        with T.Kernel(1, threads=32):
            A[0] = 1
    else:
        with T.Kernel(1, threads=64):
            A[0] = 2


def random(*shape):
    return np.random.default_rng(12).random(shape).astype("float32")


def test_memory_of_a_call():
    for n in (1, 64, 100, 1000):
        a, b = random(n), np.zeros(n, "float32")
        assert turned(a, b) is None
        np.testing.assert_array_equal(b, a[::-1] * 2 + 1)
    assert len(turned.parts.kernels) == 2


def test_results():
    a = random(30, 40)
    shares, sums = normalised(a)
    np.testing.assert_allclose(sums, a.sum(1), rtol=1e-5)
    np.testing.assert_allclose(shares.reshape(30, 40), a / a.sum(1, keepdims=True), rtol=1e-5)
    c = np.arange(20, dtype="int32")
    swapped = c.reshape(-1, 2)[:, ::-1].ravel()
    for n in (3, 5):
        np.testing.assert_array_equal(three(c, n=n), c + n + 100 * (swapped + n))


@pytest.mark.parametrize("target", TARGETS)
def test_every_target(target):
    a, b = random(100), np.zeros(100, "float32")
    variants = turned.parts.compile((a, b), target, {})
    assert [v.stages["tile"].count("grid {") for v in variants] == [1, 1]
    with pytest.warns(tilec.CompileWarning, match="turned is 2 launches(.*\n)+.*parts.compile"):
        first = turned.compile(a, b, target=target)
    assert first.stages["tile"] == variants[0].stages["tile"]
    with pytest.raises(tilec.LaunchError, match="turned is several launches"):
        tilec.recommend(turned, a, b, target=target)
    report = tilec.simulate(turned, a, b, target=target)
    assert report.ok, report
    np.testing.assert_array_equal(b, a[::-1] * 2 + 1)
    c = np.arange(20, dtype="int32")
    report = tilec.simulate(three, c, target=target)
    assert report.ok, report
    swapped = c.reshape(-1, 2)[:, ::-1].ravel()
    np.testing.assert_array_equal(report.outputs["C"], c + 3 + 100 * (swapped + 3))


def test_a_finding_ends_the_simulation():
    @tilec.kernel
    def wrong(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
        with T.Kernel(2, threads=32) as bx:
            A[0] = bx  # two blocks, one place
        with T.Kernel(1, threads=32):
            B[0] = 77

    a, b = np.zeros(64, "int32"), np.zeros(64, "int32")
    report = tilec.simulate(wrong, a, b, target="cuda:sm_90a")
    assert not report.ok and b[0] == 0


def test_branches_are_one_kernel():
    a = random(8)
    either(a)
    assert a[0] == 1 and not either.is_sequence
    either(a, up=False)
    assert a[0] == 2


def test_how_many_there_are_must_not_depend_on_arguments():
    @tilec.kernel
    def sometimes(A: T.Tensor((N,), "float32"), more: T.constexpr = False):
        with T.Kernel(1, threads=32):
            A[0] = 1
        if more:
            with T.Kernel(1, threads=32):
                A[1] = 2

    a = random(8)
    sometimes(a, more=True)
    assert a[:2].tolist() == [1, 2]
    with pytest.raises(tilec.CompileError, match="has no T.Kernel number 2"):
        sometimes(a)


def test_wrong_arguments_are_told_of_once():
    with pytest.raises(tilec.LaunchError, match="turned: missing B"):
        turned(random(8))
    with pytest.raises(tilec.LaunchError, match="dimension 0"):
        turned(random(8), random(9))


SCALE = 2


@tilec.kernel(out=["C"])
def scaled(
    A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32"), n: T.int32, BN: T.constexpr = 32
):
    W = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, BN), threads=32) as bx:
        for i in T.Parallel(BN):
            W[bx * BN + i] = A[bx * BN + i] * SCALE
    with T.Kernel(T.ceildiv(N, BN), threads=32) as bx:
        for i in T.Parallel(BN):
            C[bx * BN + i] = W[bx * BN + i] + n
    return W, C


def test_later_calls_go_through_the_paths_of_the_parts(monkeypatch):
    kernel = tilec.kernel(out=["C"])(scaled.function)
    a = random(100)
    for _ in range(3):
        kernel(a, 3)
    monkeypatch.setattr(tilec.Kernel, "_current", None)  # whoever asks for it fails
    monkeypatch.setattr(tilec.Kernel, "_launch", None)
    for part in kernel._parts.kernels:  # nor do the facts have to be read again for each of them
        monkeypatch.setattr(type(part), "__call__", None)
    for again in (lambda: kernel(a, 3), lambda: kernel(A=a, n=3), lambda: kernel(a, n=3)):
        w, c = again()
        np.testing.assert_array_equal(w, a * 2)
        np.testing.assert_array_equal(c, a * 2 + 3)
        assert not np.shares_memory(w, again()[0]), "each call allocates"


@pytest.mark.parametrize("codes", [[5], [0, 5], [0, 5, 5]])
def test_what_has_been_launched_is_not_launched_again(monkeypatch, codes):
    """Where the driver refuses one of the launches, it goes on with that one."""
    ready, log, left = CpuKernel.ready, [], []

    def counted(self, *args):
        call = ready(self, *args)

        def launch():
            code = left.pop(0) if left else 0
            log.append((self, code))
            return code or call()

        return launch

    monkeypatch.setattr(CpuKernel, "ready", counted)
    kernel = tilec.kernel(out=["C"])(scaled.function)
    a = random(100)
    for _ in range(4):
        log.clear()
        kernel(a, 3)
    first, second = (self for self, _ in log)
    log.clear()
    left[:] = codes
    np.testing.assert_array_equal(kernel(a, 3)[1], a * 2 + 3)
    assert [self for self, code in log if not code] == [first, second]
    assert [code for _, code in log if code] == [5] * codes.count(5)


def test_other_arrays_are_no_error():
    """A path is for NumPy arrays, or for torch's; the others go the longer way."""
    torch = pytest.importorskip("torch")
    kernel = tilec.kernel(out=["C"])(scaled.function)
    a = random(100)
    for _ in range(3):
        kernel(a, 3)
    for _ in range(3):
        np.testing.assert_array_equal(kernel(torch.from_numpy(a), 3)[1].numpy(), a * 2 + 3)
        np.testing.assert_array_equal(kernel(a, 3)[1], a * 2 + 3)


def test_what_a_path_does_not_know_is_launched_anew(monkeypatch):
    kernel = tilec.kernel(out=["C"])(scaled.function)
    a = random(100)
    for n in (3, 3, 4):
        kernel(a, n)
    for array, n, bn in ((random(70), 5, 32), (a, 6, 64), (np.zeros(0, "float32"), 1, 32)):
        for _ in range(2):
            np.testing.assert_array_equal(kernel(array, n, BN=bn)[1], array * 2 + n)
    monkeypatch.setitem(globals(), "SCALE", 3)
    np.testing.assert_array_equal(kernel(a, 4)[0], a * 3)
    monkeypatch.setitem(globals(), "SCALE", 2)
    np.testing.assert_array_equal(kernel(a, 4)[0], a * 2)
    kernel.clear()
    np.testing.assert_array_equal(kernel(a, 4)[0], a * 2)


WRONG = {
    "missing n": lambda k, a: k(a),
    "takes 3 arguments": lambda k, a: k(a, 1, 32, 4),
    "given twice": lambda k, a: k(a, 1, A=a),
    "no parameter 'm'": lambda k, a: k(a, 1, m=3),
    "A is None": lambda k, a: k(None, 1),
    "float64": lambda k, a: k(a.astype("float64"), 1),
    "n must be an int": lambda k, a: k(a, 1.5),
    "grid": lambda k, a: k[3](a, 1),
}


@pytest.mark.parametrize("message", list(WRONG))
def test_a_path_tells_what_the_first_call_tells(message):
    told = []
    for calls in (0, 3):
        kernel = tilec.kernel(out=["C"])(scaled.function)
        a = random(100)
        for _ in range(calls):
            kernel(a, 3)
        with pytest.raises((tilec.LaunchError, tilec.CompileError), match=message) as error:
            WRONG[message](kernel, a)
        told.append(str(error.value))
        assert len(error.traceback) <= 4, "it ends at who called"
    assert told[0] == told[1]


@pytest.mark.gpu
def test_on_a_gpu():
    torch = pytest.importorskip("torch")
    a = torch.randn(100_000, device="cuda")
    b = torch.empty_like(a)
    for _ in range(200):
        b.fill_(7)
        turned(a, b)
        assert torch.equal(b, a.flip(0) * 2 + 1)
    x = torch.rand(3000, 40, device="cuda")
    shares, sums = normalised(x)
    torch.testing.assert_close(sums, x.sum(1))
    torch.testing.assert_close(shares.view(3000, 40), x / x.sum(1, keepdim=True))
