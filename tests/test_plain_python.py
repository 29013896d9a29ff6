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


def test_bounds_of_a_launch() -> None:
    """Both vendors' words for it, and none where nothing is said."""
    kernel, _ = PROGRAMS["small_words"]
    plain, _ = PROGRAMS["nested_loops"]
    specs = (tilec.spec((200,), "float32"),) * 2
    assert ".minnctapersm 2" in kernel.compile(*specs, target="cuda:sm_90a").stages["ptx"]
    amd = kernel.compile(*specs, target="hip:gfx942")
    assert '"amdgpu-waves-per-eu"="1"' in amd.stages["llvm"]
    assert "waves-per-eu" not in plain.compile(*specs, target="hip:gfx942").stages["llvm"]


def test_without_arguments() -> None:
    @tilec.kernel
    def numbers():
        out = T.empty((70,), "int32")
        with T.Kernel(1, threads=64):
            for i in T.serial(0, 70, 2):
                out[i] = i
            for i in T.serial(69, 0, -2):
                out[i] = -i
        return out

    want = np.where(np.arange(70) % 2, -np.arange(70), np.arange(70))
    np.testing.assert_array_equal(numbers(), want)
    for target in GPUS:
        report = tilec.simulate(numbers, target=target)
        assert not report.findings
        np.testing.assert_array_equal(report.outputs["out"], want)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_dtypes_by_name(size: int) -> None:
    @tilec.kernel
    def bits(C: T.Tensor((N,), "int32"), dtype: T.dtype = T.float16):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                C[i] = T.dtype(dtype).bits + T.dtype("int8").bits

    c = np.zeros(size, np.int32)
    bits(c)
    assert (c == 24).all()
    bits(c, dtype=T.float64)
    assert (c == 72).all()
