"""Kernels whose names assemblers do not take, or that compiled code has for itself."""

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


def named(name: str) -> Any:
    text = SOURCE.replace("NAME", name)
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
