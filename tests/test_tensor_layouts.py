"""Layouts of tensors: where the elements of an argument are in its memory."""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest
from frontend_help import ops, traced
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.ops import Atomic, Copy, Load, Parallel

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
L = T.dynamic("L")


def by_matrix(dQ):
    return T.Layout(
        dQ.shape,
        lambda b, l, h, d: [b, l // 8, h, d // 8, (d % 2), 4 * (l % 8) + (d % 8) // 2],
    )


@tilec.kernel
def gathered(A: T.Tensor((2, L, 3, 16), "float32"), out: T.Tensor((2, L, 3, 16), "float16")):
    with T.Kernel(T.ceildiv(L, 16), 3, 2, threads=64) as (bx, by, bz):
        T.annotate_layout({A: by_matrix(A)})
        T.copy(A[bz, bx * 16 : (bx + 1) * 16, by, :], out[bz, bx * 16 : (bx + 1) * 16, by, :])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("length", [8, 16, 40])
def test_a_tile_is_gathered_from_where_its_elements_are(target: str, length: int) -> None:
    shape = (2, length, 3, 16)
    A = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    out = np.full(shape, np.nan, np.float16)
    run(gathered, target, A, out)
    b, l, h, d = np.indices(shape)  # noqa: E741 (as in the kernel)
    row = ((b * (length // 8) + l // 8) * 3 + h) * 2 + d // 8
    offset = (row * 2 + d % 2) * 32 + 4 * (l % 8) + d % 8 // 2
    np.testing.assert_array_equal(out, A.ravel()[offset].astype(np.float16))


@tilec.kernel
def added(x: T.Tensor((2, L, 3, 16), "float32"), dQ: T.Tensor((2, L, 3, 16), "float32")):
    with T.Kernel(T.ceildiv(L, 16), 3, 2, threads=64) as (bx, by, bz):
        T.annotate_layout({dQ: T.Layout(dQ.shape, lambda b, l, h, d: [b, h, l, d])})
        held = T.alloc_fragment((16, 16), "float32")
        T.copy(x[bz, bx * 16 : (bx + 1) * 16, by, :], held)
        for i, j in T.Parallel(16, 16):
            T.atomic_add(dQ[bz, bx * 16 + i, by, j], held[i, j])
        T.atomic_add(dQ[bz, bx * 16 : (bx + 1) * 16, by, :], held)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("length", [1, 16, 37])
def test_atomics_on_a_permuted_tensor(target: str, length: int) -> None:
    x = np.random.default_rng(1).standard_normal((2, length, 3, 16)).astype(np.float32)
    dQ = np.zeros_like(x)
    func = traced(added.function, {"x": x, "dQ": dQ})
    assert len(ops(func, Atomic)) == 2 and len(ops(func, Copy)) == 1
    run(added, target, x, dQ)
    np.testing.assert_array_equal(dQ.reshape(2, 3, length, 16).transpose(0, 2, 1, 3), 2 * x)


@tilec.kernel
def transposed(x: T.Tensor((6, 40), "int32"), y: T.Tensor((6, 40), "int32")):
    with T.Kernel(1, threads=64):
        T.annotate_layout({y: T.Layout(y.shape, lambda i, j: (j, i))})
        T.fill(y, 7)
        tile = T.alloc_shared((8, 40), "int32")
        T.copy(x, tile[0:6, :])
        for i, j in T.Parallel(6, 40):
            if j < 30:
                y[i, j] = tile[i, j]
        for i in T.serial(6):
            for j in T.Parallel(40):
                if j >= 39:
                    y[i, j] = y[i, j] + y[i, 0]


@pytest.mark.parametrize("target", TARGETS)
def test_elements_are_read_and_written_where_they_are(target: str) -> None:
    x, y = np.arange(240, dtype=np.int32).reshape(6, 40), np.zeros((6, 40), np.int32)
    run(transposed, target, x, y)
    expected = np.where(np.arange(40) < 30, x, 7)
    expected[:, 39] += expected[:, 0]
    np.testing.assert_array_equal(y.reshape(40, 6).T, expected)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_out_of_bounds_is_zero(target: str) -> None:
    x = np.random.default_rng(2).random((5, 9), dtype=np.float32) + 1
    y = np.full((7, 11), -1, np.float32)

    @tilec.kernel
    def kernel(x: T.Tensor((5, 9), "float32"), y: T.Tensor((7, 11), "float32"), n: T.int32):
        with T.Kernel(1, threads=64):
            T.annotate_layout({x: T.Layout(x.shape, lambda i, j: j * 5 + i)})
            T.copy(x[n : n + 7, n : n + 11], y)

    run(kernel, target, x, y, n=-1)
    expected = np.zeros((7, 11), np.float32)
    expected[1:6, 1:10] = x.ravel().reshape(9, 5).T
    np.testing.assert_array_equal(y, expected)


def test_large_tensors_are_not_evaluated_everywhere() -> None:
    def kernel(A: T.Tensor((64, 4096, 16, 128), "float32"), out: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            T.annotate_layout({A: by_matrix(A)})
            for i in T.Parallel(64):
                out[i] = A[0, i, 0, 1]

    arrays = {"A": np.empty((64, 4096, 16, 128), np.float32), "out": np.empty(64, np.float32)}
    func = traced(kernel, arrays, wide=True)
    (loop,) = ops(func, Parallel)
    assert len([o for o in loop.body.ops if isinstance(o, Load)]) == 1


MISTAKES = {
    "64": ("its layout is the int 64", "write T.Layout"),
    "T.Layout((4, 5), lambda i, j: (j, i))": ("another shape than A", "A.shape"),
    "T.Layout(A.shape, lambda i, j: (j * i, i))": ("both at offset|reaches", ""),
    "T.Layout(A.shape, lambda n, j: (j, n * j))": ("both at offset|coordinate 1 of", ""),
}


@pytest.mark.parametrize("written", MISTAKES)
def test_layouts_that_no_tensor_has(written: str) -> None:
    message, hint = MISTAKES[written]
    source = (
        "import tilec\nimport tilec.language as T\n\n\n"
        'def k(A: T.Tensor((4, 6), "float32")):\n'
        "    with T.Kernel(1, threads=32):\n"
        f"        T.annotate_layout({{A: {written}}})\n"
        "        T.clear(A)\n"
    )
    with pytest.raises(tilec.CompileError, match=message) as error:
        _traced_source(source)
    assert hint in error.value.hint
    assert error.value.loc is not None and error.value.loc.line == 7


def _traced_source(source: str) -> None:
    name = f"<{hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope: dict[str, Any] = {}
    exec(compile(source, name, "exec"), scope)
    traced(scope["k"], {"A": np.zeros((4, 6), np.float32)})


def test_other_tile_builtins_refuse_such_a_tensor() -> None:
    def kernel(A: T.Tensor((64, 64), "float16"), x: T.Tensor((64,), "float16")):
        with T.Kernel(1, threads=128):
            T.annotate_layout({A: T.Layout(A.shape, lambda i, j: (j, i))})
            tile = T.alloc_shared((64, 64), "float16")
            T.async_copy(A, tile)

    arrays = {"A": np.zeros((64, 64), np.float16), "x": np.zeros(64, np.float16)}
    with pytest.raises(tilec.CompileError, match="has a layout, and this works on tiles"):
        traced(kernel, arrays)


@pytest.mark.gpu
def test_layouts_of_tensors_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 200, 3, 16, device="cuda")
    dQ = torch.zeros_like(x)
    added(x, dQ)
    torch.testing.assert_close(dQ.view(2, 3, 200, 16).transpose(1, 2), 2 * x)
