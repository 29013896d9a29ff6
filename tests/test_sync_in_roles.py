"""T.sync_threads in a kernel of which the compiler makes roles: the author's threads meet, and
those that only bring tiles do not. And groups of which one thread lets the others know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.core import walk

M, N, K = T.dynamic("M, N, K")


def rotated(**schedule: Any) -> Any:
    """A product, and to each row a number that threads have passed on n times."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((256, N), "float16"),
        B: T.Tensor((N, 128), "float16"),
        C: T.Tensor((256, 128), "float32"),
        n: T.int32,
    ):
        with T.Kernel(2, threads=128) as b:
            if schedule:
                T.annotate_schedule(**schedule)
            tx = T.get_thread_binding()
            s = T.alloc_shared((128,), "float32")
            x = T.alloc_shared((128, 64), "float16")
            y = T.alloc_shared((64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            s[tx] = tx
            for _ in T.serial(n):
                T.sync_threads()
                v = s[(tx + 1) % 128]
                T.sync_threads()
                s[tx] = v
            T.sync_threads()
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(N, 64), num_stages=3):
                T.copy(A[b * 128, k * 64], x)
                T.copy(B[k * 64, 0], y)
                T.gemm(x, y, c)
            for i, j in T.Parallel(128, 128):
                c[i, j] += s[i]
            T.copy(c, C[b * 128, 0])

    return kernel


def arguments(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    A = rng.integers(-3, 3, (256, 256)).astype(np.float16)
    B = rng.integers(-3, 3, (256, 128)).astype(np.float16)
    passed = (np.arange(256) % 128 + 3) % 128
    return A, B, A.astype(np.float32) @ B.astype(np.float32) + passed[:, None]


@pytest.mark.parametrize(
    ("target", "given"),
    [
        ("cuda:sm_80", {}),
        ("cuda:sm_90a", {}),
        ("cuda:sm_90a", {"specialise": True}),
        ("cuda:sm_90a", {"specialise": False}),
        ("hip:gfx942", {}),
    ],
)
def test_numbers(target: str, given: dict[str, bool], rng: np.random.Generator) -> None:
    A, B, wanted = arguments(rng)
    C = np.zeros((256, 128), np.float32)
    report = tilec.simulate(rotated(**given), A, B, C, 3, target=target)
    assert not report.findings, report
    np.testing.assert_array_equal(C, wanted)


def test_it_has_roles() -> None:
    specs = [tilec.spec((256, 256), "float16"), tilec.spec((256, 128), "float16")]
    specs.append(tilec.spec((256, 128), "float32"))
    found = rotated().compile(*specs, target="cuda:sm_90a")
    assert found.resources.threads == 256 and "specialised" in found.stages["plan"].split("\n")[0]
    assert found.asm.count("bar.sync") >= 3


@pytest.mark.gpu
def test_on_the_gpu(rng: np.random.Generator, torch: Any) -> None:
    A, B, wanted = arguments(rng)
    a, b = (torch.from_numpy(x).cuda() for x in (A, B))
    for _ in range(200):
        C = torch.full((256, 128), float("nan"), device="cuda")
        rotated_once(a, b, C, 3)
        torch.cuda.synchronize()
    np.testing.assert_array_equal(C.cpu().numpy(), wanted)


rotated_once = rotated()


@tilec.kernel
def one_arrives(
    A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16"),
    C: T.Tensor((64, 64), "float32"), how: T.constexpr,
):  # fmt: skip
    """All threads of a group write, one lets the other group know."""
    with T.Kernel(1, threads=256):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        full = T.alloc_barrier(1)
        tx = T.get_thread_binding()
        with T.ws(1):
            if how == "copies":
                T.tma_copy(A, a, barrier=full)
                T.tma_copy(B, b, barrier=full)
            else:
                for i, j in T.Parallel(64, 64):
                    a[i, j] = A[i, j]
                    b[i, j] = B[i, j]
                T.sync_threads(3, 128)
            if tx == 128:
                T.barrier_arrive(full)
        with T.ws(0):
            T.barrier_wait(full, 0)
            T.gemm(a, b, acc, clear_accum=True)
            T.copy(acc, C)


@pytest.mark.parametrize("how", ["copies", "stores"])
@pytest.mark.parametrize("pad", [0, 5])
def test_one_thread_arrives_for_all(how: str, pad: int, rng: np.random.Generator) -> None:
    """Each thread fences what it has written, and all meet, before one arrives; where TMA brings
    the tiles (rows of 128 bytes) nobody writes, and there is no fence."""
    a, b = (rng.standard_normal((64, 64 + pad)).astype(np.float16)[:, :64] for _ in "ab")
    c = np.full((64, 64), np.nan, np.float32)
    report = tilec.simulate(one_arrives, a, b, c, how, target="cuda:sm_90a", schedules=3)
    assert not report.findings, report
    want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(c, want, rtol=1e-3, atol=1e-3)
    made = one_arrives.compile(a, b, c, how, target="cuda:sm_90a")
    kinds = [type(o).__name__ for o in walk(made.lowered.body)]
    before = kinds[: kinds.index("MbarrierArrive")]
    by_threads = how == "stores" or pad > 0
    assert ("ProxyFence" in before) == by_threads
    if by_threads:
        assert "Barrier" in before[before.index("ProxyFence") :]


@tilec.kernel
def meets_by_number(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32"),
    number: T.constexpr,
):  # fmt: skip
    """All threads of the program meet at a barrier of the author's: producer warps do not come."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c, acc = T.alloc_shared((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
            T.copy(A[by * 64, k * 64], a)
            T.copy(B[k * 64, bx * 64], b)
            T.gemm(a, b, acc)
        T.sync_threads(number, 128)
        T.copy(acc, c)
        T.sync_threads(number, 128)
        T.copy(c, C[by * 64, bx * 64])


@pytest.mark.parametrize("number", [0, 1, 3])
def test_the_whole_program_meets_at_a_barrier_with_a_number(
    number: int, rng: np.random.Generator
) -> None:
    a, b = (rng.standard_normal((128, 128)).astype(np.float16) for _ in "ab")
    c = np.full((128, 128), np.nan, np.float32)
    made = meets_by_number.compile(a, b, c, number, target="cuda:sm_90a")
    assert "scope producer" in made.stages["insert_sync"]
    report = tilec.simulate(meets_by_number, a, b, c, number, target="cuda:sm_90a", schedules=3)
    assert not report.findings, report
    np.testing.assert_allclose(c, a.astype(float) @ b.astype(float), rtol=1e-3, atol=1e-2)


@pytest.mark.gpu
def test_the_whole_program_meets_on_a_gpu(torch: Any) -> None:
    a, b = (torch.randn(512, 512, device="cuda").half() for _ in "ab")
    for number in (0, 1, 3) * 60:
        c = torch.full((512, 512), float("nan"), device="cuda")
        meets_by_number(a, b, c, number)
        assert torch.allclose(c.double(), a.double() @ b.double(), rtol=1e-3, atol=1e-1)
