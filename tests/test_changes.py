"""What a kernel was compiled from may change between two launches: values that its names stand for,
what containers hold, macros, the file itself. The next launch runs what is there now."""

from __future__ import annotations

import dataclasses
import importlib
import linecache
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

N = T.dynamic("N")
FACTOR: Any = 2
LIST = [2, [5]]
TABLE = {"a": 2}
DTYPE: Any = "float32"
LIBRARY = types.ModuleType("library")
LIBRARY.dtype = np.float32  # type: ignore[attr-defined]
i = 0  # also the name of a loop's variable


@T.macro
def inner(x):
    return x * FACTOR


@T.macro
def times(x):
    return inner(x)


@tilec.kernel
def by_global(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = A[i] * FACTOR


@tilec.kernel
def by_list(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = A[i] * LIST[0]


@tilec.kernel
def by_inner_list(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = A[i] * (LIST[1][0] - 3)


@tilec.kernel
def by_dict(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = A[i] * TABLE["a"]


@tilec.kernel
def by_macro(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = times(A[i])


@tilec.kernel
def by_dtype(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        x = T.alloc_fragment((64,), LIBRARY.dtype)
        for i in T.Parallel(64):
            x[i] = A[i] * 2
        for i in T.Parallel(64):
            C[i] = x[i]


def deepest(x):
    return x * FACTOR


def deep(x, weigh=lambda x: deepest(x)):
    return deepest(x) if callable(weigh) else x


def known() -> Any:
    """Runs as Python: what it reads is noticed as well."""
    return [v for v in [deepest(1)]][0]


@dataclasses.dataclass
class Settings:
    factor: Any = 2
    several: list[Any] = dataclasses.field(default_factory=lambda: [2])


class Plain:
    factor: Any = 2

    def __init__(self) -> None:
        self.inner = Settings()

    def scaled(self, x):
        return x * self.factor

    @property
    def from_global(self) -> Any:
        return FACTOR


SETTINGS, PLAIN = Settings(), Plain()
PACKAGE = types.ModuleType("package")
PACKAGE.module = types.ModuleType("package.module")  # type: ignore[attr-defined]
PACKAGE.module.factor = 2  # type: ignore[attr-defined]


@tilec.kernel
def by_function(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = deep(A[i])


@tilec.kernel
def by_known_function(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = A[i] * known()


@tilec.kernel
def by_dataclass(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = A[i] * SETTINGS.factor


@tilec.kernel
def by_list_of_a_dataclass(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = A[i] * SETTINGS.several[0]


@tilec.kernel
def by_class(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = PLAIN.scaled(A[i])


@tilec.kernel
def by_object_in_an_object(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = A[i] * PLAIN.inner.factor


@tilec.kernel
def by_property(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = A[i] * PLAIN.from_global


@tilec.kernel
def by_module(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = A[i] * PACKAGE.module.factor


def set_function(value: Any) -> None:
    def other(x):
        return x * value

    globals()["deepest"] = other


def set_global(value: Any) -> None:
    globals()["FACTOR"] = value


def set_list(value: Any) -> None:
    LIST[0] = value


def set_inner_list(value: Any) -> None:
    LIST[1][0] = value + 3  # type: ignore[index]


def set_dict(value: Any) -> None:
    TABLE["a"] = value


def set_macro(value: Any) -> None:
    def other(x):
        return x * value

    globals()["times"] = T.macro(other)


def by_closure() -> tuple[tilec.Kernel, Callable[[Any], None]]:
    factor = 2

    def change(value: Any) -> None:
        nonlocal factor
        factor = value

    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                C[i] = A[i] * factor

    return kernel, change


def by_macros_closure() -> tuple[tilec.Kernel, Callable[[Any], None]]:
    factor = 2

    def change(value: Any) -> None:
        nonlocal factor
        factor = value

    @T.macro
    def scaled(x):
        return x * factor

    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                C[i] = scaled(A[i])

    return kernel, change


CASES: dict[str, Callable[[], tuple[tilec.Kernel, Callable[[Any], None]]]] = {
    "global": lambda: (by_global, set_global),
    "list": lambda: (by_list, set_list),
    "list in a list": lambda: (by_inner_list, set_inner_list),
    "dict": lambda: (by_dict, set_dict),
    "a global of a macro's macro": lambda: (by_macro, set_global),
    "macro": lambda: (by_macro, set_macro),
    "a global of a function's function": lambda: (by_function, set_global),
    "function": lambda: (by_function, set_function),
    "a global of what runs as Python": lambda: (by_known_function, set_global),
    "function of what runs as Python": lambda: (by_known_function, set_function),
    "dataclass": lambda: (by_dataclass, lambda v: setattr(SETTINGS, "factor", v)),
    "list of a dataclass": lambda: (
        by_list_of_a_dataclass,
        lambda v: SETTINGS.several.__setitem__(0, v),
    ),
    "class": lambda: (by_class, lambda v: setattr(Plain, "factor", v)),
    "object in an object": lambda: (
        by_object_in_an_object,
        lambda v: setattr(PLAIN, "inner", Settings(v)),
    ),
    "a global of a property": lambda: (by_property, set_global),
    "module of a package": lambda: (
        by_module,
        lambda v: setattr(PACKAGE.module, "factor", v),
    ),
    "closure": by_closure,
    "closure of a macro": by_macros_closure,
}
VALUES = (2, 3, 2.5, np.int64(4), np.float32(0.5), 3, 2)


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 2)
    monkeypatch.setattr(sys.modules[__name__], "times", times)
    monkeypatch.setattr(sys.modules[__name__], "deepest", deepest)
    yield
    SETTINGS.factor, SETTINGS.several[:] = 2, [2]
    LIST[:], TABLE["a"] = [2, [5]], 2


def launched(kernel: tilec.Kernel) -> float:
    a, c = np.ones(5, np.float32), np.zeros(5, np.float32)
    kernel(a, c)
    assert (c == c[0]).all()
    return float(c[0])


@pytest.mark.parametrize("name", CASES)
def test_a_launch_sees_the_change(name: str) -> None:
    kernel, change = CASES[name]()
    for value in VALUES:
        change(value)
        for _ in range(3):  # the third and later ones go the generated way
            assert launched(kernel) == float(value)


@pytest.mark.parametrize("name", CASES)
def test_so_does_a_kernel_from_the_disk_cache(name: str) -> None:
    kernel, change = CASES[name]()
    for value in VALUES:
        change(value)
        assert launched(tilec.kernel(kernel.function)) == float(value)


@pytest.mark.parametrize("name", CASES)
def test_so_does_compile(name: str) -> None:
    kernel, change = CASES[name]()
    specs = (tilec.spec((5,), "float32"),) * 2
    texts = []
    for value in (2, 7, 2):
        change(value)
        texts.append(kernel.compile(*specs, target="cuda:sm_90a").stages["tile"])
    assert texts[0] == texts[2] != texts[1]


def test_what_has_been_is_found_again() -> None:
    kernel, change = by_closure()
    for value in (2, 3, 2, 3, 2.0, 3.0, 2, 3):
        change(value)
        launched(kernel)
    assert len(kernel._variants) == 4
    change(10**20)
    change(float("2"))  # another object of the same value
    assert launched(kernel) == 2 and launched(kernel) == 2
    assert len(kernel._variants) == 4


def test_a_modules_dtype() -> None:
    launched(by_dtype)
    LIBRARY.dtype = np.float16  # type: ignore[attr-defined]
    launched(by_dtype)
    LIBRARY.dtype = np.float32  # type: ignore[attr-defined]
    assert {*("f16" in v.stages["tile"] for v in by_dtype._variants.values())} == {True, False}


def test_other_names_of_the_module_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(by_global)
    for value in range(3):
        globals()["i"] = value
        launched(by_global)
    ready = [launch for found in by_global.prepared.values() for launch in found.values()]
    monkeypatch.setattr(tilec.Kernel, "_launch", None)  # whoever asks for it fails
    globals()["i"] = "a loop's variable"
    for launch in ready:
        assert not launch()
    a, c = np.ones(5, np.float32), np.zeros(5, np.float32)
    by_global(a, c)  # new addresses, the generated way
    assert c[0] == 2


@tilec.kernel
def on_one_line(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        factors = [i * 2 for i in range(2)]
        for i in T.Parallel(64): C[i] = A[i] * factors[1]  # fmt: skip  # noqa: E701
        for on_one_line in range(1): C[on_one_line] = 2.0  # fmt: skip  # noqa: E701


def test_nor_does_the_name_of_a_loop_whose_body_is_on_its_line() -> None:
    """Of a script that launches a kernel in a loop over another i, nor the kernel's own name."""
    for value in range(4):
        globals()["i"] = value
        assert launched(on_one_line) == 2
    assert len(on_one_line._variants) == 1


@tilec.kernel
def names_itself(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = A[i] * names_itself


def test_a_kernel_that_names_itself() -> None:
    with pytest.raises(tilec.CompileError, match="the kernel names_itself, not a number"):
        launched(names_itself)


def test_an_annotation_kept_as_text(tmp_path: Path) -> None:
    for dtype in ("float32", "float64"):
        globals()["DTYPE"] = dtype
        a = np.ones(3, dtype)
        annotated(a, a.copy())
    with pytest.raises(tilec.LaunchError, match="expected float64, got float32"):
        annotated(np.ones(3, np.float32), np.ones(3, np.float32))
    globals()["DTYPE"] = "float32"


@tilec.kernel
def annotated(A: T.Tensor((N,), DTYPE), C: T.Tensor((N,), DTYPE)):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = A[i]


TEXT = """
import tilec
import tilec.language as T
N = T.dynamic("N")

@T.macro
def scaled(x):
    return plain(x)

def plain(x):
    return x * {inner}

@tilec.kernel
def kernel(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = scaled(A[i]) * {outer}
"""


def write(path: Path, inner: int, outer: int, lines: int = 0) -> None:
    path.write_text("\n" * lines + TEXT.format(inner=inner, outer=outer))
    write.time += 2_000_000_000  # type: ignore[attr-defined]
    os.utime(path, ns=(write.time, write.time))  # type: ignore[attr-defined]


write.time = 10**18  # type: ignore[attr-defined]


def test_a_module_that_is_edited_and_reloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "edited_kernels.py"
    write(path, 2, 3)
    module = importlib.import_module("edited_kernels")
    first = module.kernel
    assert launched(first) == 6
    was = 2
    for inner, outer, lines in ((2, 5, 0), (7, 5, 3), (2, 3, 1)):
        write(path, inner, outer, lines)
        assert launched(tilec.kernel(first.function)) == launched(first) == was * 3
        module = importlib.reload(module)
        assert launched(module.kernel) == inner * outer
        assert launched(first) == inner * 3, "its own text, and the macro of its module"
        was = inner
    del sys.modules["edited_kernels"]


def test_a_file_that_is_edited_before_the_first_launch(tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    write(path, 2, 3)
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    write(path, 11, 13, 4)
    assert launched(space["kernel"]) == 6


def test_a_cell_that_is_run_again() -> None:
    name = "<cell 3>"
    for inner, outer in ((2, 3), (4, 5)):
        text = TEXT.format(inner=inner, outer=outer)
        space: dict[str, Any] = {}
        exec(compile(text, name, "exec"), space)
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        assert launched(space["kernel"]) == inner * outer
    del linecache.cache[name]


@tilec.kernel
def reads_first(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        FACTOR = FACTOR * 2  # noqa: F823
        for i in T.Parallel(64):
            C[i] = A[i] * FACTOR


def test_a_name_that_is_read_and_then_assigned() -> None:
    for value in (2, 3, 2):
        set_global(value)
        assert launched(reads_first) == launched(reads_first) == 2 * value
