"""Compile-time values as keys: each kind by type and value, in memory and on disk."""

from __future__ import annotations

import dataclasses
import enum
import fractions
import functools
import itertools
import math
import operator
import struct
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import tilec
import tilec.language as T
from tilec.ir.layout import row_major
from tilec.jit.fingerprint import describe, exact

N = T.dynamic("N")
ROOT = Path(__file__).resolve().parent.parent


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


class Flags(enum.Flag):
    A = 1
    B = 2


class Whole(int):
    pass


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any


@dataclasses.dataclass
class Mutable:
    x: Any


class Plain:
    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def adding(n: Any) -> Callable[[Any], Any]:
    return lambda x: x + n


def macro_of(n: Any) -> T.Macro:
    @T.macro
    def scaled(x):
        return x * n

    return scaled


other_nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
VALUES: list[Any] = [
    1, True, 1.0, "1", b"1", 1j, Whole(1), Number.ONE, np.int64(1), np.int32(1),
    np.uint8(1), np.float64(1), np.float32(1), np.float16(1), np.bool_(True),
    ml_dtypes.bfloat16(1), fractions.Fraction(1), np.array(1), np.array([1]), np.array([1.0]),
    0, False, 0.0, -0.0, 0j, complex(0, -0.0), np.float64(0.0), np.float64(-0.0), np.float32(-0.0),
    2, 2.5, np.int64(2), np.int64(3), np.float32(2), np.float32(3), 10**400, 10**400 + 1,
    math.nan, other_nan, math.inf, -math.inf, None, ..., "None", "nan", "",
    (), [], {}, set(), frozenset(), (1,), [1], {1}, frozenset({1}), (1.0,), (True,), (0.0,),
    (-0.0,), (np.int64(1),), ((1,),), ([1],), (1, (2, 3)), (1, 2, 3), ((1, 2), 3),
    {"a": 1}, {"a": 1.0}, {"a": [1]}, {"a": 1, "b": 2}, {"b": 2, "a": 1},
    types.MappingProxyType({"a": 1}), Pair(1, 2), Pair(1.0, 2), (1, 2), range(3), range(0, 3, 2),
    Colour.RED, Colour.BLUE, Number.TWO, Flags.A,
    Flags.A | Flags.B, Colour, Number, Frozen(1), Frozen(1.0), Frozen([1]), Mutable(1), Mutable(2),
    T.float16, T.float32, T.int8, np.float16, np.dtype("float16"), np.dtype(">f2"), int, float,
    np.array([1, 2]), np.array([2, 1]), np.array([[1, 2]]), np.zeros(2000), np.eye(50)[:40],
    np.array([None]), np.array([1], object), np.dtype([("a", "i4")]), N, T.dynamic("M"), N + 1,
    T.const("N"), T.auto, T.auto(1, 2), row_major((4, 8)), row_major((8, 4)),
    adding(1), adding(1.0), adding(2), macro_of(1), macro_of(1.0), macro_of(np.int64(1)),
    operator.add, math.sqrt, math, np, T, T.exp, T.exp2, Plain(1), Plain(2), object(), object(),
    functools.partial(adding, 1), memoryview(b"1"),
]  # fmt: skip


def test_every_value_has_a_key_of_its_own() -> None:
    for keys in (
        [describe(a) for a in VALUES],
        [(type(a), exact(a)) for a in VALUES],
        [describe((a,)) for a in VALUES],
        [describe({"k": [a]}) for a in VALUES],
    ):
        for (i, a), (j, b) in itertools.combinations(enumerate(keys), 2):
            assert a != b, (i, VALUES[i], j, VALUES[j])


def test_a_value_keeps_its_key() -> None:
    for value in VALUES:
        assert describe(value) == describe(value), value
        assert describe([value, value]) == describe([value, value]), value


def test_equal_values_made_twice_have_one_key() -> None:
    for make in (
        lambda: Frozen([1, np.int64(2)]),
        lambda: {"a": (1, [2.5]), "b": {3}},
        lambda: np.arange(5),
        lambda: adding(3),
        lambda: Pair(1, Mutable("x")),
        lambda: float("nan"),
    ):
        assert describe(make()) == describe(make())


def test_what_holds_itself_has_a_key() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert describe(loop) == describe(loop) != describe([1, [1]])


def test_torch_values(torch: Any) -> None:
    values = [torch.float16, torch.float32, torch.Size([1]), (1,), torch.device("cpu")]
    values += [torch.zeros(2), torch.ones(2)]
    assert len({describe(v) for v in values}) == len(values)


NUMBERS = (2, 2.5, np.int64(2), np.int64(3), np.float32(0.25), np.float64(3), True, Number.TWO)


@tilec.kernel
def times(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32"), f: T.constexpr):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = A[i] * f


@tilec.kernel
def times_last(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32"), f: T.constexpr):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = A[i] * f[-1]


def product(kernel: tilec.Kernel, f: Any) -> float:
    a, c = np.ones(3, np.float32), np.zeros(3, np.float32)
    kernel(a, c, f=f)
    return float(c[0])


def test_numbers_as_constants() -> None:
    for _ in range(3):
        for f in NUMBERS[:-1]:
            assert product(times, f) == float(f)
            assert product(tilec.kernel(times.function), f) == float(f), "from the disk cache"


def test_numbers_in_containers() -> None:
    for _ in range(3):
        for f in NUMBERS[:-1]:
            for holder in ((1, f), [1, f], (1, f, 1)[:2], {-1: f}):
                assert product(times_last, holder) == float(f)


def test_a_list_that_changes_between_two_launches() -> None:
    holder: list[Any] = [0, 0]
    for f in (*NUMBERS[:-1], *NUMBERS[:-1]):
        holder[1] = f
        assert product(times_last, holder) == float(f)


PROGRAM = """
import numpy as np, tilec, sys
sys.path.insert(0, {tests!r})
from test_fingerprint import times, product
print(product(times, {value}), len(times._variants))
"""


def test_numbers_in_another_process() -> None:
    for value in ("np.int64(3)", "np.float32(3)"):
        program = PROGRAM.format(tests=str(ROOT / "tests"), value=value)
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert run.stdout.split()[:1] == [str(float(eval(value)))], run.stderr
