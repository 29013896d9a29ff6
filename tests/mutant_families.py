"""The kernels that `mutants` breaks: one for every way in which tilec orders work, with arrays so
small that a run takes no time, on which each loop still goes round often enough for every phase of
its barriers to come twice."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mutant_overlaps import layers, perceived, perceptron

import tilec
import tilec.language as T
from tilec import sparse
from tilec.ir.sparse import expand

M, N, K, G = T.dynamic("M, N, K, G")
SM80, SM90, GFX942 = "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Family:
    """`kernel` is launched on `target` with what `make` gives, outputs among it; `want` computes
    the outputs. `resident`: blocks that a persistent kernel is launched with, for each of its
    clusters."""

    kernel: Any
    target: str
    make: Callable[[np.random.Generator], Arrays]
    want: Callable[[Arrays], Arrays]
    resident: int = 1

    def arrays(self) -> Arrays:
        return self.make(np.random.default_rng(4))


def half(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float16)


def single(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def blank(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.full(shape, 77, dtype)


def spaced(a: np.ndarray) -> np.ndarray:
    """The same values in rows that are at least 16 elements longer than what is used of them: what
    lies beyond a row's end is no element."""
    wide = np.full((*a.shape[:-1], (a.shape[-1] + 31) // 16 * 16), 99, a.dtype)
    view = wide[..., : a.shape[-1]]
    view[...] = a
    return view


def operands(m: int, n: int, k: int, out: Any = np.float32) -> Callable[..., Arrays]:
    """Of a product C = A @ B^T."""
    return lambda rng: {
        "A": spaced(half(rng, m, k)),
        "B": spaced(half(rng, n, k)),
        "C": spaced(blank(m, n, dtype=out)),
    }


def product(x: Arrays) -> Arrays:
    return {"C": x["A"].astype(np.float64) @ x["B"].astype(np.float64).T}


def product_kernel(
    persistent: bool = True,
    specialise: bool = True,
    cluster: tuple[int, ...] | int = 1,
    split: int | tuple[int, int] = 1,
    consumers: str = "cooperative",
    store: str = "tma",
    stages: int = 3,
    bm: int = 64,
    threads: int = 128,
) -> Any:
    """C = A @ B^T in tiles of `bm` x 64 x 32 with a schedule of its own."""

    @tilec.kernel
    def matmul(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, bm), threads=threads) as (bx, by):
            T.annotate_schedule(
                persistent=persistent,
                specialise=specialise,
                split=split,
                cluster=cluster,
                consumers=consumers,
                store=store,
                stages=stages,
            )
            a = T.alloc_shared((bm, 32), "float16")
            b = T.alloc_shared((64, 32), "float16")
            acc = T.alloc_fragment((bm, 64), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 32)):
                T.copy(A[by * bm, k * 32], a)
                T.copy(B[bx * 64, k * 32], b)
                T.gemm(a, b, acc, transpose_B=True)
            T.copy(acc, C[by * bm, bx * 64])

    return matmul


@tilec.kernel
def small_matmul(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    """Tiles too small for wgmma: threads read what TMA brings, with ldmatrix."""
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
        T.annotate_schedule(specialise=True, split=1, stages=2)
        a = T.alloc_shared((32, 32), "float16")
        b = T.alloc_shared((32, 32), "float16")
        acc = T.alloc_fragment((32, 32), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32)):
            T.copy(A[by * 32, k * 32], a)
            T.copy(B[k * 32, bx * 32], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 32, bx * 32])


@tilec.kernel
def plain_matmul(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        T.annotate_schedule(stages=3)
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32)):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[bx * 64, k * 32], b)
            T.gemm(a, b, acc, transpose_B=True)
        T.copy(acc, C[by * 64, bx * 64])


@tilec.kernel
def unstaged_matmul(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.serial(T.ceildiv(K, 32)):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[bx * 64, k * 32], b)
            T.gemm(a, b, acc, transpose_B=True)
        T.copy(acc, C[by * 64, bx * 64])


@tilec.kernel
def neighbours(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    """Elementwise, through shared memory that is used twice."""
    with T.Kernel(T.ceildiv(N, 256), threads=128) as bx:
        s = T.alloc_shared((256,), "float32")
        T.copy(A[bx * 256], s)
        for _ in T.serial(3):
            f = T.alloc_fragment((256,), "float32")
            for i in T.Parallel(256):
                f[i] = s[255 - i] * 2.0 + 1.0
            for i in T.Parallel(256):
                s[i] = f[i]
        T.copy(s, C[bx * 256])


def _neighbours(x: Arrays) -> Arrays:
    a = np.zeros(-(-len(x["A"]) // 256) * 256, np.float32)
    a[: len(x["A"])] = x["A"]
    for _ in range(3):
        a = (a.reshape(-1, 256)[:, ::-1] * 2 + 1).reshape(-1)
    return {"C": a[: len(x["A"])]}


@tilec.kernel
def transpose(A: T.Tensor((M, N), "float32"), C: T.Tensor((N, M), "float32")):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
        tile = T.alloc_shared((32, 33), "float32")
        for i, j in T.Parallel(32, 32):
            tile[i, j] = A[by * 32 + i, bx * 32 + j]
        for i, j in T.Parallel(32, 32):
            C[bx * 32 + i, by * 32 + j] = tile[j, i]


@tilec.kernel
def stencil(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 8), threads=128) as (bx, by):
        tile = T.alloc_shared((10, 34), "float32")
        for i, j in T.Parallel(10, 34):
            tile[i, j] = A[by * 8 + i - 1, bx * 32 + j - 1]
        for i, j in T.Parallel(8, 32):
            C[by * 8 + i, bx * 32 + j] = (
                tile[i, j + 1] + tile[i + 2, j + 1] + tile[i + 1, j] + tile[i + 1, j + 2]
            ) * 0.25 + tile[i + 1, j + 1]


def _stencil(x: Arrays) -> Arrays:
    p = np.pad(x["A"], 1)
    cross = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]
    return {"C": cross * 0.25 + x["A"]}


@tilec.kernel
def streamed_rows(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, 32), "float32")):
    """A pipelined loop that is no matrix product: weighted sums of the columns' slices, each
    mirrored."""
    with T.Kernel(T.ceildiv(M, 32), threads=128) as bx:
        tile = T.alloc_shared((32, 32), "float32")
        total = T.alloc_fragment((32, 32), "float32")
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(N, 32), num_stages=3):
            T.copy(A[bx * 32, k * 32], tile)
            for i, j in T.Parallel(32, 32):
                total[i, j] = total[i, j] * 0.5 + tile[i, 31 - j]
        T.copy(total, C[bx * 32, 0])


def _streamed(x: Arrays) -> Arrays:
    a = x["A"]
    a = np.pad(a, ((0, 0), (0, -a.shape[1] % 32)))
    total = np.zeros((len(a), 32), np.float32)
    for k in range(0, a.shape[1], 32):
        total = total * np.float32(0.5) + a[:, k : k + 32][:, ::-1]
    return {"C": total}


@tilec.kernel
def linear(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((N, K), "float16"),
    bias: T.Tensor((N,), "float32"),
    C: T.Tensor((M, N), "float16"),
):
    """A fused epilogue, stored by TMA."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        T.annotate_schedule(specialise=True, persistent=True, store="tma", cluster=1, stages=3)
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32)):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[bx * 64, k * 32], b)
            T.gemm(a, b, acc, transpose_B=True)
        for i, j in T.Parallel(64, 64):
            acc[i, j] = T.max(acc[i, j] + bias[bx * 64 + j], 0.0)
        T.copy(acc, C[by * 64, bx * 64])


def _linear(x: Arrays) -> Arrays:
    return {"C": np.maximum(product(x)["C"] + x["bias"], 0)}


@tilec.kernel
def grouped(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((G, N, K), "float16"),
    offsets: T.Tensor((G + 1,), "int32"),
    C: T.Tensor((M, N), "float16"),
    blocks: T.constexpr = 2,
):
    """Products of groups whose sizes only the device knows: a while loop finds each tile's."""
    with T.Kernel(blocks, threads=128) as block:
        T.annotate_schedule(stages=2)
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        across = T.ceildiv(N, 64)
        g = 0
        done = 0
        for tile in T.Persistent([(T.ceildiv(M, 64) + G) * across], blocks, block):
            while g < G and tile >= done + T.ceildiv(offsets[g + 1] - offsets[g], 64) * across:
                done += T.ceildiv(offsets[g + 1] - offsets[g], 64) * across
                g += 1
            if g < G:
                first, end = offsets[g], offsets[g + 1]
                down = T.ceildiv(end - first, 64)
                row = first + (tile - done) % down * 64
                column = (tile - done) // down * 64
                T.clear(acc)
                for k in T.Pipelined(T.ceildiv(K, 32)):
                    T.copy(A[row, k * 32], a)
                    T.copy(B[g, column, k * 32], b)
                    T.gemm(a, b, acc, transpose_B=True)
                for i, j in T.Parallel(64, 64):
                    if row + i < end:
                        C[row + i, column + j] = acc[i, j]


def sums_kernel(shared: bool) -> Any:
    """C += A @ B^T: two blocks make each sum, and TMA adds each part of it to C, from a shared tile
    or from registers."""

    @tilec.kernel
    def sums(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), 2, threads=128) as (bx, by, bz):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((64, 32), "float16")
            out = T.alloc_shared((64, 64), "float32")
            acc = T.alloc_fragment((64, 64), "float32")
            for k in T.serial(T.ceildiv(K, 64)):
                T.copy(A[by * 64, (k * 2 + bz) * 32], a)
                T.copy(B[bx * 64, (k * 2 + bz) * 32], b)
                T.gemm(a, b, acc, transpose_B=True, clear_accum=True)
                if shared:
                    T.copy(acc, out)
                T.atomic_add(C[by * 64, bx * 64], out if shared else acc, use_tma=True)

    return sums


def _sums(x: Arrays) -> Arrays:
    return {"C": 77 + product(x)["C"]}


@tilec.kernel
def shared_rows(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    """Each row of tiles is brought to both blocks of a cluster by two copies, into a ring of
    two."""
    with T.Kernel(2, threads=64, cluster_dims=2) as b:
        tile = T.alloc_shared((2, 2, 4, 32), "float32")
        full = T.alloc_barrier([64] * 2)
        for k in T.serial(T.ceildiv(M, 8)):
            for half in T.serial(2):
                T.tma_copy(
                    A[k * 8 + half * 4 : k * 8 + half * 4 + 4, 0:32],
                    tile[k % 2, half, :, :],
                    barrier=full[k % 2],
                    cluster_mask=0b11,
                )
            T.mbarrier_arrive(full[k % 2])
            T.mbarrier_wait_parity(full[k % 2], k // 2)
            for i, j in T.Parallel(4, 32):
                C[k * 8 + b * 4 + i, j] = tile[k % 2, b, i, j]


def sent_kernel(columns: int) -> Any:
    """Every block sends tiles to the other one of its cluster, by asynchronous copies where
    `columns` are a multiple of four, elsewhere by its threads."""

    @tilec.kernel
    def sent(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(2, threads=64, cluster_dims=2) as b:
            own, got = T.alloc_shared((8, 32), "float32"), T.alloc_shared((8, 32), "float32")
            bar = T.alloc_cluster_barrier(1)
            for k in T.serial(T.ceildiv(M, 16)):
                if k > 0:
                    T.cluster_sync()
                T.copy(A[k * 16 + b * 8, 0], own)
                T.copy_cluster(
                    own[:, 0:columns], got[:, 0:columns], dst_block=1 - b, remote_barrier=bar
                )
                T.mbarrier_wait_parity(bar, k)
                for i, j in T.Parallel(8, columns):
                    C[k * 16 + b * 8 + i, j] = got[i, j]

    return sent


def _sent(x: Arrays) -> Arrays:
    (m, n), rows = x["A"].shape, -(-x["A"].shape[0] // 16) * 16
    a = np.zeros((rows, n))
    a[:m] = x["A"]
    return {"C": a.reshape(-1, 2, 8, n)[:, ::-1].reshape(rows, n)[:m]}


GROUPS = (30, 0, 70)


def _grouped_arrays(rng: np.random.Generator) -> Arrays:
    ends = np.cumsum([0, *GROUPS]).astype(np.int32)
    return {
        "A": spaced(half(rng, int(ends[-1]), 88)),
        "B": half(rng, len(GROUPS), 63, 88),
        "offsets": ends,
        "C": spaced(blank(int(ends[-1]), 63, dtype=np.float16)),
    }


def _grouped(x: Arrays) -> Arrays:
    ends = x["offsets"]
    parts = [
        x["A"][first:end].astype(np.float64) @ b.astype(np.float64).T
        for first, end, b in zip(ends, ends[1:], x["B"])
    ]
    return {"C": np.concatenate(parts)}


def matrix(m: int, n: int, out: Callable[[int, int], tuple[int, int]]) -> Callable[..., Arrays]:
    """A is (m, n); C has the shape that `out` makes of it."""
    return lambda rng: {"A": spaced(single(rng, m, n)), "C": spaced(blank(*out(m, n)))}


def _same(m: int, n: int) -> tuple[int, int]:
    return m, n


def turned(m: int, n: int) -> tuple[int, int]:
    return n, m


def _narrow(m: int, n: int) -> tuple[int, int]:
    return m, 32


def _transposed(x: Arrays) -> Arrays:
    return {"C": x["A"].T}


def _vector(rng: np.random.Generator) -> Arrays:
    return {"A": single(rng, 300), "C": blank(300)}


@tilec.kernel
def sparse_matmul(
    A: T.Tensor((M, K), "float16"),
    E: T.Tensor((M, G), "int16"),
    B: T.Tensor((N, 2 * K), "float16"),
    C: T.Tensor((M, N), "float32"),
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        T.annotate_schedule(persistent=True, specialise=True, stages=2)
        a, e = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 8), "int16")
        b, acc = T.alloc_shared((64, 128), "float16"), T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 64)):
            T.copy(A[by * 64, k * 64], a)
            T.copy(E[by * 64, k * 8], e)
            T.copy(B[bx * 64, k * 128], b)
            T.gemm_sp(a, e, b, acc, transpose_B=True)
        T.copy(acc, C[by * 64, bx * 64])


def _sparse_arrays(rng: np.random.Generator) -> Arrays:
    values, metadata = sparse.compress(sparse.prune(half(rng, 50, 384)), "int16")
    values, metadata = values.copy(), metadata.copy()  # whose memory is their own
    return {"A": values, "E": metadata, "B": half(rng, 136, 384), "C": spaced(blank(50, 136))}


def _sparse(x: Arrays) -> Arrays:
    dense = expand(x["A"], x["E"], 16).astype(np.float64)
    return {"C": dense @ x["B"].astype(np.float64).T}


FAMILIES: dict[str, Family] = {
    "elementwise": Family(neighbours, SM80, _vector, _neighbours),
    "elementwise, wave64": Family(neighbours, GFX942, _vector, _neighbours),
    "transposition": Family(transpose, SM90, matrix(40, 45, turned), _transposed),
    "transposition, wave64": Family(transpose, GFX942, matrix(40, 45, turned), _transposed),
    "stencil": Family(stencil, SM80, matrix(15, 63, _same), _stencil),
    "stencil by TMA": Family(stencil, SM90, matrix(15, 63, _same), _stencil),
    "pipeline without product": Family(
        streamed_rows, SM90, matrix(40, 152, _narrow), _streamed
    ),
    "pipeline without product, cp.async": Family(
        streamed_rows, SM80, matrix(40, 152, _narrow), _streamed
    ),
    "GEMM in a plain loop": Family(unstaged_matmul, SM80, operands(50, 72, 88), product),
    "GEMM, cp.async": Family(plain_matmul, SM80, operands(50, 72, 152), product),
    "GEMM, TMA + ldmatrix": Family(
        small_matmul, SM90,
        lambda rng: {
            "A": spaced(half(rng, 40, 152)),
            "B": spaced(half(rng, 152, 72)),
            "C": spaced(blank(40, 72)),
        },
        lambda x: {"C": x["A"].astype(np.float64) @ x["B"].astype(np.float64)},
    ),
    "GEMM, TMA + wgmma": Family(
        product_kernel(persistent=False, store="direct"), SM90, operands(50, 72, 152), product
    ),
    "GEMM, wgmma without roles": Family(
        product_kernel(specialise=False, persistent=False, store="direct"),
        SM90, operands(50, 72, 152), product,
    ),
    "GEMM, staged TMA store": Family(
        product_kernel(persistent=False), SM90, operands(50, 72, 152), product
    ),
    "persistent": Family(
        product_kernel(), SM90, operands(50, 136, 88), product
    ),
    "persistent, two warpgroups": Family(
        product_kernel(bm=128, threads=256), SM90, operands(100, 136, 88), product
    ),
    "two warpgroups without roles": Family(
        product_kernel(
            specialise=False, persistent=False, store="direct", bm=128, threads=256
        ),
        SM90, operands(100, 72, 152), product,
    ),
    "ping-pong": Family(
        product_kernel(consumers="pingpong"),
        SM90, operands(100, 136, 120), product,
    ),
    "2:4 sparse GEMM": Family(sparse_matmul, SM90, _sparse_arrays, _sparse),
    "overlapped products": Family(perceptron, SM90, layers, perceived),
    "clusters with multicast": Family(
        product_kernel(cluster=(2, 1), stages=2),
        SM90, operands(50, 200, 88), product,
    ),
    "split-K shared sums": Family(
        product_kernel(persistent=False, split=(2, 1), store="direct"),
        SM90, operands(50, 56, 280), product,
    ),
    "split-K through global memory": Family(
        product_kernel(persistent=False, split=(1, 3), store="direct"),
        SM90, operands(50, 56, 664), product,
    ),
    "sums by TMA": Family(sums_kernel(True), SM90, operands(50, 56, 152), _sums),
    "sums by TMA, staged": Family(sums_kernel(False), SM90, operands(50, 56, 152), _sums),
    "multicast by hand": Family(
        shared_rows, SM90, matrix(44, 28, _same), lambda x: {"C": x["A"]}
    ),
    "copies to another block": Family(sent_kernel(24), SM90, matrix(44, 23, _same), _sent),
    "stores to another block": Family(sent_kernel(23), SM90, matrix(44, 22, _same), _sent),
    "fused epilogue": Family(
        linear, SM90,
        lambda rng: {
            "A": spaced(half(rng, 50, 88)),
            "B": spaced(half(rng, 136, 88)),
            "bias": single(rng, 136),
            "C": spaced(blank(50, 136, dtype=np.float16)),
        },
        _linear,
    ),
    "grouped, while": Family(grouped, SM90, _grouped_arrays, _grouped),
    "GEMM, MFMA": Family(plain_matmul, GFX942, operands(50, 72, 152), product),
}  # fmt: skip
