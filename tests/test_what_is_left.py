"""What compilations and simulations leave goes as soon as nobody has it: it holds itself nowhere,
so that no search for cycles is needed, which takes the longer the more there is. What they have
made serves who asks for the same."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import mha_fwd
import numpy as np
import pytest
from test_unassembled import TARGETS, doubled

import tilec
import tilec.language as T
from tilec.codegen import emit_records
from tilec.ir.core import Func
from tilec.ir.llvm import Inst
from tilec.passes.simplify import _Forward
from tilec.sim import records
from tilec.sim.block import ThreadBlock
from tilec.sim.program import Program
from tilec.target import Target, find_target
from tilec.tune import fit

pytestmark = pytest.mark.usefixtures("unassembled")
LARGE = (Func, Inst, _Forward, Program, ThreadBlock)


def left(work: Callable[[], Any]) -> Counter[str]:
    """What only a search for cycles finds behind `work`, of what is large, by the names of
    classes."""
    work()  # what is made once stays
    gc.collect()
    gc.disable()
    try:
        work()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return Counter(type(x).__name__ for x in gc.garbage if isinstance(x, LARGE))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("target", [find_target(name) for name in TARGETS], ids=str)
def test_passes_and_emitters(target: Target) -> None:
    """Of plans that are refused, too, whose errors hold all that had been made."""
    kernel, tried = mha_fwd.mha(128, 128), list[object]()
    tile = {"BM": 128, "BN": 64 if target.kind == "hip" else 128}
    asked = kernel.described(mha_fwd.specs(128, 128), target.name, tile)
    func = kernel.choices.traced(asked.signature, asked.key())

    def work() -> None:
        done = fit.first_fit(func, target, on_plan=lambda plan, error: tried.append(error))
        emit_records(done, target)

    assert not left(work)
    assert any(tried) or target.kind == "hip", "none was refused"


@pytest.mark.parametrize("target", TARGETS)
def test_simulations(target: str) -> None:
    kernel, arrays = tilec.kernel(doubled), [np.ones(1000, np.float32) for _ in range(2)]

    def work() -> None:
        assert tilec.simulate(kernel, *arrays, target=target).ok

    assert not left(work)


def test_python_reads_a_segment_once_for_kernels_that_differ_in_names() -> None:
    known, read = records._code.cache_info, []
    for dtype in ("float32", "int32"):

        @tilec.kernel
        def doubled(A: T.Tensor((1000,), dtype), B: T.Tensor((1000,), dtype)):
            with T.Kernel(8, threads=128) as bx:
                for i in T.Parallel(128):
                    B[bx * 128 + i] = A[bx * 128 + i] - A[bx * 128]

        arrays = [np.ones(1000, dtype) for _ in range(2)]
        before = known().misses
        assert tilec.simulate(doubled, *arrays, target="cuda:sm_80").ok
        read.append(known().misses - before)
    assert read[1] < read[0] or not any(read)
