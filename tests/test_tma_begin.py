"""TMA begins at a whole number of 16 bytes along a row, and stores nowhere in front of one: an
illegal instruction on an H200 otherwise (the fuzzer found it: a product in tiles of 11 floats)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

SM90 = "cuda:sm_90a"
N = T.dynamic("N")


@tilec.kernel
def columns(
    A: T.Tensor((64, N), "float32"),
    B: T.Tensor((64, N), "float32"),
    C: T.Tensor((64, N), "float32"),
    first: T.int32,
    W: T.constexpr,
    step: T.constexpr,
    begin: T.constexpr = 0,
):
    """C is twice A, shifted by `begin` columns (and `first`, if there is a step of it), + B."""
    with T.Kernel(T.ceildiv(N, W), threads=128) as b:
        T.annotate_schedule(specialise=True)
        a = T.alloc_shared((32, W), "float32")
        c = T.alloc_shared((32, 64), "float32")
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[k * 32, b * W + begin + first * step], a)
            T.copy(B[k * 32, 0], c)
            for i, j in T.Parallel(32, W):
                C[k * 32 + i, b * W + j] = a[i, j] * 2 + c[i, j]


# Columns of a tile, step of the dynamic offset, offset; whether TMA may bring it.
LOADS = [
    (64, 0, 0, True),
    (12, 0, 0, True),
    (12, 0, -4, True),
    (12, 4, 8, True),
    (12, 0, 2, False),
    (11, 0, 0, False),
    (10, 0, 0, False),
    (12, 1, 0, False),
    (12, 2, 0, False),
]


def data(n: int = 80) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((64, n)).astype(np.float32) for _ in range(2))
    return a, b, np.zeros_like(a)


def wanted(a: np.ndarray, b: np.ndarray, width: int, shift: int) -> np.ndarray:
    n = a.shape[1]
    at = np.arange(n) + shift
    shifted = np.where((at >= 0) & (at < n), a[:, np.clip(at, 0, n - 1)], 0)
    # A tile at the end reads `a` behind it and is cut off.
    return shifted * 2 + b[:, np.arange(n) % width]


@pytest.mark.parametrize("width, step, begin, boxes", LOADS)
def test_loads(width: int, step: int, begin: int, boxes: bool) -> None:
    a, b, c = data()
    call = {"W": width, "step": step, "begin": begin}
    made = columns.compile(a, b, c, 3, **call, target=SM90)
    # The other tile always comes by TMA.
    assert made.stages["plan"].startswith("kept: specialised")
    maps = [p.arg for p in made.image.params if p.role == "tensor_map"]
    assert maps == (["A", "B"] if boxes else ["B"])
    report = tilec.simulate(columns, a, b, c, 3, **call, target=SM90)
    assert not report.findings
    np.testing.assert_allclose(c, wanted(a, b, width, begin + 3 * step), rtol=1e-6)


@tilec.kernel
def out(
    A: T.Tensor((64, 64), "float16"),
    C: T.Tensor((64, N), "float16"),
    first: T.int32,
    step: T.constexpr,
    begin: T.constexpr,
    row: T.constexpr,
    fragment: T.constexpr,
):
    with T.Kernel(1, threads=128) as bx:
        T.annotate_schedule(store="tma")
        there = bx + row  # a number that is negative by itself would count from the end
        s = T.alloc_shared((64, 64), "float16")
        T.copy(A, s)
        at = T.min(T.max(first, 0), 10) * step + begin
        if fragment:
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            T.gemm(s, s, acc)
            T.copy(acc, C[there, at])
        else:
            T.copy(s, C[there, at])


# Step of the dynamic column, column, row; whether TMA may take the tile.
STORES = [
    (0, 0, 0, True),
    (8, 0, 3, True),
    (8, 16, 0, True),
    (0, 4, 0, False),
    (1, 0, 0, False),
    (8, -8, 0, False),
    (8, -32, 0, False),
    (8, 0, -1, False),
]


def tile() -> tuple[np.ndarray, np.ndarray]:
    a = np.random.default_rng(3).integers(-2, 3, (64, 64)).astype(np.float16)
    return a, np.zeros((64, 120), np.float16)


def stored(a: np.ndarray, c: np.ndarray, at: int, row: int, fragment: bool) -> np.ndarray:
    want = np.zeros_like(c)
    made = a.astype(np.float32) @ a.astype(np.float32) if fragment else a
    made = made[max(-row, 0) : 64 - max(row, 0), max(-at, 0) :]
    want[max(row, 0) : row + 64, max(at, 0) : at + 64] = made
    return want


@pytest.mark.covering(1)
@pytest.mark.parametrize("fragment", [False, True])
@pytest.mark.parametrize("step, begin, row, boxes", STORES)
def test_stores(step: int, begin: int, row: int, boxes: bool, fragment: bool) -> None:
    a, c = tile()
    call = {"step": step, "begin": begin, "row": row, "fragment": fragment}
    made = out.compile(a, c, 3, **call, target=SM90)
    assert [p.arg for p in made.image.params if p.role == "tensor_map"] == ["C"] * boxes
    report = tilec.simulate(out, a, c, 3, **call, target=SM90)
    assert not report.findings
    np.testing.assert_array_equal(c, stored(a, c, begin + 3 * step, row, fragment))


@pytest.mark.gpu
@pytest.mark.parametrize("width, step, begin, boxes", LOADS)
def test_loads_on_the_gpu(width: int, step: int, begin: int, boxes: bool, torch: Any) -> None:
    a, b, c = data()
    given = [torch.from_numpy(x).cuda() for x in (a, b, c)]
    columns(*given, 3, W=width, step=step, begin=begin)
    np.testing.assert_allclose(
        given[2].cpu().numpy(), wanted(a, b, width, begin + 3 * step), rtol=1e-6
    )


@pytest.mark.gpu
@pytest.mark.parametrize("fragment", [False, True])
@pytest.mark.parametrize("step, begin, row, boxes", STORES)
def test_stores_on_the_gpu(
    step: int, begin: int, row: int, boxes: bool, fragment: bool, torch: Any
) -> None:
    a, c = tile()
    given = [torch.from_numpy(x).cuda() for x in (a, c)]
    out(*given, 3, step=step, begin=begin, row=row, fragment=fragment)
    np.testing.assert_array_equal(
        given[1].cpu().numpy(), stored(a, c, begin + 3 * step, row, fragment)
    )


@tilec.kernel
def alone(A: T.Tensor((64, N), "float32"), C: T.Tensor((64, N), "float32"), first: T.int32):
    with T.Kernel(1, threads=128):
        T.annotate_schedule(specialise=True)
        a = T.alloc_shared((32, 64), "float32")
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[k * 32, first], a)
            for i, j in T.Parallel(32, 64):
                C[k * 32 + i, j] = a[i, j]


def test_a_schedule_that_needs_tma_says_what_tma_needs() -> None:
    a, _, c = data()
    with pytest.raises(tilec.CompileError, match="no copy of a T.Pipelined loop") as error:
        alone.compile(a, c, 3, target=SM90)
    assert "first columns, and whose tensor's rows" in str(error.value)
    assert "multiples of 16 bytes" in str(error.value)


@pytest.mark.parametrize("shape", [(1, 480), (3, 480), (260, 4), (300, 12), (512, 12)])
def test_boxes_of_a_tile_begin_at_128_bytes(shape):
    """A row of 480 went in boxes of 240 floats, the second of which began at byte 960."""

    @tilec.kernel
    def added(A: T.Tensor(shape, "float32"), B: T.Tensor((1, *shape), "float32")):
        with T.Kernel(1, threads=128) as b:
            s = T.alloc_shared(shape, "float32")
            for i, j in T.Parallel(*shape):
                s[i, j] = A[i, j] + 1
            T.copy(s, B[b, 0, 0])

    a = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    b = np.zeros((1, *shape), np.float32)
    report = tilec.simulate(added, a, b, target=SM90)
    assert report.ok and np.array_equal(b[0], a + 1), report
