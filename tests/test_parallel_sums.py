"""`acc[i] += x[i, j]` in T.Parallel: what the iterations of an element give is combined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")
M, N = 50, 70


@tilec.kernel
def of_rows(
    A: T.Tensor((M, N), "float16"),
    Total: T.Tensor((M,), "float32"),
    Most: T.Tensor((M,), "float32"),
    Bits: T.Tensor((M,), "int32"),
):
    """Three in one loop, one of them on a condition."""
    with T.Kernel(T.ceildiv(M, 32), threads=128) as b:
        tile = T.alloc_shared((32, 32), "float16")
        total, most = T.alloc_fragment((32,), "float32"), T.alloc_fragment((32,), "float32")
        bits = T.alloc_fragment((32,), "int32")
        T.clear(total)
        T.fill(most, -1e30)
        T.clear(bits)
        for k in T.Pipelined(T.ceildiv(N, 32), num_stages=2):
            T.copy(A[b * 32, k * 32], tile)
            for i, j in T.Parallel(32, 32):
                total[i] += T.float32(tile[i, j]) * 2
                if k * 32 + j < N:
                    most[i] = T.max(most[i], T.float32(tile[i, j]))
                bits[i] |= T.int32(1) << T.if_then_else(tile[i, j] > 1, j % 31, 31)
        for i in T.Parallel(32):
            if b * 32 + i < M:
                Total[b * 32 + i] = total[i]
                Most[b * 32 + i] = most[i]
                Bits[b * 32 + i] = bits[i]


@pytest.mark.parametrize("target", TARGETS)
def test_of_rows(target: str, rng: np.random.Generator) -> None:
    a = rng.standard_normal((M, N)).astype(np.float16)
    total, most, bits = np.zeros(M, np.float32), np.zeros(M, np.float32), np.zeros(M, np.int32)
    run(of_rows, target, a, total, most, bits)
    np.testing.assert_allclose(total, a.astype(float).sum(1) * 2, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(most, a.max(1))
    padded = np.zeros((M, 96), np.float16)
    padded[:, :N] = a
    shift = np.where(padded > 1, np.arange(96) % 32 % 31, 31)
    wanted = np.bitwise_or.reduce(np.left_shift(np.int32(1), shift.astype(np.int32)), 1)
    np.testing.assert_array_equal(bits, wanted)


@tilec.kernel
def picked(
    X: T.Tensor((64, 40), "float32"), at: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "float32"),
    S: T.Tensor((1,), "float32"),
):  # fmt: skip
    """One iteration of a row has something to give; all of them give to one element."""
    with T.Kernel(1, threads=128):
        y, s = T.alloc_fragment((64,), "float32"), T.alloc_fragment((1,), "float32")
        T.clear(y)
        T.clear(s)
        for i, j in T.Parallel(64, 40):
            if j == at[i]:
                y[i] += X[i, j]
            s[0] += X[i, j]
        T.copy(y, Y)
        T.copy(s, S)


@pytest.mark.parametrize("target", TARGETS)
def test_one_of_many(target: str, rng: np.random.Generator) -> None:
    x, at = rng.standard_normal((64, 40)).astype(np.float32), rng.integers(0, 40, 64)
    y, s = np.zeros(64, np.float32), np.zeros(1, np.float32)
    run(picked, target, x, at.astype(np.int32), y, s)
    np.testing.assert_array_equal(y, x[np.arange(64), at])
    np.testing.assert_allclose(s, x.astype(float).sum(), rtol=1e-4, atol=1e-3)


@tilec.kernel
def set_by_one(
    X: T.Tensor((64, 40), "float32"), at: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "float32"),
    Z: T.Tensor((64, 40), "float32"),
):  # fmt: skip
    """One iteration of a row sets its element, or all but one do with theirs."""
    with T.Kernel(1, threads=128):
        y, z = T.alloc_fragment((64,), "float32"), T.alloc_fragment((64, 40), "float32")
        T.fill(y, -1.0)
        for i, j in T.Parallel(64, 40):
            if j == at[i]:
                y[i] = X[i, j]
                z[i, j] = 1.0
            else:
                z[i, j] = X[i, j] * 2
        T.copy(y, Y)
        T.copy(z, Z)


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.filterwarnings("ignore::tilec.PerformanceWarning")
@pytest.mark.parametrize("target", TARGETS)
def test_set_by_one_of_many(target: str, rng: np.random.Generator) -> None:
    """Every thread that has the element sees it: it lies in shared memory."""
    x = rng.standard_normal((64, 40)).astype(np.float32)
    at = rng.integers(0, 45, 64).astype(np.int32)
    y, z = np.zeros(64, np.float32), np.zeros((64, 40), np.float32)
    run(set_by_one, target, x, at, y, z)
    want = np.where(at < 40, x[np.arange(64), np.minimum(at, 39)], -1)
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(z, np.where(np.arange(40) == at[:, None], 1, x * 2))
    if target == "cuda:sm_90a":
        text = set_by_one.compile(x, at, y, z, target=target).stages["demote_fragments"]
        assert "%y = alloc shared" in text and "%z = alloc fragment" in text


@tilec.kernel
def columns(X: T.Tensor((32, 64), "float32"), Y: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64):
        y = T.alloc_fragment((64,), "float32")
        T.fill(y, 1.0)
        for i, j in T.Parallel(32, 64):
            y[j] += X[i, j]
        for j in T.Parallel(64):
            y[j] += 0.5
        T.copy(y, Y)


@pytest.mark.parametrize("target", TARGETS)
def test_columns_and_elements_of_their_own(target: str, rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((32, 64)).astype(np.float32), np.zeros(64, np.float32)
    run(columns, target, x, y)
    np.testing.assert_allclose(y, x.astype(float).sum(0) + 1.5, rtol=1e-4, atol=1e-4)


LONG = (1 << 17) + 1024  # more iterations than are looked at one by one


@tilec.kernel
def spelled_out(
    X: T.Tensor((LONG,), "float32"), N: T.Tensor((64, 40), "int32"),
    Sum: T.Tensor((1,), "float32"), Most: T.Tensor((1,), "float32"), Bits: T.Tensor((64,), "int32"),
):  # fmt: skip
    """As `+=` and `|=`, of more iterations than one can look at."""
    with T.Kernel(1, threads=1024):
        s, most = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
        bits = T.alloc_fragment((64,), "int32")
        T.clear(s)
        T.fill(most, -1e30)
        T.clear(bits)
        for i in T.Parallel(LONG):
            s[0] = s[0] + X[i] * 2
        for i in T.Parallel(LONG):
            most[0] = T.max(most[0], X[i])
        for i, j in T.Parallel(64, 40):
            bits[i] = N[i, j] | bits[i]
        for i in T.Parallel(1):
            T.atomic_add(Sum[i], s[i])
        if T.get_thread_binding() == 0:
            T.atomic_add(Most[0], most[0])
        T.copy(bits, Bits)


@pytest.mark.filterwarnings("ignore::tilec.PerformanceWarning")
@pytest.mark.parametrize("target", TARGETS)
def test_spelled_out_and_long(target: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal(LONG).astype(np.float32)
    x[-7] = 9
    n = (1 << rng.integers(0, 30, (64, 40))).astype(np.int32)
    s, most, bits = np.zeros(1, np.float32), np.zeros(1, np.float32), np.zeros(64, np.int32)
    run(spelled_out, target, x, n, s, most, bits)
    np.testing.assert_allclose(s, x.astype(float).sum() * 2, rtol=1e-4, atol=1e-2)
    assert most == 9
    np.testing.assert_array_equal(bits, np.bitwise_or.reduce(n, 1))
    text = spelled_out.compile(x, n, s, most, bits, target="cpu").stages["tile"]
    assert all(f"reduce %{name}_shares" in text for name in ("s", "most", "bits"))


@tilec.kernel
def at_any_index(
    X: T.Tensor((32, 64), "float32"), N: T.Tensor((32, 64), "int32"),
    Sum: T.Tensor((95,), "float32"), Most: T.Tensor((4, 32), "float32"),
    Bits: T.Tensor((64,), "int32"),
):  # fmt: skip
    """Diagonals, the largest of groups, and indices that are folded."""
    with T.Kernel(1, threads=96):
        s, most = T.alloc_fragment((95,), "float32"), T.alloc_fragment((4, 32), "float32")
        bits = T.alloc_fragment((64,), "int32")
        T.fill(s, 1.0)
        T.fill(most, 0.5)
        T.clear(bits)
        for i, j in T.Parallel(32, 64):
            s[i + j] += X[i, j]
            if X[i, j] > 0:
                most[i % 4, j // 2] = T.max(most[i % 4, j // 2], X[i, j])
            bits[i % 16 * 4 + j % 4] |= N[i, j]
        T.copy(s, Sum)
        T.copy(most, Most)
        T.copy(bits, Bits)


@pytest.mark.parametrize("target", TARGETS)
def test_elements_at_any_index(target: str, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 9, (32, 64)).astype(np.float32)
    n = (1 << rng.integers(0, 30, (32, 64))).astype(np.int32)
    s, most, bits = np.zeros(95, np.float32), np.zeros((4, 32), np.float32), np.zeros(64, np.int32)
    run(at_any_index, target, x, n, s, most, bits)
    i, j = np.indices(x.shape)
    sums, largest, ors = np.ones(95), np.full((4, 32), 0.5), np.zeros(64, np.int32)
    np.add.at(sums, i + j, x)
    np.maximum.at(largest, (i % 4, j // 2), x)
    np.bitwise_or.at(ors, i % 16 * 4 + j % 4, n)
    for got, want in ((s, sums), (most, largest), (bits, ors)):
        np.testing.assert_array_equal(got, want)
    text = at_any_index.compile(x, n, s, most, bits, target="cpu").stages["tile"]
    assert "%s_shares = alloc shared<95xf32>" in text and "atomic %s_shares" in text


@tilec.kernel
def more_than_threads_hold(
    X: T.Tensor((520, 500), "float32"), Sum: T.Tensor((1,), "float32"),
    Columns: T.Tensor((500,), "float32"), Rows: T.Tensor((520,), "float32"),
):  # fmt: skip
    with T.Kernel(1, threads=128):
        s, columns = T.alloc_fragment((1,), "float32"), T.alloc_fragment((500,), "float32")
        rows = T.alloc_fragment((520,), "float32")
        T.clear(s)
        T.clear(columns)
        T.fill(rows, 0.0)
        for i, j in T.Parallel(520, 500):
            if X[i, j] > 0:
                s[0] += X[i, j]
        for i, j in T.Parallel(520, 500):
            columns[j] += X[i, j]
        for i in T.Parallel(520):
            for j in T.Parallel(500):
                rows[i] = T.max(rows[i], X[i, j])
        T.copy(s, Sum)
        T.copy(columns, Columns)
        T.copy(rows, Rows)


@pytest.mark.filterwarnings("ignore::tilec.PerformanceWarning")
@pytest.mark.parametrize("target", TARGETS)
def test_more_than_threads_hold(target: str, rng: np.random.Generator) -> None:
    """Loops in tiles, of which what one gives is combined before the next."""
    x = rng.integers(-9, 9, (520, 500)).astype(np.float32)
    s, columns, rows = (np.zeros(n, np.float32) for n in (1, 500, 520))
    run(more_than_threads_hold, target, x, s, columns, rows)
    assert s[0] == x[x > 0].sum()
    np.testing.assert_array_equal(columns, x.sum(0))
    np.testing.assert_array_equal(rows, x.max(1))
    text = more_than_threads_hold.compile(x, s, columns, rows, target="cpu").stages["tile"]
    assert "%s_shares = alloc fragment<2x128x4xf32>" in text
    assert "%columns_shares = alloc fragment<1x2x500xf32>" in text
    assert "%rows_shares = alloc fragment<520x1xf32>" in text


def wrong(body: str, behind: str = "T.copy(acc, Y)", iterations: int = 32) -> str:
    """What is said of a loop with this body, and of what stands behind it."""
    lines = "\n            ".join(body.split("\n"))
    text = f"""
@tilec.kernel
def kernel(X: T.Tensor((32, 32), "float32"), Y: T.Tensor((32,), "float32")):
    with T.Kernel(32, threads=128) as bx:
        acc = T.alloc_fragment((32,), "float32")
        wide, byte = T.alloc_fragment((32, 32), "float32"), T.alloc_fragment((64,), "float8_e5m2")
        T.clear(acc)
        for i, j in T.Parallel({iterations}, 32):
            {lines}
        {behind}
"""
    import linecache

    name = f"<sums {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"tilec": tilec, "T": T}
    exec(compile(text, name, "exec"), space)
    spec = tilec.spec((32, 32), "float32"), tilec.spec((32,), "float32")
    with pytest.raises(tilec.CompileError) as e:
        space["kernel"].compile(*spec, target="cpu")
    return str(e.value)


@pytest.mark.parametrize(
    "body, said",
    [
        ("acc[i] += X[i, j]\nwide[i, j] = acc[i]", "acc is added up by all iterations"),
        ("acc[i] += X[i, j]\nacc[i] = T.max(acc[i], X[i, j])", "write the same element of acc"),
        ("acc[i] *= X[i, j]", "write the same element of acc"),
        ("acc[i] = acc[i] - X[i, j]", "write the same element of acc"),
        ("acc[i] = wide[i, j] = T.max(acc[i], X[i, j])", "write the same element of acc"),
        ("acc[i] = X[i, j]", "write the same element of acc"),
        ("byte[i + j] = T.max(byte[i + j], T.float8_e5m2(X[i, j]))", "same element of byte"),
    ],
)
def test_what_is_no_sum(body: str, said: str) -> None:
    assert said in wrong(body)


@pytest.mark.parametrize(
    "body, said",
    [
        ("Y[0] = X[i % 32, j]", "i = 0, j = 0 and i = 0, j = 1 of T.Parallel write the same"),
        ("X[1, j] = 2\nwide[i % 32, j] = X[1, 3]", "reads an element of X that iteration"),
        ("Y[i // 5000] += 1", "write the same element of Y"),
    ],
)
def test_mistakes_of_long_loops(body: str, said: str) -> None:
    assert said in wrong(body, iterations=5000)


def test_a_sum_that_every_thread_adds() -> None:
    """TileLang's threads hold parts of it, so that what they add there is right."""
    said = wrong("acc[0] = acc[0] + X[i, j]", "T.atomic_add(Y[0], acc[0])")
    assert "acc has what all iterations of a T.Parallel add up" in said
    assert "each thread of the block adds it to the same element of Y: it is done 128 times" in said
    assert "T.atomic_add(Y[0], acc[0])\n    ^^^^" in said
    assert "help: write for i in T.Parallel(1): T.atomic_add(Y[…], acc[…])" in said
