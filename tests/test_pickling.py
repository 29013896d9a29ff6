"""Kernels that are copied, pickled, and sent to other processes."""

from __future__ import annotations

import copy
import multiprocessing
import pickle

import numpy as np
import pytest

import tilec
import tilec.language as T

N = T.dynamic("N")


@tilec.kernel
def double(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 32), threads=32) as b:
        for i in T.Parallel(32):
            B[b * 32 + i] = A[b * 32 + i] * 2


class Holder:
    @tilec.kernel
    def inner(A: T.Tensor((N,), "float32")):  # noqa: N805
        with T.Kernel(1, threads=32):
            A[0] = 1.0


def factory():
    @tilec.kernel
    def local(A: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            A[0] = 1.0

    return local


def run(kernel, values: list[float]) -> list[float]:
    a = np.array(values, np.float32)
    b = np.zeros_like(a)
    kernel(a, b)
    return b.tolist()


def test_copies_are_the_kernel() -> None:
    for kernel in (double, factory()):
        assert copy.copy(kernel) is kernel and copy.deepcopy([kernel])[0] is kernel


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_kernels_are_pickled_by_name(protocol: int) -> None:
    assert pickle.loads(pickle.dumps(double, protocol)) is double
    if protocol >= 4:  # before that, pickle knows no names with dots
        assert pickle.loads(pickle.dumps(Holder.inner, protocol)) is Holder.inner


def test_what_no_name_leads_to_is_refused() -> None:
    with pytest.raises(tilec.LaunchError, match=r"factory.<locals>.local .*cannot be pickled") as e:
        pickle.dumps(factory())
    assert "at the top of a module" in e.value.hint
    assert e.value.loc is not None and e.value.loc.file == __file__


def test_other_processes() -> None:
    a = tilec.spec((4,), "float32")
    compiled = double.compile(a, a, target="cpu")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for kernel in (double, compiled):
            assert pool.apply(run, (kernel, [1.0, 2.0, 3.0])) == [2.0, 4.0, 6.0]
