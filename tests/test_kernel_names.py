"""Kernels whose names assemblers do not take, or which, as their parameters', compiled code has for
itself."""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest

import tilec

pytestmark = pytest.mark.usefixtures("unassembled")

SOURCE = """
import tilec, tilec.language as T

@tilec.kernel
def NAME(X: T.Tensor((8,), "float32"), n: T.int32):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(8):
            X[i] = T.pow(X[i], 1.5)
        if n > 5:
            T.print(n)
"""


def named(name: str, text: str = SOURCE) -> Any:
    text = text.replace("NAME", name)
    file = f"<a kernel {name}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    made: dict[str, Any] = {}
    exec(compile(text, file, "exec"), made)
    return made[name]


NAMES = [("vprintf", "cuda:sm_90a"), ("printf", "cpu"), ("powf", "cpu")]


@pytest.mark.parametrize("name, target", NAMES)
def test_a_kernel_with_the_name_of_a_function_it_calls(name: str, target: str) -> None:
    with pytest.raises(tilec.CompileError, match=f"{name} is the name of (.*\n)+.*{name}_kernel"):
        named(name).compile(np.ones(8, np.float32), 1, target=target)


def test_a_kernel_named_by_an_underscore() -> None:
    x = np.full(8, 4.0, np.float32)
    kernel = named("_")
    assert ".entry kernel(" in kernel.compile(x, 1, target="cuda:sm_90a").stages["ptx"]
    kernel(x, 1)
    np.testing.assert_allclose(x, 8, rtol=1e-6)


LOOP = """
import tilec, tilec.language as T

@tilec.kernel
def NAME(entry: T.Tensor((40,), "float32"), v9: T.Tensor((40,), "float32"), body: T.int32,
         then: T.float32, end: T.float32, loop: T.float32, body1: T.float32):
    with T.Kernel(1, threads=64):
        i = T.get_thread_binding()
        total = T.alloc_var("float32", 0.0)
        if i < 40:
            for _ in T.serial(body):
                for _ in T.serial(body):
                    if entry[i] > then:
                        total += entry[i] * end
            v9[i] = total * loop + body1
"""


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942"])
def test_parameters_with_the_names_of_labels_and_values(target: str) -> None:
    kernel = named("labels", LOOP)
    x, y = np.arange(-20, 20, dtype=np.float32), np.empty(40, np.float32)
    if target == "cpu":
        kernel(x, y, 3, 1.0, 0.5, 2.0, 1.0)
    else:
        kernel.compile(x, y, 3, 1.0, 0.5, 2.0, 1.0, target=target)
        assert tilec.simulate(kernel, x, y, 3, 1.0, 0.5, 2.0, 1.0, target=target).ok
    np.testing.assert_array_equal(y, np.where(x > 1, 9 * x, 0) + 1)
