"""Kernels whose text is Python where that is known at compile time: each with what it computes of
an array of float32, by NumPy."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import operator
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tilec
import tilec.language as T

N = T.dynamic("N")
BLOCK = 64
SCALE = 2.0

Expected = Callable[[np.ndarray], np.ndarray]
PROGRAMS: dict[str, tuple[tilec.Kernel, Expected]] = {}


def program(expected: Expected) -> Callable[[Any], tilec.Kernel]:
    def register(function: Any) -> tilec.Kernel:
        made = tilec.kernel(function)
        PROGRAMS[function.__name__] = made, expected
        return made

    return register


# --- functions and what they are given ------------------------------------------------------------


def scaled(x, by=SCALE, *, plus=1.0):
    return x * by + plus


def sign(x):
    """Three returns, chosen at run time."""
    if x > 0:
        return 1.0
    elif x < 0:
        return -1.0
    return 0.0


def activation(x, mode):
    """Chosen at compile time."""
    if mode == "relu":
        return T.max(x, 0)
    if mode == "leaky":
        if x > 0:
            return x
        return 0.25 * x
    raise ValueError(f"there is no mode {mode}")


def in_order(x, y):
    if x > y:
        return y, x
    return x, y


def gcd(a, b):
    return a if b == 0 else gcd(b, a % b)


@functools.cache
def divisors(n):
    try:
        return [d for d in range(1, n + 1) if n % d == 0]
    finally:
        pass


def largest(*values, start=-1e30):
    for v in values:
        start = T.max(start, v)
    return start


def cleared(n, dtype="float32"):
    tile = T.alloc_shared((n,), dtype)
    T.clear(tile)
    return tile


def total(tile, n):
    s = T.alloc_var("float32", 0)
    for i in T.serial(n):
        if i % 2 == 0:
            continue
        s = s + tile[i]
    return s


def first_large(x):
    for limit in (4.0, 2.0, 1.0):
        if x > limit:
            return limit
    return 0.0


def clipped(function):
    @functools.wraps(function)
    def wrapper(x):
        return T.min(function(x), 3.0)

    return wrapper


@clipped
def square(x):
    return x * x


@dataclasses.dataclass
class Config:
    factor: int = 3
    name: str = "leaky"
    tiles: list[int] = dataclasses.field(default_factory=lambda: [1, 2, 4])

    @property
    def twice(self) -> int:
        return 2 * self.factor

    def area(self, k: int) -> int:
        return self.factor * k

    def act(self, x):
        return activation(x, self.name) + self.factor


class Plain:
    SHIFT = 0.5

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.table = {"a": 1, "b": 2}

    def __call__(self, x):
        return x * self.weight + self.SHIFT

    @staticmethod
    def half(x):
        return x / 2

    @T.macro
    def shifted(self, x):
        return x + self.weight


class Mode(enum.Enum):
    ADD = "add"
    MUL = "mul"

    @property
    def sign(self) -> str:
        return "+" if self is Mode.ADD else "*"


class Pair(NamedTuple):
    a: Any
    b: Any


CONFIG, PLAIN, PAIR = Config(), Plain(1.5), Pair(2, 5)
SPACE = types.SimpleNamespace(depth=3)
MODULE = types.ModuleType("settings")
MODULE.block = 7  # type: ignore[attr-defined]
TABLE = {"x": (1, 2), "y": (3, 4)}


def piecewise(x: np.ndarray, *pairs: Any) -> np.ndarray:
    return np.select([x > limit for limit, _ in pairs], [v for _, v in pairs], 0.0)


@program(lambda x: x * 2 + 1 + (x * 3 + 4))
def calls_functions(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        for i in T.Parallel(BLOCK):
            C[bx * BLOCK + i] = scaled(A[bx * BLOCK + i]) + scaled(A[bx * BLOCK + i], 3, plus=4)


@program(lambda x: np.sign(x) + np.maximum(x, 0) * 2 + np.where(x > 0, x, 0.25 * x))
def returns_early(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        for i in T.Parallel(BLOCK):
            x = A[bx * BLOCK + i]
            C[bx * BLOCK + i] = sign(x) + activation(x, "relu") * 2 + activation(x, "leaky")


@program(lambda x: np.where(x > 0, x, 3) + np.where(np.floor(x) == 0, np.floor(x), x) * 2)
def takes_one_of_two(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        for i in T.Parallel(BLOCK):
            x = A[bx * BLOCK + i]
            C[bx * BLOCK + i] = (T.max(x, 0.0) or 3) + (T.floor(x) and x) * 2


@program(lambda x: np.minimum(x, 1 - x) - 2 * np.maximum(x, 1 - x))
def returns_several(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        for i in T.Parallel(BLOCK):
            low, high = in_order(A[bx * BLOCK + i], 1 - A[bx * BLOCK + i])
            C[bx * BLOCK + i] = low - 2 * high


@program(lambda x: x * 6 + 28 + np.maximum(np.maximum(x, 1), 2 * x))
def runs_python(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        for i in T.Parallel(BLOCK):
            x = A[bx * BLOCK + i]
            C[bx * BLOCK + i] = x * gcd(12, 18) + sum(divisors(12)) + largest(x, 1, 2 * x)


@program(lambda x: piecewise(x, (4, 4.0), (2, 2.0), (1, 1.0)) + np.minimum(x * x, 3))
def returns_in_a_loop(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        for i in T.Parallel(BLOCK):
            C[bx * BLOCK + i] = first_large(A[bx * BLOCK + i]) + square(A[bx * BLOCK + i])


@program(lambda x: np.full_like(x, 32 * 2))
def allocates_in_a_function(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        tile = cleared(BLOCK)
        T.fill(tile, 2)
        t = total(tile, BLOCK)
        for i in T.Parallel(BLOCK):
            C[bx * BLOCK + i] = t


square_of = lambda x: x * x  # noqa: E731 (that is what is tested)
PAIR_OF = (lambda x: x + 1, lambda x, k=3: x * k)
ADD_3 = functools.partial(lambda a, b: a + b, 3)


def applied(x, function):
    return function(x)


@program(
    lambda x: x * x + (x + 1) + x * 3 + (3 + x) + (2 * x + 1) + np.where(3 * x > 4, 4, 3 * x + 1)
)
def calls_lambdas(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        one = 1

        def bounded(x, by=2):
            y = x * by
            if y > 4:
                return 4.0
            return y + one

        @T.macro
        def put(i, value):
            C[bx * BLOCK + i] = value

        for i in T.Parallel(BLOCK):
            x = A[bx * BLOCK + i]
            y = square_of(x) + PAIR_OF[0](x) + PAIR_OF[1](x) + ADD_3(x)
            assert sorted((1, 3, 2), key=lambda v: -v) == [3, 2, 1]
            y += applied(x, lambda v: v * 2 + one)  # noqa: B023 (called at once)
            put(i, y + bounded(x, by=3))


# --- objects, lists, text -------------------------------------------------------------------------


@program(lambda x: np.where(x > 0, x, 0.25 * x) + 3 + x * (6 + 12 + 7))
def takes_a_dataclass(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        for i in T.Parallel(BLOCK):
            x = A[bx * BLOCK + i]
            C[bx * BLOCK + i] = CONFIG.act(x) + x * (CONFIG.twice + CONFIG.area(4) + MODULE.block)


@program(lambda x: x * 1.5 + 0.5 + x / 2 + x + 1.5 + 3 + (7 + 3) * x)
def takes_an_object(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        for i in T.Parallel(BLOCK):
            x = A[bx * BLOCK + i]
            y = PLAIN(x) + Plain.half(x) + PLAIN.shifted(x) + sum(PLAIN.table.values())
            C[bx * BLOCK + i] = y + (PAIR.a + PAIR[1] + SPACE.depth) * x


@program(lambda x: x * 8 + 22)
def makes_an_object(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        for i in T.Parallel(BLOCK):
            c = Config(factor=7)
            c.factor += 1
            p = Pair(A[bx * BLOCK + i], b=c)
            C[bx * BLOCK + i] = p.a * p.b.factor + sum(p.b.tiles) * 2 + c.factor


@program(lambda x: x * (0 + 1 + 4) + 3 + 10 + (1 + 2 + 3 + 4) + 2 + 1)
def comprehensions(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        for i in T.Parallel(BLOCK):
            squares = {k: k * k for k in range(3)}
            xs = [A[bx * BLOCK + i] * v for v in squares.values()]
            found = []
            for name, (a, b) in TABLE.items():
                found += [a, b]
                assert name in ("x", "y") and f"{name}{a:02d}" in ("x01", "y03"), f"{name} is new"
            found[0] += 2
            found.append(sum(v for v in (1, 2, 3, 4) if v > 0))
            y = sum(xs) + found[-1] + len({v % 2 for v in found}) + max(found[:2])
            C[bx * BLOCK + i] = y + sum(found[:4]) - 2 + (Mode.ADD.sign == "+")


@program(lambda x: x * 6 + 6)
def buffers_in_lists(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        tiles = [T.alloc_shared((BLOCK,), "float32") for _ in range(3)]
        named = dict(zip("abc", tiles))
        for k, tile in enumerate(tiles):
            T.copy(A[bx * BLOCK], tile)
            for i in T.Parallel(BLOCK):
                tile[i] = (tile[i] + 1) * (k + 1)
        for i in T.Parallel(BLOCK):
            C[bx * BLOCK + i] = sum([named[key][i] for key in sorted(named)])


@program(lambda x: x * math.pi + math.ceil(2.5) + math.log2(8) + round(2.6) + 2**4)
def pythons_maths(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        for i in T.Parallel(BLOCK):
            y = A[bx * BLOCK + i] * math.pi + math.ceil(2.5) + math.log2(8) + round(2.6)
            C[bx * BLOCK + i] = T.max(y, -math.inf) + T.float16.bits * (math.prod((1, 1)))


# --- small words ----------------------------------------------------------------------------------


@program(lambda x: np.clip(x, -1, 2) + np.maximum(np.maximum(x, 0.5), -x) + np.where(x > 1, 3, x))
def small_words(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        T.annotate_min_blocks_per_sm(2)
        T.annotate_l2_hit_ratio({A: 0.8})
        T.annotate_restrict_buffers(A, C)
        for i in T.Parallel(BLOCK):
            T.assume(i < BLOCK)
            T.evaluate(0)
            x: T.float32 = A[bx * BLOCK + i]
            y = T.clamp(x, -1, max_val=2) + T.max(x, 0.5, -x)
            x = T.where(x > 1, 3, x)
            C[bx * BLOCK + i] = y + x


@program(lambda x: x + sum(10 * i + j for i in range(3) for j in range(4) if j != 2))
def nested_loops(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        rows = T.min(N, 3) - T.min(N, 3) + 3
        s: T.int32 = 0
        for i, j in T.grid(rows, 4):
            if j == 2:
                continue
            s += 10 * i + j
        for i in T.Parallel(BLOCK):
            C[bx * BLOCK + i] = A[bx * BLOCK + i] + s


# --- the kernel's own level -----------------------------------------------------------------------


@program(lambda x: np.where(np.arange(len(x)) // BLOCK == 1, 0, x + 1))
def leaves_blocks_out(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        if bx == 1:
            return
        tile = T.alloc_shared((BLOCK,), "float32")
        T.copy(A[bx * BLOCK], tile)
        for i in T.Parallel(BLOCK):
            tile[i] = tile[i] + 1
        T.copy(tile, C[bx * BLOCK])


@T.macro
def whole_kernel(A, C, plus):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        for i in T.Parallel(BLOCK):
            C[bx * BLOCK + i] = A[bx * BLOCK + i] + plus


@program(lambda x: x + 5)
def kernel_in_a_macro(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    whole_kernel(A, C, plus=5)


@T.macro
def bump(x: T.Ref, by=1.0):
    x = x + by
    x += 1


@program(lambda x: x + 2 + (2 * x + 4))
def references(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        tile = T.alloc_fragment((BLOCK,), "float32")
        T.copy(A[bx * BLOCK], tile)
        for i in T.Parallel(BLOCK):
            v = T.alloc_var("float32", 2 * tile[i])
            bump(v, 3)
            bump(tile[i])
            tile[i] += v
        T.copy(tile, C[bx * BLOCK])


@program(lambda x: np.concatenate([x[:1] * 0 + 7, x[:-1] * 0 + x[-1:]]))
def counts_from_the_end(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        tile = T.alloc_shared((BLOCK,), "float32")
        T.fill(tile, 1.0)
        T.copy(A[-1], tile[-1])
        T.copy(tile[-1], tile[-2])
        for i in T.Parallel(BLOCK):
            C[bx * BLOCK + i] = tile[-2]
        if bx == 0:
            T.fill(C[0], 7)


def power(x, n):
    """By squaring: calls itself as long as `n`, known at compile time, says."""
    if n == 0:
        return T.float32(1)
    half = power(x, n // 2)
    return half * half * x if n % 2 else half * half


@program(lambda x: x**5)
def calls_itself(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        for i in T.Parallel(BLOCK):
            C[bx * BLOCK + i] = power(A[bx * BLOCK + i], 5)


@program(lambda x: np.where((x >= 1) | ~(x < 3), (x - 2) * 2 / 4, -x) + np.floor(x) % 3)
def functions_for_operators(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=64) as bx:
        for i in T.Parallel(BLOCK):
            x = A[operator.add(bx * BLOCK, i)]
            large = operator.or_(operator.ge(x, 1), operator.not_(operator.lt(x, 3)))
            half = operator.truediv(operator.mul(operator.sub(x, 2), 2), 4)
            rest = operator.mod(T.cast(T.floor(x), "int32"), operator.add(1, 2))
            C[bx * BLOCK + i] = T.if_then_else(large, half, operator.neg(x)) + rest
