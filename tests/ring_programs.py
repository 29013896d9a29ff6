"""Products and sums whose tiles may come through a ring that TMA fills, each by another kind of
reader: threads, ldmatrix with mma, wgmma, or several of them. The data names its iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")
Arrays = dict[str, np.ndarray]


@tilec.kernel
def ring_sums(A: T.Tensor((M, K), "float16"), C: T.Tensor((M, 256), "float32")):
    """Every tile is read once by the threads, a row of 256 elements after the other."""
    with T.Kernel(T.ceildiv(M, 16), threads=128) as by:
        tile = T.alloc_shared((16, 256), "float16")
        part = T.alloc_fragment((16, 256), "float32")
        T.clear(part)
        for k in T.Pipelined(T.ceildiv(K, 256)):
            T.copy(A[by * 16, k * 256], tile)
            for i, j in T.Parallel(16, 256):
                part[i, j] += tile[i, j]
        T.copy(part, C[by * 16, 0])


@tilec.kernel
def ring_steps(A: T.Tensor((M, K), "float16"), C: T.Tensor((M, 256), "float32")):
    """Threads read the slot in a nested loop and under a condition."""
    with T.Kernel(T.ceildiv(M, 16), threads=128) as by:
        tile = T.alloc_shared((16, 256), "float16")
        part = T.alloc_fragment((16, 256), "float32")
        T.clear(part)
        for k in T.Pipelined(T.ceildiv(K, 256)):
            T.copy(A[by * 16, k * 256], tile)
            for step in T.serial(k % 3 + 1):
                if k % 2 == 0 or step == 0:
                    for i, j in T.Parallel(16, 256):
                        part[i, j] += tile[i, j] * (step + 1)
        T.copy(part, C[by * 16, 0])


def product(bm: int, bn: int, bk: int, dtype: str, acc: str, threads: int = 128) -> Any:
    """C = A @ B."""

    @tilec.kernel
    def ring_product(
        A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), acc)
    ):
        with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=threads) as (bx, by):
            a, b = T.alloc_shared((bm, bk), dtype), T.alloc_shared((bk, bn), dtype)
            total = T.alloc_fragment((bm, bn), acc)
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, bk)):
                T.copy(A[by * bm, k * bk], a)
                T.copy(B[k * bk, bx * bn], b)
                T.gemm(a, b, total, allow_tf32=True)
            T.copy(total, C[by * bm, bx * bn])

    return ring_product


def product_nt(bm: int, bn: int, bk: int, dtype: str, acc: str, threads: int = 128) -> Any:
    """C = A @ B^T."""

    @tilec.kernel
    def ring_product(
        A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), acc)
    ):
        with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=threads) as (bx, by):
            a, b = T.alloc_shared((bm, bk), dtype), T.alloc_shared((bn, bk), dtype)
            total = T.alloc_fragment((bm, bn), acc)
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, bk)):
                T.copy(A[by * bm, k * bk], a)
                T.copy(B[bx * bn, k * bk], b)
                T.gemm(a, b, total, transpose_B=True)
            T.copy(total, C[by * bm, bx * bn])

    return ring_product


@tilec.kernel
def ring_scaled(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
):
    """wgmma reads both tiles, threads one of them too."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        total = T.alloc_fragment((64, 64), "float32")
        extra = T.alloc_fragment((64, 64), "float32")
        T.clear(total)
        T.clear(extra)
        for k in T.Pipelined(T.ceildiv(K, 64)):
            T.copy(A[by * 64, k * 64], a)
            T.copy(B[k * 64, bx * 64], b)
            T.gemm(a, b, total)
            for i, j in T.Parallel(64, 64):
                extra[i, j] += b[i, j]
        for i, j in T.Parallel(64, 64):
            total[i, j] += extra[i, j]
        T.copy(total, C[by * 64, bx * 64])


def sums_of(a: Any, _: Any) -> Any:
    """What `ring_sums` gives, in float64."""
    return a.reshape(len(a), -1, 256).sum(1)


def steps_of(a: Any, _: Any) -> Any:
    tiles = a.reshape(len(a), -1, 256)
    times = [sum(range(1, k % 3 + 2)) if k % 2 == 0 else 1 for k in range(tiles.shape[1])]
    return np.einsum("mkj,k->mj", tiles, np.array(times, np.float64))


def product_of(a: Any, b: Any) -> Any:
    return a @ b


def scaled_of(a: Any, b: Any) -> Any:
    return a @ b + np.tile(b.reshape(-1, 64, b.shape[1]).sum(0), (len(a) // 64, 1))


@dataclass(frozen=True)
class RingProgram:
    """`reader`: who reads the ring's slots. `tile`: rows, columns and elements of K that a block
    takes at a time. `of`: what the kernel gives for A and B in float64."""

    name: str
    reader: str
    kernel: Any
    tile: tuple[int, int, int]
    dtype: str = "float16"
    acc: str = "float32"
    of: Callable[[Any, Any], Any] = product_of

    @property
    def many(self) -> tuple[int, int]:
        """Blocks that fill a GPU, along the rows and the columns."""
        return (16, 32) if len(self.kernel.parameters) == 3 else (512, 1)

    def arrays(self, blocks: tuple[int, int], trips: int) -> tuple[Arrays, np.ndarray]:
        """Arguments for that many blocks and iterations, and what C must be, exactly. The elements
        of A are the number of their iteration, so that what comes from another iteration's tile is
        another number."""
        (m, n), k = (b * t for b, t in zip(blocks, self.tile)), trips * self.tile[2]
        at = np.arange(k) // self.tile[2]
        a = np.broadcast_to(at % 13 + 1.0, (m, k))
        b = (np.arange(k)[:, None] % 5 == np.arange(n) % 5).astype(np.float64)
        want = self.of(a, b)
        held = {"A": np.ascontiguousarray(a).astype(self.dtype)}
        if len(self.kernel.parameters) == 3:
            turned = self.kernel.parameters[1].shape == ("N", "K")
            held["B"] = np.ascontiguousarray(b.T if turned else b).astype(self.dtype)
        held["C"] = np.full(want.shape, -1, self.acc)
        return held, want.astype(self.acc)


PROGRAMS = (
    RingProgram("sums", "threads", ring_sums, (16, 256, 256), of=sums_of),
    RingProgram("steps", "threads", ring_steps, (16, 256, 256), of=steps_of),
    RingProgram("mma", "ldmatrix", product(32, 32, 32, "float16", "float32"), (32, 32, 32)),
    RingProgram(
        "mma i8", "ldmatrix", product_nt(32, 32, 64, "int8", "int32"), (32, 32, 64), "int8", "int32"
    ),
    RingProgram(
        "mma of 2 warps",
        "ldmatrix",
        product_nt(128, 64, 32, "float16", "float32", 64),
        (128, 64, 32),
    ),
    RingProgram("wgmma", "wgmma", product(64, 64, 64, "float16", "float32"), (64, 64, 64)),
    RingProgram(
        "wgmma i8", "wgmma", product_nt(64, 64, 64, "int8", "int32"), (64, 64, 64), "int8", "int32"
    ),
    RingProgram(
        "wgmma with B in registers",
        "threads",
        product(64, 64, 64, "int8", "int32"),
        (64, 64, 64),
        "int8",
        "int32",
    ),
    RingProgram(
        "wgmma of tf32 with B in registers",
        "threads",
        product(64, 64, 32, "float32", "float32"),
        (64, 64, 32),
        "float32",
    ),
    RingProgram("scaled", "wgmma and threads", ring_scaled, (64, 64, 64), of=scaled_of),
)


def one_block_product() -> Any:
    """A B of one block, with producers; 64 registers of a thread hold its part of the sum."""

    @tilec.kernel
    def product(
        A: T.Tensor((128, K), "float16"),
        B: T.Tensor((K, 128), "float16"),
        C: T.Tensor((128, 128), "float32"),
    ):
        with T.Kernel(1, threads=256):
            T.annotate_schedule(specialise=True)
            a, b = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, 128), "float16")
            acc = T.alloc_fragment((128, 128), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 64)):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, acc)
            T.copy(acc, C)

    return product


ONE_BLOCK = [tilec.spec(s, "float16") for s in ((128, 256), (256, 128))]
ONE_BLOCK.append(tilec.spec((128, 128), "float32"))
