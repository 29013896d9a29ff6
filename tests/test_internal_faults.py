"""A bug of tilec's reaches its user as an InternalError with a line of the kernel; what code of the
user's raises stays as it is."""

from __future__ import annotations

from typing import Any

import pytest

import tilec
import tilec.language as T
from tilec import passes
from tilec.frontend.tracer import _KernelTracer
from tilec.ir import caller
from tilec.tune import rank

N = T.dynamic("N")


def made() -> Any:
    @tilec.kernel
    def negate(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                C[i] = -A[i]

    return negate


def broken(*_: object, **__: object) -> Any:
    raise KeyError("acc")


def message(target: str = "cuda:sm_80") -> str:
    with pytest.raises(tilec.InternalError) as caught:
        made().compile(*[tilec.spec((64,), "float32")] * 2, target=target)
    assert isinstance(caught.value.__cause__, KeyError)
    text = str(caught.value)
    assert "KeyError: 'acc' (tests." in text or "KeyError: 'acc' (tilec." in text, text
    assert "report it" in text
    return text


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This module's `broken` counts as tilec's own."""
    monkeypatch.setitem(broken.__globals__, "__name__", "tilec.broken")
    return monkeypatch


def test_of_the_frontend(ours: pytest.MonkeyPatch) -> None:
    ours.setattr(_KernelTracer, "unary", broken)
    assert "C[i] = -A[i]\n" in message()


def test_of_a_pass(ours: pytest.MonkeyPatch) -> None:
    ours.setattr(passes, "apply", broken)
    text = message("cpu")
    assert "compiling this kernel" in text and "test_internal_faults.py" in text.split(": ")[0]


def test_of_a_choice(ours: pytest.MonkeyPatch) -> None:
    ours.setattr(rank, "take_wanted", broken)
    assert "choosing its schedule" in message()


def test_of_the_users_own_code() -> None:
    def raises() -> None:
        raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError, match="mine"), caller.told_as_internal("here", None):
        raises()


@pytest.mark.filterwarnings("error")
def test_a_warning_that_is_an_error_is_a_warning() -> None:
    @tilec.kernel
    def sums(A: T.Tensor((32, 64), "float32"), C: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=256):
            x = T.alloc_fragment((32, 64), "float32")
            for i, j in T.Parallel(32, 64):
                x[i, j] = A[0, j]
            for i in T.Parallel(32):
                C[i] = x[i, 0] + x[i, 1]

    specs = tilec.spec((32, 64), "float32"), tilec.spec((32,), "float32")
    with pytest.raises(tilec.CompileWarning, match="test_internal_faults.py"):
        sums.compile(*specs, target="cuda:sm_80")


@pytest.mark.parametrize("kind", [PermissionError, MemoryError])
def test_what_the_machine_lacks_is_no_bug(ours: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    def lacks(*_: object, **__: object) -> Any:
        raise kind("the disk")

    ours.setattr(passes, "apply", lacks)
    with pytest.raises(kind, match="the disk"):
        made().compile(*[tilec.spec((64,), "float32")] * 2, target="cpu")


def test_what_a_library_raises_is_its_callers() -> None:
    with pytest.raises(ValueError), caller.told_as_internal("here", None):
        int("x")
