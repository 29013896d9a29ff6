"""Programmatic dependent launch on a GPU: launches that begin before the one in front has ended see
all that it wrote, whatever it was."""

from __future__ import annotations

from typing import Any

import pytest
import test_pdl

import tilec
import tilec.language as T

pytestmark = pytest.mark.gpu
M, N, K = T.dynamic("M, N, K")
SIZE = 132 * 2048 * 4 + 37  # several waves of blocks


def step(A: T.Tensor((M,), "int32"), seen: T.int32):
    """Each element counts up, if it is what the launch before has left; else it is -1000000."""
    with T.Kernel(T.ceildiv(M, 1024), threads=256) as bx:
        for i in T.Parallel(1024):
            at = bx * 1024 + i
            A[at] = T.if_then_else(A[at] == seen, seen + 1, -1000000)


def moved(A: T.Tensor((M,), "int32"), B: T.Tensor((M,), "int32")):
    """B = A turned by a third: what a block reads other blocks wrote, and A is only read."""
    with T.Kernel(T.ceildiv(M, 1024), threads=256) as bx:
        for i in T.Parallel(1024):
            at = bx * 1024 + i
            if at < M:
                B[at] = A[(at + M // 3) % M]


ORDINARY, BESIDE = tilec.kernel(step), tilec.kernel(pdl=True)(step)
TURN = tilec.kernel(pdl=True)(moved)


@pytest.mark.parametrize("size", [1, 5000, SIZE])
def test_a_chain(torch: Any, size: int) -> None:
    a = torch.zeros(size, dtype=torch.int32, device="cuda")
    for n in range(200):
        BESIDE(a, n)
    assert bool((a == 200).all()), a.unique()


@pytest.mark.parametrize("size", [5000, SIZE])
def test_a_chain_of_many_kinds(torch: Any, size: int) -> None:
    """Other kernels, torch's and copies stand between; on a stream of its own, too."""
    a = torch.zeros(size, dtype=torch.int32, device="cuda")
    b, n = torch.empty_like(a), 0
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for k in range(50):
                BESIDE(a, n)
                TURN(a, b)
                if k % 3 == 0:
                    a.copy_(b)
                    a += 1
                else:
                    TURN(b, a)
                    (ORDINARY if k % 2 else BESIDE)(a, n + 1)
                n += 2
        torch.cuda.current_stream().wait_stream(stream)
    assert bool((a == n).all()), a.unique()


def test_in_a_graph(torch: Any) -> None:
    a = torch.zeros(SIZE, dtype=torch.int32, device="cuda")
    b = torch.empty_like(a)
    for _ in range(2):
        TURN(a, b)
        BESIDE(b, 0)
        ORDINARY(b, 1)
    torch.cuda.synchronize()
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for n in range(0, 200, 4):
            BESIDE(a, n)
            TURN(a, b)
            ORDINARY(b, n + 1)
            TURN(b, a)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                BESIDE(a, n + 2)
            torch.cuda.current_stream().wait_stream(side)
            a += 1
    for _ in range(5):
        a.zero_()
        graph.replay()
        assert bool((a == 200).all()), a.unique()


def test_several_kernels_in_one(torch: Any) -> None:
    both = tilec.kernel(pdl=True)(test_pdl.second_waits.function)
    a = torch.arange(SIZE, dtype=torch.float32, device="cuda") % 1000
    b = torch.empty_like(a)
    for _ in range(50):
        both(a, b)
        both(b, a)
    assert torch.equal(a, torch.arange(SIZE, device="cuda") % 1000 + 100.0)


@pytest.mark.parametrize("shape", [(512, 512, 512), (1000, 777, 1024)])
def test_products_of_what_was_just_written(torch: Any, shape: tuple[int, int, int]) -> None:
    """By TMA and warps of their own: the operand is written anew for each product, the next one by
    threads that read the product."""
    m, n, k = shape

    def fill(A: T.Tensor((M, K), "float16"), seed: T.int32):
        with T.Kernel(T.ceildiv(K, 64), T.ceildiv(M, 16), threads=128) as (bx, by):
            for i, j in T.Parallel(16, 64):
                y, x = by * 16 + i, bx * 64 + j
                A[y, x] = T.cast((y * 7 + x * 3 + seed * 5) % 17 - 8, "float16")

    filled, product = tilec.kernel(pdl=True)(fill), tilec.kernel(pdl=True)(test_pdl.product)
    a = torch.empty((m, k), dtype=torch.float16, device="cuda")
    b = (torch.arange(n * k, device="cuda") % 7 - 3).reshape(n, k).half()
    out = torch.empty((200, m, n), dtype=torch.float16, device="cuda")
    made = product.compile(a, b, out[0])
    assert made.image.pdl and any(p.tensor_map for p in made.image.params)
    for seed in range(200):
        filled(a, seed)
        product(a, b, out[seed])
    y, x = torch.arange(m, device="cuda")[:, None], torch.arange(k, device="cuda")[None]
    for seed in range(200):
        want = ((y * 7 + x * 3 + seed * 5) % 17 - 8).float() @ b.float().T
        assert torch.equal(out[seed], want.half()), seed


def test_the_code_waits(torch: Any) -> None:
    """What is launched beside the one before it waits: in the code that is launched."""
    a = torch.zeros(64, dtype=torch.int32, device="cuda")
    assert "griddepcontrol.wait" in BESIDE.compile(a, 0).asm
    assert BESIDE.compile(a, 0).image.pdl and not ORDINARY.compile(a, 0).image.pdl
