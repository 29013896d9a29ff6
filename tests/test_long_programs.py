"""Programs that are long: nothing recurses over the number of their statements, and nothing takes
time that doubles with each.

The limit of Python's recursion is lowered, so that chains of a few hundred show it quickly."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine_speed import least_seconds, slower

import tilec

pytestmark = pytest.mark.turns

STEPS = 300
FRAMES = 250  # more than what the compiler needs for a program with one statement
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")

HEADER = """
import tilec
import tilec.language as T

N = T.dynamic("N")

@tilec.kernel
def chain(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 128), threads=128) as b:
"""


def lines(first: str, step: str, last: str) -> str:
    return "\n".join([first, *[step] * STEPS, *last.split("\n")])


ELEMENTS = {  # bodies of T.Parallel, over i
    "statements": lines("x = A[b * 128 + i]", "x = x * 0.5 + 1.0", "B[b * 128 + i] = x"),
    "indices": lines("j = i", "j = j + i - i", "B[b * 128 + i] = A[b * 128 + j]"),
    "shared_terms": lines("j = i", "j = (j + j - i) % 128", "B[b * 128 + i] = A[b * 128 + j]"),
    "guard": lines("j = b * 128 + i", "j = j + j - j", "if j < N:\n    B[j] = A[j] + 1.0"),
    "products": lines("j = i", "j = (j * j + j) % 128", "B[b * 128 + i] = A[b * 128 + j]"),
    "sum": "B[b * 128 + i] = A[b * 128 + i]" + " + 1.0" * STEPS,
    "conditions": lines(
        "x = A[b * 128 + i]\nc = x > 0.0",
        "c = c and x < 9.0",
        "B[b * 128 + i] = T.if_then_else(c, x, 0.0)",
    ),
}
THREADS = {  # bodies of one thread
    "thread_indices": lines("j = b * 128 + tx", "j = j + tx - tx", "B[j] = A[j]"),
    "thread_exchange": lines("y = tx", "y = y + tx", "s[tx] = A[b * 128 + tx]")
    + "\nB[b * 128 + tx] = s[(tx + 1) % 128] + T.float32(y)",
}


INDICES = {  # of two thousand steps (of an update, too), and of a hundred T.min of a T.max
    "steps": [*["j = j + i - i"] * 2000, "B[i] = A[j]"],
    "wrapped": [*["j = (j + 3) % 128"] * 2000, "B[i] = A[j]"],
    "updated": [*["j = (j + 3) % 128"] * 1000, "B[j] += A[i]"],
    "folded": [f"j = T.min(T.max(j - {k % 7}, {k} - b), N - {k} + b)" for k in range(100)]
    + ["B[i] = A[j]"],
}


def source(name: str) -> str:
    if name in INDICES:
        return HEADER + indented(
            "\n    ".join(["for i in T.Parallel(128):", "j = i", *INDICES[name]]), 2
        )
    if name in ELEMENTS:
        body = "for i in T.Parallel(128):\n" + indented(ELEMENTS[name], 1)
    else:
        body = "tx = T.get_thread_binding(0)\n" + THREADS[name]
        if "s[" in body:
            body = 's = T.alloc_shared((128,), "float32")\n' + body
    return HEADER + indented(body, 2) + "\n"


def indented(text: str, levels: int) -> str:
    return "\n".join("    " * levels + line for line in text.split("\n"))


def expected(name: str, a: Any) -> Any:
    i = np.arange(128)
    match name:
        case "statements":
            x = a
            for _ in range(STEPS):
                x = x * np.float32(0.5) + np.float32(1)
            return x
        case "shared_terms" | "products":
            j = i
            for _ in range(STEPS):
                j = (2 * j - i) % 128 if name == "shared_terms" else (j * j + j) % 128
            return a[j]
        case "guard":
            return a + 1
        case "sum":
            return a + np.float32(STEPS)
        case "conditions":
            return np.where((a > 0) & (a < 9), a, 0)
        case "thread_exchange":
            return np.roll(a, -1) + ((STEPS + 1) * i).astype(np.float32)
    return a


@pytest.fixture
def shallow() -> Iterator[None]:
    kept = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + FRAMES)
    yield
    sys.setrecursionlimit(kept)


@pytest.fixture
def no_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_PTXAS", "off")


def kernel(name: str, folder: Path) -> Any:
    path = folder / f"long_{name}.py"
    path.write_text(source(name))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.chain


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*ELEMENTS, *THREADS])
def test_a_long_chain_compiles_for_every_target(
    name: str, target: str, tmp_path: Path, no_ptxas: None, shallow: None
) -> None:
    made = kernel(name, tmp_path).compile(*[tilec.spec((1024,), "float32")] * 2, target=target)
    assert "chain" in made.stages["tile"]


@pytest.mark.parametrize("target", TARGETS)
def test_long_indices_compile_within_a_second(
    target: str, tmp_path: Path, no_ptxas: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second on a quiet machine; twice that here."""
    for name in INDICES:

        def fresh(k: int, name: str = name) -> Callable[[], Any]:
            folder = tmp_path / f"{name}{k}"
            monkeypatch.setenv("TILEC_CACHE_DIR", str(folder / "cache"))
            folder.mkdir()
            chain = kernel(name, folder)
            return lambda: chain.compile(*[tilec.spec((1024,), "float32")] * 2, target=target)

        limit = 2 * slower()
        assert least_seconds(fresh, limit) < limit, name


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS[:3])
@pytest.mark.parametrize("name", [*ELEMENTS, *THREADS])
def test_a_long_chain_computes_what_it_says(
    name: str, target: str, tmp_path: Path, shallow: None
) -> None:
    """On the CPU and in the simulator."""
    chain = kernel(name, tmp_path)
    a = np.random.default_rng(7).integers(0, 10, 128).astype(np.float32)
    want = expected(name, a)
    out = np.zeros_like(a)
    chain(a, out)
    np.testing.assert_allclose(out, want, rtol=1e-5)
    out = np.zeros_like(a)
    report = tilec.simulate(chain, a, out, target=target)
    assert report.ok, str(report)
    np.testing.assert_allclose(out, want, rtol=1e-5)
