"""What a kernel that has been compiled holds on to: nothing of the plans and the tiles that were
given up, whose errors would hold all that had been made until then. What is left of one that was
simulated: nothing."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.codegen.assemble import Assembled
from tilec.frontend.tracer import _KernelTracer
from tilec.ir.errors import CompileError
from tilec.jit.attempts import Attempt, Attempts
from tilec.sim.block import ThreadBlock
from tilec.sim.program import Program

N = T.dynamic("N")


@pytest.fixture
def alive() -> Iterator[Callable[..., list[Any]]]:
    """The objects of some classes that there are, and were not before."""

    def found(*classes: type) -> list[Any]:
        gc.collect()
        return [o for o in gc.get_objects() if isinstance(o, classes) and id(o) not in before]

    before = {id(o) for o in gc.get_objects()}
    yield found


def test_nothing_is_kept_of_plans_that_spill(
    monkeypatch: pytest.MonkeyPatch, alive: Callable[..., list[Any]]
) -> None:
    def spilling(text: str, target: Any, *_: Any) -> Assembled:
        return Assembled(text, target, b"", spilled_bytes=800, advisories=("800 bytes spilled",))

    monkeypatch.setattr(sys.modules["tilec.jit.attempts"], "assemble", spilling)

    @tilec.kernel
    def double(X: T.Tensor((N, 64), "float32"), Y: T.Tensor((N, 64), "float32")):
        with T.Kernel(T.ceildiv(N, 64), threads=128) as b:
            x = T.alloc_shared((64, 64), "float32")
            for n in T.Pipelined(1, num_stages=2):
                T.copy(X[b * 64 + n, 0], x)
                for i, j in T.Parallel(64, 64):
                    x[i, j] *= 2
                T.copy(x, Y[b * 64 + n, 0])

    compiled = double.compile(*2 * [tilec.spec((256, 64), "float32")], target="cuda:sm_90a")
    assert not alive(Attempts, Attempt, CompileError), "beside its image and its stages"
    assert ": the assembler reports: 800 bytes spilled" in compiled.stages["plan"]


def test_nothing_is_kept_of_tiles_that_do_not_compile(alive: Callable[..., list[Any]]) -> None:
    @tilec.kernel
    def double(
        X: T.Tensor((N,), "float32"),
        Y: T.Tensor((N,), "float32"),
        BN: T.constexpr = T.auto(64, 256),
    ):
        with T.Kernel(T.ceildiv(N, BN), threads=64) as b:
            x = T.alloc_fragment((BN // 128, 128), "float32")
            for i, j in T.Parallel(BN // 128, 128):
                x[i, j] = X[b * BN + i * 128 + j] * 2
            for i, j in T.Parallel(BN // 128, 128):
                Y[b * BN + i * 128 + j] = x[i, j]

    specs = 2 * [tilec.spec((4096,), "float32")]
    assert "BN=256" in str(double.recommend(*specs, target="cuda:sm_90a"))
    assert not alive(_KernelTracer), "of 64, which makes no fragment"


def test_nothing_is_kept_of_a_run_with_products_in_flight(alive: Callable[..., list[Any]]) -> None:
    @tilec.kernel
    def product(
        A: T.Tensor((64, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True)
            T.copy(c, C)

    a, c = np.eye(64, dtype=np.float16), np.zeros((64, 64), np.float32)
    report = tilec.simulate(product, a, a, c, target="cuda:sm_90a")
    assert report.ok and (c == a).all()
    assert not alive(ThreadBlock), "beside its report"
    del product
    assert not alive(Program)
