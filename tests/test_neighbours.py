"""What is said of neighbours holds for every group of them: random expressions, all values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Value
from tilec.ir.neighbours import Neighbours
from tilec.ir.ops import DIVISIONS, Binary, Compare, Const, Parallel, Yield
from tilec.ir.types import INT32, ScalarType

KINDS = ("add", "sub", "mul", "floordiv", "mod", "truncdiv", "truncmod", "min", "max")
EXTENT = 64


def index() -> Value:
    return Value(ScalarType(INT32), "j")


def expression(rng: np.random.Generator, arg: Value, ops: int) -> tuple[list[Any], list[Value]]:
    """Ops on an index and numbers, and their results."""
    b = Builder()
    made = [arg, *(b.value(Const, int(n), INT32) for n in rng.choice([1, 3, 4, 8, 12, 16, 24], 3))]
    for _ in range(ops):
        lhs, rhs = (made[int(i)] for i in rng.integers(len(made), size=2))
        kind = str(rng.choice(KINDS))
        rhs = made[int(rng.integers(1, 4))] if kind in DIVISIONS else rhs  # by a number, not 0
        if rng.random() < 0.2:
            kind = str(rng.choice(["lt", "le", "gt", "ge", "eq"]))
            b.value(Compare, kind, lhs, rhs)
        else:
            made.append(b.value(Binary, kind, lhs, rhs))
    results = [r for o in b.ops for r in o.results]
    return b.ops, results


def values(ops: list[Any], arg: Value, at: int) -> dict[Value, int]:
    """What the ops give where the index is `at`."""
    env: dict[Value, int] = {arg: at}
    for o in ops:
        if isinstance(o, Const):
            env[o.result] = int(o.value)
            continue
        a, b = (env[v] for v in o.operands)
        exact = [np.asarray(x, np.int64) for x in (a, b)]
        env[o.result] = int(o.evaluate(*exact))
    return env


@pytest.mark.covering(1)
@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("seed", range(60))
def test_steps_are_true(seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    arg = index()
    ops, results = expression(rng, arg, 12)
    all_of = [values(ops, arg, at) for at in range(EXTENT)]
    loop = Parallel((EXTENT,), Block((arg,), (*ops, Yield())))
    func = Func("f", (), Block((), (Yield(),)), Block((), (loop, Yield())), {"threads": 32})
    near = Neighbours(facts_of(func), set(), arg, width)
    for v in results:
        step = near.step(v)
        if step is None:
            continue
        for first in range(0, EXTENT, width):
            found = [env[v] for env in all_of[first : first + width]]
            assert found == [found[0] + step.by * n for n in range(width)]
            assert found[0] % step.divisor == 0 or step.divisor > 1 << 40 and found[0] == 0


def test_quotients_and_remainders() -> None:
    arg, b = index(), Builder()
    n, m = b.value(Const, 24, INT32), b.value(Const, 20, INT32)
    whole, rest = b.value(Binary, "floordiv", arg, n), b.value(Binary, "mod", arg, n)
    odd = b.value(Binary, "floordiv", arg, m)
    below = b.value(Compare, "lt", rest, n)
    loop = Parallel((EXTENT,), Block((arg,), (*b.ops, Yield())))
    func = Func("f", (), Block((), (Yield(),)), Block((), (loop, Yield())), {"threads": 32})
    near = Neighbours(facts_of(func), set(), arg, 8)
    assert near.same(whole) and near.counts_up(rest) and near.same(below)
    assert near.step(odd) is None  # 20 is no multiple of 8
    assert Neighbours(facts_of(func), set(), arg, 4).same(odd)
