"""What a kernel was compiled from, found in ways that its own text does not show: by imports inside
of functions, modules and objects that are passed on, arrays, code that is exchanged. The next
launch, and the next program that shares the disk cache, runs what is there now."""

from __future__ import annotations

import argparse
import collections
import importlib
import linecache
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_changes import launched

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

N = T.dynamic("N")
SETTINGS = types.ModuleType("settings_elsewhere")
SETTINGS.factor = 2  # type: ignore[attr-defined]
sys.modules["settings_elsewhere"] = SETTINGS
OPTIONS = argparse.Namespace(factor=2, inner=argparse.Namespace(factor=2))
ARRAY = np.array([2.0, 1.0])
QUEUE = collections.deque([2])


def by_import() -> Any:
    import settings_elsewhere  # type: ignore[import-not-found]

    return settings_elsewhere.factor


def by_import_as() -> Any:
    import settings_elsewhere as s

    return s.factor


def by_import_from() -> Any:
    from settings_elsewhere import factor as f

    return f


def by_getattr() -> Any:
    return getattr(SETTINGS, "fac" + "tor")


def passed_on() -> Any:
    return factor_of(SETTINGS)


def factor_of(thing: Any) -> Any:
    return thing.factor


def by_namespace() -> Any:
    return OPTIONS.factor


def by_array() -> float:
    return float(ARRAY[0])


def by_queue() -> Any:
    return QUEUE[0]


def by_code() -> Any:
    return 2


def exchange_code(value: Any) -> None:
    """As IPython's autoreload does."""
    text = f"def by_code():\n    return {float(value)}\n"
    space: dict[str, Any] = {}
    linecache.cache["<code>"] = (len(text), None, text.splitlines(True), "<code>")
    exec(compile(text, "<code>", "exec"), space)
    by_code.__code__ = space["by_code"].__code__


def set_module(value: Any) -> None:
    SETTINGS.factor = value  # type: ignore[attr-defined]


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "an import": (by_import, set_module),
    "an import under another name": (by_import_as, set_module),
    "an import of a name": (by_import_from, set_module),
    "getattr": (by_getattr, set_module),
    "a module that is passed on": (passed_on, set_module),
    "an object of a library": (by_namespace, lambda v: setattr(OPTIONS, "factor", v)),
    "an array": (by_array, lambda v: ARRAY.__setitem__(0, v)),
    "a queue": (by_queue, lambda v: QUEUE.__setitem__(0, v)),
    "the code of a function": (by_code, exchange_code),
}


def kernel_of(known: Callable[[], Any]) -> tilec.Kernel:
    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                C[i] = A[i] * known()

    return kernel


@pytest.mark.parametrize("name", CASES)
def test_a_launch_sees_the_change(name: str) -> None:
    known, change = CASES[name]
    kernel = kernel_of(known)
    for value in (2, 3, 2.5, 1000, 3, 2):
        change(value)
        for _ in range(3):  # the third and later ones go the generated way
            assert launched(kernel) == float(value)
        assert launched(tilec.kernel(kernel.function)) == float(value), "from the disk cache"
    assert len(kernel._variants) == 4, "what has been is found again"


@tilec.kernel
def module_itself(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = A[i] * getattr(SETTINGS, "factor")  # noqa: B009


def test_a_module_in_the_kernels_own_text() -> None:
    for value in (2, 3, 2):
        set_module(value)
        assert launched(module_itself) == launched(module_itself) == value


def test_modules_of_torch_are_told_by_which_they_are() -> None:
    """A launch does not go through a model to see whether its kernel has changed."""
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = 2
            self.layers = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(20)))

    model = Model()
    kernel = kernel_of(lambda: model.factor)
    for model.factor in (2, 3, 2):
        assert launched(kernel) == launched(kernel) == model.factor
    assert kernel._revision is not None and len(kernel._revision.reads.contents) < 20


def test_other_names_of_a_module_asked_for_attributes_do_not_count() -> None:
    kernel = kernel_of(by_import)
    for other in range(3):
        SETTINGS.other = other  # type: ignore[attr-defined]
        launched(kernel)
    assert len(kernel._revisions) == 1
    del SETTINGS.other  # type: ignore[attr-defined]


HELPERS = """{lines}
def factor(x):
    return x * {factor}
"""


def test_helpers_that_are_edited_and_reloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their module has no decorator of tilec's, which would note its lines anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path, time = tmp_path / "helpers_elsewhere.py", 10**18

    def write(factor: int, lines: int) -> None:
        nonlocal time
        time += 2_000_000_000
        path.write_text(HELPERS.format(factor=factor, lines="\n" * lines))
        os.utime(path, ns=(time, time))

    write(2, 0)
    helpers = importlib.import_module("helpers_elsewhere")

    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                C[i] = helpers.factor(A[i])

    assert launched(kernel) == 2
    for factor, lines in ((3, 0), (5, 2), (2, 1)):
        write(factor, lines)
        importlib.reload(helpers)
        assert launched(kernel) == factor
    del sys.modules["helpers_elsewhere"]


PROGRAM = """
import sys
import numpy as np
import tilec
import tilec.language as T
N = T.dynamic("N")

def known():
    import settings_of_a_program
    return settings_of_a_program.factor

@tilec.kernel
def kernel(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = A[i] * known()

a = np.ones(5, np.float32)
kernel(a, a)
print(a[0])
"""


def test_the_next_program(tmp_path: Path) -> None:
    """It finds what the first one left in the disk cache, and has other settings."""
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    for factor in (2, 3, 2):
        (tmp_path / "settings_of_a_program.py").write_text(f"factor = {factor}\n")
        run = [sys.executable, str(tmp_path / "program.py")]
        done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
        assert float(done.stdout) == factor
