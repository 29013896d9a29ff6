"""Python at trace time: functions, objects, lists and text of what is known at compile time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import syntax_programs  # noqa: F401 (they are PROGRAMS, too)
from python_programs import PROGRAMS

import tilec
import tilec.language as T

GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
N = T.dynamic("N")


def arguments(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return (rng.standard_normal(n) * 3).astype(np.float32), np.zeros(n, np.float32)


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("n", [1, 63, 64, 200])
def test_numbers(name: str, n: int, rng: np.random.Generator) -> None:
    kernel, expected = PROGRAMS[name]
    a, c = arguments(n, rng)
    kernel(a, c)
    np.testing.assert_allclose(c, expected(a.astype(np.float64)), rtol=1e-5, atol=1e-5)


@pytest.mark.covering(1)
@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_compiles(name: str, target: str) -> None:
    kernel, _ = PROGRAMS[name]
    specs = (tilec.spec((200,), "float32"),) * 2
    assert "define" in kernel.compile(*specs, target=target).stages["llvm"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_simulated(name: str, rng: np.random.Generator) -> None:
    kernel, expected = PROGRAMS[name]
    a, c = arguments(130, rng)
    report = tilec.simulate(kernel, a, c, target="cuda:sm_90a")
    assert not report.findings, report
    np.testing.assert_allclose(c, expected(a.astype(np.float64)), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_the_gpu(name: str, rng: np.random.Generator, torch: Any) -> None:
    kernel, expected = PROGRAMS[name]
    a, _ = arguments(200, rng)
    c = torch.zeros(200, device="cuda")
    kernel(torch.from_numpy(a).cuda(), c)
    want = expected(a.astype(np.float64))
    np.testing.assert_allclose(c.cpu().numpy(), want, rtol=1e-5, atol=1e-5)


def test_text_is_a_constant() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32"), mode: str = "twice"):
        for i in T.Parallel(N):
            C[i] = A[i] * 2 if mode == "twice" else A[i]

    a, c = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    for mode, factor in (("twice", 2), ("once", 1)):
        kernel(a, c, mode=mode)
        np.testing.assert_array_equal(c, a * factor)
    kernel(a, c)
    np.testing.assert_array_equal(c, a * 2)


def test_bounds_of_a_launch() -> None:
    """Both vendors' words for it, and none where nothing is said."""
    kernel, _ = PROGRAMS["small_words"]
    plain, _ = PROGRAMS["nested_loops"]
    specs = (tilec.spec((200,), "float32"),) * 2
    assert ".minnctapersm 2" in kernel.compile(*specs, target="cuda:sm_90a").stages["ptx"]
    amd = kernel.compile(*specs, target="hip:gfx942")
    assert '"amdgpu-waves-per-eu"="1"' in amd.stages["llvm"]
    assert "waves-per-eu" not in plain.compile(*specs, target="hip:gfx942").stages["llvm"]


def test_without_arguments() -> None:
    @tilec.kernel
    def numbers():
        out = T.empty((70,), "int32")
        with T.Kernel(1, threads=64):
            for i in T.serial(0, 70, 2):
                out[i] = i
            for i in T.serial(69, 0, -2):
                out[i] = -i
        return out

    want = np.where(np.arange(70) % 2, -np.arange(70), np.arange(70))
    np.testing.assert_array_equal(numbers(), want)
    for target in GPUS:
        report = tilec.simulate(numbers, target=target)
        assert not report.findings
        np.testing.assert_array_equal(report.outputs["out"], want)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_dtypes_by_name(size: int) -> None:
    @tilec.kernel
    def bits(C: T.Tensor((N,), "int32"), dtype: T.dtype = T.float16):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                C[i] = T.dtype(dtype).bits + T.dtype("int8").bits

    c = np.zeros(size, np.int32)
    bits(c)
    assert (c == 24).all()
    bits(c, dtype=T.float64)
    assert (c == 72).all()


size, fixed = T.dynamic("size"), T.const("fixed")


@tilec.kernel
def by_arithmetic(
    A: T.Tensor((size * 3 + 1,), "int32"), B: T.Tensor((2 * size, fixed * 2), "float32")
):
    with T.Kernel(T.ceildiv(size, 32), threads=64) as bx:
        for i in T.serial(size * 3 + 1):
            A[i] = size + fixed
        for i in T.Parallel(32):
            B[2 * (bx * 32 + i) + 1, fixed] = size


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cpu", *GPUS])
@pytest.mark.parametrize("n", [1, 5, 40])
def test_sizes_that_only_arithmetic_names(n: int, target: str) -> None:
    a, b = np.zeros(3 * n + 1, np.int32), np.zeros((2 * n, 6), np.float32)
    if target == "cpu":
        by_arithmetic(a, b)
    else:
        assert not tilec.simulate(by_arithmetic, a, b, target=target).findings
    assert (a == n + 3).all() and (b[1::2, 3] == n).all() and b.sum() == n * n


@pytest.mark.parametrize(
    ("rows", "shape", "message"),
    [
        (12, (8, 6), r"A: dimension 0: expected \(\(size \* 3\) \+ 1\) = 10, got 12"),
        (13, (9, 6), r"B: dimension 0: expected \(2 \* size\) = 8, got 9"),
        (13, (8, 5), r"B: dimension 1: expected \(fixed \* 2\) = 4, got 5"),
    ],
)
def test_extents_that_no_size_gives(rows: int, shape: tuple[int, int], message: str) -> None:
    with pytest.raises(tilec.LaunchError, match=message):
        by_arithmetic(np.zeros(rows, np.int32), np.zeros(shape, np.float32))


rows, halo, taps, wide = T.dynamic("rows, halo, taps, wide")


@tilec.kernel
def by_others(
    A: T.Tensor((wide * taps - 1,), "int32"), X: T.Tensor((rows + 2 * halo,), "int32"),
    Y: T.Tensor((rows,), "int32"), F: T.Tensor((halo + taps,), "int32"),
):  # fmt: skip
    """Y gives rows, then X halo, F taps, and A wide."""
    for i in T.Parallel(rows):
        s = 0
        for r in range(2 * halo + 1):
            s += X[i + r]
        Y[i] = s + 1000 * taps + 100000 * wide


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cpu", *GPUS])
@pytest.mark.parametrize("n, r", [(70, 2), (5, 0), (1, 20)])
def test_sizes_that_others_and_arithmetic_give(n: int, r: int, target: str) -> None:
    x = np.arange(n + 2 * r, dtype=np.int32)
    a, y, f = np.zeros(11, np.int32), np.zeros(n, np.int32), np.zeros(r + 4, np.int32)
    if target == "cpu":
        by_others(a, x, y, f)
    else:
        assert not tilec.simulate(by_others, a, x, y, f, target=target).findings
    want = np.convolve(x, np.ones(2 * r + 1, np.int32), "valid")
    np.testing.assert_array_equal(y, want + 304000)


@pytest.mark.parametrize(
    "sizes, message",
    [
        ((11, 9, 4, 6), r"X: dimension 0: expected \(rows \+ \(2 \* halo\)\) = 8, got 9"),
        ((11, 2, 4, 6), r"X: dimension 0: expected \(rows \+ \(2 \* halo\)\) = 4, got 2"),
        ((10, 8, 4, 6), r"A: dimension 0: expected \(\(wide \* taps\) - 1\) = 7, got 10"),
        ((11, 8, 4, 2), "nothing gives wide a value"),
    ],
)
def test_extents_that_others_do_not_give(sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(tilec.LaunchError, match=message):
        by_others(*(np.zeros(n, np.int32) for n in sizes))


@tilec.kernel
def of_squares(X: T.Tensor((rows * rows + halo * halo,), "int32"), Y: T.Tensor((rows,), "int32")):
    for i in T.Parallel(rows):
        Y[i] = X[i] + halo


def test_squares_are_no_line() -> None:
    with pytest.raises(tilec.CompileError, match="nothing gives the size halo a value"):
        of_squares(np.zeros(4, np.int32), np.zeros(2, np.int32))


@T.macro
def checked_copy(A, B):
    m, n = A.shape
    assert m == B.shape[0] and B.shape[1] == n, f"the shapes differ: {n}"
    with T.Kernel(T.ceildiv(m, 32), threads=64) as bx:
        for i in T.serial(4):
            assert 0 <= i < 4 and i + 1 > 0
        T.copy(A[bx * 32 : bx * 32 + 32, 0:32], B[bx * 32 : bx * 32 + 32, 0:32])


def test_asserts_about_sizes() -> None:
    """Decided by what is known of run-time numbers: the same size, the reach of a loop."""

    @tilec.kernel
    def copied(A: T.Tensor((N, 20), "float32"), B: T.Tensor((N, 20), "float32")):
        checked_copy(A, B)

    @tilec.kernel
    def differ(A: T.Tensor((N, 20), "float32"), B: T.Tensor((N, 21), "float32")):
        checked_copy(A, B)

    a = np.arange(660, dtype=np.float32).reshape(33, 20)
    b = np.zeros_like(a)
    copied(a, b)
    np.testing.assert_array_equal(a, b)
    with pytest.raises(tilec.CompileError, match="assertion failed: the shapes differ: 20"):
        differ(a, np.zeros((33, 21), np.float32))


ELSEWHERE: Any = np.zeros(3)


def test_whether_an_array_is_there() -> None:
    """All that a kernel may ask of an array from outside; another answer is another kernel."""
    global ELSEWHERE

    @tilec.kernel
    def kernel(A: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=4):
            if ELSEWHERE is not None:
                A[T.get_thread_binding()] += 1
            else:
                A[T.get_thread_binding()] += 2

    a = np.zeros(4, np.float32)
    kernel(a)
    np.testing.assert_array_equal(a, 1)
    ELSEWHERE = None
    kernel(a)
    np.testing.assert_array_equal(a, 3)


@pytest.mark.parametrize("n", [1, 5])
def test_names_of_a_dtype_with_annotations(n: int) -> None:
    @tilec.kernel
    def kernel(A):
        dtype: str = "float32"
        A: T.Tensor((N,), dtype)
        B = T.empty((N,), dtype)
        with T.Kernel(1, threads=16):
            for i in T.serial(N):
                B[i] = A[i] + 1
        return B

    a = np.arange(n, dtype=np.float32)
    np.testing.assert_array_equal(kernel(a), a + 1)


@pytest.mark.parametrize("n", [0, 3])
def test_a_range_is_taken_apart(n: int) -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((8,), "int32"), n: T.constexpr):
        with T.Kernel(1, threads=32):
            tiles = [T.alloc_fragment((4,), "int32") for p in [*range(n), 7]]
            for p in [*range(n), *range(6, 8)]:
                A[p] = len(tiles) + p

    a = np.zeros(8, np.int32)
    kernel(a, n)
    want = [n + 1 + p if p < n or p >= 6 else 0 for p in range(8)]
    np.testing.assert_array_equal(a, want)


@tilec.kernel
def lends_names(A, B, rows: T.constexpr, columns: T.constexpr):
    A, B = rows, columns  # numbers, until the tensors are described
    tiles = T.ceildiv(B, 32)
    A = A + 0
    A: T.Tensor((A, B), "float32")
    B: T.Tensor((rows, B), "float32")
    with T.Kernel(tiles, rows, threads=32) as (bx, by):
        for j in T.Parallel(32):
            B[by, bx * 32 + j] = A[by, bx * 32 + j] * 2


@tilec.kernel
def forgets_the_index(A, B, n: T.constexpr):
    A: T.Tensor((n,), "float32")
    A = n
    B: T.Tensor((A,), "float32")
    with T.Kernel(1, threads=32):
        for j in T.Parallel(n):
            B[j] = A[j]


@pytest.mark.parametrize("shape", [(1, 1), (3, 70)])
def test_names_of_tensors_are_numbers_before(shape: tuple[int, int]) -> None:
    a = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for target in ("cpu", "cuda:sm_90a", "hip:gfx942"):
        b = np.zeros_like(a)
        if target == "cpu":
            lends_names(a, b, *shape)
        else:
            assert tilec.simulate(lends_names, a, b, *shape, target=target).ok
        assert np.array_equal(b, a * 2)


def test_a_name_that_was_a_tensor_before() -> None:
    spec = tilec.spec((8,), "float32")
    with pytest.raises(tilec.CompileError, match="this does not write to A") as e:
        forgets_the_index.compile(spec, spec, 8, target="cpu")
    assert "A = n" in str(e.value)


def unless(known: bool) -> int | None:
    return 3 if known else None


def test_none_that_python_computes_is_a_value() -> None:
    """What a function or a table gives may be None; a word of T that gives nothing is refused
    (mistake_more.py)."""

    @tilec.kernel
    def kernel(Y: T.Tensor((4,), "int32"), known: T.constexpr = False):
        with T.Kernel(1, threads=32):
            given = unless(known)
            listed = {True: 10}.get(known)
            for i in T.Parallel(4):
                Y[i] = (5 if given is None else given) + (20 if listed is None else listed)

    for known, want in ((False, 25), (True, 13)):
        y = np.zeros(4, np.int32)
        kernel(y, known=known)
        assert (y == want).all()
