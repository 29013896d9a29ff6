"""Examples of rows, sums and orders in the simulator: on small shapes, ragged ones and those of one
element, they race nowhere, wait for nothing for ever, and pass their own checks."""

from __future__ import annotations

import importlib
from typing import Any

import ml_dtypes
import pytest

import tilec

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
SHAPES: dict[str, tuple[Any, ...]] = {
    "layer_norm": ((2, 1000), (3, 1)),
    "gemv": ((5, 1030), (1, 1)),
    "split_k": ((33, 65, 999), (1, 1, 1)),
    "sparse_gemm": ((33, 65, 176), (1, 1, 16)),
    "fp8_quantise": ((2, 1000), (3, 1)),
    "hadamard": ((1, 1000), (2, 1)),
    "tensor_sum": (1, 9001),
    "row_cumsum": ((2, 2051), (1, 1)),
    "top_k": ((2, 1000, 3), (1, 1, 1)),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SHAPES)
def test_simulated(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    support, example = (importlib.import_module(n) for n in ("example_support", name))
    monkeypatch.setattr(support, "ON_GPU", False)
    kernel, calls = getattr(example, name), []

    def simulated(*arrays: Any, **given: Any) -> None:
        report = tilec.simulate(kernel, *arrays, target=target, **given)
        assert report.ok, report
        calls.append(target)

    monkeypatch.setattr(example, name, simulated)
    given = {}
    if name == "fp8_quantise" and target.startswith("hip"):
        monkeypatch.setitem(support._EXTENSIONS, "float8_e4m3", ml_dtypes.float8_e4m3fnuz)
        given["high"] = 240.0
    example.main(SHAPES[name], **given)
    assert len(calls) == len(SHAPES[name])
