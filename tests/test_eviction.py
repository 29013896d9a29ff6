"""`eviction_policy`: what copies say to L2, on each target, and that it changes nothing else."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import CpAsync, MemLoad, MemStore, TmaLoad, TmaStore

M, N, K = T.dynamic("M, N, K")
POLICIES = (None, "evict_normal", "evict_first", "evict_last")
GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


def moves(read: str | None, written: str | None, by_hand: bool = False, space: str = "shared"):
    """B = A, tile by tile."""

    @tilec.kernel
    def moved(A: T.Tensor((M, N), "float16"), B: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 32), threads=128) as (bx, by):
            if space == "shared":
                x = T.alloc_shared((32, 64), "float16")
            else:
                x = T.alloc_fragment((32, 64), "float16")
            if by_hand:
                bar = T.alloc_barrier(128)
                T.tma_copy(A[by * 32, bx * 64], x, barrier=bar, eviction_policy=read)
                T.barrier_arrive(bar)
                T.barrier_wait(bar, 0)
                T.tma_copy(x, B[by * 32, bx * 64], eviction_policy=written)
            else:
                T.copy(A[by * 32, bx * 64], x, eviction_policy=read)
                T.copy(x, B[by * 32, bx * 64], eviction_policy=written)

    return moved


def product(first: str | None, second: str | None, third: str | None, cluster: Any = None):
    @tilec.kernel
    def multiply(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=256) as (bx, by):
            if cluster is not None:
                T.annotate_schedule(cluster=cluster)
            A_s, B_s = T.alloc_shared((128, 64), "float16"), T.alloc_shared((128, 64), "float16")
            acc = T.alloc_fragment((128, 128), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                T.copy(A[by * 128, k * 64], A_s, eviction_policy=first)
                T.copy(B[bx * 128, k * 64], B_s, eviction_policy=second)
                T.gemm(A_s, B_s, acc, transpose_B=True)
            T.copy(acc, C[by * 128, bx * 128], eviction_policy=third)

    return multiply


def made(kernel: Any, target: str, *shapes: tuple[int, int]) -> tilec.CompiledKernel:
    return kernel.compile(*(tilec.spec(s, "float16") for s in shapes), target=target)


def said(kernel: tilec.CompiledKernel, *kinds: type) -> set[str]:
    return {o.cache for o in walk(kernel.lowered.body) if isinstance(o, kinds)}


def hints(ptx: str, instruction: str) -> set[str]:
    """What instructions of this name are told: the policy that is made in front of each."""
    found = re.findall(
        r"(?:createpolicy\.fractional\.L2::(\w+)\.b64 policy, 1\.0; )?"
        r"(?:\{ \.reg \.pred p; setp[^;]*; )?(?:@p )?" + re.escape(instruction) + r"[\w.:]*",
        ptx,
    )
    return {*found}


SHAPES = ((512, 512),) * 3


@pytest.mark.parametrize("policy", POLICIES)
def test_products_by_tma(policy: str | None) -> None:
    got = made(product(policy, "evict_last", "evict_first"), "cuda:sm_90a", *SHAPES)
    told = "" if policy in (None, "evict_normal") else policy
    assert said(got, TmaLoad) == {told, "evict_last"} and said(got, TmaStore) == {"evict_first"}
    assert hints(got.asm, "cp.async.bulk.tensor.2d.shared::cluster") == {told, "evict_last"}
    assert hints(got.asm, "cp.async.bulk.tensor.2d.global") == {"evict_first"}
    assert got.resources.registers is None or not got.resources.spilled_bytes


def test_a_tile_for_several_blocks() -> None:
    got = made(product("evict_last", None, None, cluster=(2, 1)), "cuda:sm_90a", *SHAPES)
    assert "multicast::cluster.L2::cache_hint" in got.asm
    assert said(got, TmaLoad) == {"evict_last", ""}


def test_products_by_cp_async() -> None:
    got = made(product("evict_first", "evict_last", None), "cuda:sm_80", *SHAPES)
    assert said(got, CpAsync) == {"evict_first", "evict_last"} and said(got, MemStore) == {""}
    assert hints(got.asm, "cp.async.cg.shared.global") == {"evict_first", "evict_last"}
    assert ".L2::cache_hint" in got.asm


@pytest.mark.parametrize("policy", POLICIES)
def test_by_hand(policy: str | None) -> None:
    told = "" if policy in (None, "evict_normal") else policy
    got = made(moves(policy, "evict_last", by_hand=True), "cuda:sm_90a", (96, 128), (96, 128))
    assert said(got, TmaLoad) == {told} and said(got, TmaStore) == {"evict_last"}
    assert hints(got.asm, "cp.async.bulk.tensor.2d.shared::cluster") == {told}


def test_what_threads_move() -> None:
    """A wave says `nt`; LLVM has no such word for NVIDIA's loads."""
    for space in ("shared", "fragment"):
        got = made(moves("evict_first", "evict_first", space=space), "hip:gfx942", *SHAPES[:2])
        assert said(got, MemLoad) | said(got, MemStore) >= {"evict_first"}
        lines = re.findall(r"global_(load|store)\w* .*( nt)?$", got.asm, re.M)
        assert {kind for kind, _ in lines} == {"load", "store"}
        assert all(x.endswith(" nt") for x in re.findall(r"global_(?:load|store)\w* .*", got.asm))
        plain = made(moves("evict_last", None, space=space), "hip:gfx942", *SHAPES[:2])
        assert " nt" not in plain.asm


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("shape", [(1, 1), (33, 72), (64, 128)])
def test_numbers(target: str, shape: tuple[int, int]) -> None:
    a = np.random.default_rng(3).standard_normal(shape).astype(np.float16)
    for space in ("shared", "fragment"):
        b = np.full_like(a, np.nan)
        kernel = moves("evict_first", "evict_last", space=space)
        report = tilec.simulate(kernel, a, b, target=target)
        assert report.ok, report
        assert np.array_equal(a, b)
        b[:] = np.nan
        kernel(a, b)
        assert np.array_equal(a, b)


@pytest.mark.turns
@pytest.mark.parametrize("target", GPUS)
def test_numbers_of_products(target: str) -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-4, 5, (130, 136)).astype(np.float16) for _ in "ab")
    c = np.full((130, 130), np.nan, np.float16)
    report = tilec.simulate(product("evict_first", "evict_last", "evict_first"), a, b, c,
                            target=target)  # fmt: skip
    assert report.ok, report
    assert np.array_equal(c, (a.astype(float) @ b.astype(float).T).astype(np.float16))


@pytest.mark.gpu
@pytest.mark.parametrize("by_hand", [False, True])
def test_numbers_on_a_gpu(torch: Any, by_hand: bool) -> None:
    a = torch.randn(1000, 1024, device="cuda").half()
    for first, second in (("evict_first", "evict_last"), ("evict_last", "evict_first")):
        b = torch.full_like(a, float("nan"))
        moves(first, second, by_hand)(a, b)
        assert torch.equal(a, b)
        c = torch.full((1000, 1000), float("nan"), dtype=torch.float16, device="cuda")
        product(first, second, first)(a, a, c)
        assert torch.allclose(c.float(), a.float() @ a.float().T, atol=1, rtol=1e-2)


@pytest.mark.parametrize("policy", ["evict", "EVICT_FIRST", 1, True])
@pytest.mark.parametrize("by_hand", [False, True])
def test_unknown_policies(policy: Any, by_hand: bool) -> None:
    with pytest.raises(tilec.CompileError, match="eviction_policy") as e:
        made(moves(policy, None, by_hand), "cuda:sm_90a", (64, 64), (64, 64))
    assert "eviction_policy=read" in str(e.value)
