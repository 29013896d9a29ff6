"""Lists of tensors that a kernel makes, and returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import simulated

import tilec
import tilec.language as T
from tilec.ir.errors import CompileError

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
N = 40
SHAPES = ((N,), (N, 2))


@tilec.kernel
def made_by_a_comprehension(A: T.Tensor((N,), "float32")):
    made = [T.empty((N,), "float32") for _ in range(2)]
    for i in T.Parallel(N):
        made[0][i] = A[i]
        made[1][i] = A[i] * 2
    return made


@tilec.kernel
def written_out(A: T.Tensor((N,), "float32")):
    made = [T.empty((N,), "float32"), T.empty((N,), "float32")]
    with T.Kernel(1, threads=64):
        for i in T.Parallel(N):
            made[0][i] = A[i]
            made[1][i] = A[i] * 2
    return made


@tilec.kernel
def with_names(A: T.Tensor((N,), "float32")):
    n = len(SHAPES)
    first, second = [T.empty((N,), "float32") for _ in range(n)]
    for i in T.Parallel(N):
        first[i], second[i] = A[i], A[i] * 2
    return first, second


@tilec.kernel
def of_names(A: T.Tensor((N,), "float32")):
    first, second = T.empty((N,), "float32"), T.empty((N,), "float32")
    made = (first, second)
    for i in T.Parallel(N):
        made[0][i], made[1][i] = A[i], A[i] * 2
    return made


@tilec.kernel
def in_two_launches(A: T.Tensor((N,), "float32")):
    between = [T.empty(shape, "float32") for shape in SHAPES]
    made = [T.empty((N,), "float32") for _ in SHAPES]
    with T.Kernel(1, threads=64):
        for i in T.Parallel(N):
            between[0][i] = A[i]
            between[1][i, 1] = A[i] * 2
    with T.Kernel(1, threads=64):
        for i in T.Parallel(N):
            made[0][i] = between[0][i]
            made[1][i] = between[1][i, 1]
    return made


@tilec.kernel
def with_a_star(A: T.Tensor((N,), "float32")):
    made = [T.empty((N,), "float32") for _ in range(1)]
    last = T.empty((N,), "float32")
    for i in T.Parallel(N):
        made[0][i], last[i] = A[i], A[i] * 2
    return *made, last


@tilec.kernel
def as_a_tuple(A: T.Tensor((N,), "float32")):
    made = [T.empty((N,), "float32") for _ in range(2)]
    for i in T.Parallel(N):
        made[0][i], made[1][i] = A[i], A[i] * 2
    return tuple(made)


KERNELS = (
    made_by_a_comprehension, written_out, with_names, of_names, in_two_launches, with_a_star,
    as_a_tuple,
)  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_numbers(kernel: Any, target: str) -> None:
    a = np.arange(N, dtype=np.float32)
    if target == "cpu":
        found = kernel(a)
    else:
        with simulated(target) as reports:
            found = kernel(a)
        assert reports and all(r.ok for r in reports)
        found = found[-2:]  # a simulation shows what is between launches, too
    np.testing.assert_array_equal(found[0], a)
    np.testing.assert_array_equal(found[1], a * 2)


def test_a_list_that_has_changed() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32")):
        made = [T.empty((N,), "float32") for _ in range(2)]
        made = made[::-1]
        for i in T.Parallel(N):
            made[0][i], made[1][i] = A[i], A[i] * 2
        return made

    with pytest.raises(CompileError, match="is not what it was made as") as e:
        kernel(np.zeros(N, np.float32))
    assert e.value.loc is not None
    assert "return made" in str(e.value)


def test_what_is_no_list_of_tensors() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32")):
        made = T.empty((N,), "float32")
        for i in T.Parallel(N):
            made[i] = A[i]
        return *made, A

    with pytest.raises(CompileError, match=r"a kernel returns tensors, not \*made"):
        kernel(np.zeros(N, np.float32))


def test_as_many_as_an_argument_says() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32"), n: T.constexpr):
        made = [T.empty((N,), "float32") for _ in range(n)]
        with T.Kernel(1, threads=64):
            for i in T.Parallel(N):
                made[0][i] = A[i]
        with T.Kernel(1, threads=64):
            for i in T.Parallel(N):
                A[i] = made[0][i] + 1

    with pytest.raises(CompileError, match="whether there is made_0 depends on the call"):
        kernel(np.zeros(N, np.float32), 2)
