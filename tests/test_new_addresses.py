"""Launches with addresses that were never launched with: each goes with its own arguments, through
a block of an earlier launch."""

import ctypes
import gc
import itertools
import random
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from test_runtime_cuda import FakeCuda, fake, gpu, launches, product  # noqa: F401

import tilec
import tilec.language as T
from tilec.runtime.block import BlockLayout

M, N = T.dynamic("M, N")
SIZE = 64


@tilec.kernel
def scaled(
    A: T.Tensor((M, N), "float32"),
    C: T.Tensor((M, N), "float32"),
    rows: T.int32,
    factor: T.float32 = 1.0,
):
    with T.Kernel(T.ceildiv(N, 32), rows, threads=32) as (bx, by):
        for j in T.Parallel(32):
            C[by, bx * 32 + j] = A[by, bx * 32 + j] * factor


def torch_arrays(count: int) -> Sequence[Any]:
    """Aligned torch tensors of the first GPU, as far as a launch looks at them."""
    import torch

    class OnGpuTorch(torch.Tensor):
        device = torch.device("cuda", 0)

        def get_device(self) -> int:
            return 0

    found = []
    for _ in range(count):
        memory = torch.empty(SIZE * SIZE + 8, dtype=torch.float16)
        at = -memory.data_ptr() % 16 // 2
        flat = memory[at : at + SIZE * SIZE]
        found.append(flat.view(SIZE, SIZE).as_subclass(OnGpuTorch))
    return found


def operands() -> Sequence[Any]:
    return torch_arrays(3)


def addresses_in(kernel: tilec.Kernel, params: int) -> dict[str, set[int]]:
    """Where each array is according to the parameters of a launch that the driver is given."""
    (variant,) = kernel._variants.values()
    found: dict[str, set[int]] = {}
    for i, p in enumerate(variant.image.params):
        if p.role in ("tensor", "tensor_map"):
            value = ctypes.c_uint64.from_address(params + 8 * i).value
            assert p.role == "tensor" or value % 64 == 0
            at = ctypes.c_uint64.from_address(value).value
            if at != 0x0101010101010101 * (at & 0xFF):  # as the first launch encoded it
                found.setdefault(p.arg, set()).add(at)
    return found


def expected(arrays: Sequence[Any]) -> dict[str, set[int]]:
    return dict(zip("ABC", ({t.data_ptr()} for t in arrays)))


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of blocks made so far."""
    made, make = [0], BlockLayout.block

    def counted(self: BlockLayout, values: Any) -> Any:
        made[0] += 1
        return make(self, values)

    monkeypatch.setattr(BlockLayout, "block", counted)
    return made


@pytest.mark.torch
@pytest.mark.parametrize("elsewhere_too", [False, True])
def test_tensor_maps_take_the_address(
    gpu: FakeCuda,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    blocks: list[int],
    elsewhere_too: bool,
) -> None:
    """Stored, where the driver is seen to do no more than that; else by the driver."""
    kernel, seen = tilec.kernel(product.function), []
    gpu.address_elsewhere_too = elsewhere_too
    gpu.at_launch = lambda params: seen.append(addresses_in(kernel, params))
    pool = [operands() for _ in range(20)]
    for one in pool[:2]:
        kernel(*one, stream=7)
    (variant,) = kernel._variants.values()
    maps = sum(p.role == "tensor_map" for p in variant.image.params)
    names = gpu.names()
    encoded = names.count("cuTensorMapEncodeTiled")
    tried = names.count("cuTensorMapReplaceAddress")
    assert maps >= 2 and tried == (maps if elsewhere_too else 3 * maps), "once for each recipe"
    before = blocks[0]
    with monkeypatch.context() as m:
        m.setattr(tilec.Kernel, "_launch", None)  # whoever asks for it fails
        for one in pool[2:] * 3:
            kernel(*one, stream=7)
    want = [expected(one) for one in pool]
    assert seen == want + want[2:] * 2, "each parameter is about this launch's array"
    assert blocks[0] - before == 4 + 4, "of the launches that came again a fourth is kept"
    assert gpu.names().count("cuTensorMapEncodeTiled") == encoded
    moved = gpu.names().count("cuTensorMapReplaceAddress") - tried
    assert moved == ((18 + 18 + 14) * maps if elsewhere_too else 0)
    kept = [launch for found in kernel.prepared.values() for launch in found.values()]
    assert not any(gc.is_tracked(launch.memory) for launch in kept)
    gpu.failing["cuTensorMapReplaceAddress"] = 1
    kernel(*operands(), stream=7)
    again = gpu.names().count("cuTensorMapEncodeTiled") > encoded
    assert again == elsewhere_too, "the long way, where the driver is needed"


@pytest.mark.torch
def test_a_launch_within_a_launch_has_its_own_block(gpu: FakeCuda) -> None:  # noqa: F811
    """As a finalizer or a signal's handler may make one."""
    kernel, pool = tilec.kernel(product.function), [operands() for _ in range(12)]
    for one in pool[:2]:
        kernel(*one, stream=7)
    inner, seen = pool[7:], []

    def launch_more(params: int) -> None:
        if inner:
            kernel(*inner.pop(), stream=7)
        seen.append(addresses_in(kernel, params))

    gpu.at_launch = launch_more
    for one in pool[2:7]:
        kernel(*one, stream=7)
    assert seen == [expected(pool[i]) for i in (7, 8, 9, 10, 11, 2, 3, 4, 5, 6)]


@pytest.mark.torch
def test_threads_that_launch_at_once(gpu: FakeCuda, blocks: list[int]) -> None:  # noqa: F811
    """While the driver reads one thread's block, no other writes to it."""
    kernel, pools = tilec.kernel(product.function), [[operands() for _ in range(8)] for _ in "abc"]
    for one in pools[0][:2]:
        kernel(*one, stream=7)
    mine, wrong, ready = threading.local(), [], threading.Barrier(len(pools))

    def look(params: int) -> None:
        for _ in range(3):
            if addresses_in(kernel, params) != mine.want:
                wrong.append(mine.want)
            time.sleep(0.001)

    def work(pool: list[Any]) -> None:
        ready.wait()
        for one in pool:
            mine.want = expected(one)
            kernel(*one, stream=7)

    gpu.at_launch, before = look, blocks[0]
    threads = [threading.Thread(target=work, args=(pool[2:],)) for pool in pools]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(launches(gpu)) == 2 + 3 * 6
    assert blocks[0] - before <= len(pools), "each launch under way has one"


def test_scalars_and_grids_in_a_block_of_another_launch(
    blocks: list[int], rng: np.random.Generator
) -> None:
    draw, memory = random.Random(5), [np.zeros((2, 6 * 33), np.float32) for _ in range(300)]
    for block in memory:
        a, c = (row.reshape(6, 33) for row in block)
        a[:] = rng.standard_normal(a.shape)
        rows, factor = draw.choice([1, 4, 6]), draw.choice([0.0, -0.0, -1.5, float("nan"), 3])
        scaled(a, c, rows, factor)
        want = np.zeros_like(a)
        want[:rows] = a[:rows] * np.float32(factor)
        np.testing.assert_array_equal(c, want)
        assert (np.signbit(c[:rows]) == np.signbit(want[:rows])).all() or factor != factor
    assert blocks[0] <= 2 + 3, "one for each grid, besides those of the first launches"
    assert sum(map(len, scaled.prepared.values())) == 1
    for wrong, message in (
        ((6.0, 1.0), "rows: expected int32, got the float 6.0"),
        ((2**31, 1.0), "rows: 2147483648 does not fit in int32"),
        ((6, 1e300), "does not fit in float32"),
        ((6, np.ones(1)), "factor: expected a number"),
        ((6, 1j), "factor"),
    ):
        with pytest.raises(tilec.LaunchError, match=message):
            scaled(a, c, *wrong)


@pytest.mark.parametrize("order", [*itertools.permutations(range(4))][::5])
def test_each_scalar_has_its_own_value(
    order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stands before it. Behind a float, a float was launched with the sign of that one,
    and other scalars went the long way: all kernels that were launched anew had one float, last."""
    dtypes = [("float32", "bfloat16", "int32", "float64")[i] for i in order]

    @tilec.kernel
    def mixed(
        A: T.Tensor((N,), "float64"),
        C: T.Tensor((N,), "float64"),
        a: dtypes[0],
        b: dtypes[1],
        c: dtypes[2],
        d: dtypes[3],
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                C[i] = A[i] + a + 10.0 * b + 100.0 * c + 1000.0 * d

    draw = random.Random(str(order))
    a, c = np.ones(32), np.zeros(32)
    for turn in range(12):
        values = [draw.choice([-3, 0, 1, 2, 5]) for _ in dtypes]
        given = [
            v if t == "int32" else draw.choice([float(v), -0.0]) for v, t in zip(values, dtypes)
        ]
        with monkeypatch.context() as m:
            if turn > 1:
                m.setattr(tilec.Kernel, "_launch", None)  # whoever asks for it fails
            mixed(a, c, *given)
        np.testing.assert_array_equal(c, 1 + sum(v * 10**i for i, v in enumerate(given)))


def test_what_comes_again_is_kept(blocks: list[int]) -> None:
    """A fourth of it in each round."""
    kernel = tilec.kernel(scaled.function)
    arrays = [np.ones((3, 33), np.float32) for _ in range(49)]
    c = np.zeros((3, 33), np.float32)
    for _ in range(2):
        kernel(arrays[0], c, 3)
    before, kept = blocks[0], lambda: sum(map(len, kernel.prepared.values()))
    again = 0
    for rounds in range(12):
        left = 49 - kept()
        for a in arrays:
            kernel(a, c, 3)
        again += left if rounds else 0
        assert kept() == 1 + again // 4 and blocks[0] - before in (kept() - 1, kept())
    assert kept() > 40


def test_more_than_is_kept(monkeypatch: pytest.MonkeyPatch, blocks: list[int]) -> None:
    """Going round a pool that is too large to be kept costs no more than the first time."""
    monkeypatch.setattr(sys.modules["tilec.jit.recipe"], "LIMIT", 20)
    kernel = tilec.kernel(scaled.function)
    arrays = [np.ones((3, 33), np.float32) for _ in range(50)]
    c = np.zeros((3, 33), np.float32)
    for _ in range(2):
        kernel(arrays[0], c, 3)
    before = blocks[0]
    for _ in range(4):
        for a in arrays:
            kernel(a, c, 3)
    assert blocks[0] - before == 1
