"""Kernels that are given no array: scalars, constants, and outputs that the call allocates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942", "cpu")


@tilec.kernel
def iota(start: T.int32, step: T.float32 = 1.0, N: T.constexpr = 100):
    C = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, 32), threads=64) as b:
        for i in T.Parallel(32):
            C[b * 32 + i] = start + (b * 32 + i) * step
    return C


@tilec.kernel(out=["C", "D"])
def twins(C: T.Tensor((40,), "float32"), D: T.Tensor((3, 5), "int32"), x: T.int32):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(40):
            C[i] = x
        for i, j in T.Parallel(3, 5):
            D[i, j] = i * 5 + j


@tilec.kernel(out=["C"])
def gridless(C: T.Tensor((64,), "bfloat16"), x: T.float32):
    with T.Kernel(threads=64) as b:
        for i in T.Parallel(32):
            C[b * 32 + i] = x


@tilec.kernel
def nothing(n: T.int32):
    with T.Kernel(n, threads=64):
        x = T.alloc_local((1,), "int32")
        x[0] = n


@tilec.kernel(out=["C"])
def named(C: T.Tensor((4,), "int32"), device: T.int32, target: T.int32):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(4):
            C[i] = device * 10 + target


@pytest.fixture(autouse=True)
def _no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEC_TARGET", raising=False)


WHERE: list[dict[str, Any]] = [{}, {"device": "cpu"}, {"target": "cpu"}, {"device": "cpu:0"},
                               {"device": "cpu", "target": "cpu"}]  # fmt: skip


@pytest.mark.parametrize("where", WHERE)
def test_launches(where: dict[str, Any]) -> None:
    for start in (3, 4, -7):
        for n in (100, 32, 1):
            c = iota(start, 0.5, N=n, **where)
            assert isinstance(c, np.ndarray) and c.dtype == np.float32
            np.testing.assert_array_equal(c, start + 0.5 * np.arange(n, dtype=np.float32))
    c, d = twins(7, **where)
    assert (c == 7).all() and (d == np.arange(15).reshape(3, 5)).all()
    assert (gridless[2](1.5, **where).astype(np.float32) == 1.5).all()
    assert nothing(3, **where) is None


def test_results_are_arrays_of_their_own() -> None:
    kept = [iota(n) for n in range(8)]
    for n, c in enumerate(kept):
        np.testing.assert_array_equal(c, n + np.arange(100, dtype=np.float32))


def test_parameters_called_like_the_keywords() -> None:
    assert (named(4, 2) == 42).all() and (named(device=1, target=2) == 12).all()


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [iota, twins, nothing], ids=lambda k: k.name)
def test_compiles(kernel: Any, target: str) -> None:
    compiled = kernel.compile(target=target)
    assert compiled.target == target and compiled.binary
    assert kernel.compile(3, target=target).image.grid


@pytest.mark.parametrize("target", TARGETS[:3])
def test_simulates(target: str) -> None:
    report = tilec.simulate(iota, 2, 0.5, target=target)
    assert report.ok, str(report)
    np.testing.assert_array_equal(report.outputs["C"], 2 + 0.5 * np.arange(100, dtype=np.float32))


def test_compiled_and_loaded_kernels_launch(tmp_path: Any) -> None:
    compiled = iota.compile(target="cpu")
    compiled.save(tmp_path / "iota.tilec")
    for kernel in (compiled, tilec.load(tmp_path / "iota.tilec")):
        np.testing.assert_array_equal(kernel(5, 2.0), 5 + 2 * np.arange(100, dtype=np.float32))


def test_the_environment_names_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_TARGET", "cuda:sm_80")
    assert iota.compile().target == "cuda:sm_80"
    assert (iota(1, device="cpu")[:2] == [1, 2]).all()


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        ({"device": "tpu"}, tilec.LaunchError, "device is 'tpu', which is none"),
        ({"device": "cpu:x"}, tilec.LaunchError, "device is 'cpu:x'"),
        ({"device": 3}, tilec.LaunchError, "device is 3"),
        ({"target": "gpu"}, tilec.TargetError, "did you mean 'cuda'"),
        ({"target": 3}, tilec.TargetError, "unknown target 3"),
        ({"device": "cpu", "target": "cuda:sm_80"}, tilec.LaunchError, "runs cpu, not cuda:sm_80"),
    ],
)
def test_wrong_places(where: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        iota(1, **where)
    assert caught.value.hint and caught.value.loc.file == __file__


def test_kernels_with_arrays_run_where_these_are() -> None:
    @tilec.kernel
    def fill(A: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=64):
            A[0] = 1.0

    with pytest.raises(tilec.LaunchError, match="no parameter 'device'") as error:
        fill(np.zeros(4, np.float32), device="cpu")
    assert "where its arguments are" in error.value.hint


class OddShape:
    shape, dtype = 5, "x"


class FailingShape:
    dtype = "x"

    @property
    def shape(self) -> Any:
        raise AttributeError("none yet")


@pytest.mark.parametrize("captured", [OddShape(), FailingShape()], ids=lambda c: type(c).__name__)
def test_captured_objects_with_an_odd_shape(captured: Any) -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=64):
            A[0] = captured

    with pytest.raises(tilec.CompileError, match="Shape, not a number"):
        kernel.compile(np.zeros(4, np.float32), target="cpu")
