"""T.transpose, T.dp4a, short vectors, rounding modes and open slices on a GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import test_lanes
import test_moves
import test_open_slices
import test_rounding

pytestmark = pytest.mark.gpu
NAMES = {"float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2", "bfloat16": "bfloat16"}


def launch(torch: Any, kernel: Any, *arrays: Any, **given: Any) -> None:
    """Run it on copies of NumPy arrays, and put back what is there then."""

    def moved(a: Any) -> Any:
        if not isinstance(a, np.ndarray):
            return a
        if a.dtype.name in NAMES:
            bits = torch.from_numpy(a.view(f"uint{a.itemsize * 8}").view(f"int{a.itemsize * 8}"))
            return bits.cuda().view(getattr(torch, NAMES[a.dtype.name]))
        return torch.from_numpy(a).cuda()

    there = [moved(a) for a in arrays]
    kernel(*there, **given)
    for a, t in zip(arrays, there):
        if isinstance(a, np.ndarray):
            a.view(np.uint8)[...] = t.contiguous().view(torch.uint8).cpu().numpy()


@pytest.mark.parametrize("spaces", [("shared", "shared"), ("fragment", "shared")])
@pytest.mark.parametrize("tile", [(64, 32), (17, 33), (128, 64)])
def test_transposed_tiles(torch: Any, tile: tuple[int, int], spaces: tuple[str, str]) -> None:
    kernel = test_moves.transposing(*tile, "float16", "float32", *spaces, 128)
    a = test_moves.integers(301, 203, dtype="float16")
    b = np.zeros((203, 301), np.float32)
    launch(torch, kernel, a, b)
    assert np.array_equal(b, a.T.astype(np.float32))


def test_products_of_bytes(torch: Any) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-128, 128, (1077, 32)).astype(np.int8) for _ in "ab")
    c = np.zeros(1077, np.int32)
    launch(torch, test_moves.dots, a, b, c)
    assert np.array_equal(c, (a.astype(int) * b).sum(1))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_pairs(torch: Any, dtype: str) -> None:
    a = test_lanes.some(1333, dtype=dtype)
    b = test_lanes.some(1333, dtype=dtype, seed=4)
    c = np.zeros((7, 1333), a.dtype)
    launch(torch, test_lanes.pairs(dtype), a, b, c)
    x, y = a.astype(np.float64), b.astype(np.float64)
    want = [x + y, x - y, x * y, x * y + x, np.maximum(x, y), np.minimum(x, y), np.abs(x)]
    assert np.array_equal(c, np.stack(want).astype(a.dtype))


@pytest.mark.parametrize("mode", test_rounding.MODES)
@pytest.mark.parametrize("dest", ["float8_e4m3", "float8_e5m2", "float16", "bfloat16"])
def test_modes(torch: Any, dest: str, mode: str) -> None:
    kind = test_rounding.kind_of(dest, "cuda")
    a = test_rounding.numbers(kind)
    b = np.zeros(len(a), kind)
    launch(torch, test_rounding.casting("float32", dest, mode, None), a, b)
    want = test_rounding.directed(a.astype(np.float64), kind, mode, kind.itemsize == 1)
    got = b.astype(np.float64)
    assert ((got == want) | (np.isnan(got) & np.isnan(want))).all()


@pytest.mark.parametrize("space", ["shared", "fragment"])
def test_groups_of_rows(torch: Any, space: str) -> None:
    ends = np.array([0, 5, 5, 21, 22, 31], np.int32)
    a = np.random.default_rng(1).integers(-9, 9, (33, 24)).astype(np.float16)
    b, c = np.ones((6, 16, 24), np.float32), np.full((33, 24), 77, np.float32)
    launch(torch, test_open_slices.groups("float16", "float32", space, 128), a, ends, b, c)
    for g in range(5):
        rows = a[ends[g] : ends[g + 1]]
        assert np.array_equal(b[g, : len(rows)], rows) and not b[g, len(rows) :].any()
    assert np.array_equal(c[:31], a[:31].astype(np.float32) + 1) and (c[31:] == 77).all()


def test_bits_of_bfloat16_pairs(torch: Any) -> None:
    a = np.arange(77 * 4).reshape(77, 4).astype(ml_dtypes.bfloat16)
    b = np.zeros_like(a)
    launch(torch, test_lanes.packing("bfloat16", test_lanes.T.bfloat16x4), a, b)
    times = np.where(np.arange(77) % 2, 1, 4)[:, None]
    want = (a.astype(float) * times)[:, ::-1]
    assert np.allclose(b.astype(float), want, rtol=2**-6)
