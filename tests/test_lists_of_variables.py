"""Variables of `T.alloc_var` that lists, dicts and objects hold: an assignment to the item writes
the variable, in loops and under conditions, too."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "hip:gfx942")
N = 64
tx = np.arange(N)
CASES: dict[str, tuple[Any, Callable[[np.ndarray], np.ndarray]]] = {}


def case(want: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Any]:
    def add(function: Callable[..., Any]) -> Any:
        CASES[function.__name__] = tilec.kernel(function), want
        return function

    return add


@case(lambda a: sum((q + 1) * a[(tx + i * q) % N] for i in range(4) for q in range(3)))
def in_a_loop(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=N):
        t = T.get_thread_binding()
        sums = [T.alloc_var("float32", init=0.0) for _ in range(3)]
        for i in T.serial(4):
            for q in range(3):
                sums[q] += A[(t + i * q) % N]
        C[t] = sums[0] + sums[1] * 2 + sums[2] * 3


@case(lambda a: a + 20 * a + 30 + 4 * (a > 0))
def by_other_names(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    """Of variables that have names, in a tuple that is walked twice."""
    with T.Kernel(1, threads=N):
        t = T.get_thread_binding()
        a, b = T.alloc_var("float32", init=0.0), T.alloc_var("float32", init=1.0)
        both = (a, b)
        for v in both:
            v += A[t]
        for _ in T.serial(2):
            if A[t] > 0:
                both[0] = both[0] + 2.0
        for v in both:
            v += v
        both[0], both[1] = both[1], both[0]
        C[t] = (b + a * 20) / 2 + 10


def _appended(a: np.ndarray) -> np.ndarray:
    return (5 + a) + 10 * (2 + a) + 100 * (1 + a)


@case(_appended)
def appended(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    """A name for what an item holds keeps the number; an item of another is its number, too."""
    with T.Kernel(1, threads=N):
        t = T.get_thread_binding()
        held = []
        for first in (1.0, 2.0):
            held.append(T.alloc_var("float32", init=first))
        for v in held:
            v += A[t]
        before = held[0]
        held[0] = held[1]
        for _ in T.serial(3):
            held[1] += 1
        C[t] = held[1] + held[0] * 10 + before * 100


@dataclasses.dataclass
class State:
    most: Any
    double: Any


@case(lambda a: 3.0 * (1 + 3 * (a > 0)) + 8)
def of_an_object_and_a_dict(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=N):
        t = T.get_thread_binding()
        state = State(T.alloc_var("float32", init=1.0), T.alloc_var("float32", init=0.0))
        counts = {"all": [T.alloc_var("int32", init=5)]}
        for _ in T.serial(3):
            if A[t] > 0:
                state.most += 1.0
            state.double = state.most * 2
            counts["all"][0] += 1
        C[t] = state.most + state.double + counts["all"][0]


@case(lambda a: sum(np.max([a[(tx + j * q) % N] for j in range(8)] + [0 * a], 0) for q in (0, 1)))
def of_each_iteration(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=N):
        for i in T.Parallel(N):
            most = [T.alloc_var("float32", init=0.0) for _ in range(2)]
            for j in range(8):
                for q in range(2):
                    most[q] = T.max(most[q], A[(i + j * q) % N])
            C[i] = most[0] + most[1]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str, target: str, rng: np.random.Generator) -> None:
    kernel, want = CASES[name]
    a, c = rng.standard_normal(N).astype(np.float32), np.zeros(N, np.float32)
    run(kernel, target, a, c)
    np.testing.assert_allclose(c, want(a), rtol=1e-5, atol=1e-5)


def test_each_is_one_variable() -> None:
    specs = [tilec.spec((N,), "float32")] * 2
    text = CASES["in_a_loop"][0].compile(*specs, target="cpu").stages["tile"]
    assert text.count("alloc local<1xf32>") == 3 and text.count("for.serial") == 1
