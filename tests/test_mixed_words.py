"""Programs that mix words in ways that no other test does: numbers against float64 on the CPU, in
the simulator and compiled for every target, and on a GPU."""

from __future__ import annotations

from typing import Any

import mixed_programs_more  # noqa: F401  (adds to PROGRAMS)
import numpy as np
import pytest
from mixed_programs import PROGRAMS

import tilec

pytestmark = pytest.mark.usefixtures("unassembled")

RUNS = [(name, target) for name, made in PROGRAMS.items() for target in made[4]]


def check(name: str, arrays: dict[str, Any], right: dict[str, Any]) -> None:
    tolerance = PROGRAMS[name][3]
    for n, x in right.items():
        got, want = (np.asarray(v).astype(np.float64) for v in (arrays[n], x))
        scale = tolerance * max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=scale, err_msg=n)


def made(name: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    kernel, make, want = PROGRAMS[name][:3]
    arrays = make(np.random.default_rng(7))
    return kernel, arrays, want({n: a.copy() for n, a in arrays.items()})


@pytest.mark.covering(1, axes=("name", "target"))
@pytest.mark.parametrize(("name", "target"), RUNS)
def test_numbers(name: str, target: str) -> None:
    kernel, arrays, right = made(name)
    if target == "cpu":
        kernel(**arrays)
    else:
        report = tilec.simulate(kernel, *arrays.values(), target=target)
        assert report.ok, report
        kernel.compile(*arrays.values(), target=target)
    check(name, arrays, right)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_a_gpu(torch: Any, name: str) -> None:
    kernel, arrays, right = made(name)
    given = {}
    for n, a in arrays.items():
        scale = a.dtype.name == "float8_e8m0fnu"
        bits = {"float8_e8m0fnu": np.uint8, "uint16": np.int16, "uint32": np.int32}
        x = torch.from_numpy(a.view(bits.get(a.dtype.name, a.dtype))).cuda()
        wanted = torch.float8_e8m0fnu if scale else getattr(torch, a.dtype.name)
        given[n] = x.view(wanted)
    kernel(**given)
    for n, a in arrays.items():
        if n in right:
            plain = {np.dtype(np.uint16): torch.int16, np.dtype(np.uint32): torch.int32}
            x = given[n].view(plain[a.dtype]) if a.dtype in plain else given[n]
            arrays[n] = x.cpu().numpy().view(a.dtype)
    check(name, arrays, right)
