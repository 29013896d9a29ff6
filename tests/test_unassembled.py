"""The fixture under which code for GPUs is verified and not assembled."""

from __future__ import annotations

from typing import Any

import apart
import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec import codegen
from tilec.ir.errors import InternalError

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
SPECS = (tilec.spec((1000,), "float32"), tilec.spec((1000,), "float32"))
N = T.dynamic("N")


def doubled(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
        for i in T.Parallel(128):
            B[bx * 128 + i] = A[bx * 128 + i] * 2


@pytest.mark.parametrize("target", TARGETS)
def test_variants_are_not_those_of_other_tests(target: str, request: pytest.FixtureRequest) -> None:
    kernel = tilec.kernel(doubled)
    whole = kernel.compile(*SPECS, target=target)
    request.getfixturevalue("unassembled")
    made = kernel.compile(*SPECS, target=target)
    assert made.binary == b"none" != whole.binary and made.resources.registers is None
    assert made.plan == whole.plan and made.asm == whole.asm


@pytest.mark.parametrize("target", TARGETS)
def test_llvm_verifies_them(
    target: str, unassembled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit_records = codegen.emit_records

    def broken(*args: Any) -> tuple[codegen.Emitter, str]:
        emitter, text = emit_records(*args)
        return emitter, text.replace("ret void", "ret i32 0")

    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    monkeypatch.setattr(codegen, "emit_records", broken)
    with pytest.raises((InternalError, RuntimeError), match="return|ret"):
        tilec.kernel(doubled).compile(*SPECS, target=target)


def kinds(kernel: tilec.Kernel) -> list[bool]:
    """Of each variant that a kernel has, whether it was assembled."""
    return [v.binary != b"none" for v in kernel._variants.values()]


@pytest.mark.usefixtures("assembled")
@pytest.mark.parametrize("target", TARGETS)
def test_what_only_the_simulator_runs(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, arrays = tilec.kernel(doubled), [np.ones(1000, np.float32) for _ in range(2)]
    assert tilec.simulate(kernel, *arrays, target=target).ok and kinds(kernel) == [True]
    monkeypatch.setattr(apart.wanted, "simulated", True)
    assert tilec.simulate(kernel, *arrays, target=target).ok and kinds(kernel) == [True]
    other = tilec.kernel(doubled)
    assert tilec.simulate(other, *arrays, target=target).ok and kinds(other) == [False]
    plan = other.compile(*SPECS, target=target).plan
    assert kinds(other) == [False, True] and {v.plan for v in other._variants.values()} == {plan}
