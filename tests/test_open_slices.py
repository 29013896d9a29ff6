"""T.copy and T.fill of slices whose extent is only known at run time."""

import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
G, M = T.dynamic("G, M")


def groups(dtype, out, space, threads):
    @tilec.kernel
    def padded(
        A: T.Tensor((M, 24), dtype),
        first: T.Tensor((G,), "int32"),
        B: T.Tensor((G, 16, 24), out),
        C: T.Tensor((M, 24), out),
    ):
        """Each group's rows, up to 16 of them, padded with zeros, and back again."""
        with T.Kernel(G - 1, threads=threads) as g:
            if space == "shared":
                x = T.alloc_shared((16, 24), out)
            else:
                x = T.alloc_fragment((16, 24), out)
            T.copy(A[first[g] : first[g + 1], 0:24], x)
            T.copy(x, B[g, 0, 0])
            for i, j in T.Parallel(16, 24):
                x[i, j] = x[i, j] + 1
            T.copy(x, C[first[g] : first[g + 1], :])

    return padded


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("dtype", "out", "space", "threads"),
    [
        ("float32", "float32", "shared", 128),
        ("float16", "float32", "fragment", 64),
        ("int8", "int32", "fragment", 32),
    ],
)
def test_groups_of_rows(target, dtype, out, space, threads):
    ends = np.array([0, 5, 5, 21, 22, 31], np.int32)
    a = np.random.default_rng(1).integers(-9, 9, (33, 24)).astype(dtype)
    b, c = np.ones((6, 16, 24), out), np.full((33, 24), 77, out)
    run_compiled(groups(dtype, out, space, threads), target, a, ends, b, c)
    for g in range(5):
        rows = a[ends[g] : ends[g + 1]]
        want = np.zeros((16, 24))
        want[: len(rows)] = rows
        assert np.array_equal(b[g], want)
    want = np.full((33, 24), 77.0)
    want[:31] = a[:31].astype(float) + 1
    assert np.array_equal(c, want)


@tilec.kernel
def on_chip(A: T.Tensor((8, 32), "float32"), n: T.int32, B: T.Tensor((8, 32), "float32")):
    """A part of a row of a shared tile, of 1 to 32 elements; one beyond both sides' extents."""
    with T.Kernel(8, threads=32) as bx:
        s = T.alloc_shared((2, 32), "float32")
        f = T.alloc_fragment((32,), "float32")
        T.clear(s)
        T.copy(A[bx, 0:n], s[1, 0:32])
        T.copy(s[1, 4 : 4 + n], f)
        T.copy(f, B[bx, 0:n])


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [1, 7, 28, 0])
def test_parts_of_shared_tiles(target, n):
    a = np.arange(256, dtype=np.float32).reshape(8, 32)
    b = np.full((8, 32), -1, np.float32)
    run_compiled(on_chip, target, a, n, b)
    want = np.full((8, 32), -1.0)
    padded = np.zeros((8, 40))
    padded[:, :n] = a[:, :n]
    want[:, :n] = padded[:, 4 : 4 + n]
    assert np.array_equal(b, want)


@tilec.kernel
def offsets(A: T.Tensor((M, 64), "float16"), at: T.Tensor((4,), "int32"),
            B: T.Tensor((4, 32, 64), "float16")):  # fmt: skip
    """What is read twice, a variable or an element, is the same number."""
    with T.Kernel(2, threads=128) as bx:
        x = T.alloc_shared((32, 64), "float16")
        row = T.alloc_var("int32")
        row = at[bx] + 1
        T.copy(A[row + bx * 2 : row + (bx + 16) * 2, 0:64], x)
        T.copy(x, B[bx, 0, 0])
        T.copy(A[at[bx + 2] : at[bx + 2] + 32, 0:64], x)
        T.copy(x, B[bx + 2, 0, 0])


@pytest.mark.parametrize("target", TARGETS)
def test_extents_that_are_known_after_all(target):
    a = np.random.default_rng(1).integers(-9, 9, (80, 64)).astype(np.float16)
    at, b = np.array([3, 11, 0, 40], np.int32), np.zeros((4, 32, 64), np.float16)
    run_compiled(offsets, target, a, at, b)
    starts = [4, 14, 0, 40]
    assert np.array_equal(b, [a[s : s + 32] for s in starts])
    text = offsets.compile(a, at, b, target=target).stages["tile"]
    assert text.count("copy %") == 4 and "parallel" not in text


@tilec.kernel
def changed(A: T.Tensor((M,), "float32"), B: T.Tensor((32,), "float32")):
    """A variable that changes between its reads is not the same number."""
    with T.Kernel(1, threads=32):
        end = T.alloc_var("int32", 3)
        start = end
        end = end + 4
        x = T.alloc_fragment((32,), "float32")
        T.copy(A[start:end], x)
        T.copy(x, B)


@pytest.mark.parametrize("target", TARGETS)
def test_a_variable_that_changes(target):
    a, b = np.arange(1, 41, dtype=np.float32), np.zeros(32, np.float32)
    run_compiled(changed, target, a, b)
    assert np.array_equal(b[:4], a[3:7]) and not b[4:].any()


@tilec.kernel
def cleared(
    A: T.Tensor((M, 40), "float32"), first: T.Tensor((G,), "int32"), B: T.Tensor((M,), "int32")
):
    """The middle of some rows, and shared memory."""
    with T.Kernel(G - 1, threads=32) as g:
        T.fill(A[first[g] : first[g + 1], 3:17], 2.5)
        T.clear(A[first[g] : first[g + 1], 20])
        T.fill(B[first[g] : first[g + 1]], g)
        s = T.alloc_shared((64,), "float32")
        T.clear(s)
        T.fill(s[0 : first[g]], -1)
        for i in T.Parallel(20):
            A[first[g], 20 + i] = s[i]


@pytest.mark.parametrize("target", TARGETS)
def test_fill(target):
    ends = np.array([0, 1, 20, 33], np.int32)
    a = np.random.default_rng(1).standard_normal((35, 40)).astype(np.float32)
    b, want, marks = np.full(35, -7, np.int32), a.copy(), np.full(35, -7, np.int32)
    for g in range(3):
        rows = slice(ends[g], ends[g + 1])
        want[rows, 3:17], want[rows, 20] = 2.5, 0
        want[ends[g], 20:] = np.where(np.arange(20) < ends[g], -1, 0)
        marks[ends[g] : ends[g + 1]] = g
    run_compiled(cleared, target, a, ends, b)
    assert np.array_equal(a, want)
    assert np.array_equal(b, marks)


def test_fill_of_nothing():
    """A slice whose end is no higher than its start, and the loop that a fill is."""
    a, b = np.ones((4, 40), np.float32), np.zeros(4, np.int32)
    cleared(a, np.array([2, 2], np.int32), b)
    assert not b.any() and (a[:2] == 1).all() and (a[2:, :20] == 1).all()
    text = cleared.compile(a, np.array([2, 2], np.int32), b, target="cpu").stages["tile"]
    assert text.count("parallel") == 5 and text.count("fill %") == 1


@tilec.kernel
def wrong(A: T.Tensor((64, 64), "float32"), n: T.int32, which: T.constexpr):
    with T.Kernel(1, threads=32):
        x = T.alloc_shared((16, 32), "float32")
        r = T.alloc_shared((16,), "float32")
        if which == "extents":
            T.copy(A[n : n * 2, 0:16], x)
        elif which == "both":
            T.copy(A[n : n * 2, 0:16], A[0:n, 0:16])
        elif which == "fill with a step":
            T.fill(A[n : n * 2 : 3, 0:16], 0)
        else:
            T.reduce_sum(x[0:n, 0:32], r, dim=1)


WRONG = {
    "extents": ("a (?, 16) slice of A and x (shared (16, 32) float32): their extents differ",),
    "both": ("the extent of this slice of A", "only known at run time", "start + n"),
    "fill with a step": ("the extent of this slice of A", "run time, and it has a step"),
    "reduction": ("the extent of this slice of x", "only known at run time"),
}


@pytest.mark.parametrize("which", WRONG)
def test_what_needs_an_extent(which):
    with pytest.raises(tilec.CompileError) as e:
        wrong.compile(np.zeros((64, 64), np.float32), 3, which=which, target="cpu")
    assert all(text in str(e.value) for text in WRONG[which]), e.value


@tilec.kernel
def elements(A: T.Tensor((M, 20), "float32"), B: T.Tensor((40, 32), "float16")):
    """In T.Parallel a copy is of an element; out of bounds it is the safe value."""
    with T.Kernel(1, threads=64):
        T.annotate_safe_value({A: -9})
        for i, j in T.Parallel(40, 32):
            T.copy(A[i, j], B[i, j])


@pytest.mark.parametrize("target", TARGETS)
def test_copies_of_elements(target):
    a = np.random.default_rng(1).integers(-9, 9, (33, 20)).astype(np.float32)
    b = np.zeros((40, 32), np.float16)
    run_compiled(elements, target, a, b)
    want = np.full((40, 32), -9.0)
    want[:33, :20] = a
    assert np.array_equal(b, want)


@pytest.mark.parametrize("target", TARGETS)
def test_ends_that_are_computed_alike(target):
    """A remainder, or an element's quotient, in both ends of a slice is one number."""

    @tilec.kernel
    def turns(
        A: T.Tensor((M, 24), "float32"),
        at: T.Tensor((G,), "int32"),
        C: T.Tensor((M, 24), "float32"),
    ):
        with T.Kernel(1, threads=64):
            x = T.alloc_shared((16, 24), "float32")
            y = T.alloc_fragment((8, 24), "float32")
            for k in T.serial(G):
                T.copy(A[k * 8, 0], x[(k % 2) * 8 : (k % 2) * 8 + 8, :])
                T.copy(x[(k % 2) * 8 : (k % 2 + 1) * 8, :], y)
                T.copy(y, C[at[k] // 3 * 8 : (at[k] // 3 + 1) * 8, :])

    a = np.random.default_rng(1).random((40, 24), np.float32)
    c, order = np.zeros_like(a), np.array([3, 0, 4, 1, 2])
    run_compiled(turns, target, a, (order * 3 + 2).astype(np.int32), c)
    assert np.array_equal(c.reshape(5, 8, 24)[order], a.reshape(5, 8, 24))


def test_ends_that_differ_are_no_tile():
    @tilec.kernel
    def wrong(A: T.Tensor((M, 24), "float32")):
        with T.Kernel(4, threads=64) as bx:
            x = T.alloc_shared((16, 24), "float32")
            y = T.alloc_fragment((8,), "float32")
            T.clear(x)
            T.reduce_sum(x[(bx % 2) * 8 : (bx % 3) * 8 + 8, :], y, dim=1)

    with pytest.raises(tilec.CompileError, match="only known at run time"):
        wrong.compile(np.zeros((40, 24), np.float32), target="cpu")


def some_rows(space):
    @tilec.kernel
    def rows(
        A: T.Tensor((M, 24), "float16"),
        n: T.Tensor((G,), "int32"),
        B: T.Tensor((G, 16, 24), "float16"),
    ):
        """The first rows of a tile, as many as `n` says; the others stay."""
        with T.Kernel(G, threads=64) as g:
            x = (
                T.alloc_shared((18, 24), "float16")
                if space == "shared"
                else T.alloc_fragment((18, 24), "float16")
            )
            T.fill(x, -1)
            k = T.min(n[g], 16)
            T.copy(A[g * 5 : g * 5 + k, 0:24], x[2 : 2 + k, :])
            T.copy(x[2:18, :], B[g, 0:16, 0:24])

    return rows


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("space", ["shared", "fragment"])
@pytest.mark.parametrize("target", TARGETS)
def test_both_sides(target, space):
    a = np.random.default_rng(2).standard_normal((40, 24)).astype("float16")
    n = np.array([3, 16, 1, 0, 99], np.int32)
    b = np.zeros((5, 16, 24), "float16")
    run_compiled(some_rows(space), target, a, n, b)
    want = np.full((5, 16, 24), -1, "float16")
    for g, k in enumerate(np.minimum(n, 16)):
        want[g, :k] = a[g * 5 : g * 5 + k]
    assert np.array_equal(b, want)
    if target == "cuda:sm_90a" and space == "shared":
        asm = some_rows(space).compile(a, n, b, target=target).asm
        assert "ld.global.nc.v2.b32" in asm and "ld.global.nc.b16" not in asm
