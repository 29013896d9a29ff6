"""private_locals: scratch of a loop's iterations is theirs, and the iterations are shared out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

M = T.dynamic("M")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")


def program(how: str) -> Any:
    """Eight numbers of A become three words of B, by arrays of a thread's."""

    @tilec.kernel
    def kernel(A: T.Tensor((M, 1024), "float32"), B: T.Tensor((M, 384), "int32")):
        with T.Kernel(M, threads=128) as m:
            x, y = T.alloc_local((8,), "float32"), T.alloc_local((3,), "int32")
            s = T.alloc_local((1,), "float32")
            for g in T.Parallel(128):
                for j in T.serial(8):
                    x[j] = A[m, g * 8 + j]
                s[0] = 0.0
                for j in T.serial(8):
                    s[0] = s[0] + x[j]
                if how == "sometimes":
                    if s[0] > 4:
                        y[0] = 1
                for j in T.serial(3):
                    y[j] = T.cast(x[j] * 100 + s[0], "int32")
                for j in T.serial(3):
                    B[m, g * 3 + j] = y[j]

    return kernel


def given(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    a = rng.integers(0, 8, (5, 1024)).astype(np.float32) / 8
    groups = a.reshape(5, 128, 8)
    want = (groups[..., :3] * 100 + groups.sum(-1, keepdims=True)).astype(np.int32)
    return a, np.full((5, 384), -1, np.int32), want.reshape(5, 384)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", ["plain", "sometimes"])
def test_numbers(how: str, target: str, rng: np.random.Generator) -> None:
    a, b, want = given(rng)
    run(program(how), target, a, b)
    np.testing.assert_array_equal(b, want)


@pytest.mark.parametrize(("how", "inside"), [("plain", "xys"), ("sometimes", "xs")])
def test_what_is_scratch(how: str, inside: str, rng: np.random.Generator) -> None:
    """What an iteration reads first, or writes under a condition, may be what another has left."""
    a, b, _ = given(rng)
    text = program(how).compile(a, b, target="cuda:sm_90a").stages["private_locals"]
    before = text[: text.index("parallel")]
    for name in "xys":
        assert (f"%{name} = alloc local" in before) == (name not in inside)


def test_iterations_are_shared_out(rng: np.random.Generator) -> None:
    a, b, _ = given(rng)
    report = tilec.simulate(program("plain"), a, b, target="cuda:sm_90a", blocks=1)
    assert "4,096 / 0" in str(report)  # a row's bytes; all threads read each of them before
