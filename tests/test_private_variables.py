"""Variables made before a T.Parallel whose iterations write them before they read them: each
iteration has its own. And what else runs in a kernel as the Python it is: `print`, an element that
is named and not used."""

from __future__ import annotations

import numpy as np
import pytest
from frontend_help import traced
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import Alloc, Parallel

pytestmark = pytest.mark.turns

N = T.dynamic("N")
TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


@tilec.kernel
def digits(A: T.Tensor((N,), "int32")):
    """The last digit of 2 a, and that digit plus 1 behind it."""
    C = T.empty((N, 2), "int32")
    with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
        v = T.alloc_var("int32")
        kept = T.alloc_fragment((64,), "int32")
        for _ in T.serial(2):
            for i in T.Parallel(64):
                v = A[bx * 64 + i] * 2
                while v >= 10:
                    v = v - 10
                kept[i] = v
        for i in T.Parallel(64):
            v = kept[i]
            C[bx * 64 + i, 0] = v
            v += 1
            C[bx * 64 + i, 1] = v
    return C


@pytest.mark.parametrize("size", [1, 64, 100])
def test_each_iteration_has_its_own(size: int) -> None:
    a = np.arange(size, dtype=np.int32)
    want = np.stack([2 * a % 10, 2 * a % 10 + 1], axis=1)
    np.testing.assert_array_equal(digits(a), want)
    report = tilec.simulate(digits, a)
    np.testing.assert_array_equal(next(iter(report.outputs.values())), want)


def test_the_variable_is_made_in_the_loop() -> None:
    func = traced(digits.function, {"A": np.zeros(8, np.int32)})
    loops = [o for o in walk(func.body) if isinstance(o, Parallel)]
    assert len(loops) == 2
    assert all(any(isinstance(o, Alloc) for o in walk(loop.body)) for loop in loops)


@pytest.mark.parametrize("target", TARGETS)
def test_it_compiles(target: str) -> None:
    assert digits.compile(tilec.spec((100,), "int32"), target=target).asm


@tilec.kernel
def of_open_loops(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        v = T.alloc_var("float32")
        w = T.alloc_var("float32")
        for i in T.Parallel(N):
            v = X[i] * 2
            v += 1
            Y[i] = v
        for i in T.Parallel(N):
            if Y[i] > 3:
                w = Y[i]
                w = w * w
                Y[i] = w


@pytest.mark.parametrize("target", TARGETS)
def test_loops_over_tiles_and_conditions(target: str, rng: np.random.Generator) -> None:
    """The first statement of a tile's loop is a condition that its iteration is inside."""
    x, y = rng.standard_normal(100).astype(np.float32), np.zeros(100, np.float32)
    run(of_open_loops, target, x, y)
    want = x * 2 + 1
    np.testing.assert_allclose(y, np.where(want > 3, want * want, want), rtol=1e-5)
    func = traced(of_open_loops.function, {"X": x, "Y": y})
    assert all(len([*o.body.every(Alloc)]) == 1 for o in func.body.every(Parallel))


def test_print_runs_while_the_kernel_is_traced(capsys: pytest.CaptureFixture[str]) -> None:
    @tilec.kernel
    def shown(A: T.Tensor((N,), "int32"), n: T.constexpr):
        with T.Kernel(1, threads=32) as bx:
            print("tile", n * 2, bx, sep=" | ")
            A[0]
            A[0] = n

    a = np.zeros(3, np.int32)
    shown(a, 4)
    assert a[0] == 4
    said = capsys.readouterr().out.splitlines()
    assert set(said) == {"tile | 8 | <bx, a run-time int32: T.print shows it>"}


def test_pythons_abs_of_variables() -> None:
    @tilec.kernel
    def measured(X: T.Tensor((N,), "int32"), Y: T.Tensor((N,), "int32")):
        for i in T.Parallel(N):
            a: T.int32 = X[i]
            b = T.alloc_var("int32")
            b = a - 3
            Y[i] = abs(a) + 10 * abs(b) + 100 * max(abs(a), b, 2)

    x = np.array([-5, 2, 7, 0], np.int32)
    y = np.zeros_like(x)
    measured(x, y)
    b = x - 3
    largest = np.maximum(np.maximum(abs(x), b), 2)
    np.testing.assert_array_equal(y, abs(x) + 10 * abs(b) + 100 * largest)
