"""Products that threads do by themselves: operands come to them in vectors along either dimension,
and sums are made in the order of k."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.layout import Layout

pytestmark = pytest.mark.usefixtures("unassembled")

GPUS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")


def product(
    m: int, n: int, k: int, turned: tuple[bool, bool], dtype: str, threads: int = 64,
    sums: str = "", policy: T.GemmWarpPolicy = T.GemmWarpPolicy.Square,
) -> Any:  # fmt: skip
    """C += A @ B of one tile, of operands that lie as `turned` says in larger buffers."""
    sums = sums or ("int32" if dtype == "int8" else dtype)
    a_shape, b_shape = (k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n)

    @tilec.kernel
    def kernel(A: T.Tensor(a_shape, dtype), B: T.Tensor(b_shape, dtype), C: T.Tensor((m, n), sums)):
        with T.Kernel(1, threads=threads):
            a, b = T.alloc_shared((2, *a_shape), dtype), T.alloc_shared(b_shape, dtype)
            c = T.alloc_fragment((m, n), sums)
            T.copy(A, a[1, :, :])
            T.copy(B, b)
            T.copy(C, c)
            given = {"transpose_A": turned[0], "transpose_B": turned[1], "policy": policy}
            T.gemm(a[1, :, :], b, c, **given)
            T.copy(c, C)

    return kernel


SHAPES = [(32, 48, 20), (16, 16, 6), (8, 24, 5), (64, 64, 8), (33, 40, 12)]


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", GPUS)
def test_numbers(
    target: str, shape: tuple[int, int, int], turned: Any, dtype: str, rng: np.random.Generator
) -> None:
    """Ints are exact, floats those of fused multiply-adds one after the other."""
    m, n, k = shape
    if dtype == "float32":
        a, b, c = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, n), (m, n)))
    else:
        a, b = (rng.integers(-128, 128, s).astype(dtype) for s in ((m, k), (k, n)))
        c = rng.integers(-1000, 1000, (m, n)).astype(np.int32)
    given = [np.ascontiguousarray(x.T if t else x) for x, t in zip((a, b), turned)]
    got = c.copy()
    kernel = product(m, n, k, turned, dtype)
    run(kernel, target, *given, got)
    if dtype != "float32":
        np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64) + c)
        return
    np.testing.assert_allclose(got, c + a.astype(float) @ b, rtol=1e-5, atol=1e-5)
    if target.startswith("cuda"):
        want = c.astype(np.longdouble)
        for i in range(k):
            want = (want + a[:, i : i + 1].astype(np.longdouble) * b[i]).astype(np.float32)
        np.testing.assert_array_equal(got, want.astype(np.float32))


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "dtype, sums",
    [
        ("int16", "int32"), ("int32", "int32"), ("int32", "int64"), ("int64", "int64"),
        ("uint8", "int64"), ("uint16", "uint32"), ("uint64", "uint64"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", ("cpu", *GPUS))
def test_ints_of_any_width(
    target: str, shape: tuple[int, int, int], turned: Any, dtype: str, sums: str,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Modulo 2**bits of the sums, of numbers up to the limits."""
    m, n, k = shape
    ends = np.iinfo(dtype)
    a, b = (rng.integers(ends.min, ends.max, s, dtype, True) for s in ((m, k), (k, n)))
    got = rng.integers(0, 1000, (m, n)).astype(sums)
    want = got + a.astype(sums) @ b.astype(sums)
    given = [np.ascontiguousarray(x.T if t else x) for x, t in zip((a, b), turned)]
    run(product(m, n, k, turned, dtype, sums=sums), target, *given, got)
    np.testing.assert_array_equal(got, want)


def loads(kernel: Any, *shapes: tuple[int, int]) -> list[str]:
    """What the loads of operands bring."""
    specs = [tilec.spec(s, "float32") for s in shapes]
    text = str(kernel.compile(*specs, target="cuda:sm_90a").stages["lower_gemm"])
    return re.findall(r"mem_load %[ab]\w*, .* : (.+)", text)


def test_neighbours_come_at_once() -> None:
    square = [(64, 64)] * 3
    four, one = "<4 x f32>", "f32"
    plain = product(64, 64, 64, (False, False), "float32")
    assert loads(plain, *square) == [four] * 5  # of A for four steps, then of B for each
    across = product(64, 64, 64, (True, False), "float32")
    assert loads(across, *square) == [four] * 8  # of both for each
    odd = product(64, 64, 63, (False, True), "float32")
    assert loads(odd, (64, 63), (64, 63), (64, 64)) == [one, one]


@pytest.mark.parametrize("threads, width", [(128, 2), (256, 4)])
def test_as_many_steps_as_there_are_registers(threads: int, width: int) -> None:
    """128 sums in a thread leave room for fewer of them than 64 do."""
    kernel = product(128, 128, 32, (False, True), "float32", threads)
    found = loads(kernel, (128, 32), (128, 32), (128, 128))
    assert found == [f"<{width} x f32>"] * (8 // width)


def owned(turned: tuple[bool, bool], threads: int, target: str = "cuda:sm_90a", **how: Any) -> Any:
    """Where each register of the first thread of a sum of 128 x 128 is: rows and columns."""
    kernel = product(128, 128, 32, turned, "float32", threads, **how)
    shapes = [(32, 128) if t else (128, 32) for t in (turned[0], not turned[1])]
    specs = [tilec.spec(s, "float32") for s in (*shapes, (128, 128))]
    text = str(kernel.compile(*specs, target=target).stages["infer_layouts"])
    found = re.search(r"%c = alloc fragment<128x128xf32, layout=(.+)>", text)
    assert found is not None
    table = Layout.parse(found[1]).table("reg")
    return [sorted({int(x[d]) for x in table}) for d in (0, 1)]


@pytest.mark.parametrize("target", GPUS[:2])  # gfx942 has matrix instructions of float32
@pytest.mark.parametrize("threads", [128, 256])
def test_threads_have_squares(target: str, threads: int) -> None:
    """Whose sides take the fewest reads: 4 of 16 bytes for 64 multiply-adds; neighbours where M
    or N lies side by side, one of each eighth row where K does, whose banks differ."""
    rows, columns = owned((True, False), threads, target)
    assert len(rows) * len(columns) * threads == 128 * 128
    assert len(rows) + len(columns) == (16 if threads == 256 else 24)
    assert rows[:4] == columns[:4] == [0, 1, 2, 3]
    rows, columns = owned((False, True), threads, target)
    assert rows[1] in (4, 8) and columns[1] in (4, 8)


def test_policies_say_along_what_warps_lie() -> None:
    """Rows alone have their sums in one warp."""
    rows, columns = owned((True, False), 256, policy=T.GemmWarpPolicy.FullRow)
    assert max(columns) >= 64 and max(rows) < 16
    rows, columns = owned((True, False), 256, policy=T.GemmWarpPolicy.FullCol)
    assert max(rows) >= 64 and max(columns) < 16
