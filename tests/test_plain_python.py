"""Python at trace time: functions, objects, lists and text of what is known at compile time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from python_programs import PROGRAMS

import tilec
import tilec.language as T

GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
N = T.dynamic("N")


def arguments(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return (rng.standard_normal(n) * 3).astype(np.float32), np.zeros(n, np.float32)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("n", [1, 63, 64, 200])
def test_numbers(name: str, n: int, rng: np.random.Generator) -> None:
    kernel, expected = PROGRAMS[name]
    a, c = arguments(n, rng)
    kernel(a, c)
    np.testing.assert_allclose(c, expected(a.astype(np.float64)), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_compiles(name: str, target: str) -> None:
    kernel, _ = PROGRAMS[name]
    specs = (tilec.spec((200,), "float32"),) * 2
    assert "define" in kernel.compile(*specs, target=target).stages["llvm"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_simulated(name: str, rng: np.random.Generator) -> None:
    kernel, expected = PROGRAMS[name]
    a, c = arguments(130, rng)
    report = tilec.simulate(kernel, a, c, target="cuda:sm_90a")
    assert not report.findings, report
    np.testing.assert_allclose(c, expected(a.astype(np.float64)), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_the_gpu(name: str, rng: np.random.Generator, torch: Any) -> None:
    kernel, expected = PROGRAMS[name]
    a, _ = arguments(200, rng)
    c = torch.zeros(200, device="cuda")
    kernel(torch.from_numpy(a).cuda(), c)
    want = expected(a.astype(np.float64))
    np.testing.assert_allclose(c.cpu().numpy(), want, rtol=1e-5, atol=1e-5)
