"""Sums that values are: against what random index expressions give, and where they matter."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.affine import Affine
from tilec.ir.analysis import Facts
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Param, Value, walk
from tilec.ir.fold import fold
from tilec.ir.intervals import RANGES
from tilec.ir.loc import UNKNOWN
from tilec.ir.ops import Binary, BlockIndex, Cast, Const, Parallel, Unary, Yield
from tilec.ir.types import INT8, INT32, INT64, UINT8, UINT32, ScalarType

pytestmark = pytest.mark.turns

DTYPES = (INT32, INT32, INT32, INT64, UINT8, INT8, UINT32)
EXTENTS = (5, 7)
KINDS = (
    "add", "add", "sub", "mul", "mul", "floordiv", "mod", "min", "max", "shl", "truncdiv",
    "truncmod", "and", "shr",
)  # fmt: skip


def random_loop(rng: random.Random) -> tuple[Func, list[Value]]:
    """A loop whose body is arithmetic on its indices, a block index below 6, and numbers."""
    args = tuple(Value(ScalarType(INT32), n) for n in "ij")
    grid, b, inner = Builder(UNKNOWN), Builder(UNKNOWN), Builder(UNKNOWN)
    grid.emit(Yield, (grid.value(Const, 6, INT32),))
    made = [*args, b.value(BlockIndex, 0), inner.value(BlockIndex, 0)]
    for _ in range(14):
        dtype = rng.choice(DTYPES)
        kind = rng.choice(KINDS)
        x = made[rng.randrange(len(made))] if rng.random() < 0.4 else made[-1]
        if x.dtype != dtype:
            x = inner.value(Cast, x, dtype)
        if rng.random() < 0.1:
            made.append(inner.value(Unary, "neg", x))
            continue
        y = inner.value(Const, rng.choice((1, 2, 3, 4, 8, 32, 100)), dtype)
        others = [v for v in made if v.dtype == dtype]
        if kind in ("add", "sub", "mul", "min", "max") and others and rng.random() < 0.6:
            y = rng.choice(others)
        made.append(inner.value(Binary, kind, *rng.choice(((x, y), (x, y), (y, x)))))
    inner.emit(Yield)
    b.emit(Parallel, EXTENTS, inner.block(args))
    b.emit(Yield)
    return Func("f", (), grid.block(), b.block(), loc=UNKNOWN), made


@pytest.mark.parametrize("seed", range(20))
def test_sums_ranges_divisors_and_slopes_hold(seed: int) -> None:
    rng = random.Random(seed)
    linear = 0
    for _ in range(5):
        func, made = random_loop(rng)
        facts = Facts(func)
        (loop,) = (o for o in func.body.ops if isinstance(o, Parallel))
        seen = {}
        for block, i, j in np.ndindex(6, *EXTENTS):
            env: dict[Value, int] = dict(zip(loop.body.args, (i, j)))
            for o in walk(func.body):
                if isinstance(o, BlockIndex):
                    env[o.result] = block
                elif o.results:
                    value = fold(o, env.get)
                    assert value is not None
                    env[o.result] = int(value)
            seen[block, i, j] = env
        for v in made:
            form, (lo, hi), divisor = facts.form(v), facts.range(v), facts.divisor(v)
            linear += form != Affine.of(v)
            for env in seen.values():
                assert form.at(env) == env[v]
                assert (lo is None or lo <= env[v]) and (hi is None or env[v] <= hi)
                assert env[v] % divisor == 0 and env[v] % form.divisor(facts.divisor) == 0
            for d, arg in enumerate(loop.body.args):
                slope = facts.slope(v, arg)
                steps = {
                    env[v] - before[v]
                    for at, env in seen.items()
                    if at[d + 1] and (before := seen[*at[: d + 1], at[d + 1] - 1, *at[d + 2 :]])
                }
                assert slope is None or steps == {slope}
                assert arg in facts.origins.of(v) or steps == {0}
    assert linear > 20


@tilec.kernel
def wrapping(A: T.Tensor((T.dynamic("N"),), "float32"), B: T.Tensor((257,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(257):
            B[i] = A[T.int32(T.uint8(i))]


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_an_index_that_wraps_is_no_sum(target: str) -> None:
    """At both ends of the tile it is 0, but in between it leaves the tensor."""
    a, b = np.arange(1, 21, dtype="float32"), np.full(257, -1, "float32")
    if target == "cpu":
        wrapping(a, b)
    else:
        assert not tilec.simulate(wrapping, a, b, target=target).findings
    index = np.arange(257) % 256
    np.testing.assert_array_equal(b, np.where(index < 20, index + 1, 0))


@tilec.kernel
def rows_from(
    X: T.Tensor(T.dynamic("M, N"), "float32"),
    first: T.int32,
    Y: T.Tensor((64, T.dynamic("N")), "float32"),
):
    with T.Kernel(T.ceildiv(Y.shape[1], 32), threads=128) as bx:
        for i, j in T.Parallel(64, 32):
            Y[i, bx * 32 + j] = X[first + i, bx * 32 + j]


@pytest.mark.parametrize("first", [0, 5, 9, -3, -64, 2**31 - 2, 2**31 - 60, -(2**31)])
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_a_tile_whose_rows_wrap_is_not_inside(
    target: str, first: int, rng: np.random.Generator
) -> None:
    """Its last row is one below 0, its first is none of the tensor's."""
    x = rng.standard_normal((70, 33)).astype(np.float32)
    y = np.full((64, 33), np.nan, np.float32)
    if target == "cpu":
        rows_from(x, first, y)
    else:
        assert not tilec.simulate(rows_from, x, first, y, target=target).findings
    rows = first + np.arange(64)
    inside = (rows >= 0) & (rows < 70)
    np.testing.assert_array_equal(y, np.where(inside[:, None], x[rows % 70], 0))


def test_a_chain_is_walked_once() -> None:
    """2000 steps with an unknown each: the sums stay short, so that time grows with the steps."""
    seconds = []
    for count in (500, 2000):
        params = [Param(Value(ScalarType(INT32), f"n{i}"), "scalar", f"n{i}") for i in range(count)]
        b = Builder(UNKNOWN)
        x = params[0].value
        for p in params[1:]:
            x = b.value(Binary, "add", x, p.value)
        b.emit(Yield)
        grid = Block((), (Yield(loc=UNKNOWN),))
        facts = Facts(Func("f", tuple(params), grid, b.block(), loc=UNKNOWN))
        start = time.process_time()
        assert len(facts.form(x).terms) <= 64
        seconds.append(time.process_time() - start)
    assert seconds[1] < 10 * seconds[0] + 0.05


def test_a_divisor_that_no_number_is() -> None:
    """A range of which conditions have left nothing: found by the fuzzer."""
    assert RANGES["floordiv"]((-3, 5), (1, 0)) == (None, None)
