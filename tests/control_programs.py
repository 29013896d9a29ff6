"""Programs of `user_programs`: branches, loops and threads around tiles."""

import numpy as np
from user_case import blank, case, half, single, wide

import tilec.language as T

M, N, K, B = T.dynamic("M, N, K, B")


@case(
    lambda rng: {"A": single(rng, 100), "C": blank(100)},
    lambda a: {"C": _sort_fours(a["A"])},
    local=True,
)
def local_sort(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    """Each thread sorts four neighbours in an array of its own, by insertion."""
    with T.Kernel(T.ceildiv(N, 256), threads=64) as bx:
        tx = T.get_thread_binding()
        mine = T.alloc_local((4,), "float32")
        for i in T.serial(4):
            mine[i] = A[bx * 256 + tx * 4 + i]
        for i in T.serial(1, 4):
            at = T.alloc_var("int32")
            at = i
            moving = T.alloc_var("bool")
            moving = True
            while moving:
                moving = False
                if at > 0:
                    if mine[at - 1] > mine[at]:
                        kept = T.alloc_var("float32")
                        kept = mine[at]
                        mine[at] = mine[at - 1]
                        mine[at - 1] = kept
                        at -= 1
                        moving = True
        for i in T.serial(4):
            C[bx * 256 + tx * 4 + i] = mine[i]


def _sort_fours(a: np.ndarray) -> np.ndarray:
    return np.sort(a.reshape(-1, 4), 1).ravel()


@case(
    lambda rng: {"A": single(rng, 50, 40), "C": blank(50, 40)},
    lambda a: {"C": np.where(np.arange(50)[:, None] // 16 % 2 == 0, a["A"] * 2, -a["A"])},
)
def branches_around_tiles(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16), threads=128) as (bx, by):
        s = T.alloc_shared((16, 16), "float32")
        T.copy(A[by * 16, bx * 16], s)
        if by % 2 == 0:
            for i, j in T.Parallel(16, 16):
                s[i, j] = s[i, j] * 2.0
        else:
            for i, j in T.Parallel(16, 16):
                s[i, j] = -s[i, j]
        T.copy(s, C[by * 16, bx * 16])


@case(
    lambda rng: {"A": single(rng, 8, 64), "C": blank(8, 64)},
    lambda a: {"C": _relax(a["A"])},
)
def shared_ping_pong(A: T.Tensor((M, 64), "float32"), C: T.Tensor((M, 64), "float32")):
    """A loop whose iterations read what other threads wrote in the iteration before."""
    with T.Kernel(M, threads=64) as bx:
        x = T.alloc_shared((64,), "float32")
        y = T.alloc_shared((64,), "float32")
        T.copy(A[bx, 0:64], x)
        for _step in T.serial(5):
            for j in T.Parallel(64):
                y[j] = (x[(j + 1) % 64] + x[(j + 63) % 64]) * 0.5
            for j in T.Parallel(64):
                x[j] = y[63 - j]
        T.copy(x, C[bx, 0:64])


def _relax(a: np.ndarray) -> np.ndarray:
    for _ in range(5):
        a = ((np.roll(a, -1, 1) + np.roll(a, 1, 1)) * np.float32(0.5))[:, ::-1]
    return a


@case(
    lambda rng: {"A": single(rng, 12, 32), "C": blank(12)},
    lambda a: {"C": _first_above(a["A"])},
)
def while_on_shared(A: T.Tensor((M, 32), "float32"), C: T.Tensor((M,), "float32")):
    """The condition of the loop reads shared memory that the body changes."""
    with T.Kernel(M, threads=64) as bx:
        s = T.alloc_shared((32,), "float32")
        T.copy(A[bx, 0:32], s)
        n = T.alloc_var("int32")
        n = 0
        while s[0] < 4.0:
            for j in T.Parallel(32):
                s[j] = s[j] * 0.5 + 3.0
            n += 1
        for _j in T.Parallel(1):
            C[bx] = T.cast(n, "float32") + s[0]


def _first_above(a: np.ndarray) -> np.ndarray:
    out = []
    for x in a[:, 0]:
        n = 0
        while x < 4:
            x, n = np.float32(x * np.float32(0.5) + np.float32(3)), n + 1
        out.append(n + x)
    return np.array(out)


@case(
    lambda rng: {"A": single(rng, 12, 40), "C": blank(12, 40)},
    lambda a: {"C": a["A"] / a["A"][:, :1] + a["A"][:, 39:]},
)
def scalars_from_shared(A: T.Tensor((M, 40), "float32"), C: T.Tensor((M, 40), "float32")):
    """Elements that every thread reads, and every iteration of a loop uses."""
    with T.Kernel(M, threads=64) as bx:
        s = T.alloc_shared((40,), "float32")
        T.copy(A[bx, 0:40], s)
        first = s[0]
        last = s[39]
        for j in T.Parallel(40):
            C[bx, j] = s[j] / first + last


@case(
    lambda rng: {"A": single(rng, 10, 48), "C": blank(10, 48)},
    lambda a: {"C": a["A"][:, ::-1] + a["A"]},
)
def threads_and_tiles(A: T.Tensor((M, 48), "float32"), C: T.Tensor((M, 48), "float32")):
    """Thread code fills a shared tile that tile code reads."""
    with T.Kernel(M, threads=64) as bx:
        tx = T.get_thread_binding()
        s = T.alloc_shared((48,), "float32")
        if tx < 48:
            s[tx] = A[bx, tx]
        for j in T.Parallel(48):
            C[bx, j] = s[47 - j] + s[j]


@case(
    lambda rng: {"A": single(rng, 10, 48), "C": blank(10, 48)},
    lambda a: {"C": a["A"][:, ::-1]},
)
def threads_in_a_loop(A: T.Tensor((M, 48), "float32"), C: T.Tensor((M, 48), "float32")):
    """The barrier cannot stand where the store is: only some threads go there."""
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        s = T.alloc_shared((48,), "float32")
        for row in T.serial(M):
            if tx < 48:
                if row < M:
                    s[tx] = A[row, tx]
            for j in T.Parallel(48):
                C[row, j] = s[47 - j]


@case(
    lambda rng: {"A": single(rng, 10, 20), "C": blank(10, 20)},
    lambda a: {"C": 3 * a["A"] + 1},
)
def in_place_and_kept(A: T.Tensor((M, 20), "float32"), C: T.Tensor((M, 20), "float32")):
    """More threads than elements: several run an iteration that changes what it reads."""
    with T.Kernel(M, threads=128) as bx:
        s = T.alloc_shared((20,), "float32")
        f = T.alloc_fragment((20,), "float32")
        T.copy(A[bx, 0:20], s)
        for j in T.Parallel(20):
            f[j] = s[j]
            s[j] = s[j] * 2.0 + 1.0
        for j in T.Parallel(20):
            C[bx, j] = f[j] + s[j]


@case(
    lambda rng: {"A": single(rng, 40, 33), "C": blank(40, 33)},
    lambda a: {"C": a["A"] + np.roll(a["A"], 1, 1) * (np.arange(33) > 0)},
)
def shifted_rows_in_fragment(A: T.Tensor((M, 33), "float32"), C: T.Tensor((M, 33), "float32")):
    """A fragment read at other elements than the thread's own."""
    with T.Kernel(T.ceildiv(M, 8), threads=64) as bx:
        f = T.alloc_fragment((8, 33), "float32")
        g = T.alloc_fragment((8, 33), "float32")
        T.copy(A[bx * 8, 0], f)
        for i, j in T.Parallel(8, 33):
            g[i, j] = f[i, j] + T.if_then_else(j > 0, f[i, T.max(j - 1, 0)], 0.0)
        T.copy(g, C[bx * 8, 0])


@case(
    lambda rng: {"A": single(rng, 36, 20), "C": blank(20, 36)},
    lambda a: {"C": a["A"].T * 3 + 1},
)
def transposed_in_shared(A: T.Tensor((M, N), "float32"), C: T.Tensor((N, M), "float32")):
    """One tile dies in the loop in which the other is born: they cannot share bytes."""
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 32), threads=128) as (bx, by):
        f = T.alloc_shared((32, 16), "float32")
        g = T.alloc_shared((16, 32), "float32")
        T.copy(A[by * 32, bx * 16], f)
        for i, j in T.Parallel(16, 32):
            g[i, j] = f[j, i] * 3.0 + 1.0
        T.copy(g, C[bx * 16, by * 32])


@case(
    lambda rng: {"A": single(rng, 36, 20), "C": blank(20, 36)},
    lambda a: {"C": a["A"].T * 3},
)
def transposed_in_fragments(A: T.Tensor((M, N), "float32"), C: T.Tensor((N, M), "float32")):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 32), threads=128) as (bx, by):
        f = T.alloc_fragment((32, 16), "float32")
        g = T.alloc_fragment((16, 32), "float32")
        T.copy(A[by * 32, bx * 16], f)
        for i, j in T.Parallel(16, 32):
            g[i, j] = f[j, i] * 3.0
        T.copy(g, C[bx * 16, by * 32])


@case(
    lambda rng: {"A": single(rng, 5, 7, 9), "C": blank(5, 7, 9)},
    lambda a: {"C": a["A"] + np.arange(9)},
)
def three_dimensions(A: T.Tensor((B, M, N), "float32"), C: T.Tensor((B, M, N), "float32")):
    with T.Kernel(T.ceildiv(B, 2), threads=64) as bx:
        s = T.alloc_shared((2, 7, 9), "float32")
        T.copy(A[bx * 2, 0, 0], s)
        for b, i, j in T.Parallel(2, 7, 9):
            C[bx * 2 + b, i, j] = s[b, i, j] + j


@case(
    lambda rng: {"A": half(rng, 64, 80), "B": half(rng, 80, 64), "C": blank(2, 64, 64)},
    lambda a: {"C": np.stack([wide(a["A"]) @ wide(a["B"])] * 2)},
)
def buffers_where_they_are_used(
    A: T.Tensor((64, K), "float16"),
    B: T.Tensor((K, 64), "float16"),
    C: T.Tensor((2, 64, 64), "float32"),
):
    """Shared buffers are allocated in a pipelined loop in a branch in a serial loop."""
    with T.Kernel(1, threads=128):
        for r in T.serial(2):
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            if K > 0:
                for k in T.Pipelined(T.ceildiv(K, 16), num_stages=3):
                    a = T.alloc_shared((64, 16), "float16")
                    b = T.alloc_shared((16, 64), "float16")
                    T.copy(A[0, k * 16], a)
                    T.copy(B[k * 16, 0], b)
                    T.gemm(a, b, acc)
            T.copy(acc, C[r, 0, 0])


@case(
    lambda rng: {"A": single(rng, 24, 48), "C": blank(24, 48)},
    lambda a: {"C": a["A"].reshape(3, 8, 48)[:, ::-1].reshape(24, 48) * np.float32(2)},
)
def buffers_in_loops(A: T.Tensor((M, 48), "float32"), C: T.Tensor((M, 48), "float32")):
    """One that a copy fills ahead, one that the iteration fills, one in a `while` around both."""
    with T.Kernel(1, threads=64):
        first = T.alloc_var("int32")
        first = 0
        while first < M:
            row = T.alloc_shared((48,), "float32")
            for k in T.Pipelined(8, num_stages=2):
                s = T.alloc_shared((1, 48), "float32")
                T.copy(A[first + k, 0], s)
                for j in T.Parallel(48):
                    row[j] = s[0, j] * 2.0
                for j in T.Parallel(48):
                    C[first + 7 - k, j] = row[j]
            first += 8
