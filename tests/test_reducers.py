"""Reducers: what the iterations of parallel loops contribute is combined, each once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from frontend_help import ops, run, traced
from simulated import run as launch

import tilec
import tilec.language as T
from tilec.ir.errors import CompileError
from tilec.ir.ops import Reduce

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
K = T.dynamic("K")


@tilec.kernel
def scalar_sum(
    A: T.Tensor((8,), "float32"), B: T.Tensor((50,), "float32"), C: T.Tensor((1,), "float32")
):
    with T.Kernel(1, threads=128):
        a = T.alloc_fragment((8,), "float32")
        T.copy(A, a)
        acc = T.alloc_reducer((1,), "float32", op="sum")
        T.reducer_init(acc, 100.0)
        for i in T.Parallel(8):
            T.reducer_update(acc[0], a[i])
        for i in T.Parallel(50):
            if i % 3 == 0:
                T.reducer_update(acc[0], B[i])
        result = T.alloc_fragment((1,), "float32")
        T.finalize_reducer(acc, result)
        T.copy(result, C)


@pytest.mark.parametrize("target", TARGETS)
def test_each_contributes_once(target: str) -> None:
    """Whatever threads hold copies of an element, and the first value counts once."""
    A, B = np.arange(1, 9, dtype=np.float32), np.arange(50, dtype=np.float32)
    C = np.zeros(1, np.float32)
    launch(scalar_sum, target, A, B, C)
    assert C[0] == 100 + A.sum() + B[::3].sum()


@tilec.kernel
def rows(
    A: T.Tensor((20, K), "float32"),
    sums: T.Tensor((20,), "float32"),
    most: T.Tensor((20,), "float32"),
):
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((20, 64), "float32")
        acc = T.alloc_reducer(20, "float32")
        top = T.alloc_reducer((20,), "float32", op="max")
        T.reducer_init(acc)
        T.reducer_init(reducer=top)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
            T.copy(A[0, k * 64], a)
            for i, j in T.Parallel(20, 64):
                T.reducer_update(acc[i], a[i, j])
                if k * 64 + j < K:
                    T.reducer_update(top[i], a[i, j])
        T.finalize_reducer(acc, sums)
        T.finalize_reducer(top, most, batch=2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", TARGETS)
def test_sums_over_a_pipelined_loop(target: str, rng: np.random.Generator) -> None:
    A = rng.integers(-9, 0, (20, 150)).astype(np.float32)
    sums, most = np.zeros(20, np.float32), np.zeros(20, np.float32)
    launch(rows, target, A, sums, most)
    assert np.array_equal(sums, A.sum(1)) and np.array_equal(most, A.max(1))


@tilec.kernel
def every_form(
    A: T.Tensor((6, 8, 10), "int32"),
    permuted: T.Tensor((10, 6), "int32"),
    inner: T.Tensor((6, 1), "int32"),
    bits: T.Tensor((8,), "int32"),
    same: T.Tensor((6, 8, 10), "int32"),
):
    with T.Kernel(1, threads=64):
        p = T.alloc_reducer((10, 6), "int32", op="min")
        n = T.alloc_reducer((6, 1), "int32")
        b = T.alloc_reducer((8,), "int32", op="bitxor")
        s = T.alloc_reducer((6, 8, 10), "int32", op="max")
        T.reducer_init(p)
        T.reducer_init(n)
        T.reducer_init(b)
        T.reducer_init(s, 0)
        for i, j, k in T.Parallel(6, 8, 10):
            T.reducer_update(p[k, i], A[i, j, k])
            T.reducer_update(b[j], A[i, j, k])
            T.reducer_update(s[i, j, k], A[i, j, k])
        for i in T.Parallel(6):
            for j in T.serial(8):
                T.reducer_update(n[i, 0], A[i, j, 3])
        T.finalize_reducer(p, permuted)
        T.finalize_reducer(n, inner)
        T.finalize_reducer(b, bits)
        T.finalize_reducer(s, same)


def forms(rng: np.random.Generator) -> tuple[list[np.ndarray], list[np.ndarray]]:
    A = rng.integers(-99, 99, (6, 8, 10)).astype(np.int32)
    bits = np.bitwise_xor.reduce(np.bitwise_xor.reduce(A, 2), 0)
    want = [A.min(1).T, A[:, :, 3].sum(1, keepdims=True), bits, np.maximum(A, 0)]
    return [A, *(np.full(w.shape, 7, np.int32) for w in want)], want


@pytest.mark.parametrize("target", TARGETS)
def test_every_form(target: str, rng: np.random.Generator) -> None:
    args, want = forms(rng)
    launch(every_form, target, *args)
    assert all(map(np.array_equal, args[1:], want))


def test_meaning(rng: np.random.Generator) -> None:
    args, want = forms(rng)
    names = [p.name for p in every_form.parameters]
    found = run(every_form.function, dict(zip(names, args)))
    assert all(np.array_equal(found[n], w) for n, w in zip(names[1:], want))
    assert len(ops(traced(every_form.function, dict(zip(names, args))), Reduce)) == 3


@tilec.kernel
def halves(A: T.Tensor((4096,), "float16"), C: T.Tensor((1,), "float16")):
    with T.Kernel(1, threads=128):
        acc = T.alloc_reducer((1,), "float16")
        T.reducer_init(acc)
        for i in T.Parallel(4096):
            T.reducer_update(acc[0], A[i])
        T.finalize_reducer(acc, C)


@pytest.mark.parametrize("target", TARGETS)
def test_halves_are_summed_in_float32(target: str) -> None:
    C = np.zeros(1, np.float16)
    launch(halves, target, np.ones(4096, np.float16), C)
    assert C[0] == 4096


@tilec.kernel
def by_kinds(A: T.Tensor((32, 24), "float32"), B: T.Tensor((3, 2), "float32"), op: T.constexpr):
    """Elements by numbers that are made of the loop's indices."""
    with T.Kernel(1, threads=64):
        f = T.alloc_fragment((32, 24), "float32")
        acc = T.alloc_reducer((3, 2), "float32", op=op)
        T.reducer_init(acc)
        T.copy(A, f)
        for i, j in T.Parallel(32, 24):
            T.reducer_update(acc[T.min(2, j // 4), i // 16], f[i, j])
        T.finalize_reducer(acc)
        T.copy(acc, B)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["sum", "max"])
def test_few_elements_are_updated_by_any_index(target: str, op: str) -> None:
    a = np.random.default_rng(3).standard_normal((32, 24)).astype(np.float32)
    b = np.zeros((3, 2), np.float32)
    launch(by_kinds, target, a, b, op=op)
    kind = np.minimum(2, np.arange(24) // 4)
    parts = [[a[16 * h : 16 * h + 16][:, kind == k] for h in range(2)] for k in range(3)]
    take = {"sum": lambda x: x.sum(dtype="f8"), "max": np.max}[op]
    np.testing.assert_allclose(b, [[take(x) for x in row] for row in parts], rtol=1e-5, atol=1e-5)


def compiled(body: Callable[[], None]) -> None:
    @tilec.kernel
    def kernel(C: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=64):
            body()

    kernel.compile(np.zeros(8, np.float32), target="cpu")


def test_mistakes() -> None:
    def outside() -> None:
        acc = T.alloc_reducer((8,), "float32")
        T.reducer_init(acc)
        T.reducer_update(acc[0], 1.0)

    def early() -> None:
        acc = T.alloc_reducer((8,), "float32")
        for i in T.Parallel(8):
            T.reducer_update(acc[i], 1.0)

    def other() -> None:
        x = T.alloc_fragment((8,), "float32")
        T.reducer_init(x)

    def bits() -> None:
        T.alloc_reducer((8,), "float32", op="bitor")

    def kind() -> None:
        T.alloc_reducer((8,), "float32", op="mean")

    for body, match in (
        (outside, "T.reducer_update stands outside of T.Parallel"),
        (early, "acc is updated before T.reducer_init"),
        (other, "reducer of T.reducer_init is x .*, not a reducer"),
        (bits, "a reducer by bitor combines the bits of ints, its dtype is float32"),
        (kind, "op of T.alloc_reducer is"),
    ):
        with pytest.raises(CompileError, match=match):
            compiled(body)


@tilec.kernel
def outer_product(
    A: T.Tensor((4, 64), "float32"), B: T.Tensor((4, 64), "float32"), C: T.Tensor((4, 4), "float32")
):
    """Each T.Parallel contributes to one element, at indices of the loops around it."""
    with T.Kernel(1, threads=64):
        a = T.alloc_fragment((4, 64), "float32")
        b = T.alloc_fragment((4, 64), "float32")
        T.copy(A, a)
        T.copy(B, b)
        acc = T.alloc_reducer((4, 4), "float32", op="sum")
        T.reducer_init(acc)
        for i in T.serial(4):
            for j in T.serial(4):
                for k in T.Parallel(64):
                    T.reducer_update(acc[i, j], a[i, k] * b[j, k])
        done = T.alloc_fragment((4, 4), "float32")
        T.finalize_reducer(acc, done)
        T.copy(done, C)


@pytest.mark.parametrize("target", TARGETS)
def test_elements_that_all_iterations_share(target: str) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, (4, 64)).astype(np.float32) for _ in range(2))
    c = np.zeros((4, 4), np.float32)
    launch(outer_product, target, a, b, c)
    np.testing.assert_array_equal(c, a @ b.T)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_operators_contribute(target: str, op: str) -> None:
    """As programs without reducer_init and reducer_update have it."""

    @tilec.kernel
    def combine(A: T.Tensor((16, 64), "float32"), B: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=64):
            acc = T.alloc_reducer(16, "float32", op=op, replication="all")
            T.fill(acc, 1.0)
            a = T.alloc_shared((16, 64), "float32")
            T.copy(A, a)
            for i, j in T.Parallel(16, 64):
                if op == "sum":
                    acc[i] += a[i, j]
                elif op == "max":
                    acc[i] = T.max(acc[i], a[i, j])
                else:
                    acc[i] = T.min(a[i, j], acc[i])
            T.finalize_reducer(acc, batch=2)
            T.copy(acc, B)

    a = (np.arange(16 * 64).reshape(16, 64) % 37 - 10).astype(np.float32)
    b = np.zeros(16, np.float32)
    launch(combine, target, a, b)
    whole = np.concatenate([a, np.ones((16, 1))], 1)
    np.testing.assert_array_equal(b, getattr(np, op)(whole, axis=1))
