"""Indices of threads, their meetings and shuffles, on every target against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from form_help import SM90, tile_func
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.errors import CompileError
from tilec.ir.ops import Barrier, Shuffle, ShuffleXor
from tilec.ir.schedule import Plan
from tilec.passes import run_plan

pytestmark = pytest.mark.usefixtures("unassembled")

TARGETS = ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu"]
N = T.dynamic("N")
THREADS = 128


@tilec.kernel
def indices(A: T.Tensor((128, 6), "int32")):
    with T.Kernel(1, threads=128):
        tx, ty, tz = T.get_thread_bindings()
        bx, by, _ = T.get_block_bindings()
        A[tx, 0] = T.get_lane_idx()
        A[tx, 1] = T.get_warp_idx()
        A[tx, 2] = T.get_warp_idx_sync(16)
        A[tx, 3] = T.get_lane_idx(8)
        A[tx, 4] = T.get_warp_group_idx(16, 2)
        A[tx, 5] = ty + tz + bx + by


@pytest.mark.parametrize("target", TARGETS)
def test_indices(target: str) -> None:
    a, x, size = np.full((128, 6), 99, np.int32), np.arange(128), 64 if "hip" in target else 32
    run(indices, target, a)
    want = [x % size, x // size, x // 16, x % 8, x // 32, 0 * x]
    np.testing.assert_array_equal(a, np.stack(want, 1))


@tilec.kernel
def exchanged(A: T.Tensor((128,), "float32"), B: T.Tensor((5, 128), "float32"), n: T.int32, dtype: T.constexpr = "float32", width: T.constexpr = 32):  # fmt: skip  # noqa: E501
    with T.Kernel(1, threads=128):
        tx = T.get_thread_binding(0)
        v = T.cast(A[tx], dtype)
        B[0, tx] = T.shfl_xor(v, 5, width)
        B[1, tx] = T.shfl_up(v, n, width)
        B[2, tx] = T.shfl_down(v, 3, width)
        B[3, tx] = T.shfl_sync(v, tx // 2 + n, width)
        B[4, tx] = T.shfl_xor(v, n, width)


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
def test_shuffles(dtype: str, width: int, target: str, rng: np.random.Generator) -> None:
    n = 2
    a = rng.integers(0, 200, THREADS).astype(np.float32)
    b = np.full((5, THREADS), -1, np.float32)
    run(exchanged, target, a, b, n, dtype=dtype, width=width)
    x = np.arange(THREADS)
    place, first = x % width, x - x % width
    want = [
        first + (place ^ 5),
        np.where(place >= n, x - n, x),
        np.where(place + 3 < width, x + 3, x),
        first + (x // 2 + n) % width,
        first + (place ^ n),
    ]
    np.testing.assert_array_equal(b, a[np.stack(want)])


@tilec.kernel
def reduced(A: T.Tensor((N,), "int32"), B: T.Tensor((5, N), "int32")):
    with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
        at = bx * 128 + T.get_thread_binding(0)
        v = A[at]
        B[0, at] = T.warp_reduce_sum(v)
        B[1, at] = T.warp_reduce_max(v)
        B[2, at] = T.warp_reduce_min(v)
        B[3, at] = T.warp_reduce_bitand(v)
        B[4, at] = T.warp_reduce_bitor(v)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", [1, 128, 300])
def test_warp_reductions(count: int, target: str, rng: np.random.Generator) -> None:
    """What is beyond the tensor reads as 0, and takes part."""
    a, b = rng.integers(1, 100, count).astype(np.int32), np.zeros((5, count), np.int32)
    run(reduced, target, a, b)
    size = 64 if "hip" in target else 32
    rows = np.pad(a, (0, -count % 128)).reshape(-1, size)
    functions = (np.add, np.maximum, np.minimum, np.bitwise_and, np.bitwise_or)
    want = [np.repeat(f.reduce(rows, axis=1), size)[:count] for f in functions]
    np.testing.assert_array_equal(b, np.stack(want))


@tilec.kernel
def block_sum(A: T.Tensor((N,), "float32"), B: T.Tensor((128,), "float32"), steps: T.int32):
    """By hand: shuffles in each warp, shared memory between them, in a loop that runs at run
    time."""
    with T.Kernel(1, threads=128):
        tx = T.get_thread_binding(0)
        lane, warp = T.get_lane_idx(32), T.get_warp_idx(32)
        parts = T.alloc_shared((4,), "float32")
        total = T.alloc_var("float32", 0.0)
        for k in range(steps):
            v = T.alloc_var("float32", A[k * 128 + tx])
            for d in T.unroll(5):
                v = v + T.shfl_xor(v, 1 << d, 32)
            if lane == 0:
                parts[warp] = v
            T.sync_threads()
            total = total + parts[0] + parts[1] + parts[2] + parts[3]
            T.sync_threads()
        B[tx] = total


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_block_adds_up_by_hand(steps: int, target: str, rng: np.random.Generator) -> None:
    a = rng.integers(-9, 10, steps * 128 + 128).astype(np.float32)
    b = np.full(128, np.nan, np.float32)
    run(block_sum, target, a, b, steps)
    np.testing.assert_array_equal(b, np.full(128, a[: steps * 128].sum()))


@tilec.kernel
def scanned(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
    """Sums of all before, warp by warp; tiles before and after it."""
    with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
        tile = T.alloc_shared((128,), "float32")
        T.copy(A[bx * 128], tile)
        tx = T.get_thread_binding(0)
        v = T.alloc_var("float32", tile[tx])
        for d in T.unroll(5):
            up = T.shfl_up(v, 1 << d, 32)
            v = v + T.if_then_else(tx % 32 >= 1 << d, up, 0.0)
        T.sync_threads()
        tile[tx] = v
        T.sync_threads()
        for i in T.Parallel(128):
            tile[i] = tile[i] * 2
        T.copy(tile, B[bx * 128])


@pytest.mark.parametrize("target", TARGETS)
def test_scan_between_tiles(target: str, rng: np.random.Generator) -> None:
    a, b = rng.integers(-9, 10, 300).astype(np.float32), np.zeros(300, np.float32)
    run(scanned, target, a, b)
    want = np.cumsum(np.pad(a, (0, 84)).reshape(-1, 32), 1).ravel()[:300] * 2
    np.testing.assert_array_equal(b, want)


def test_a_constant_distance_is_one_instruction() -> None:
    def shifted(A: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding(0)
            T.sync_threads()
            A[tx] = T.shfl_xor(A[tx], 4) + T.shfl_sync(A[tx], 0)

    kept: dict[str, Any] = {}
    func = tile_func(shifted, {"A": np.ones(128, np.float32)})
    run_plan(func, SM90, Plan("plain"), kept.__setitem__)
    ops = [*walk(kept["lower_parallel"].body)]
    assert [o.mask for o in ops if isinstance(o, ShuffleXor)] == [4]
    assert sum(isinstance(o, Shuffle) for o in ops) == 1
    assert sum(isinstance(o, Barrier) for o in ops) >= 1


ERRORS = {
    "shuffle in a loop": ("for i in T.Parallel(64): A[i] = T.shfl_xor(A[i], 1)", "T.Parallel"),
    "barrier in a loop": ("for i in T.Parallel(64): T.sync_threads()", "T.sync_threads cannot"),
    "divergent barrier": ("if tx < 5: T.sync_threads()", r"T.sync_threads\(\) stands under"),
    "divergent shuffle": ("if tx < 5: A[tx] = T.shfl_xor(A[tx], 1)", "a shuffle needs every"),
    "divergent warp": ("if tx < 5: T.sync_warp()", r"T.sync_warp\(\) needs every"),
    "odd width": ("A[tx] = T.shfl_xor(A[tx], 1, 12)", "width of T.shfl_xor is 12"),
    "wide": ("A[tx] = T.shfl_up(A[tx], 1, 64)", "width of T.shfl_up is 64"),
    "distance": ("A[tx] = T.shfl_down(A[tx], 1.5)", "delta of T.shfl_down is the float 1.5"),
    "bits of floats": ("A[tx] = T.warp_reduce_bitor(A[tx])", "combines the bits of ints"),
    "tile": (
        "s = T.alloc_shared((4,), 'float32'); A[tx] = T.shfl_xor(s, 1)",
        "value of T.shfl_xor",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str, tmp_path: Any) -> None:
    line, message = ERRORS[name]
    text = (
        "import tilec, tilec.language as T\n"
        "@tilec.kernel\n"
        "def kernel(A: T.Tensor((64,), 'float32')):\n"
        "    with T.Kernel(1, threads=64):\n"
        "        tx = T.get_thread_binding(0)\n"
        f"        {line}\n"
    )
    path = tmp_path / "kernel.py"
    path.write_text(text)
    scope: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), scope)
    with pytest.raises(CompileError, match=message) as caught:
        scope["kernel"].compile(tilec.spec((64,), "float32"), target="cuda:sm_90a")
    assert caught.value.loc is not None and caught.value.loc.line == 6


@tilec.kernel
def partial(A: T.Tensor((N,), "float32"), threads: T.constexpr = 100, reduce: T.constexpr = True):
    with T.Kernel(1, threads=threads):
        tx = T.get_thread_binding(0)
        if reduce:
            A[tx] = T.warp_reduce_sum(A[tx])
        else:
            A[tx] = T.shfl_down(A[tx], 4)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [1, 33, 100])
def test_lanes_that_no_thread_has(threads: int, target: str) -> None:
    """They add nothing to a sum, and have places in memory where lanes exchange through it."""
    a = np.random.default_rng(2).standard_normal(threads).astype(np.float32)
    found, size = a.copy(), 64 if "hip" in target else 32
    run(partial, target, found, threads=threads, reduce=True)
    for first in range(0, threads, size):
        warp = a[first : first + size]
        np.testing.assert_allclose(found[first : first + size], warp.sum(), rtol=1e-4, atol=1e-5)
    found = a.copy()
    run(partial, target, found, threads=threads, reduce=False)
    whole = threads // 32 * 32
    shifted = a[:whole].reshape(-1, 32).copy()
    shifted[:, :28] = shifted[:, 4:]
    np.testing.assert_array_equal(found[:whole], shifted.ravel())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
def test_shuffles_on_a_gpu(torch: Any, dtype: str) -> None:
    a = torch.randint(0, 200, (128,), device="cuda").float()
    x = torch.arange(128, device="cuda")
    for _ in range(50):
        b = torch.full((5, 128), -1.0, device="cuda")
        exchanged(a, b, 2, dtype=dtype, width=16)
        place, first = x % 16, x - x % 16
        want = [
            first + (place ^ 5),
            torch.where(place >= 2, x - 2, x),
            torch.where(place + 3 < 16, x + 3, x),
            first + (x // 2 + 2) % 16,
            first + (place ^ 2),
        ]
        assert torch.equal(b, a[torch.stack(want)])


@pytest.mark.gpu
def test_sums_on_a_gpu(torch: Any) -> None:
    a = torch.randint(-9, 10, (128 * 40,), device="cuda").float()
    for _ in range(200):
        b = torch.full((128,), float("nan"), device="cuda")
        block_sum(a, b, 39)
        assert torch.equal(b, a[: 39 * 128].sum().expand(128))


@tilec.kernel
def numbered(A: T.Tensor((256,), "int32"), B: T.Tensor((256,), "int32")):
    """Each half turns its own numbers around, then all of them meet at a barrier of their own."""
    with T.Kernel(1, threads=256):
        tx = T.get_thread_binding(0)
        s = T.alloc_shared((256,), "int32")
        s[tx] = A[tx]
        if tx < 128:
            T.sync_threads(1, 128)
            B[tx] = s[127 - tx]
            T.sync_threads(3, 256)
        else:
            T.sync_threads(2, 128)
            B[tx] = s[383 - tx]
            T.sync_threads(barrier_id=3, arrive_count=256)
        T.sync_threads(0, 256)


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80"])
def test_numbered_barriers(target: str) -> None:
    a = np.random.default_rng(3).integers(0, 100, 256).astype(np.int32)
    b = np.zeros(256, np.int32)
    run(numbered, target, a, b)
    np.testing.assert_array_equal(b, a.reshape(2, 128)[:, ::-1].ravel())
    asm = numbered.compile(a, b, target=target).asm
    assert asm.count("bar.sync") >= 5


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("target", TARGETS)
def test_isfinite(target: str, dtype: str) -> None:
    @tilec.kernel
    def finite(A: T.Tensor((8,), dtype), B: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                B[i] = T.isfinite(A[i])

    a = np.array([0, -1, np.inf, -np.inf, np.nan, 6e4, 1e-7, 3], dtype)
    b = np.full(8, 7, np.int32)
    run(finite, target, a, b)
    np.testing.assert_array_equal(b, np.isfinite(a))
