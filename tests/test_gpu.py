"""Kernels on an NVIDIA GPU: every result against float64, outputs poisoned, runs repeated bit for
bit.

Run them with `python -m pytest -m gpu`; also under `compute-sanitizer`.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilec  # noqa: E402
import tilec.language as T  # noqa: E402
from tilec.ir.schedule import Plan  # noqa: E402

pytestmark = pytest.mark.gpu

M, N, K = T.dynamic("M, N, K")


def build_matmul(dtype, trans_a, trans_b, bm, bn, bk, stages, threads, policy, out_dtype=None):
    """A factory of matrix products: every option is a closure value."""
    a_shape, b_shape = ((K, M) if trans_a else (M, K)), ((N, K) if trans_b else (K, N))
    a_tile, b_tile = ((bk, bm) if trans_a else (bm, bk)), ((bn, bk) if trans_b else (bk, bn))
    c_dtype = out_dtype or dtype

    @tilec.kernel
    def matmul(
        A: T.Tensor(a_shape, dtype), B: T.Tensor(b_shape, dtype), C: T.Tensor((M, N), c_dtype)
    ):
        with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=threads) as (bx, by):
            A_s = T.alloc_shared(a_tile, dtype)
            B_s = T.alloc_shared(b_tile, dtype)
            acc = T.alloc_fragment((bm, bn), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, bk), num_stages=stages):
                if trans_a:
                    T.copy(A[k * bk, by * bm], A_s)
                else:
                    T.copy(A[by * bm, k * bk], A_s)
                if trans_b:
                    T.copy(B[bx * bn, k * bk], B_s)
                else:
                    T.copy(B[k * bk, bx * bn], B_s)
                T.gemm(A_s, B_s, acc, transpose_A=trans_a, transpose_B=trans_b, policy=policy)
            T.copy(acc, C[by * bm, bx * bn])

    return matmul


def operands(m, n, k, trans_a, trans_b, dtype, pad=0):
    """Random operands; `pad` > 0 makes rows longer than they are used, so that strides do not
    divide by 16 bytes."""
    torch.manual_seed(m * 31 + n * 7 + k)

    def make(rows, cols):
        return torch.randn(rows, cols + pad, device="cuda", dtype=dtype)[:, :cols]

    a = make(k, m) if trans_a else make(m, k)
    b = make(n, k) if trans_b else make(k, n)
    return a, b


def check_matmul(kernel, m, n, k, trans_a, trans_b, dtype, pad=0, out=None, tol=None):
    a, b = operands(m, n, k, trans_a, trans_b, dtype, pad)
    left = a.t() if trans_a else a
    right = b.t() if trans_b else b
    want = left.double() @ right.double()
    c = torch.full((m, n + pad), float("nan"), device="cuda", dtype=out or dtype)[:, :n]
    kernel(a, b, c)
    first = c.clone()
    assert torch.isfinite(c).all(), "an output was not written"
    error = float((c.double() - want).norm() / want.norm().clamp_min(1e-30))
    limit = tol or {torch.float16: 4e-4, torch.bfloat16: 3.2e-3, torch.float32: 2e-6}[out or dtype]
    assert error < limit, f"relative error {error:.2e}"
    for _ in range(3):
        c.fill_(float("nan"))
        kernel(a, b, c)
        assert torch.equal(c, first), "two runs differ"


CONFIGS = [
    (128, 256, 64, 4, 256),
    (128, 128, 64, 3, 256),
    (128, 128, 32, 3, 128),
    (64, 128, 64, 4, 128),
    (64, 64, 32, 2, 128),
    (128, 96, 64, 3, 128),
    (192, 128, 64, 2, 384),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("trans", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=["NN", "NT", "TN", "TT"])
def test_matmul(config, trans):
    bm, bn, bk, stages, threads = config
    kernel = build_matmul(
        "float16",
        bool(trans[0]),
        bool(trans[1]),
        bm,
        bn,
        bk,
        stages,
        threads,
        T.GemmWarpPolicy.Square,
    )
    for m, n, k in [(512, 768, 512), (1000, 776, 520), (8, 8, 8), (136, 264, 1032)]:
        check_matmul(kernel, m, n, k, bool(trans[0]), bool(trans[1]), torch.float16)


@pytest.mark.parametrize("policy", ["Square", "FullRow", "FullCol"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_policies_and_dtypes(policy, dtype):
    kernel = build_matmul(
        dtype, False, True, 128, 128, 32, 2, 256, getattr(T.GemmWarpPolicy, policy)
    )
    for m, n, k in [(256, 384, 320), (257, 131, 67)]:
        check_matmul(kernel, m, n, k, False, True, getattr(torch, dtype))


@pytest.mark.parametrize("pad", [1, 2, 4, 8])
@pytest.mark.parametrize("trans", [(0, 0), (0, 1)], ids=["NN", "NT"])
def test_misaligned(pad, trans):
    kernel = build_matmul(
        "float16", False, bool(trans[1]), 128, 128, 64, 3, 256, T.GemmWarpPolicy.Square
    )
    for m, n, k in [(256, 256, 256), (131, 67, 259), (1, 1, 1)]:
        check_matmul(kernel, m, n, k, False, bool(trans[1]), torch.float16, pad=pad)


def test_float32_output():
    kernel = build_matmul(
        "float16", False, False, 128, 128, 64, 3, 256, T.GemmWarpPolicy.Square, "float32"
    )
    check_matmul(kernel, 500, 300, 700, False, False, torch.float16, out=torch.float32, tol=1e-5)


def test_streams_and_graphs():
    kernel = build_matmul("float16", False, False, 128, 128, 64, 3, 256, T.GemmWarpPolicy.Square)
    a, b = operands(512, 512, 512, False, False, torch.float16)
    c = torch.zeros(512, 512, device="cuda", dtype=torch.half)
    kernel(a, b, c)
    want = c.clone()
    side = torch.cuda.Stream()
    c.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        kernel(a, b, c)
    side.synchronize()
    assert torch.equal(c, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(a, b, c)
    a.copy_(torch.randn_like(a))
    c.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.allclose(c.float(), a.float() @ b.float(), rtol=2e-2, atol=1e-1)


@tilec.kernel
def bias_relu(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    bias: T.Tensor((N,), "float32"),
    C: T.Tensor((M, N), "float16"),
):
    with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=256) as (bx, by):
        A_s = T.alloc_shared((128, 64), "float16")
        B_s = T.alloc_shared((64, 128), "float16")
        acc = T.alloc_fragment((128, 128), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=3):
            T.copy(A[by * 128, k * 64], A_s)
            T.copy(B[k * 64, bx * 128], B_s)
            T.gemm(A_s, B_s, acc)
        for i, j in T.Parallel(128, 128):
            acc[i, j] = T.max(acc[i, j] + bias[bx * 128 + j], 0.0)
        T.copy(acc, C[by * 128, bx * 128])


@pytest.mark.parametrize("shape", [(256, 256, 256), (333, 200, 71)])
def test_fused_epilogue(shape):
    m, n, k = shape
    a, b = operands(m, n, k, False, False, torch.float16)
    bias = torch.randn(n, device="cuda")
    c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.half)
    bias_relu(a, b, bias, c)
    want = torch.relu(a.double() @ b.double() + bias.double())
    assert float((c.double() - want).norm() / want.norm()) < 5e-4


@tilec.kernel
def two_products(
    A: T.Tensor((M, 64), "float16"),
    B: T.Tensor((64, 128), "float16"),
    D: T.Tensor((128, 64), "float16"),
    C: T.Tensor((M, 64), "float32"),
):
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        A_s = T.alloc_shared((64, 64), "float16")
        B_s = T.alloc_shared((64, 128), "float16")
        D_s = T.alloc_shared((128, 64), "float16")
        P_s = T.alloc_shared((64, 128), "float16")
        mid = T.alloc_fragment((64, 128), "float32")
        acc = T.alloc_fragment((64, 64), "float32")
        T.copy(A[bx * 64, 0], A_s)
        T.copy(B, B_s)
        T.copy(D, D_s)
        T.clear(mid)
        T.clear(acc)
        T.gemm(A_s, B_s, mid)
        T.copy(mid, P_s)
        T.gemm(P_s, D_s, acc)
        T.copy(acc, C[bx * 64, 0])


def test_two_chained_products():
    a = torch.randn(200, 64, device="cuda", dtype=torch.half)
    b = torch.randn(64, 128, device="cuda", dtype=torch.half)
    d = torch.randn(128, 64, device="cuda", dtype=torch.half)
    c = torch.full((200, 64), float("nan"), device="cuda")
    two_products(a, b, d, c)
    want = (a.double() @ b.double()).half().double() @ d.double()
    assert float((c.double() - want).norm() / want.norm()) < 1e-3


@tilec.kernel
def transpose(A: T.Tensor((M, N), "float32"), B: T.Tensor((N, M), "float32")):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 64), threads=128) as (bx, by):
        tile = T.alloc_shared((64, 32), "float32")
        T.copy(A[by * 64, bx * 32], tile)
        for i, j in T.Parallel(32, 64):
            B[bx * 32 + i, by * 64 + j] = tile[j, i]


@pytest.mark.parametrize("shape", [(64, 32), (513, 257), (1, 1), (1000, 3)])
def test_transpose(shape):
    a = torch.randn(*shape, device="cuda")
    b = torch.full(shape[::-1], float("nan"), device="cuda")
    transpose(a, b)
    assert torch.equal(b, a.t())


@tilec.kernel
def stencil(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 16), threads=128) as (bx, by):
        for i, j in T.Parallel(16, 64):
            y = by * 16 + i
            x = bx * 64 + j
            B[y, x] = A[y, x] * 4.0 - A[y - 1, x] - A[y + 1, x] - A[y, x - 1] - A[y, x + 1]


@pytest.mark.parametrize("shape", [(64, 64), (100, 131), (1, 7)])
def test_stencil(shape):
    a = torch.randn(*shape, device="cuda")
    b = torch.full(shape, float("nan"), device="cuda")
    stencil(a, b)
    p = torch.nn.functional.pad(a.double(), (1, 1, 1, 1))
    want = 4 * a.double() - p[:-2, 1:-1] - p[2:, 1:-1] - p[1:-1, :-2] - p[1:-1, 2:]
    assert torch.allclose(b.double(), want, atol=1e-5)


@tilec.kernel
def pipelined_sum(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, 128), "float32")):
    """A pipelined loop with no product in it: columns are added up, tile by tile."""
    with T.Kernel(T.ceildiv(M, 32), threads=128) as bx:
        tile = T.alloc_shared((32, 128), "float32")
        total = T.alloc_fragment((32, 128), "float32")
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(N, 128), num_stages=3):
            T.copy(A[bx * 32, k * 128], tile)
            for i, j in T.Parallel(32, 128):
                total[i, j] += tile[i, j]
        T.copy(total, B[bx * 32, 0])


@pytest.mark.parametrize("shape", [(64, 512), (33, 1000), (5, 3), (4096, 640)])
def test_pipelined_sum(shape):
    m, n = shape
    a = torch.randn(m, n, device="cuda")
    b = torch.full((m, 128), float("nan"), device="cuda")
    pipelined_sum(a, b)
    padded = torch.nn.functional.pad(a.double(), (0, -n % 128))
    want = padded.reshape(m, -1, 128).sum(1)
    assert torch.allclose(b.double(), want, atol=1e-4)


@tilec.kernel
def chain(
    A: T.Tensor((M,), "bfloat16"),
    B: T.Tensor((M,), "float32"),
    C: T.Tensor((M,), "float16"),
    BLOCK: T.constexpr = 1024,
):
    i0 = T.program_id(0) * BLOCK
    for i in T.Parallel(BLOCK):
        x = A[i0 + i].astype("float32")
        C[i0 + i] = T.exp(-x * x) + T.sqrt(T.abs(B[i0 + i]))


@pytest.mark.parametrize("size", [1, 17, 1024, 100_003])
def test_elementwise_chain(size):
    a = torch.randn(size, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(size, device="cuda")
    c = torch.full((size,), float("nan"), device="cuda", dtype=torch.half)
    chain[lambda meta: (T.cdiv(size, meta["BLOCK"]),)](a, b, c)
    want = torch.exp(-(a.double() ** 2)) + b.double().abs().sqrt()
    assert torch.allclose(c.double(), want, rtol=2e-3, atol=1e-3)


def test_huge_strides():
    """Offsets beyond 2^31 elements."""
    rows, stride = 3, 1 << 30
    big = torch.empty((rows - 1) * stride + 256, device="cuda", dtype=torch.half)
    view = big.as_strided((rows, 256), (stride, 1))
    view.copy_(torch.randn(rows, 256, device="cuda"))
    out = torch.full((256, rows), float("nan"), device="cuda")
    transpose_half(view, out)
    assert torch.equal(out, view.float().t())


@tilec.kernel
def transpose_half(A: T.Tensor((M, N), "float16"), B: T.Tensor((N, M), "float32")):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=64) as (bx, by):
        for i, j in T.Parallel(32, 32):
            B[bx * 32 + i, by * 32 + j] = A[by * 32 + j, bx * 32 + i]


def build_tiled_copy(rank, dtype):
    """Tiles of the last two dimensions of a tensor of `rank` come in through a pipelined loop."""
    names = [T.dynamic(n) for n in ("P0", "P1", "P2")[: rank - 2]] + [M, N]
    shape = tuple(names)

    @tilec.kernel
    def copy2(A: T.Tensor(shape, dtype), B: T.Tensor(shape, dtype)):
        with T.Kernel(T.ceildiv(M, 32), threads=128) as by:
            tile = T.alloc_shared((32, 64), dtype)
            for k in T.Pipelined(T.ceildiv(N, 64), num_stages=3):
                T.copy(A[by * 32, k * 64], tile)
                for i, j in T.Parallel(32, 64):
                    B[by * 32 + i, k * 64 + j] = tile[i, j] * 2.0

    @tilec.kernel
    def copy3(A: T.Tensor(shape, dtype), B: T.Tensor(shape, dtype)):
        with T.Kernel(T.ceildiv(M, 32), shape[0], threads=128) as (by, p):
            tile = T.alloc_shared((32, 64), dtype)
            for k in T.Pipelined(T.ceildiv(N, 64), num_stages=3):
                T.copy(A[p, by * 32, k * 64], tile)
                for i, j in T.Parallel(32, 64):
                    B[p, by * 32 + i, k * 64 + j] = tile[i, j] * 2.0

    @tilec.kernel
    def copy4(A: T.Tensor(shape, dtype), B: T.Tensor(shape, dtype)):
        with T.Kernel(T.ceildiv(M, 32), shape[0], shape[1], threads=128) as (by, p, q):
            tile = T.alloc_shared((32, 64), dtype)
            for k in T.Pipelined(T.ceildiv(N, 64), num_stages=3):
                T.copy(A[p, q, by * 32, k * 64], tile)
                for i, j in T.Parallel(32, 64):
                    B[p, q, by * 32 + i, k * 64 + j] = tile[i, j] * 2.0

    @tilec.kernel
    def copy5(A: T.Tensor(shape, dtype), B: T.Tensor(shape, dtype)):
        with T.Kernel(T.ceildiv(M, 32), shape[0], shape[1], threads=128) as (by, p, q):
            tile = T.alloc_shared((32, 64), dtype)
            for r in T.serial(shape[2]):
                for k in T.Pipelined(T.ceildiv(N, 64), num_stages=3):
                    T.copy(A[p, q, r, by * 32, k * 64], tile)
                    for i, j in T.Parallel(32, 64):
                        B[p, q, r, by * 32 + i, k * 64 + j] = tile[i, j] * 2.0

    return {2: copy2, 3: copy3, 4: copy4, 5: copy5}[rank]


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_tma_of_every_rank(rank, dtype):
    kernel = build_tiled_copy(rank, dtype)
    for m, n in [(64, 128), (40, 200), (7, 8)]:
        shape = (2, 3, 2)[: rank - 2] + (m, n)
        a = torch.randn(shape, device="cuda").to(getattr(torch, dtype))
        b = torch.full_like(a, float("nan"))
        kernel(a, b)
        assert torch.equal(b, a * 2)
    spec = tilec.spec((2, 3, 2)[: rank - 2] + (64, 128), dtype)
    assert f"tensor.{rank}d.shared" in kernel.compile(spec, spec, target="cuda:sm_90a").asm


def build_batched(rank):
    """Products whose result leaves by a TMA store of `rank` dimensions."""
    lead = tuple(T.dynamic(n) for n in ("P0", "P1", "P2")[: rank - 2])
    shape = (*lead, M, N)

    @tilec.kernel
    def batched3(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor(shape, "float16"),
    ):
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), lead[0], threads=256) as (bx, by, p):
            A_s = T.alloc_shared((128, 64), "float16")
            B_s = T.alloc_shared((64, 128), "float16")
            acc = T.alloc_fragment((128, 128), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=3):
                T.copy(A[by * 128, k * 64], A_s)
                T.copy(B[k * 64, bx * 128], B_s)
                T.gemm(A_s, B_s, acc)
            if rank == 3:
                T.copy(acc, C[p, by * 128, bx * 128])
            elif rank == 4:
                for q in T.serial(lead[1]):
                    T.copy(acc, C[p, q, by * 128, bx * 128])
            else:
                for q in T.serial(lead[1]):
                    for r in T.serial(lead[2]):
                        T.copy(acc, C[p, q, r, by * 128, bx * 128])

    return batched3


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_tma_stores_of_every_rank(rank):
    kernel = build_batched(rank)
    lead = (2, 3, 2)[: rank - 2]
    for m, n, k in [(128, 128, 64), (200, 328, 136)]:
        a, b = operands(m, n, k, False, False, torch.float16)
        c = torch.full((*lead, m, n), float("nan"), device="cuda", dtype=torch.half)
        kernel(a, b, c)
        want = (a.double() @ b.double()).expand_as(c)
        assert float((c.double() - want).norm() / want.norm()) < 5e-4
    half = "float16"
    specs = [tilec.spec(s, half) for s in ((128, 64), (64, 128), (*lead, 128, 128))]
    staged = Plan("staged", specialise=True, persistent=True, staged_store=True)
    asm = kernel.compile_with_plan(staged, *specs, target="cuda:sm_90a").asm
    assert f"tensor.{rank}d.global.shared" in asm
