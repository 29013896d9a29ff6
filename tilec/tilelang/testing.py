"""`tilelang.testing`: what TileLang's own tests import."""

from __future__ import annotations

import operator
import random
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tilec.ir.errors import TilecError
from tilec.runtime.devices import default_target
from tilec.tilelang.profiler import check_close

Test = Callable[..., Any]
_COMPARED = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "eq": operator.eq,
}


def _target() -> str:
    """What kernels are compiled for here; "" where nobody can say."""
    try:
        return default_target()
    except TilecError:
        return ""


def _needs(kind: str, what: str) -> Callable[[Test], Any]:
    mark = pytest.mark.skipif(not _target().startswith(kind), reason=f"no {what}")
    return lambda test: mark(test)


requires_cuda = _needs("cuda", "NVIDIA GPU")
requires_rocm = _needs("hip", "AMD GPU")
requires_cdna = _needs("hip:gfx9", "AMD GPU of the CDNA kind")
requires_gfx950 = _needs("hip:gfx950", "gfx950")
requires_metal = _needs("metal", "Metal, for which tilec does not compile")


def requires_cuda_or_cdna(test: Test) -> Any:
    """Skip the test where there is neither an NVIDIA GPU nor one of AMD's CDNA kind."""
    there = _target().startswith(("cuda", "hip:gfx9"))
    return pytest.mark.skipif(not there, reason="no NVIDIA or CDNA GPU")(test)


def requires_package(*names: str) -> Callable[[Test], Any]:
    """Skip the test where a package cannot be imported."""

    def decorate(test: Test) -> Any:
        for name in names:
            found = name in sys.modules or _can_import(name)
            test = pytest.mark.skipif(not found, reason=f"no package {name}")(test)
        return test

    return decorate


def _can_import(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def requires_cuda_compute_version(
    major_version: int, minor_version: int = 0, mode: str = "ge"
) -> Callable[[Test], Any]:
    """Skip the test where the compute capability does not compare so: "ge", "gt", "le", "lt", "eq".

    Raises ValueError for another mode.
    """
    if mode not in _COMPARED:
        raise ValueError(f"mode is {mode!r}, not one of {', '.join(_COMPARED)}")
    found = re.match(r"cuda:sm_(\d+)(\d)", _target())
    asked = (major_version, minor_version)
    fits = found is not None and _COMPARED[mode]((int(found[1]), int(found[2])), asked)
    reason = f"needs compute capability {mode} {major_version}.{minor_version}"
    mark = pytest.mark.skipif(not fits, reason=reason)
    return lambda test: mark(test)


def __getattr__(name: str) -> Any:
    prefix, _, mode = name.rpartition("_")
    if prefix != "requires_cuda_compute_version" or mode not in _COMPARED:
        raise AttributeError(f"tilec.tilelang.testing has no {name!r}", name=name)
    return lambda major, minor=0: requires_cuda_compute_version(major, minor, mode)


def torch_assert_close(
    tensor_a: Any,
    tensor_b: Any,
    rtol: float = 1e-2,
    atol: float = 1e-3,
    max_mismatched_ratio: float = 0.001,
    **_: Any,
) -> None:
    """Raise AssertionError where more than `max_mismatched_ratio` of the elements differ."""
    check_close(tensor_a, tensor_b, rtol, atol, max_mismatched_ratio)


def set_random_seed(seed: int = 42) -> None:
    """Seed Python's and torch's generators."""
    import torch

    random.seed(seed)
    torch.manual_seed(seed)


def main() -> None:
    """Run the tests of the file that calls this."""
    sys.exit(pytest.main([sys._getframe(1).f_code.co_filename]))
