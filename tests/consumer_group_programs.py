"""Persistent loops written by hand, as groups share them out: what one block hands to the next,
pipelined loops under conditions, and programs that no two groups can share."""

import tilec.language as T

M, N, K, G, J = T.dynamic("M, N, K, G, J")
Left, Right = T.Tensor((M, K), "float16"), T.Tensor((N, K), "float16")
Sums = T.Tensor((M, N), "float32")


def ragged_lengths(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((N, K), "float16"),
    lengths: T.Tensor((J,), "int32"),
    C: T.Tensor((J, 64, N), "float16"),
    blocks: T.constexpr = 2,
    step: T.constexpr = 3,
):
    """Job j is the product over columns from where the block's jobs before it ended, as many as
    `lengths[j]` slices of 32; and tells where it began in its first element."""
    with T.Kernel(blocks, threads=128) as block:
        A_s = T.alloc_shared((64, 32), "float16")
        B_s = T.alloc_shared((64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        start = 0
        for job in T.Persistent([J], blocks, block):
            T.clear(acc)
            for k in T.Pipelined(lengths[job], num_stages=step):
                T.copy(A[0, (start + k) * 32], A_s)
                T.copy(B[0, (start + k) * 32], B_s)
                T.gemm(A_s, B_s, acc, transpose_B=True)
            for i, j in T.Parallel(64, 64):
                C[job, i, j] = acc[i, j] + start
            start += lengths[job]


def some_tiles(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((N, K), "float16"),
    C: T.Tensor((M, N), "float16"),
    blocks: T.constexpr = 2,
    every: T.constexpr = 3,
):
    """Every so-many-th tile is ones; the others are products, the even ones added up twice."""
    with T.Kernel(blocks, threads=128) as block:
        A_s = T.alloc_shared((64, 32), "float16")
        B_s = T.alloc_shared((64, 32), "float16")
        A_2 = T.alloc_shared((64, 32), "float16")
        B_2 = T.alloc_shared((64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        for by, bx in T.Persistent([T.ceildiv(M, 64), T.ceildiv(N, 64)], blocks, block):
            if (by + bx) % every == 0:
                T.fill(acc, 1.0)
            else:
                T.clear(acc)
                for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
                    T.copy(A[by * 64, k * 32], A_s)
                    T.copy(B[bx * 64, k * 32], B_s)
                    T.gemm(A_s, B_s, acc, transpose_B=True)
                if bx % 2 == 0:
                    for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                        T.copy(A[by * 64, k * 32], A_2)
                        T.copy(B[bx * 64, k * 32], B_2)
                        T.gemm(A_2, B_2, acc, transpose_B=True)
            T.copy(acc, C[by * 64, bx * 64])


def carried_fragment(A: Left, B: Right, C: Sums, blocks: T.constexpr = 2):
    """Each tile adds to what the tile before left."""
    with T.Kernel(blocks, threads=128) as block:
        A_s = T.alloc_shared((64, 32), "float16")
        B_s = T.alloc_shared((64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for by in T.Persistent([T.ceildiv(M, 64)], blocks, block):
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
                T.copy(A[by * 64, k * 32], A_s)
                T.copy(B[0, k * 32], B_s)
                T.gemm(A_s, B_s, acc, transpose_B=True)
            T.copy(acc, C[by * 64, 0])


def last_wins(A: Left, B: Right, C: Sums, blocks: T.constexpr = 2):
    """Each tile overwrites the one before."""
    with T.Kernel(blocks, threads=128) as block:
        A_s = T.alloc_shared((64, 32), "float16")
        B_s = T.alloc_shared((64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        for by in T.Persistent([T.ceildiv(M, 64)], blocks, block):
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
                T.copy(A[by * 64, k * 32], A_s)
                T.copy(B[0, k * 32], B_s)
                T.gemm(A_s, B_s, acc, transpose_B=True)
            T.copy(acc, C[block * 64, 0])


def after_the_loop(A: Left, B: Right, C: Sums, blocks: T.constexpr = 2):
    """The sum of all of a block's tiles."""
    with T.Kernel(blocks, threads=128) as block:
        A_s = T.alloc_shared((64, 32), "float16")
        B_s = T.alloc_shared((64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for by in T.Persistent([T.ceildiv(M, 64)], blocks, block):
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
                T.copy(A[by * 64, k * 32], A_s)
                T.copy(B[0, k * 32], B_s)
                T.gemm(A_s, B_s, acc, transpose_B=True)
        T.copy(acc, C[block * 64, 0])


def reads_its_output(A: Left, B: Right, C: Sums, blocks: T.constexpr = 2):
    """Each tile is added to another tile of the output."""
    with T.Kernel(blocks, threads=128) as block:
        A_s = T.alloc_shared((64, 32), "float16")
        B_s = T.alloc_shared((64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        for by in T.Persistent([T.ceildiv(M, 64) - 1], blocks, block):
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
                T.copy(A[by * 64, k * 32], A_s)
                T.copy(B[0, k * 32], B_s)
                T.gemm(A_s, B_s, acc, transpose_B=True)
            for i, j in T.Parallel(64, 64):
                C[by * 64 + 64 + i, j] = acc[i, j] + C[by * 64 + i, j]


def compacted(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((G, N, K), "float16"),
    bias: T.Tensor((64,), "float32"),
    lengths: T.Tensor((J,), "int32"),
    C: T.Tensor((J, 64, N), "float32"),
    Ends: T.Tensor((J,), "int32"),
    blocks: T.constexpr = 1,
):
    """The jobs that have work, one after the other from the block's first place: sums over all B,
    plus a bias that is fetched once. Each job tells how many had work before it."""
    with T.Kernel(blocks, threads=128) as block:
        A_s = T.alloc_shared((64, 32), "float16")
        B_s = T.alloc_shared((64, 32), "float16")
        bias_s = T.alloc_shared((64,), "float32")
        acc = T.alloc_fragment((64, 64), "float32")
        T.copy(bias, bias_s)
        count = block
        for job in T.Persistent([J], blocks, block):
            Ends[job] = count
            if lengths[job] > 0:
                T.clear(acc)
                for g in T.serial(G):
                    for k in T.Pipelined(lengths[job], num_stages=3):
                        T.copy(A[0, k * 32], A_s)
                        T.copy(B[g, 0, k * 32], B_s)
                        T.gemm(A_s, B_s, acc, transpose_B=True)
                for i, j in T.Parallel(64, 64):
                    C[count, i, j] = acc[i, j] + bias_s[j]
                count += blocks
