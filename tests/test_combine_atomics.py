"""Atomics that many iterations, or lanes, do to one place: they are combined first."""

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

M, N, K = T.dynamic("M, N, K")
GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
TARGETS = (*GPUS, "cpu")
One = T.Tensor((1,), "float32")
Vector = T.Tensor((N,), "float32")


def stage(kernel: Any, arrays: list[Any], target: str = "cuda:sm_90a") -> str:
    return str(kernel.compile(*arrays, target=target).stages["combine_atomics"])


def numbers(shape: Any, rng: np.random.Generator) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def close(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(got, np.float64), want, tolerance, tolerance)


# --- loops over elements --------------------------------------------------------------------------


def frobenius(dtype: str, into: str, rows: int, columns: int) -> Any:
    @tilec.kernel
    def squares(X: T.Tensor((M, N), dtype), S: T.Tensor((1,), into)):
        with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=128) as (bx, by):
            for i, j in T.Parallel(rows, columns):
                if by * rows + i < M and bx * columns + j < N:
                    x = T.cast(X[by * rows + i, bx * columns + j], into)
                    T.atomic_add(S[0], x * x)

    return squares


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (64, 128), (67, 301)])
def test_a_norm_is_an_atomic_of_each_block(
    shape: tuple[int, int], target: str, rng: np.random.Generator
) -> None:
    """Whole tiles, some at edges, none at all; one launch adds to what is there."""
    x, s = numbers(shape, rng), np.full(1, 3, np.float32)
    kernel = frobenius("float32", "float32", 64, 128)
    run(kernel, target, x, s)
    close(s, 3 + (x.astype(np.float64) ** 2).sum())
    text = stage(kernel, [x, s], target)
    assert text.count("atomic %S") == 1 and "reduce %S_shares" in text
    assert "parallel (32, 128)" in text  # a piece, for whose sums there are registers
    assert text.index("atomic %S") > text.index("parallel (1)")


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "dtype, into", [("bfloat16", "float32"), ("float32", "float64"), ("float16", "float16")]
)
def test_dtypes_of_sums(dtype: str, into: str, target: str, rng: np.random.Generator) -> None:
    x = rng.integers(-1, 2, (33, 70)).astype(getattr(ml_dtypes, dtype, None) or dtype)
    s = np.zeros(1, into)
    run(frobenius(dtype, into, 16, 64), target, x, s)
    assert float(s[0]) == (x.astype(np.float64) ** 2).sum()  # float16: exact below 2048


def total(rows: int, columns: int, update: Any = T.atomic_add) -> Any:
    @tilec.kernel
    def whole(X: T.Tensor((rows, columns), "float32"), S: T.Tensor((2,), "float32")):
        with T.Kernel(1, threads=64):
            for i, j in T.Parallel(rows, columns):
                update(S[1], X[i, j])

    return whole


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "rows, columns, pieces", [(3, 4096, 6), (96, 64, 3), (1, 3, 0), (1, 2503, 0), (2, 2, 1)]
)
def test_pieces(
    rows: int, columns: int, pieces: int, target: str, rng: np.random.Generator
) -> None:
    """As many elements at once as threads have registers for; none of lengths that are not made of
    such, or of few."""
    x, s = numbers((rows, columns), rng), np.ones(2, np.float32)
    run(total(rows, columns), target, x, s)
    close(s, [1, 1 + x.astype(np.float64).sum()], 1e-4)
    text = stage(total(rows, columns), [x, s], target)
    (first, *_) = re.findall(r"parallel \(([\d, ]+)\)", text)
    size = np.prod([int(n) for n in first.split(", ")])
    assert ("reduce" in text) == bool(pieces) and size == rows * columns // max(pieces, 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_odd_numbers(odd: float, target: str) -> None:
    """A sum has what any of them is; a maximum leaves nans out."""
    for update, want in ((T.atomic_add, odd), (T.atomic_max, np.fmax(odd, 7))):
        x, s = np.zeros((4, 100), np.float32), np.full(2, 7, np.float32)
        x[2, 55] = odd
        run(total(4, 100, update), target, x, s)
        np.testing.assert_array_equal(s, [7, want])


UPDATES: dict[str, Callable[..., Any]] = {
    "add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def folding(kind: str, dtype: str) -> Any:
    """Of each row one number, where a mask says so, and one of everything."""
    update = getattr(T, f"atomic_{kind}")

    @tilec.kernel
    def folded(
        X: T.Tensor((M, N), dtype), Keep: T.Tensor((M, N), "int8"), R: T.Tensor((M,), dtype),
        A: T.Tensor((2,), dtype),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(M, 8), threads=64) as b:
            for i, j in T.Parallel(8, 40):
                if b * 8 + i < M and j < N:
                    if Keep[b * 8 + i, j] != 0:
                        update(R[b * 8 + i], X[b * 8 + i, j])
                    update(A[1], X[b * 8 + i, j])

    return folded


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "kind, dtype",
    [
        *((kind, "int32") for kind in UPDATES), ("add", "int8"), ("max", "int8"), ("min", "uint8"),
        *((kind, "uint32") for kind in ("min", "and")), ("max", "float32"), ("min", "float64"),
        ("add", "int64"), ("xor", "uint64"), ("max", "bfloat16"), ("min", "float16"),
    ],
)  # fmt: skip
def test_kinds(kind: str, dtype: str, target: str, rng: np.random.Generator) -> None:
    """A row of which nothing takes part keeps what it was."""
    numpy = getattr(ml_dtypes, dtype, None) or dtype
    low = 0 if dtype.startswith("u") else -9
    x, keep = rng.integers(low, 10, (21, 37)).astype(numpy), np.zeros((21, 37), np.int8)
    keep[1:] = rng.random((20, 37)) < 0.3
    keep[5] = 0
    r, a = rng.integers(0, 10, 21).astype(numpy), np.full(2, 5, numpy)
    want, f = r.astype(x.dtype), UPDATES[kind]
    for i, j in np.argwhere(keep):
        want[i] = f(want[i], x[i, j])
    every = f.reduce(x.astype(np.float64).ravel() if "float" in dtype else x.ravel(), dtype=None)
    kernel = folding(kind, dtype)
    run(kernel, target, x, keep, r, a)
    np.testing.assert_array_equal(r, want)
    assert a[0] == 5 and a[1] == f(np.asarray(every).astype(numpy), np.asarray(5, numpy))
    text = stage(kernel, [x, keep, r, a], target)
    assert text.count("parallel (8)") == text.count("parallel (1)") == 1


@tilec.kernel
def bias_gradient(
    G: T.Tensor((M, N), "float16"), B: T.Tensor((N,), "float32"), S: T.Tensor((1,), "int32")
):
    with T.Kernel(T.ceildiv(N, 64), threads=128) as b:
        for step in T.Pipelined(T.ceildiv(M, 32), num_stages=2):
            for i, j in T.Parallel(32, 64):
                T.atomic_add(B[b * 64 + j], T.cast(G[step * 32 + i, b * 64 + j], "float32"))
                if step * 32 + i < M and b * 64 + j < N and G[step * 32 + i, b * 64 + j] > 0:
                    T.atomic_add(S[0], 1)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(1, 1), (100, 72), (32, 64)])
def test_columns_over_a_loop(shape: tuple[int, int], target: str, rng: np.random.Generator) -> None:
    """What all iterations give is combined behind the loop, of two tensors at once."""
    g = numbers(shape, rng).astype(np.float16)
    b, s = np.ones(shape[1], np.float32), np.zeros(1, np.int32)
    run(bias_gradient, target, g, b, s)
    close(b, 1 + g.astype(np.float64).sum(0), 1e-4)
    assert s[0] == (g > 0).sum()
    behind = stage(bias_gradient, [g, b, s], target).split("reduce", 1)
    assert "for.pipelined" in behind[0] and "atomic" not in behind[0] and "for" not in behind[1]


@tilec.kernel
def pooled(
    X: T.Tensor((M, K), "float32"), Graph: T.Tensor((M,), "int64"), Y: T.Tensor((N,), "float32"),
    Top: T.Tensor((N,), "float32"),
):  # fmt: skip
    with T.Kernel(M, threads=64) as node:
        for j in T.Parallel(100):
            if j < K:
                T.atomic_add(Y[Graph[node]], X[node, j])
        for i, j in T.Parallel(2, 64):
            if i * 64 + j < K:
                T.atomic_max(Top[Graph[node]], X[node, i * 64 + j])


@pytest.mark.parametrize("target", TARGETS)
def test_a_place_that_is_read(target: str, rng: np.random.Generator) -> None:
    """It is the same for all iterations; outside of the tensor nothing is done."""
    x, graph = numbers((9, 77), rng), np.array([0, 2, 1, 2, -1, 0, 7, 0, 2])
    y, top = np.zeros(3, np.float32), np.full(3, -9, np.float32)
    run(pooled, target, x, graph, y, top)
    close(y, [x[graph == g].astype(np.float64).sum() for g in range(3)])
    np.testing.assert_array_equal(top, [x[graph == g].max() for g in range(3)])
    assert stage(pooled, [x, graph, y, top], target).count("reduce %") == 3


@tilec.kernel
def energy(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16"), S: One):
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.clear(acc)
        T.gemm(a, b, acc)
        for i, j in T.Parallel(64, 64):
            T.atomic_add(S[0], acc[i, j] * acc[i, j])


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_product_has_left(target: str, rng: np.random.Generator) -> None:
    """In the layout of the product, whose elements several threads may hold."""
    a, b = (rng.integers(-2, 3, (64, 64)).astype(np.float16) for _ in range(2))
    s = np.zeros(1, np.float32)
    run(energy, target, a, b, s)
    close(s, ((a.astype(np.float64) @ b.astype(np.float64)) ** 2).sum())


@tilec.kernel
def in_shared(X: T.Tensor((N, 32), "int32"), Y: T.Tensor((N,), "int32")):
    with T.Kernel(T.ceildiv(N, 4), threads=64) as b:
        own = T.alloc_shared((4,), "int32")
        T.clear(own)
        for i, j in T.Parallel(4, 32):
            T.atomic_add(own[i], X[b * 4 + i, j])
        tx = T.get_thread_binding(0)
        T.atomic_max(own[tx // 32], tx - 40)
        T.sync_threads()
        for i in T.Parallel(4):
            Y[b * 4 + i] = own[i]


@pytest.mark.parametrize("target", TARGETS)
def test_shared_memory(target: str, rng: np.random.Generator) -> None:
    x, y = rng.integers(-9, 10, (7, 32)).astype(np.int32), np.zeros(7, np.int32)
    run(in_shared, target, x, y)
    want = x.sum(1)
    for place, least in ((0, -9), (1, 23)):
        want[place::4] = np.maximum(want[place::4], least)
    np.testing.assert_array_equal(y, want)


@tilec.kernel
def halves(X: Vector, S: T.Tensor((2,), "float32")):
    """Each half of a block's threads has a tile of its own."""
    with T.Kernel(1, threads=128):
        tx = T.get_thread_binding(0)
        if tx < 64:
            for i in T.Parallel(256):
                if i < N:
                    T.atomic_add(S[0], X[i])
        else:
            for i in T.Parallel(256):
                if i < N:
                    T.atomic_max(S[1], X[i])


@pytest.mark.parametrize("target", GPUS)
def test_groups_of_threads(target: str, rng: np.random.Generator) -> None:
    x, s = numbers(200, rng), np.zeros(2, np.float32)
    run(halves, target, x, s)
    close(s, [x.astype(np.float64).sum(), x.max()])


# --- threads --------------------------------------------------------------------------------------


@tilec.kernel
def dot(X: Vector, Y: Vector, S: One, threads: T.constexpr = 128):
    with T.Kernel(2, threads=threads) as b:
        tx = T.get_thread_binding(0)
        for i in range(b * threads + tx, N, 2 * threads):
            T.atomic_add(S[0], X[i] * Y[i])


@pytest.mark.covering(2)
@pytest.mark.parametrize("threads", [1, 32, 48, 128])
@pytest.mark.parametrize("n", [0, 1, 777])
@pytest.mark.parametrize("target", TARGETS)
def test_loops_of_threads(target: str, n: int, threads: int, rng: np.random.Generator) -> None:
    """Each lane adds up what its iterations give, as many as it has."""
    x, y, s = numbers(n, rng), numbers(n, rng), np.ones(1, np.float32)
    run(dot, target, x, y, s, threads=threads)
    close(s, 1 + x.astype(np.float64) @ y.astype(np.float64), 1e-4)


def test_a_warp_does_one() -> None:
    x = np.zeros(777, np.float32)
    text = stage(dot, [x, x, x[:1]])
    assert text.count("shuffle_xor") == 5 and text.count("atomic") == 1
    assert text.index("for.serial") < text.index("shuffle_xor") < text.index("atomic")
    ptx = str(dot.compile(x, x, x[:1], target="cuda:sm_90a").stages["ptx"])
    assert ptx.count("shfl.sync.bfly") == 5 and len(re.findall(r"\b(?:red|atom)\.", ptx)) == 1
    assert stage(dot, [x, x, x[:1]], "hip:gfx942").count("shuffle_xor") == 6


@tilec.kernel
def matches(
    Label: T.Tensor((N,), "int32"), Loss: Vector, Class: T.Tensor((K,), "int32"),
    Count: T.Tensor((K,), "uint32"), Worst: T.Tensor((K,), "float32"),
):  # fmt: skip
    with T.Kernel(T.ceildiv(N, 64), K, threads=64) as (b, k):
        at = b * 64 + T.get_thread_binding(0)
        if at < N:
            if Label[at] == Class[k]:
                T.atomic_add(Count[k], 1)
                T.atomic_max(Worst[k], Loss[at])
            else:
                T.atomic_min(Worst[K - 1 - k], Loss[at])


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [0, 1, 300])
def test_conditions_of_threads(n: int, target: str, rng: np.random.Generator) -> None:
    """Maxima and minima of one tensor are two kinds, whose order would show: they stay."""
    label, loss = rng.integers(0, 4, n).astype(np.int32), numbers(n, rng)
    count, worst = np.zeros(1, np.uint32), np.full(1, 99, np.float32)
    one = np.full(1, 2, np.int32)
    run(matches, target, label, loss, one, count, worst)
    assert count[0] == (label == 2).sum()
    text = stage(matches, [label, loss, one, count, worst])
    assert text.count("shuffle_xor") == 5 and text.count("atomic %Worst") == 2


def staying(body: Callable[..., Any], dtype: str = "float32") -> Any:
    @tilec.kernel
    def stays(X: T.Tensor((256,), "float32"), S: T.Tensor((256,), dtype), n: T.int32):
        with T.Kernel(2, threads=128):
            body(X, S, T.get_thread_binding(0), n)

    return stays


def first_thread(X: Any, S: Any, tx: Any, n: Any) -> None:
    if tx == 0:
        T.atomic_add(S[0], X[0])


def first_lanes(X: Any, S: Any, tx: Any, n: Any) -> None:
    part = T.warp_reduce_sum(X[tx])
    if tx % 32 == 0 and n > 0:
        T.atomic_add(S[0], part)


def named_thread(X: Any, S: Any, tx: Any, n: Any) -> None:
    if tx == n:
        T.atomic_add(S[0], X[0])


def places(X: Any, S: Any, tx: Any, n: Any) -> None:
    T.atomic_add(S[tx], X[tx])
    T.atomic_add(S[tx // 16], X[tx])


def tickets(X: Any, S: Any, tx: Any, n: Any) -> None:
    S[T.cast(T.atomic_add(S[255], 1, return_prev=True), "int32")] = X[tx]


def arrivals(X: Any, S: Any, tx: Any, n: Any) -> None:
    T.atomic_add(S[1], X[tx], memory_order="seq_cst", return_prev=True)
    for i in T.Parallel(256):
        T.atomic_add(S[0], X[i], memory_order="release")


def histogram(X: Any, S: Any, tx: Any, n: Any) -> None:
    for i in T.Parallel(256):
        T.atomic_add(S[T.cast(X[i], "int32")], 1)


def read_between(X: Any, S: Any, tx: Any, n: Any) -> None:
    for i in T.Parallel(256):
        T.atomic_add(S[0], X[i] + S[0])


def waiting(X: Any, S: Any, tx: Any, n: Any) -> None:
    if tx < n:
        while T.atomic_load(S[1]) < 1:
            T.atomic_add(S[0], X[tx])


@pytest.mark.parametrize(
    "body",
    [first_thread, first_lanes, named_thread, places, tickets, arrivals, histogram, read_between,
     waiting],
)  # fmt: skip
def test_what_stays(body: Callable[..., Any]) -> None:
    """Few lanes' atomics, those of places of their own, and those whose moment may be seen."""
    x = np.zeros(256, np.float32)
    made = staying(body).compile(x, x.copy(), 3, target="cuda:sm_90a").stages
    assert made["combine_atomics"] == made["check_barriers"]


@tilec.kernel
def own_behind(S: T.Tensor((1,), "int32"), Y: T.Tensor((128,), "int32")):
    with T.Kernel(1, threads=128):
        tx = T.get_thread_binding(0)
        T.atomic_add(S[0], tx + 1)
        Y[tx] = T.atomic_load(S[0], memory_order="relaxed")


@pytest.mark.parametrize("target", TARGETS)
def test_a_thread_finds_what_it_has_done(target: str) -> None:
    """The warp meets behind the one lane's atomic."""
    s, y = np.zeros(1, np.int32), np.zeros(128, np.int32)
    run(own_behind, target, s, y)
    assert s[0] == 128 * 129 // 2 and (y > np.arange(128)).all()
    text = stage(own_behind, [s, y])
    assert text.index(", add") < text.index("warp_sync") < text.rindex("= atomic")
