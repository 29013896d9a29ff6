"""Elements of buffers as arguments and as items of lists: they are what they were where they are
named, whatever is written to their places behind."""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
Pair = namedtuple("Pair", "first second")
N = 40
FORMS: dict[str, Callable[..., Any]] = {}


def form(function: Callable[..., Any]) -> Callable[..., Any]:
    FORMS[function.__name__] = function
    return function


def same(x):
    return x


@form
def argument(A, i):
    def after(x):
        A[i] = 100.0
        return x

    return after(A[i])


@form
def arguments_by_name(A, i):
    def after(*x, **named):
        A[i] = 100.0
        return (x[0] + named["y"]) / 2

    return after(A[i], y=A[i])


@form
def default_of_a_lambda(A, i):
    found = lambda x=A[i]: x  # noqa: E731
    A[i] = 100.0
    return found()


@form
def partial(A, i):
    found = functools.partial(same, A[i])
    A[i] = 100.0
    return found()


@form
def items(A, i):
    several = (A[i], [A[i]], {"x": A[i]}, Pair(A[i], 1), [A[i] for _ in range(2)])
    A[i] = 100.0
    x = several[0] + several[1][0] + several[2]["x"] + several[3].first + several[4][1]
    return x / 5


@form
def exchanged(A, i):
    both = [A[i], 100.0]
    for x in both:
        A[i] = x * 2
    A[i] = both[1]
    return both[0]


@form
def changed_items(A, i):
    several = [A[i], 2.0]
    several[0] += 5.0
    A[i] = several[0] * 0 + 100
    return several[0] - 5


@form
def result(A, i):
    def found():
        return A[i], 1

    several = found()
    if several[1] > 0:
        A[i] = 100.0
        return several[0]
    return several[0] * 2


@form
def in_front_of_a_condition(A, i):
    several, x = [A[i]], T.float32(0)
    A[i] = 100.0
    if i % 2 == 0:
        x = several[0] + 0.0
    else:
        x = several[0] * 1.0
    return x


@form
def changed_in_loops(A, i):
    def summed(x):
        for k in range(3):
            x += k
        while x > 1000:
            x -= 1
        return x - 3

    found = summed(A[i])
    A[i] = 100.0
    return found


@form
def in_front_of_a_loop(A, i):
    several, s = [A[i]], T.float32(0)
    for k in range(T.int32(A[i]) * 0 + 3):
        for _ in range(2):
            s += several[0]
        A[i] = 100.0 * (k + 1)
    A[i] = 100.0
    return s / 6


@form
def in_front_of_nested_loops(A, i):
    several, s = (A[i],), T.float32(0)
    for k in range(T.int32(A[i]) * 0 + 3):
        inner = [A[i]]
        for _ in range(T.int32(A[i]) * 0 + 2):
            if k == 0:
                s += several[0] + inner[0] * 0
            A[i] = A[i] + 1.0
        s += inner[0] - several[0] - 2 * k
    A[i] = 100.0
    return s / 2


@form
def in_front_of_a_break(A, i):
    several, s = [A[i]], T.float32(0)
    for k in range(5):
        s += several[0]
        A[i] = 100.0
        if k > several[0] * 0:
            break
    return s / 2


@form
def asked_by_a_while(A, i):
    several, s = [A[i]], T.float32(0)
    while several[0] > s:
        A[i] = 0.0
        s += 1.0
    A[i] = 100.0
    return s


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FORMS)
def test_numbers(name: str, target: str) -> None:
    read = FORMS[name]

    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        for i in T.Parallel(N):
            C[i] = read(A, i)

    a, c = np.arange(N, dtype=np.float32), np.full(N, np.nan, np.float32)
    run(kernel, target, a, c)
    np.testing.assert_array_equal(c, np.arange(N))
    np.testing.assert_array_equal(a, 100)


def test_a_reference_is_what_it_is_now() -> None:
    def doubled(x: T.Ref):
        x *= 2.0
        x += 1.0
        return x

    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        for i in T.Parallel(N):
            C[i] = doubled(A[i])

    a, c = np.arange(N, dtype=np.float32), np.full(N, np.nan, np.float32)
    kernel(a, c)
    np.testing.assert_array_equal(c, np.arange(N) * 2 + 1)
    np.testing.assert_array_equal(a, c)


def test_what_nobody_changes_is_read_where_it_is_used() -> None:
    """No load is made for an item that is not, or that is only a place."""

    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        for i in T.Parallel(N):
            places = [A[i], C[i]]
            T.atomic_add(places[1], 1.0)

    text = kernel.compile(*[tilec.spec((N,), "float32")] * 2, target="cpu").stages["tile"]
    assert "load" not in text
