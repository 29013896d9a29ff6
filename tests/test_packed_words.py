"""What is done to tensors of packed elements beside copies and loops: views, words of memory,
literals, on all targets."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

N = T.dynamic("N")
TARGETS = ["cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942"]


def halves(bytes: np.ndarray) -> np.ndarray:
    """The two elements of each byte, unsigned."""
    whole = bytes.view(np.uint8).astype(np.int32)
    return np.stack([whole & 15, whole >> 4], -1).reshape(*whole.shape[:-1], -1)


@tilec.kernel
def shown(
    A: T.Tensor((4, 8), "int4"),
    W: T.Tensor((4, 4), "uint8"),
    E: T.Tensor((8,), "float8_e8m0"),
    O: T.Tensor((8, 4), "int8"),  # noqa: E741
    P: T.Tensor((2, 16), "int32"),
    Q: T.Tensor((2, 2, 2), "float32"),
    R: T.Tensor((16,), "uint8"),
):
    """int4 as int4 of another shape, bytes as uint4, scales as a cube, int4 as its bytes."""
    with T.Kernel(1, threads=32):
        rows = T.reshape(A, (8, 4))
        nibbles = T.view(W, (2, 16), "uint4")
        scales = T.reshape(E, (2, 2, 2))
        raw = T.view(A, (16,), "uint8")
        x = T.alloc_fragment((8, 4), "int8")
        T.copy(rows, x)
        T.copy(x, O)
        for i, j in T.Parallel(2, 16):
            P[i, j] = nibbles[i, j]
        for i, j, k in T.Parallel(2, 2, 2):
            Q[i, j, k] = scales[i, j, k]
        for i in T.Parallel(16):
            R[i] = raw[i]


@pytest.mark.parametrize("target", TARGETS)
def test_views(target: str) -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(-128, 128, (4, 4)).astype(np.int8)
    w = rng.integers(0, 256, (4, 4)).astype(np.uint8)
    e = rng.integers(100, 140, 8).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu)
    o, p = np.zeros((8, 4), np.int8), np.zeros((2, 16), np.int32)
    q, r = np.zeros((2, 2, 2), np.float32), np.zeros(16, np.uint8)
    run(shown, target, a, w, e, o, p, q, r)
    np.testing.assert_array_equal(o, ((halves(a) ^ 8) - 8).reshape(8, 4))
    np.testing.assert_array_equal(p, halves(w).reshape(2, 16))
    np.testing.assert_array_equal(q, e.astype(np.float32).reshape(2, 2, 2))
    np.testing.assert_array_equal(r, a.view(np.uint8).ravel())


@tilec.kernel
def written(X: T.Tensor((2, 8), "int32"), W: T.Tensor((2, 4), "uint8")):
    with T.Kernel(1, threads=32):
        nibbles = T.view(W, (4, 4), "int4")
        for i, j in T.Parallel(4, 4):
            nibbles[i, j] = X[i // 2, i % 2 * 4 + j]


@pytest.mark.parametrize("target", TARGETS)
def test_bytes_are_written_as_nibbles(target: str) -> None:
    x = np.random.default_rng(2).integers(-8, 8, (2, 8)).astype(np.int32)
    w = np.full((2, 4), 0x55, np.uint8)
    run(written, target, x, w)
    np.testing.assert_array_equal((halves(w) ^ 8) - 8, x)


@tilec.kernel
def words(
    A: T.Tensor((4, 16), "int4"), O: T.Tensor((4, 2), "uint32"), H: T.Tensor((4, 16), "float16")
):  # noqa: E741
    """Raw words of packed elements, and a decoder that takes them from the tensor itself."""
    with T.Kernel(4, threads=32) as b:
        for i in T.Parallel(2):
            O[b, i] = T.ldg32(A[b, i * 8])
        out = T.alloc_local((8,), "float16")
        for j in range(2):
            source, dest = T.address_of(A[b, j * 8]), T.address_of(out[0])
            T.call_extern("handle", "decode_i4u_to_f16", source, dest, 8)
            for i in range(8):
                H[b, j * 8 + i] = out[i]


@pytest.mark.parametrize("target", TARGETS)
def test_words(target: str) -> None:
    a = np.random.default_rng(3).integers(-128, 128, (4, 8)).astype(np.int8)
    o, h = np.zeros((4, 2), np.uint32), np.zeros((4, 16), np.float16)
    run(words, target, a, o, h)
    np.testing.assert_array_equal(o, a.view(np.uint32))
    np.testing.assert_array_equal(np.sort(h, axis=None), np.sort(halves(a), axis=None))


@tilec.kernel
def literals(
    A: T.Tensor((8,), "int4"),
    F: T.Tensor((8,), "float4_e2m1"),
    E: T.Tensor((4,), "float8_e8m0"),
    U: T.Tensor((8,), "uint4"),
):
    with T.Kernel(1, threads=32):
        A[0] = -3
        A[5] = 7
        A[1] -= 2
        F[1] = 0.5
        F[2] = -6.0
        F[3] = 0.25
        F[0] *= 2.0
        E[0] = 0.5
        E[1] = -2.0
        E[2] = 3.0
        U[7] = 15
        U[0] += 3


@pytest.mark.parametrize("target", TARGETS)
def test_literals(target: str) -> None:
    a, u = np.zeros(4, np.int8), np.zeros(4, np.uint8)
    f = np.array([1, 0, 0, 0], np.uint8)
    e = np.zeros(4, np.uint8).view(ml_dtypes.float8_e8m0fnu)
    run(literals, target, a, f, e, u)
    np.testing.assert_array_equal((halves(a) ^ 8) - 8, [-3, -2, 0, 0, 0, 7, 0, 0])
    np.testing.assert_array_equal(halves(f), [2, 1, 15, 0, 0, 0, 0, 0])  # codes of e2m1
    np.testing.assert_array_equal(e.view(np.uint8), [126, 128, 129, 0])
    np.testing.assert_array_equal(halves(u), [3, 0, 0, 0, 0, 0, 0, 15])


def by_cp_async(dtype: str, number: str, each: int) -> Any:
    """Each thread copies `each` elements, from an odd place on, of rows that end before the last;
    every fifth of the threads' copies is of zeros."""

    @tilec.kernel
    def copied(A: T.Tensor((4, N), dtype), B: T.Tensor((4, 32 * each), number)):
        with T.Kernel(4, threads=32) as bx:
            S = T.alloc_shared((32 * each,), dtype)
            tx = T.get_thread_binding(0)
            T.ptx_cp_async(
                T.access_ptr(S[tx * each], "w", each),
                T.access_ptr(A[bx, tx * each + 1], "r", each),
                each,
                tx % 5 != 4,
            )
            T.ptx_commit_group()
            T.ptx_wait_group(0)
            T.sync_threads()
            for i in T.Parallel(32 * each):
                B[bx, i] = T.cast(S[i], number)

    return copied


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("each", [1, 8, 32])
@pytest.mark.parametrize("dtype, number", [("int4", "int8"), ("uint4", "uint8"), ("float4_e2m1", "float32")])  # fmt: skip  # noqa: E501
def test_cp_async_counts_elements(
    dtype: str, number: str, each: int, target: str, rng: np.random.Generator
) -> None:
    count = 32 * each - 6
    bytes = rng.integers(0, 256, (4, count // 2)).astype(np.uint8)
    made = np.zeros((4, 32 * each), number)
    run(by_cp_async(dtype, number, each), target, bytes, made)
    values = {
        "int4": lambda x: (x ^ 8) - 8,
        "uint4": lambda x: x,
        "float4_e2m1": lambda x: x.astype(np.uint8).view(ml_dtypes.float4_e2m1fn),
    }[dtype](halves(bytes))
    want = np.zeros((4, 32 * each), number)
    want[:, : count - 1] = np.asarray(values)[:, 1:].astype(number)
    want[:, np.arange(32 * each) // each % 5 == 4] = 0
    np.testing.assert_array_equal(made, want)
