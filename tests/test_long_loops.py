"""Element loops and unrolled loops that are too long to be written out."""

from __future__ import annotations

import linecache
import re
import time
from typing import Any

import numpy as np
import pytest
from machine_speed import slower

import tilec
import tilec.language as T
from tilec.ir.errors import CompileError
from tilec.passes.lower_parallel import MOST_WRITTEN

pytestmark = pytest.mark.turns

GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
N = 64 * (MOST_WRITTEN + 3) + 5


def elements(n: int) -> Any:
    @tilec.kernel
    def kernel(A: T.Tensor((n,), "float32"), C: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(n):
                if A[i] > 0.25:
                    C[i] = A[i] * 2.0 + A[n - 1 - i]

    return kernel


def copies(n: int) -> Any:
    @tilec.kernel
    def kernel(A: T.Tensor((n, 3), "float32"), C: T.Tensor((3, n), "float32")):
        with T.Kernel(1, threads=64):
            T.fill(C, 7.0)
            for i in T.Parallel(n):
                C[1, i] = A[i, 2]

    return kernel


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942"])
def test_a_long_loop_stays_one(target: str, rng: np.random.Generator) -> None:
    a, c = rng.random(N, np.float32), np.zeros(N, np.float32)
    compiled = elements(N).compile(a, c, target=target)
    lowered = next(text for name, text in compiled.stages.items() if name == "lower_parallel")
    assert "for.serial" in lowered and "for.unroll" not in lowered
    report = tilec.simulate(elements(N), a, c, target=target)
    assert not report.findings
    np.testing.assert_allclose(c, np.where(a > 0.25, a * 2 + a[::-1], 0), rtol=1e-6)
    rows, columns = rng.random((N, 3), np.float32), np.zeros((3, N), np.float32)
    assert not tilec.simulate(copies(N), rows, columns, target=target).findings
    np.testing.assert_array_equal(columns, np.stack([np.full(N, 7), rows[:, 2], np.full(N, 7)]))


@pytest.mark.parametrize("target", GPUS)
def test_a_million_elements_compile_at_once(target: str) -> None:
    start = time.process_time()
    for make in (elements, copies):
        shapes = [(10**6,)] * 2 if make is elements else [(10**6, 3), (3, 10**6)]
        make(10**6).compile(*(tilec.spec(s, "float32") for s in shapes), target=target)
    assert time.process_time() - start < 4 * slower()


def chain(statements: int, dtype: str) -> Any:
    """Statements one behind another, each with the value of the one before."""
    rows = ["x = T.max(x, -x * 0.5)", "x = x * 1.25 + 0.5"]
    body = [rows[n % 2] for n in range(statements)]
    source = f"""
def chain(A: T.Tensor((N,), "{dtype}"), C: T.Tensor((N,), "{dtype}")):
    with T.Kernel(T.ceildiv(N, 1024), threads=128) as b:
        for j in T.Parallel(1024):
            x = A[b * 1024 + j]
            {"; ".join(body)}
            C[b * 1024 + j] = x
"""
    name = f"<chain of {statements} {dtype}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    found: dict[str, Any] = {"T": T, "N": T.dynamic("N")}
    exec(compile(source, name, "exec"), found)
    return tilec.kernel(found["chain"])


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_long_body_is_written_once_a_vector(target: str, dtype: str) -> None:
    """A thread has eight elements: those of a vector are written out, in the fast form; at an edge
    there is one at a time."""
    kernel, short, n = chain(100, dtype), chain(4, dtype), 1024
    made = kernel.compile(*[tilec.spec((n,), dtype)] * 2, target=target)
    lowered = made.stages["lower_parallel"]
    wide = max(int(w) for w in re.findall(r"mem_load .*lanes=(\d)", lowered))
    assert lowered.count("for.serial") == 2 and "for.unroll" not in lowered
    assert lowered.count("binary.max") == 50 * (wide + 1)
    loads = [line for line in lowered.splitlines() if "mem_load" in line]
    assert len(loads) == 2 and "guard" not in loads[0] and "guard" in loads[1]
    few = short.compile(*[tilec.spec((n,), dtype)] * 2, target=target).stages["lower_parallel"]
    assert "for.serial" not in few  # all its loads are on their way at once


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("n", [1024, 1500, 3])
def test_a_long_body_computes(target: str, n: int, rng: np.random.Generator) -> None:
    a, c = rng.standard_normal(n, np.float32), np.zeros(n, np.float32)
    want = a.copy()
    for i in range(60):
        want = want * np.float32(1.25) + np.float32(0.5) if i % 2 else np.maximum(want, -want / 2)
    assert not tilec.simulate(chain(60, "float32"), a, c, target=target).findings
    np.testing.assert_allclose(c, want, rtol=1e-4)


def nested(word: str) -> Any:
    @tilec.kernel
    def unroll(C: T.Tensor((10**6,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.unroll(100):
                for j in T.unroll(100):
                    C[i * 100 + j] = 1.0

    @tilec.kernel
    def vectorized(C: T.Tensor((10**6,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.unroll(2):
                for j in T.vectorized(5000):
                    C[i * 100 + j] = 1.0

    return {"unroll": unroll, "vectorized": vectorized}[word]


@pytest.mark.parametrize("word", ["unroll", "vectorized"])
def test_what_nested_loops_write_out_is_counted(word: str) -> None:
    with pytest.raises(CompileError, match=rf"T\.{word} would write its body out") as caught:
        nested(word).compile(tilec.spec((10**6,), "float32"), target="cuda:sm_80")
    assert "T.serial" in caught.value.hint


def test_loops_as_long_as_an_iteration_of_vectors_says() -> None:
    """Their ends are those of the iterations' indices, which a test before all of them cannot
    name."""
    M = T.dynamic("M")

    @tilec.kernel
    def prefixes(X: T.Tensor((M,), "float32"), Y: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, 64), threads=64) as b:
            for i in T.Parallel(64):
                total: T.float32 = 0
                for j in T.serial(b * 64 + i + 1):
                    total += X[j]
                for j in T.serial(b * 64 + i, M, 3):
                    total -= X[j]
                if b * 64 + i < M:
                    Y[b * 64 + i] = total

    for n in (1, 5, 64, 130):
        x, y = np.arange(1, n + 1, dtype=np.float32), np.full(n, np.nan, np.float32)
        prefixes(x, y)
        np.testing.assert_array_equal(y, [x[: i + 1].sum() - x[i::3].sum() for i in range(n)])
