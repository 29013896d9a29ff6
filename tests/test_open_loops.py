"""T.Parallel with extents that only a call gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import For, Parallel
from tilec.jit.build import trace_variant

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
M, N = T.dynamic("M, N")


@tilec.kernel
def rows(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32"), v: T.int32):
    with T.Kernel(M, threads=64) as r:
        for i in T.Parallel(N):
            B[r, i] = 0.0
        span = T.min(v, N)
        for i in T.Parallel(span):
            x = A[r, i]
            B[r, i] = x - 1


@tilec.kernel
def whole(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
    with T.Kernel(1, threads=64):
        for i, j in T.Parallel(M, N):
            if A[i, j] > 0:
                B[i, j] = A[i, j] * 2
        for i, j in T.Parallel(M, 3):
            B[i, j] += 1
        for j, i in T.Parallel(2, M - 1):
            B[i + 1, N - 2 + j] = 7


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(3, 5), (4, 200), (1, 3), (70, 64)])
def test_numbers(target: str, shape: tuple[int, int], rng: np.random.Generator) -> None:
    A = rng.standard_normal(shape).astype(np.float32)
    for v in (7, 0, 1000):
        B = np.full(shape, 9, np.float32)
        run(rows, target, A, B, v)
        wanted = np.zeros(shape, np.float32)
        wanted[:, :v] = A[:, :v] - 1
        np.testing.assert_array_equal(B, wanted)
    B = np.zeros(shape, np.float32)
    run(whole, target, A, B)
    wanted = np.where(A > 0, A * 2, 0).astype(np.float32)
    wanted[:, :3] += 1
    wanted[1:, -2:] = 7
    np.testing.assert_array_equal(B, wanted)


def tiles_of(kernel: Any, shape: tuple[int, ...], target: str = "cuda:sm_90a") -> list[Any]:
    specs = [tilec.spec(shape, "float32")] * 2
    func = trace_variant(kernel.signature, kernel.key_of(specs, target, {}))
    assert sum(isinstance(o, For) for o in walk(func.body)) == 4
    return [o.extents for o in walk(func.body) if isinstance(o, Parallel)]


def test_they_are_tiles_of_about_the_size() -> None:
    assert tiles_of(whole, (64, 64)) == [(8, 8, 8), (8, 8, 3), (2, 64)]
    assert tiles_of(whole, (5, 4100)) == [(128, 4), (8, 3), (2, 8)]  # 4 divides all
    assert tiles_of(whole, (1 << 20, 63)) == [(8, 64), (16, 8, 3), (2, 256)]
    assert tiles_of(whole, (3, 1)) == [(4, 1), (4, 3), (2, 4)]


def test_nothing_is_known_of_the_size() -> None:
    assert tiles_of(whole, (64, 64), "cpu") == [(64,), (21, 3), (2, 32)]

    @tilec.kernel
    def spans(A: T.Tensor((M,), "int32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(M - 1, threads=64) as r:
            for i in T.Parallel(A[r + 1] - A[r]):
                B[A[r] + i] += r

    specs = tilec.spec((9,), "int32"), tilec.spec((9,), "float32")
    func = trace_variant(spans.signature, spans.key_of(specs, "cuda:sm_90a", {}))
    assert [o.extents for o in walk(func.body) if isinstance(o, Parallel)] == [(64,)]
    assert not spans.signature.telling


@tilec.kernel
def moved(A: T.Tensor((M, N), "float16"), B: T.Tensor((N // 2, M), "float16")):
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(M, N // 2):
            B[j, i] = A[i, 2 * j] + A[i, 2 * j + 1]


@tilec.kernel
def copied(A: T.Tensor((M, N), "float16"), B: T.Tensor((M, N), "float16")):
    with T.Kernel(1, threads=64):
        for i, j in T.Parallel(M, N):
            B[i, j] = A[i, j]


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(5, 48), (5, 42), (33, 14), (1, 2), (70, 1022), (3, 0), (0, 6)])
def test_runs_that_are_inside_or_not(
    target: str, shape: tuple[int, int], rng: np.random.Generator
) -> None:
    A = rng.standard_normal(shape).astype(np.float16)
    B = np.full((shape[1] // 2, shape[0]), np.nan, np.float16)
    run(moved, target, A, B)
    np.testing.assert_array_equal(B, (A[:, ::2] + A[:, 1::2]).T)
    C = np.full(shape, np.nan, np.float16)
    run(copied, target, A, C)
    np.testing.assert_array_equal(C, A)


def test_runs_are_moved_together() -> None:
    specs = [tilec.spec((5, 48), "float16")] * 2
    for target, word in (
        ("cuda:sm_90a", "ld.global.nc.v4.b32"),
        ("hip:gfx942", "global_load_dwordx4"),
    ):
        assert word in copied.compile(*specs, target=target).asm


def test_variants_are_told_apart_by_about_the_size() -> None:
    def key(*shape: int) -> Any:
        return copied.key_of([tilec.spec(shape, "float16")] * 2, "cuda:sm_90a", {})

    assert key(56, 200) == key(64, 216) != key(72, 216)
    assert key(56, 200) != key(56, 202)  # a run is 8, or 2
    assert rows.signature.telling == {"N": "tiles"} and not tilec.kernel(plain).signature.telling


def plain(A: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 128), threads=128) as b:
        for i in T.Parallel(128):
            A[b * 128 + i] = 1


def test_a_fragment_has_so_many_elements() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((64,), "float32")
            for i in T.Parallel(T.min(N, 64)):
                s[i] = A[i] + 1
            T.sync_threads()
            for i in T.Parallel(T.min(N, 64)):
                A[i] = s[i]

    A = np.arange(50, dtype=np.float32)
    kernel(A)
    np.testing.assert_array_equal(A, np.arange(50) + 1)


def test_a_layout_needs_extents() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            layout = T.Fragment((32,), forward_fn=lambda i: (i, 0))
            for i in T.Parallel(N, loop_layout=layout):
                A[i] = 1

    with pytest.raises(tilec.CompileError, match="run-time extents has no loop_layout"):
        kernel(np.zeros(5, np.float32))


@pytest.mark.gpu
def test_on_the_gpu(rng: np.random.Generator, torch: Any) -> None:
    A = rng.standard_normal((70, 333)).astype(np.float32)
    B = torch.full((70, 333), 9.0, device="cuda")
    rows(torch.from_numpy(A).cuda(), B, 100)
    wanted = np.zeros((70, 333), np.float32)
    wanted[:, :100] = A[:, :100] - 1
    np.testing.assert_array_equal(B.cpu().numpy(), wanted)


NONE: tuple[int, ...] = ()


@tilec.kernel
def starred(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
    with T.Kernel(1, threads=64):
        for j, i in T.Parallel(*NONE, N // 2, M):
            B[i, j] = A[i, j] + 1


@pytest.mark.parametrize(
    ("kernel", "shapes", "tile"),
    [(moved, [(5, 48), (24, 5)], (8, 8, 4)), (starred, [(3, 48)] * 2, (32, 4))],
)
def test_what_is_known_is_of_the_extent_itself(
    kernel: Any, shapes: list[tuple[int, int]], tile: tuple[int, ...]
) -> None:
    """Sizes that are halved, and extents that do not stand where they are written."""
    specs = [tilec.spec(shape, kernel.parameters[0].dtype) for shape in shapes]
    func = trace_variant(kernel.signature, kernel.key_of(specs, "cuda:sm_90a", {}))
    assert [o.extents for o in walk(func.body) if isinstance(o, Parallel)] == [tile]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m", [3, 8, 13])
def test_numbers_of_extents_behind_a_star(target: str, m: int, rng: np.random.Generator) -> None:
    A = rng.standard_normal((m, 48)).astype(np.float32)
    B = np.full((m, 48), 9, np.float32)
    run(starred, target, A, B)
    np.testing.assert_array_equal(B[:, :24], A[:, :24] + 1)
    assert (B[:, 24:] == 9).all()
