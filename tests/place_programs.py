"""Programs whose copies to shared memory stand anywhere: before a loop with stages, under a
condition in it, in several loops onto one buffer, in a loop within another, in a `while`. The data
names its iteration: exact sums of small integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilec
import tilec.language as T

M, N, K, W = T.dynamic("M, N, K, W")
Arrays = dict[str, np.ndarray]
F16, F32, I32 = "float16", "float32", "int32"


@tilec.kernel
def before_loop(A: T.Tensor((M, 64), F16), B: T.Tensor((N, 64), F16), C: T.Tensor((M, 64), F32)):
    """One operand for all of the loop: C is the sum of A times every 64 rows of B."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        a, b = T.alloc_shared((64, 64), F16), T.alloc_shared((64, 64), F16)
        total = T.alloc_fragment((64, 64), F32)
        T.copy(A[bx * 64, 0], a)
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
            T.copy(B[k * 64, 0], b)
            T.gemm(a, b, total, transpose_B=True)
        T.copy(total, C[bx * 64, 0])


@tilec.kernel
def before_mixed(A: T.Tensor((M, 64), F16), B: T.Tensor((N, 64), F16), C: T.Tensor((M, 64), F32)):
    """The same, each product its own and added up by threads, which read another tile too."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        a, b = T.alloc_shared((64, 64), F16), T.alloc_shared((64, 64), F16)
        first = T.alloc_shared((64, 64), F16)
        one = T.alloc_fragment((64, 64), F32)
        total = T.alloc_fragment((64, 64), F32)
        T.copy(A[bx * 64, 0], a)
        T.copy(B[0, 0], first)
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
            T.copy(B[k * 64, 0], b)
            T.gemm(a, b, one, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(64, 64):
                total[i, j] += one[i, j] + first[i, j]
        T.copy(total, C[bx * 64, 0])


@tilec.kernel
def through_one(A: T.Tensor((M, 64), F16), B: T.Tensor((N, 64), F16), C: T.Tensor((M, 64), F32)):
    """A comes through a buffer of the loop behind it; the sum of 2 A times every 64 rows of B."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        a, b, again = (T.alloc_shared((64, 64), F16) for _ in range(3))
        total = T.alloc_fragment((64, 64), F32)
        T.copy(A[bx * 64, 0], b)
        for i, j in T.Parallel(64, 64):
            a[i, j] = b[i, j] + 0.0
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
            T.copy(B[k * 64, 0], b)
            T.copy(B[k * 64, 0], again)
            T.gemm(a, b, total, transpose_B=True)
            T.gemm(a, again, total, transpose_B=True)
        T.copy(total, C[bx * 64, 0])


@tilec.kernel
def under_mask(
    A: T.Tensor((M, K), F16),
    B: T.Tensor((K, 64), F16),
    mask: T.Tensor((M, W), I32),
    C: T.Tensor((M, 64), F32),
):
    """Of the iterations only those that a table names."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        a, b = T.alloc_shared((64, 32), F16), T.alloc_shared((32, 64), F16)
        total = T.alloc_fragment((64, 64), F32)
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            if mask[bx, k] != 0:
                T.copy(A[bx * 64, k * 32], a)
                T.copy(B[k * 32, 0], b)
                T.gemm(a, b, total)
        T.copy(total, C[bx * 64, 0])


@tilec.kernel
def two_loops(A: T.Tensor((M, K), F16), B: T.Tensor((K, 64), F16), C: T.Tensor((M, 64), F32)):
    """Two loops fill the same buffers: the second one, over what is left, counts three times."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        a, b = T.alloc_shared((64, 32), F16), T.alloc_shared((32, 64), F16)
        total = T.alloc_fragment((64, 64), F32)
        one = T.alloc_fragment((64, 64), F32)
        T.clear(total)
        steps = T.ceildiv(K, 32)
        for k in T.Pipelined(steps // 2, num_stages=3):
            T.copy(A[bx * 64, k * 32], a)
            T.copy(B[k * 32, 0], b)
            T.gemm(a, b, total)
        for k in T.Pipelined(steps // 2, steps, num_stages=3):
            T.copy(A[bx * 64, k * 32], a)
            T.copy(B[k * 32, 0], b)
            T.gemm(a, b, one, clear_accum=True)
            for i, j in T.Parallel(64, 64):
                total[i, j] += 3.0 * one[i, j]
        T.copy(total, C[bx * 64, 0])


@tilec.kernel
def nested(A: T.Tensor((M, K), F16), B: T.Tensor((N, 32), F16), C: T.Tensor((M, 64), F32)):
    """A loop with stages in another: every tile of A times every tile of B."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        a, b = T.alloc_shared((64, 32), F16), T.alloc_shared((64, 32), F16)
        total = T.alloc_fragment((64, 64), F32)
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[bx * 64, k * 32], a)
            for n in T.Pipelined(T.ceildiv(N, 64), num_stages=3):
                T.copy(B[n * 64, 0], b)
                T.gemm(a, b, total, transpose_B=True)
        T.copy(total, C[bx * 64, 0])


@tilec.kernel
def in_while(
    A: T.Tensor((M, K), F16),
    B: T.Tensor((N, 32), F16),
    after: T.Tensor((W,), I32),
    C: T.Tensor((M, 64), F32),
):
    """The tiles of A that a list links, each times every tile of B."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        a, b = T.alloc_shared((64, 32), F16), T.alloc_shared((64, 32), F16)
        total = T.alloc_fragment((64, 64), F32)
        T.clear(total)
        at = after[0]
        while at > 0:
            T.copy(A[bx * 64, (at - 1) * 32], a)
            for n in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
                T.copy(B[n * 64, 0], b)
                T.gemm(a, b, total, transpose_B=True)
            at = after[at]
        T.copy(total, C[bx * 64, 0])


@dataclass(frozen=True)
class Place:
    """A program. `of(blocks, trips)` are its arguments for so many blocks, with so many iterations
    of its loop (of each of them), the output last, and what that must be."""

    name: str
    kernel: Any
    of: Callable[[int, int], tuple[Arrays, np.ndarray]]
    many: tuple[int, int] = (264, 1)

    def arrays(self, blocks: tuple[int, int], trips: int) -> tuple[Arrays, np.ndarray]:
        """As `RingProgram.arrays`."""
        return self.of(blocks[0], trips)


def numbered(rows: int, columns: int, step: int, axis: int) -> np.ndarray:
    """A matrix of which each `step` along the axis holds its number."""
    at = np.arange((rows, columns)[axis]) // step % 7 + 1.0
    full = np.broadcast_to(at[:, None] if axis == 0 else at, (rows, columns))
    return np.ascontiguousarray(full, F16)


def pattern(rows: int, columns: int) -> np.ndarray:
    i, j = np.ogrid[:rows, :columns]
    return ((i % 5 == j % 5) + (i % 3 == 0)).astype(F16)


def output(rows: int) -> np.ndarray:
    return np.full((rows, 64), -1, F32)


def _before(blocks: int, trips: int) -> tuple[Arrays, np.ndarray]:
    a, b = pattern(64 * blocks, 64), numbered(64 * trips, 64, 64, 0)
    b = b * pattern(64 * trips, 64)
    want = sum((a.astype(F32) @ b[i : i + 64].T.astype(F32) for i in range(0, 64 * trips, 64)), 0)
    return {"A": a, "B": b, "C": output(64 * blocks)}, want + output(64 * blocks) * 0


def _through(blocks: int, trips: int) -> tuple[Arrays, np.ndarray]:
    held, want = _before(blocks, trips)
    return held, 2 * want


def _mixed(blocks: int, trips: int) -> tuple[Arrays, np.ndarray]:
    held, want = _before(blocks, trips)
    first = held["B"][:64].astype(F32) if trips else np.zeros((64, 64), F32)
    return held, want + trips * np.tile(first, (blocks, 1))


def _masked(blocks: int, trips: int) -> tuple[Arrays, np.ndarray]:
    m, k = 64 * blocks, 32 * trips
    a, b = numbered(m, k, 32, 1), pattern(k, 64)
    i, j = np.ogrid[:m, : max(trips, 1)]
    mask = ((3 * i + j * j) % 5 % 2).astype(I32)
    taken = np.repeat(np.repeat(mask[:blocks, :trips], 64, 0), 32, 1)
    want = (a.astype(F32) * taken) @ b.astype(F32)
    return {"A": a, "B": b, "mask": mask, "C": output(m)}, want


def _two(blocks: int, trips: int) -> tuple[Arrays, np.ndarray]:
    m, k = 64 * blocks, 32 * 2 * trips
    a, b = numbered(m, k, 32, 1), pattern(k, 64)
    weight = np.where(np.arange(k) < k // 2, 1.0, 3.0)
    return {"A": a, "B": b, "C": output(m)}, (a * weight).astype(F32) @ b.astype(F32)


def _nested(blocks: int, trips: int) -> tuple[Arrays, np.ndarray]:
    m, k, n = 64 * blocks, 32 * trips, 64 * trips
    a, b = numbered(m, k, 32, 1), numbered(n, 32, 64, 0) * pattern(n, 32)
    tiles = sum((a[:, i : i + 32].astype(F32) for i in range(0, k, 32)), np.zeros((m, 32), F32))
    rows = sum((b[i : i + 64].astype(F32) for i in range(0, n, 64)), np.zeros((64, 32), F32))
    return {"A": a, "B": b, "C": output(m)}, tiles @ rows.T


def _while(blocks: int, trips: int) -> tuple[Arrays, np.ndarray]:
    held, _ = _nested(blocks, trips)
    chain = [i for i in range(1, trips + 1) if i % 3 != 2][::-1]
    after = np.zeros(trips + 1, I32)
    for one, following in zip([0, *chain], [*chain, 0]):
        after[one] = following
    a, b = held["A"], held["B"]
    tiles = sum(
        (a[:, 32 * i - 32 : 32 * i].astype(F32) for i in chain), np.zeros((64 * blocks, 32))
    )
    rows = sum((b[i : i + 64].astype(F32) for i in range(0, 64 * trips, 64)), np.zeros((64, 32)))
    return {"A": a, "B": b, "after": after, "C": held["C"]}, (tiles @ rows.T).astype(F32)


PLACES = (
    Place("before", before_loop, _before),
    Place("before mixed", before_mixed, _mixed),
    Place("through one", through_one, _through),
    Place("masked", under_mask, _masked),
    Place("two loops", two_loops, _two),
    Place("nested", nested, _nested),
    Place("while", in_while, _while),
)
