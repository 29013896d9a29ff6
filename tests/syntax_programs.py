"""Statements and expressions of Python that are written as simpler ones when a kernel is read, or
that give names in the middle of others; as `python_programs`, of whose test they are cases."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections import namedtuple
from typing import Any

import numpy as np
from python_programs import BLOCK, N, program

import tilec.language as T


class Mode(enum.Enum):
    DOUBLE = 1
    HALVE = 2


class Weight(enum.IntEnum):
    LIGHT = 1
    HEAVY = 3


Scale = namedtuple("Scale", "by plus")


@program(lambda x: np.where((x > 0) & (x < 2), x * 2, np.where(x > 2.5, x, 0)))
def names_in_conditions(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=BLOCK) as bx:
        for i in T.Parallel(BLOCK):
            if (at := bx * BLOCK + i) < N and (x := A[at]) > 0 and x < 2:
                C[at] = x * 2
            else:
                C[at] = y if (y := A[at]) > 2.5 else 0.0


def _backwards(n: int) -> int:
    found = 0
    for j in (
        *reversed(range(n % 5)),
        *reversed(range(2, n % 9, 3)),
        *reversed(range(n % 9, -1, -2)),
    ):
        found = found * 3 + j
    return found


@program(lambda x: np.array([_backwards(i % 64) for i in range(len(x))]))
def ranges_backwards(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(len(A), BLOCK), threads=BLOCK) as bx:
        for i in T.Parallel(BLOCK):
            found = 0
            for j in reversed(range(i % 5)):
                found = found * 3 + j
            for j in reversed(range(2, i % 9, 3)):
                found = found * 3 + j
            for j in reversed(range(i % 9, -1, -2)):
                found = found * 3 + j
            C[bx * BLOCK + i] = found


@program(lambda x: x * -(-len(x) // BLOCK) + 5)
def named_in_the_header(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    """What `:=` names where the grid and its threads are told."""
    with T.Kernel(blocks := T.ceildiv(N, (size := BLOCK)), threads=(wide := 32)) as bx:
        for i in T.Parallel(size):
            C[bx * size + i] = A[bx * size + i] * blocks + wide // 6


@program(lambda x: np.where(x > 1, x // 3 + 1, np.where(x < -1, -5.0, 7.0)))
def names_behind_divisions(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    """Of the two sides of a choice one alone gives the name; divisions are not done unasked."""
    with T.Kernel(T.ceildiv(N, BLOCK), threads=BLOCK) as bx:
        for i in T.Parallel(BLOCK):
            if bx * BLOCK + i < N:
                x = A[bx * BLOCK + i]
                n = T.alloc_var("int32", 7)
                if x > 1 and (n := T.cast(x, "int32") // (T.cast(x, "int32") * 0 + 3) + 1) > 0:
                    C[bx * BLOCK + i] = n
                else:
                    C[bx * BLOCK + i] = m if x < -1 and (m := n - 12) < 0 else 7.0


@program(lambda x: np.select([x > 2, x > 0], [x * 4, x * 2], -1.0) + 3)
def matches(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    def chosen(x, how, *parts):
        match how, parts:
            case Mode.HALVE, _:
                return x / 2
            case (Mode.DOUBLE, (first, *rest)) if len(rest) == 1:
                return x * 2 * first + rest[0]
            case _:
                return x

    with T.Kernel(T.ceildiv(N, BLOCK), threads=BLOCK) as bx:
        for i in T.Parallel(BLOCK):
            x = A[bx * BLOCK + i]
            kind = T.if_then_else(x > 2, 2, T.if_then_else(x > 0, 1, 0))
            y = T.alloc_var("float32")
            match kind + 0:
                case 0:
                    y = -1.0
                case 1 | 3:
                    y = chosen(x, Mode.DOUBLE, 1, 0)
                case other:
                    y = chosen(x, Mode.DOUBLE, other, 0)
            match Scale(1, 3):
                case Scale(by=1, plus=int(p)):
                    y = y + p
                case None:
                    y = 0.0
            C[bx * BLOCK + i] = y


def _steps(x: float) -> float:
    count = 0
    while (x := x / 2) > 0.1:
        count += 1
    return float(count) + 0.5 * (count < 3)


@program(lambda x: np.array([_steps(float(np.float32(v))) for v in x]))
def loops_with_else(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=BLOCK) as bx:
        for i in T.Parallel(BLOCK):
            if bx * BLOCK + i < N:
                x = T.alloc_var("float32", A[bx * BLOCK + i])
                count = T.alloc_var("int32", 0)
                while (x := x / 2) > 0.1:
                    count += 1
                found = T.alloc_var("float32", 0.0)
                for j in range(10):
                    if j + 3 > count + j:
                        break
                else:
                    found = -0.5
                C[bx * BLOCK + i] = count + found + 0.5


@program(lambda x: np.where((x > 0) & (x < 1) | (x < -1), 2.0 * x, x + 1) * 3 + 6)
def all_kinds_of_arguments(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    def added(x, /, *more, by=1, times, **rest):
        for m in more:
            x = x + m * by
        return x * times + rest.get("plus", 0)

    def twice(x, of=2):
        return x * of

    double = functools.partial(twice, of=2.0)
    first, *others, last = [1, 2, 3, 4]
    assert first == 1 and others == [2, 3] and last == 4
    with T.Kernel(T.ceildiv(N, BLOCK), threads=BLOCK) as bx:
        for i in T.Parallel(BLOCK):
            x = A[bx * BLOCK + i]
            inside = any([all((x > 0, x < 1)), x < -1])
            y = double(x) if inside is True else x + 1
            weight = T.if_then_else(Mode.HALVE is Mode.DOUBLE, 9, Weight.HEAVY)
            C[bx * BLOCK + i] = added(y, 1, *(-1,), times=weight, **{"plus": 6})


@program(lambda x: x + 4)
def names_of_dtypes(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=BLOCK) as bx:
        x = T.alloc_fragment((BLOCK,), str(A.dtype))
        y = T.alloc_fragment((BLOCK,), f"{A.dtype}")
        T.copy(A[bx * BLOCK], x)
        same = A.dtype is T.float32 and "_".join(["x", str(A.dtype)]) == "x_float32"
        for i in T.Parallel(BLOCK):
            y[i] = x[i] + (4 if same else 0)
        T.copy(y, C[bx * BLOCK])


@program(lambda x: np.where(x > 0, x + 5, x + 1) + x + 6)
def functions_see_what_names_are_now(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=BLOCK) as bx:
        for i in T.Parallel(BLOCK):
            x, s, k = A[bx * BLOCK + i], 1.0, 6
            shifted = lambda v: v + s  # noqa: B023, E731
            adds = [lambda v: v + k for k in range(3)]  # noqa: B023
            assert [f(k) for k in range(2) for f in adds] == [2, 2, 2, 3, 3, 3]
            if x > 0:
                s = 5.0

            def plus(v):
                return v + k  # noqa: B023

            C[bx * BLOCK + i] = shifted(x) + sum([plus(x) for k in range(1)])


@program(lambda x: np.where(x > 0, x + 13, x + 8) + x + 2)
def functions_of_functions_see_what_names_are_now(
    A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")
):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=BLOCK) as bx:
        for i in T.Parallel(BLOCK):
            x, s, t = A[bx * BLOCK + i], 1.0, 1.0

            def shifted(k):
                def by(v):
                    return sum([s for s in (v, k)]) + s + t  # noqa: B023

                return lambda v: by(v)

            def with_its_own():
                s = 2.0
                return lambda v: v + s

            f, g = shifted(6.0), with_its_own()
            if x > 0:
                s += 5.0
            C[bx * BLOCK + i] = f(x) + g(x)


@program(lambda x: 8 * x)
def a_function_that_calls_itself(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=BLOCK) as bx:

        def tree(v, depth):
            return v if depth == 0 else sum([tree(v, depth - 1) for _ in range(2)])

        for i in T.Parallel(BLOCK):
            C[bx * BLOCK + i] = tree(A[bx * BLOCK + i], 3)


@program(lambda x: x * x + 1 + 3 * x)
def functions_in_whole_loops(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    for i in T.Parallel(N):

        def squared(v):
            made = v * v
            return made + 1

        total: T.float32 = 0
        for _ in range(3):
            total += A[i]
        C[i] = squared(A[i]) + total


halved = lambda x: x / 2  # noqa: E731


@program(lambda x: x / 2)
def lambdas_in_whole_loops(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    for i in T.Parallel(N):
        C[i] = halved(A[i])


def of_one_side(x):
    """Names that only code behind which it goes on gives a value to."""
    if x < -1:
        return 0.0
    elif x > 1:
        if x > 2:
            return x
        scale = 2.0
    else:
        scale = 3.0
    return scale * x


def _of_one_side(x: np.ndarray) -> np.ndarray:
    inside = np.where(x > 2, x, np.where(x > 1, 2 * x, 3 * x))
    return np.where(x < -1, 0, inside)


@program(_of_one_side)
def names_beside_a_return(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=BLOCK) as bx:
        for i in T.Parallel(BLOCK):
            C[bx * BLOCK + i] = of_one_side(A[bx * BLOCK + i])


@program(lambda x: sum(np.where(x > k, x + 2 * k, 0) for k in range(4) if k != 2))
def names_beside_a_continue(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=BLOCK) as bx:
        for i in T.Parallel(BLOCK):
            x = A[bx * BLOCK + i]
            total = 0.0
            for k in T.serial(5):
                if k == 4:
                    break
                elif k == 2:
                    continue
                elif x > T.cast(k, "float32"):
                    twice = k * 2
                else:
                    continue
                total += x + T.cast(twice, "float32")
            C[bx * BLOCK + i] = total


def _among(x: np.ndarray) -> np.ndarray:
    n = np.trunc(x)
    return (n == 2) + 2 * (n != 1) + 4 * np.isin(n, [1, 3]) + 8 * ~((n >= 0) & (n < 2))


@program(_among)
def what_is_among_numbers(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    """Equality of what is known at run time only, within tuples and lists."""
    with T.Kernel(T.ceildiv(N, BLOCK), threads=BLOCK) as bx:
        for i in T.Parallel(BLOCK):
            n = T.cast(A[bx * BLOCK + i], "int32")
            found = 0.0
            found += 1 if (n, 3) == (2, 3) else 0
            found += 2 if [bx, n] != [bx, 1] else 0
            found += 4 if n in (1, 3) and 3 in [n, n + 2] else 0
            found += 8 if n not in range(2) else 0
            C[bx * BLOCK + i] = found


@program(lambda x: np.maximum(x, 1) * 2 + np.minimum(x, 1))
def tuples_that_are_chosen(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=BLOCK) as bx:
        for i in T.Parallel(BLOCK):
            x = A[bx * BLOCK + i]
            most, least = (x, 1) if x > 1 else (1.0, x)
            C[bx * BLOCK + i] = most * 2 + least


@dataclasses.dataclass(frozen=True)
class Span:
    low: Any
    high: Any = 1.0

    @property
    def middle(self):
        return (self.low + self.high) / 2


@program(lambda x: x + 1.5)
def objects_of_numbers(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    """Properties, and copies with another field."""
    with T.Kernel(T.ceildiv(N, BLOCK), threads=BLOCK) as bx:
        for i in T.Parallel(BLOCK):
            one = Span(A[bx * BLOCK + i])
            two = dataclasses.replace(one, high=2.0)
            C[bx * BLOCK + i] = one.middle + two.middle


@dataclasses.dataclass
class Total:
    so_far: Any


@program(lambda x: x + 1 + 10 * x)
def objects_of_elements(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    """What an object keeps of an element is changed in the object."""
    with T.Kernel(T.ceildiv(N, BLOCK), threads=BLOCK) as bx:
        for i in T.Parallel(BLOCK):
            total = Total(A[bx * BLOCK + i])
            total.so_far += 1
            C[bx * BLOCK + i] = total.so_far + A[bx * BLOCK + i] * 10


@program(lambda x: 3 * x + 12)
def lists_by_several_names(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    """`+=` changes the list, or the item of one in a dict."""
    with T.Kernel(T.ceildiv(N, BLOCK), threads=BLOCK) as bx:
        for i in T.Parallel(BLOCK):
            x = A[bx * BLOCK + i]
            terms = [x]
            same = terms
            same += [x, 2]
            held = {"terms": [terms, [10.0]]}
            held["terms"][1][0] += x
            C[bx * BLOCK + i] = sum(terms) + held["terms"][1][0]
