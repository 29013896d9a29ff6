"""What Python knows in a kernel: constants of math, tables by an index of T.unroll, T.min of
several, T.where, a return before the end."""

from __future__ import annotations

import math

import numpy as np
import pytest
from simulated import products_in, run

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

TABLE = (1.0, -2.0, 3.5, 4.25)
LONG = (*range(17),)
NESTED = [[1, 2], [3, 4]]
NAMES = {0: 10.0, 1: 20.0}
A = np.linspace(-2, 2, 64).astype(np.float32)
M, N, K = T.dynamic("M, N, K")
TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


def result(kernel: tilec.Kernel, *more: object) -> np.ndarray:
    """What `kernel` makes of A, on the CPU; the simulator says the same for each GPU target."""
    got = np.zeros(64, np.float32)
    kernel(A, got, *more)
    for target in TARGETS:
        made = np.zeros(64, np.float32)
        report = tilec.simulate(kernel, A, made, *more, target=target)
        assert report.ok, str(report)
        np.testing.assert_allclose(made, got, rtol=1e-6, atol=1e-6)
    return got


def error_of(kernel: tilec.Kernel, *more: object) -> tilec.CompileError:
    with pytest.raises(tilec.CompileError) as caught:
        kernel.compile(A, A, *more, target="cuda:sm_90a")
    return caught.value


def test_tables_by_the_index_of_an_unrolled_loop() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for k in T.unroll(4):
                B[k] = A[k] * TABLE[k] + TABLE[(k + 1) % 4] - TABLE[3 - k]
            for k in T.unroll(2):
                for j in T.unroll(2):
                    B[4 + 2 * k + j] = NESTED[k][j] + NAMES[j]
            for k in T.unroll(10, 4, -2):
                at = k // 2 - 2
                B[k + 4] = sum(TABLE[at - 1 : at + 1])

    got = result(kernel)
    n = np.arange(4)
    table = np.array(TABLE)
    np.testing.assert_allclose(got[:4], A[:4] * table + table[(n + 1) % 4] - table[3 - n], 1e-6)
    np.testing.assert_allclose(got[4:8], [11, 22, 13, 24])
    want = {k + 4: sum(TABLE[k // 2 - 3 : k // 2 - 1]) for k in (10, 8, 6)}
    np.testing.assert_allclose([got[at] for at in want], list(want.values()))


def test_a_loop_without_a_table_is_a_loop_still() -> None:
    @tilec.kernel
    def plain(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for k in T.unroll(4):
                B[k] = A[k]
            for k in T.unroll(4):
                B[k + 4] = TABLE[k]

    tile = plain.compile(A, A, target="cuda:sm_90a").stages["tile"]
    assert tile.count("for.unroll") == 1, "the other one is written out"
    assert "const 4.25" in tile


@T.macro
def entry(at):
    return TABLE[at]


def test_in_macros_branches_and_parallel_loops() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), n: T.int32):
        with T.Kernel(1, threads=64):
            for k in T.unroll(4):
                if n > k:
                    for i in T.Parallel(16):
                        B[k * 16 + i] = A[k * 16 + i] * entry(k)
            for k in T.unroll(4):
                if k == n:
                    break
                B[17**k % 272 - 1] = TABLE[1] if k else TABLE[0]

    got = result(kernel, 2)
    want = np.zeros(64, np.float32)
    want[:32] = A[:32] * np.repeat(TABLE[:2], 16)
    want[[0, 16]] = TABLE[:2]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def place_of(flat: object, sizes: object, steps: object) -> object:
    """Where an element is, of strides `steps`, whose number is `flat` in a box of `sizes`."""
    found = 0
    for d in range(len(sizes)):
        found = found + flat // math.prod(sizes[d + 1 :]) % sizes[d] * steps[d]
    return found


def test_tables_by_the_index_of_a_range() -> None:
    sizes, steps = [2, 3, 4], (3, 1, 15)

    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(24):
                for n in range(2):
                    B[i * 2 + n] = A[place_of(i, sizes, steps)] + n

    got = result(kernel)
    i = np.arange(48) // 2
    want = A[i // 12 * 3 + i // 4 % 3 + i % 4 * 15] + np.arange(48) % 2
    np.testing.assert_allclose(got[:48], want, 1e-6)


def test_indices_that_are_not_known() -> None:
    @tilec.kernel
    def serial(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for k in T.serial(4):
                B[k] = LONG[k]

    @tilec.kernel
    def parallel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for k in T.unroll(2):
                for i in T.Parallel(4):
                    B[i] = LONG[i] + k

    @tilec.kernel
    def length(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), n: T.int32):
        with T.Kernel(1, threads=64):
            for k in T.unroll(n):
                B[k] = LONG[k]

    @tilec.kernel
    def long(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for k in T.unroll(5):
                B[k] = TABLE[k]

    for kernel, more in ((serial, ()), (parallel, ()), (length, (3,))):
        error = error_of(kernel, *more)
        assert "a tuple of 17 is known at compile time, the index only at run time" in error.message
        assert "T.unroll(4), whose index is known" in error.hint
    error = error_of(long)
    assert "a tuple of 4 has no item 4" in error.message and error.hint == "its items are 0 to 3"


def test_one_of_a_few_numbers_by_an_index_of_run_time() -> None:
    """Beyond them the nearest."""
    whole = (3, 1, 4, 1, 5, 9, 2)

    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), n: T.int32):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = TABLE[i % 4] * whole[i % 7] + LONG[:16][i - n] + (A[i], 0.0)[A[i] < 0]

    i = np.arange(64)
    want = np.array(TABLE)[i % 4] * np.array(whole)[i % 7] + np.clip(i - 9, 0, 15)
    np.testing.assert_allclose(result(kernel, 9), want + np.maximum(A, 0), rtol=1e-6)


@pytest.mark.parametrize("target", ["cpu", *TARGETS])
def test_tables_in_loops_along_rows(target: str) -> None:
    @tilec.kernel
    def kernel(X: T.Tensor((M, N), "float32"), S: T.Tensor((M,), "float32")):
        for i in T.Parallel(M):
            total = 0.0
            for j in range(N):
                total += X[i, j] * TABLE[j % 4]
            S[i] = total

    x, got = np.arange(3 * 45, dtype=np.float32).reshape(3, 45) % 7, np.zeros(3, np.float32)
    run(kernel, target, x, got)
    np.testing.assert_allclose(got, x @ np.array(TABLE)[np.arange(45) % 4], rtol=1e-6)


@pytest.mark.parametrize("target", ["cpu", *TARGETS])
@pytest.mark.parametrize("written", ["table", "branch", "choice"])
def test_tables_in_products(written: str, target: str) -> None:
    """What a table says of a code is an operand as any other; one that a condition known at compile
    time leaves out is not asked for."""
    plain = False

    @tilec.kernel
    def kernel(
        X: T.Tensor((M, N), "float16"), W: T.Tensor((K, N // 4), "uint8"),
        S: T.Tensor((K,), "float32"), Y: T.Tensor((M, K), "float32"),
    ):  # fmt: skip
        for i, k in T.Parallel(M, K):
            total = 0.0
            for j in range(N):
                code = T.cast(W[k, j // 4] >> (j % 4 * 2), "int32") & 3
                if written == "choice":
                    value = T.cast(code, "float32") if plain else TABLE[code]
                elif written == "branch" and plain:
                    value = TABLE[code ^ 1]
                else:
                    value = TABLE[code]
                total += T.cast(X[i, j], "float32") * (value * S[k])
            Y[i, k] = total

    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((20, 104)).astype(np.float16), rng.integers(0, 256, (33, 26), "u1")
    s, y = rng.random(33).astype(np.float32), np.full((20, 33), np.nan, np.float32)
    if target != "cpu":
        assert products_in(kernel.compile(x, w, s, y, target=target).stages["tile"]) == 1
    run(kernel, target, x, w, s, y)
    weights = np.array(TABLE)[(w[..., None] >> np.arange(0, 8, 2) & 3).reshape(33, 104)]
    want = x.astype(float) @ (weights * s[:, None].astype(float)).T
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)


def test_constants_of_math() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                x = T.min(A[i] * math.pi, math.inf)
                B[i] = T.max(x, -math.inf) + math.e * math.sqrt(2.0) - np.pi

    want = A * math.pi + math.e * math.sqrt(2.0) - math.pi
    np.testing.assert_allclose(result(kernel), want, rtol=1e-5, atol=1e-5)

    @tilec.kernel
    def of_elements(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = np.exp(A[i])

    assert error_of(of_elements).hint == "use T.exp"


def test_several_operands_and_where() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                low = T.min(A[i], 1.5, A[63 - i] * 2, 1)
                high = T.max(-1.0, low, -A[i] / 4)
                B[i] = T.where(A[i] > 0, high, low)

    low = np.minimum.reduce([A, np.full_like(A, 1.5), A[::-1] * 2, np.ones_like(A)])
    high = np.maximum.reduce([np.full_like(A, -1), low, -A / 4])
    np.testing.assert_allclose(result(kernel), np.where(A > 0, high, low), rtol=1e-6)


def test_what_is_said_of_too_few_operands() -> None:
    @tilec.kernel
    def one(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = T.min(A[i])

    @tilec.kernel
    def condition(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = T.where(A[i] > 0)

    @tilec.kernel
    def keyword(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = T.where(A[i] > 0, x=1.0, y=2.0)

    assert error_of(one).message == "T.min takes 2 arguments or more, 1 was given"
    assert error_of(condition).message == "T.where needs the argument 'on_true'"
    assert error_of(condition).hint == "write T.where(cond, on_true, on_false)"
    assert error_of(keyword).message == "T.where has no keyword 'x'"


def test_returns_before_the_end() -> None:
    @tilec.kernel
    def known(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), F: T.constexpr = 1):
        if F == 0:
            return
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = F

    @tilec.kernel
    def blocks(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), n: T.int32):
        with T.Kernel(4, threads=32) as block:
            if block >= n:
                return
            for i in T.Parallel(16):
                B[block * 16 + i] = A[block * 16 + i]

    @tilec.kernel
    def threads(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding(0)
            if t > 40:
                return
            B[t] = A[t]

    assert (result(known) == 1).all()
    np.testing.assert_array_equal(result(blocks, 3), np.where(np.arange(64) < 48, A, 0))
    np.testing.assert_array_equal(result(threads), np.where(np.arange(64) <= 40, A, 0))


def test_returns_that_cannot_be() -> None:
    @tilec.kernel
    def before(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), n: T.int32):
        if n > 3:
            return
        with T.Kernel(1, threads=64):
            T.clear(B)

    @tilec.kernel
    def parallel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                if A[i] > 3:
                    return
                B[i] = A[i]

    @tilec.kernel
    def serial(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.serial(64):
                if A[i] > 3:
                    return
                B[i] = A[i]

    error = error_of(before, 1)
    line = before.function.__code__.co_firstlineno + 3
    assert error.message.startswith(f"the return on line {line} stands before T.Kernel")
    assert error.hint.startswith("move that if under the with")
    assert "return in T.Parallel, whose iterations have no order" in error_of(parallel).message
    assert "use if around" in error_of(parallel).hint
    assert (
        error_of(serial).hint == "set a variable, break, and return behind the loop where it is set"
    )
