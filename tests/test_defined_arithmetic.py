"""Arithmetic with operands for which LLVM, C or a processor define no result: every op has the one
of `docs/language.md`, on every target, and nothing around it changes."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scalar_jit as jit

import tilec
import tilec.language as T
from tilec.ir import semantics as num
from tilec.ir import types as t
from tilec.ir.builder import Builder
from tilec.ir.fold import fold
from tilec.ir.intervals import dtype_range
from tilec.ir.ops import Binary, Const
from tilec.ir.types import MOST_NARROW

pytestmark = pytest.mark.usefixtures("unassembled")

INTS = (t.INT8, t.INT16, t.INT32, t.INT64, t.UINT8, t.UINT16, t.UINT32, t.UINT64)
FLOATS = (t.FLOAT16, t.BFLOAT16, t.FLOAT32, t.FLOAT64)
BF16 = num.numpy_dtype(t.BFLOAT16)
N = T.dynamic("N")
DIVISIONS = ("floordiv", "mod", "truncdiv", "truncmod")
GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


def whole_edges(dtype: t.DType) -> np.ndarray:
    low, high = dtype_range(dtype)
    few = {low, low + 1, -7, -2, -1, 0, 1, 2, 5, dtype.bits - 1, dtype.bits, high - 1, high}
    return np.array(sorted(n for n in few if low <= n <= high), num.numpy_dtype(dtype))


def float_edges(dtype: t.DType) -> np.ndarray:
    few = [0.0, 4e-8, 0.1, 0.3, 0.5, 1.0, 3.0, 7.5, 127.9, 300.0, 1000.0, 65504.0, math.inf]
    if dtype.bits > 16 or dtype is t.BFLOAT16:
        few += [1e-38, 1e-30, 2.0**31, 2.0**63, 1e30]
    return np.array([*few, *(-x for x in few), math.nan]).astype(num.numpy_dtype(dtype))


def pairs(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(edges, len(edges)), np.tile(edges, len(edges))


def meant(kind: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Python's numbers, with the results of docs/language.md where Python has none."""
    bits = a.dtype.itemsize * 8
    made = []
    for x, y in zip(a.tolist(), b.tolist()):
        if kind in ("shl", "shr"):
            by = y if 0 <= y < bits else bits
            got = x << by if kind == "shl" else x >> by
        elif y == 0:
            got = 0
        elif kind == "floordiv":
            got = x // y
        elif kind == "mod":
            got = x % y
        else:
            quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
            got = quotient if kind == "truncdiv" else x - quotient * y
        made.append(got % (1 << bits))
    return np.array(made, np.dtype(f"u{a.dtype.itemsize}")).view(a.dtype)


def floor_quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """NumPy's, which is off by one for some large quotients, mended by exact arithmetic."""
    want = np.floor_divide(a, b)
    for i in np.flatnonzero(np.isfinite(want) & (b != 0) & np.isfinite(b)):
        exact = Fraction(float(a[i])) // Fraction(float(b[i]))
        want[i] = np.copysign(a.dtype.type(exact), want[i]) if exact == 0 else exact
    return want


def integer_table(dtype: t.DType) -> Any:
    @tilec.kernel
    def table(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((6, N), dtype)):
        with T.Kernel(T.ceildiv(N, 128)) as bx:
            for j in T.Parallel(128):
                i = bx * 128 + j
                C[0, i] = A[i] // B[i]
                C[1, i] = A[i] % B[i]
                C[2, i] = T.truncdiv(A[i], B[i])
                C[3, i] = T.truncmod(A[i], B[i])
                C[4, i] = A[i] << B[i]
                C[5, i] = A[i] >> B[i]

    return table


def float_table(dtype: t.DType) -> Any:
    @tilec.kernel
    def table(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((2, N), dtype)):
        with T.Kernel(T.ceildiv(N, 128)) as bx:
            for j in T.Parallel(128):
                C[0, bx * 128 + j] = A[bx * 128 + j] // B[bx * 128 + j]
                C[1, bx * 128 + j] = A[bx * 128 + j] % B[bx * 128 + j]

    return table


def cast_table(source: t.DType, dest: t.DType) -> Any:
    @tilec.kernel
    def table(A: T.Tensor((N,), source), C: T.Tensor((N,), dest)):
        with T.Kernel(T.ceildiv(N, 128)) as bx:
            for j in T.Parallel(128):
                C[bx * 128 + j] = T.cast(A[bx * 128 + j], dest)

    return table


def run_on(where: str, kernel: Any, *arrays: np.ndarray) -> None:
    if where == "cpu":
        kernel(*arrays)
    elif where == "device":
        import torch

        given = [torch.from_numpy(a.view(np.int16) if a.dtype == BF16 else a) for a in arrays]
        given = [g.view(torch.bfloat16) if a.dtype == BF16 else g for g, a in zip(given, arrays)]
        moved = [g.cuda() for g in given]
        kernel(*moved)
        given[-1].copy_(moved[-1])
    else:
        report = tilec.simulate(kernel, *arrays, target=where)
        assert not report.findings, report


PLACES = ["cpu", "cuda:sm_90a", "hip:gfx942", pytest.param("device", marks=pytest.mark.gpu)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers(dtype: t.DType, where: str) -> None:
    a, b = pairs(whole_edges(dtype))
    got = np.full((6, len(a)), 77, a.dtype)
    run_on(where, integer_table(dtype), a, b, got)
    for row, kind in zip(got, (*DIVISIONS, "shl", "shr")):
        np.testing.assert_array_equal(row, meant(kind, a, b), kind)


def ceildiv_table(dtype: t.DType, last: int) -> Any:
    @tilec.kernel
    def table(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((4, N), dtype)):
        with T.Kernel(T.ceildiv(N, 128)) as bx:
            for j in T.Parallel(128):
                i = bx * 128 + j
                C[0, i] = T.ceildiv(A[i], B[i])
                C[1, i] = T.cdiv(A[i], 7)
                C[2, i] = T.ceildiv(A[i], 64)
                C[3, i] = T.ceildiv(A[i], last)

    return table


@pytest.mark.covering(1)
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_quotients_rounded_up(dtype: t.DType, where: str) -> None:
    """Of all signs, and at the limits: a + b - 1 need not be a number of the dtype."""
    a, b = pairs(whole_edges(dtype))
    got = np.full((4, len(a)), 77, a.dtype)
    last = -3 if dtype.kind == "int" else 3
    run_on(where, ceildiv_table(dtype, last), a, b, got)
    for row, divisors in zip(got, (b, np.full_like(b, 7), np.full_like(b, 64), b * 0 + last)):
        exact = [-(-x // y) if y else 0 for x, y in zip(a.tolist(), divisors.tolist())]
        want = np.array([x % (1 << dtype.bits) for x in exact], f"u{a.itemsize}").view(a.dtype)
        np.testing.assert_array_equal(row, want)


def test_only_sizes_and_known_ranges_are_rounded_up_by_an_addition() -> None:
    """A size can be: above `MOST_NARROW` indices have 64 bits."""

    @tilec.kernel
    def k(A: T.Tensor((N,), "int32"), n: T.int32):
        with T.Kernel(1):
            for i in T.serial(1000):
                A[T.ceildiv(N, 128) + T.ceildiv(i, 100)] = 1
                A[T.ceildiv(n, 32)] = 2
                A[T.ceildiv(T.max(n, 0), 16)] = 3

    text = k.compile(tilec.spec((5,), "int32"), 1, target="cpu").stages["tile"]
    numbers = {int(x) for x in re.findall(r"= const (\d+), i32", text)}
    assert {127, 99} <= numbers and not {31, 15} & numbers
    for extent, strides in ((MOST_NARROW, None), (MOST_NARROW + 1, None), (MOST_NARROW + 1, (0,))):
        made = k.compile(tilec.spec((extent,), "int32", strides), 1, target="cpu")
        assert made.image.wide == (extent > MOST_NARROW)


@pytest.mark.parametrize("where", PLACES[:2])
def test_a_shift_by_a_wider_number(where: str) -> None:
    """256 is not 0, and -1 is beyond the width, though a byte cannot hold them."""

    @tilec.kernel
    def k(A: T.Tensor((8,), "int8"), B: T.Tensor((8,), "int32"), C: T.Tensor((2, 8), "int8")):
        with T.Kernel(1):
            for i in T.Parallel(8):
                C[0, i] = A[i] << B[i]
                C[1, i] = A[i] >> B[i]

    a, b = np.int8([3, 3, 3, 3, -3, -3, -3, -3]), np.int32([0, 1, 256, -1] * 2)
    got = np.zeros((2, 8), np.int8)
    run_on(where, k, a, b, got)
    assert got.tolist() == [[3, 6, 0, 0, -3, -6, 0, 0], [3, 1, 0, 0, -3, -2, -1, -1]]


def test_a_shift_by_a_negative_literal() -> None:
    @tilec.kernel
    def k(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            for i in T.Parallel(8):
                A[i] = A[i] << -2

    with pytest.raises(tilec.CompileError, match="<< -2: a shift by a negative number") as e:
        k.compile(tilec.spec((8,), "int32"), target="cpu")
    assert "by 2" in str(e.value)


@pytest.mark.covering(1)
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_quotients_and_remainders_of_floats(dtype: t.DType, where: str) -> None:
    """As NumPy's, of the exact quotient; the remainder has the divisor's sign."""
    a, b = pairs(float_edges(dtype))
    wide = np.float64 if dtype is t.FLOAT64 else np.float32
    got = np.full((2, len(a)), 77, a.dtype)
    run_on(where, float_table(dtype), a, b, got)
    with np.errstate(all="ignore"):
        x, y = a.astype(wide), b.astype(wide)
        for row, want in zip(got, (floor_quotient(x, y), np.remainder(x, y))):
            want = want.astype(a.dtype).astype(wide)
            # a whole number with more digits than its dtype has is rounded
            exact = ~(np.abs(want) > 2.0 ** (np.finfo(wide).nmant + 1))
            np.testing.assert_array_equal(row[exact].astype(wide), want[exact])
            np.testing.assert_allclose(row.astype(wide), want, 2 * np.finfo(wide).eps)
            same = (np.signbit(row) == np.signbit(want)) | np.isnan(want)
            assert same.all(), (a[~same], b[~same])


@pytest.mark.covering(1)
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_floats_to_integers(source: t.DType, where: str) -> None:
    """What is beyond the range becomes its end, nan 0."""
    a = float_edges(source)
    for dest in INTS if where == "cpu" else INTS[2:]:
        low, high = dtype_range(dest)
        got = np.full(len(a), 77, num.numpy_dtype(dest))
        run_on(where, cast_table(source, dest), a, got)
        wide = a.astype(np.float64).tolist()
        want = [
            0 if x != x else high if x >= high else low if x <= low else math.trunc(x) for x in wide
        ]
        assert got.tolist() == want, dest


def element_wise(op: Any, dtype: t.DType) -> Any:
    @tilec.kernel
    def k(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
            for j in T.Parallel(128):
                C[bx * 128 + j] = op(A[bx * 128 + j], B[bx * 128 + j])

    return k


def behind(name: str, made: dict[str, str]) -> str:
    """The instructions from which a value of LLVM's text is computed."""
    found, left = {name: made.get(name, "")}, [name]
    while left:
        for x in re.findall(r"%[\w.]+", found[left.pop()]):
            if x not in found:
                found[x] = made.get(x, x)
                left.append(x)
    return "\n".join(found.values())


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("dtype", [t.INT8, t.INT32, t.UINT32, t.INT64], ids=str)
def test_the_bounds_test_stays(dtype: t.DType, target: str) -> None:
    """Beyond the bounds a divisor reads as 0: LLVM must not conclude that no lane is there."""
    for op in (T.floordiv, T.floormod, T.truncdiv, T.truncmod, T.shift_left, T.shift_right):
        specs = [tilec.spec((1001,), dtype.name)] * 3
        text = element_wise(op, dtype).compile(*specs, target=target).stages["llvm-opt"]
        assert "llvm.assume" not in text, op
        made = dict(re.findall(r"^ +(%\S+) = (.*?)(?:, !dbg.*)?$", text, re.MULTILINE))
        conditions = [behind(c, made) for c in re.findall(r"br i1 (%[\w.]+)", text)]
        assert any("%N" in c and re.search(r"(tid|workitem\.id)\.x", c) for c in conditions), op


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("kind", [*DIVISIONS, "shl", "shr"])
def test_folding_and_both_emitters_agree(dtype: t.DType, kind: str) -> None:
    a, b = pairs(whole_edges(dtype))
    want = meant(kind, a, b)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(num.binary(kind, a, b, dtype), want)
    got = jit.run(lambda s, x, y: s.binary(kind, x, y, dtype), [a, b], [dtype] * 2, dtype)
    np.testing.assert_array_equal(got, want)
    build = Builder()
    consts = {n: build.emit(Const, n, dtype) for n in set(a.tolist())}
    known = {c.result: n for n, c in consts.items()}
    for x, y, made in zip(a.tolist(), b.tolist(), want.tolist()):
        o = Binary(kind, consts[x].result, consts[y].result)
        assert fold(o, known.get) == made, (x, y)


# --- literals -------------------------------------------------------------------------------------


@tilec.kernel
def beyond(A: T.Tensor((4,), "uint8"), B: T.Tensor((4,), "int8"), C: T.Tensor((4, 4), "bool")):
    with T.Kernel(1):
        for i in T.Parallel(4):
            C[0, i] = A[i] < 300
            C[1, i] = A[i] >= -1
            C[2, i] = B[i] == 200
            C[3, i] = -129 > B[i]


def test_a_comparison_with_what_no_operand_is() -> None:
    """It has the answer of mathematics, and a warning says so."""
    a, got = np.uint8([0, 1, 255, 44]), np.zeros((4, 4), bool)
    with pytest.warns(tilec.CompileWarning) as caught:
        beyond(a, a.view(np.int8), got)
    assert got.tolist() == [[True] * 4, [True] * 4, [False] * 4, [False] * 4]
    found = [str(w.message) for w in caught]
    for text, answer, why in zip(
        found, (True, True, False, False), ("300 does not fit uint8 (0 to 255)",
        "-1 does not fit uint8", "200 does not fit int8 (-128 to 127)", "-129 does not fit int8"),
    ):  # fmt: skip
        assert f"is always {answer}: {why}" in text


def test_a_small_unsigned_number_less_a_literal_wraps() -> None:
    @tilec.kernel
    def k(A: T.Tensor((4,), "uint8"), C: T.Tensor((2, 4), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(4):
                C[0, i] = A[i] - 128
                C[1, i] = T.int32(A[i]) - 128

    a, got = np.uint8([0, 1, 128, 255]), np.zeros((2, 4), np.float32)
    with pytest.warns(tilec.CompileWarning, match="numbers below 128 wrap") as caught:
        k(a, got)
    assert len(caught) == 1 and "T.int32(x) - 128" in str(caught[0].message)
    assert got.tolist() == [[128, 129, 0, 127], [-128, -127, 0, 127]]


def test_arithmetic_with_a_literal_that_does_not_fit_is_an_error() -> None:
    @tilec.kernel
    def k(A: T.Tensor((4,), "int8")):
        with T.Kernel(1):
            for i in T.Parallel(4):
                A[i] = A[i] + 200

    with pytest.raises(tilec.CompileError, match=r"200 does not fit int8 \(-128 to 127\)"):
        k(np.zeros(4, np.int8))


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_wide_amounts_are_compared_before_ptx_reads_half_of_them(dtype: str) -> None:
    """PTX's shifts take 32 bits of the amount; LLVM 22 would leave the whole test to them."""

    @tilec.kernel
    def kernel(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((2, N), dtype)):
        with T.Kernel(1) as _:
            for j in T.Parallel(128):
                C[0, j] = A[j] << B[j]
                C[1, j] = A[j] >> B[j]

    specs = [tilec.spec((128,), dtype)] * 2 + [tilec.spec((2, 128), dtype)]
    lines = kernel.compile(*specs, target="cuda:sm_90a").stages["ptx"].splitlines()
    assert any(re.search(r"shl\.b64", line) for line in lines)
    assert any(re.search(r"setp\.\w+\.u64", line) for line in lines)


# --- what gives one of its operands ---


@tilec.kernel
def of_eighths(
    A: T.Tensor((32,), "float8_e5m2"), B: T.Tensor((4, 32), "float8_e5m2"),
    C: T.Tensor((2,), "float8_e5m2"),
):  # fmt: skip
    with T.Kernel(1, threads=32):
        x = T.alloc_fragment((32,), "float8_e5m2")
        most = T.alloc_fragment((1,), "float8_e5m2")
        least = T.alloc_fragment((1,), "float8_e5m2")
        T.copy(A, x)
        T.reduce_max(x, most, dim=0)
        T.reduce_min(x, least, dim=0)
        C[0], C[1] = most[0], least[0]
        for i in T.Parallel(32):
            B[0, i] = T.max(A[i], T.cast(0.25, "float8_e5m2"))
            B[1, i] = T.min(A[i], T.cast(0.25, "float8_e5m2"))
            B[2, i] = T.abs(A[i])
            B[3, i] = -A[i]


@pytest.mark.parametrize("where", PLACES[:3])
def test_a_float8_that_is_only_chosen_stays_as_it_is(where: str) -> None:
    """Infinity is none of the numbers that a conversion to float8 gives; no conversion is made."""
    kind = num.numpy_dtype(t.FLOAT8_E5M2, fnuz=where == "hip:gfx942")
    edge = np.nan if where == "hip:gfx942" else np.inf  # AMD's has no infinity
    a = np.tile(np.array([edge, -edge, 1, -2, np.nan, 0.5, 0.0, 57344]), 4).astype(kind)
    b, c = np.zeros((4, 32), kind), np.zeros(2, kind)
    run_on(where, of_eighths, a, b, c)
    x = a.astype(np.float64)
    want = np.stack([np.fmax(x, 0.25), np.fmin(x, 0.25), np.abs(x), -x])
    np.testing.assert_array_equal(b.astype(np.float64), want)
    assert c.astype(np.float64).tolist() == [np.fmax.reduce(x), np.fmin.reduce(x)]


def test_arithmetic_of_float8_is_folded_as_it_is_computed() -> None:
    """Sums saturate, as conversions do; what gives an operand does not."""
    infinity = num.literal(math.inf, t.FLOAT8_E5M2)
    largest = num.literal(57344.0, t.FLOAT8_E5M2)
    assert num.binary("add", largest, largest, t.FLOAT8_E5M2) == 57344
    assert num.binary("max", largest, infinity, t.FLOAT8_E5M2) == math.inf
    assert num.unary("neg", infinity, t.FLOAT8_E5M2) == -math.inf
