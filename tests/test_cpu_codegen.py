"""Scalar ops and control flow of the CPU target against NumPy and the reference interpreter, on
the host's instructions and on the oldest ones."""

from __future__ import annotations

import platform
import struct
import sys
from typing import Any

import numpy as np
import pytest
from cpu_helper import Compiled, check, same, sample
from cpu_programs import Program

import tilec
import tilec.language as T
from tilec.codegen.assemble import assemble
from tilec.codegen.cpu import emit_cpu
from tilec.ir import semantics as num
from tilec.ir import types as t
from tilec.ir.core import Func
from tilec.ir.intervals import dtype_range
from tilec.ir.ops.scalar import COMPARE_KINDS, UNARY_KINDS
from tilec.target import TARGETS, Target

ARCHES = ("host", "x86-64-v3", "x86-64")
FLOATS = (t.FLOAT16, t.BFLOAT16, t.FLOAT8_E4M3, t.FLOAT8_E5M2, t.FLOAT32, t.FLOAT64)
INTS = (t.INT8, t.UINT8, t.INT16, t.UINT16, t.INT32, t.UINT32, t.INT64, t.UINT64)
ROUNDED = [k for k in UNARY_KINDS if k not in (*num.EXACT, *num.OF_BITS, "not")]


def elementwise(make: Any, *dtypes: t.DType, out: t.DType, n: int) -> Func:
    """Y[i] = make(p, X0[i], X1[i], …) for i < n."""
    p = Program()
    xs = [p.tensor(f"X{k}", (n,), d) for k, d in enumerate(dtypes)]
    y = p.tensor("Y", (n,), out)
    with p.parallel(n) as (i,):
        p.store(y, i, make(p, *(p.load(x, i) for x in xs)))
    return p.func()


# --- scalar ops ---------------------------------------------------------------------------------


def every_value(dtype: t.DType, rng: np.random.Generator) -> np.ndarray:
    """All values of a type of 16 bits or fewer; a sample of a wider one."""
    if dtype.bits <= 16 and dtype != t.BOOL:
        bits = np.arange(1 << dtype.bits, dtype=f"u{dtype.bits // 8}")
        return bits.view(num.numpy_dtype(dtype))
    return sample(rng, dtype, 5003)


def edges(rng: np.random.Generator) -> np.ndarray:
    """float64 on, just below and just above the midpoints between float16 and bfloat16 numbers."""
    bits = rng.integers(0, 1 << 15, 4000).astype(np.uint16)
    lists = []
    for dtype in (t.FLOAT16, t.BFLOAT16, t.FLOAT8_E4M3, t.FLOAT8_E5M2):
        small = bits.astype(f"u{dtype.bits // 8}") & ((1 << dtype.bits - 1) - 2)
        a = small.view(num.numpy_dtype(dtype)).astype(np.float64)
        b = (small + 1).astype(small.dtype).view(num.numpy_dtype(dtype)).astype(np.float64)
        middle = (a + b) / 2
        lists += [middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf), -middle]
    found = np.concatenate(lists)
    return found[np.isfinite(found)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("source", [*FLOATS, *INTS, t.BOOL, t.TFLOAT32], ids=str)
def test_casts(source: t.DType, arch: str, rng: np.random.Generator) -> None:
    x = every_value(source, rng)
    if source in (t.FLOAT32, t.FLOAT64):
        with np.errstate(all="ignore"):
            x = np.concatenate([x, edges(rng).astype(x.dtype)])
    dests = [d for d in (*FLOATS, *INTS, t.BOOL, t.TFLOAT32) if d != source]
    p = Program()
    source_tensor = p.tensor("X", (len(x),), source)
    outs = {d: p.tensor(f"Y_{d}", (len(x),), d) for d in dests}
    with p.parallel(len(x)) as (i,):
        value = p.load(source_tensor, i)
        for d, y in outs.items():
            p.store(y, i, p.cast(value, d))
    args = {"X": x, **{f"Y_{d}": sample(rng, d, len(x)) for d in dests}}
    Compiled(p.func(), arch)(args, (1,))
    for d in dests:
        with np.errstate(all="ignore"):
            same(args[f"Y_{d}"], cast_once(x, source, d), f"{source} to {d}")


def cast_once(x: np.ndarray, source: t.DType, dest: t.DType) -> np.ndarray:
    """`num.cast`, where NumPy would round twice by way of an odd float32 (`semantics.cast`)."""
    narrow = dest in num.SATURATING or dest in (t.FLOAT16, t.BFLOAT16, t.TFLOAT32)
    if not narrow or source.bits < 32:
        return num.cast(x, source, dest)
    exact = x.astype(np.longdouble)
    near = exact.astype(np.float32)
    far = np.abs(near.astype(np.longdouble)) > np.abs(exact)
    down = np.where(far, np.nextafter(near, np.float32(0)), near)
    odd = (down.view(np.uint32) | 1).view(np.float32)
    inexact = (near.astype(np.longdouble) != exact) & np.isfinite(exact)
    return num.cast(np.where(inexact, odd, near), t.FLOAT32, dest)


@pytest.mark.covering(1)
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
def test_binary_ops(dtype: t.DType, arch: str, rng: np.random.Generator) -> None:
    kinds = ["add", "sub", "mul", "min", "max", "floordiv", "mod", "truncdiv", "truncmod"]
    kinds += ["div", "pow", "atan2"] if dtype.is_float else ["and", "or", "xor", "shl", "shr"]
    n = 1003
    a, b = sample(rng, dtype, n), sample(rng, dtype, n)[::-1].copy()
    if dtype.is_int:
        b[:50] = rng.integers(0, dtype.bits, 50)
        a[50], b[50] = (
            dtype_range(dtype)[0],
            (dtype_range(dtype)[1] if dtype.kind == "uint" else -1),
        )
    p = Program()
    left, right, by = (p.tensor(x, (n,), dtype) for x in ("A", "B", "S"))
    outs = {k: p.tensor(k, (n,), dtype) for k in kinds}
    with p.parallel(n) as (i,):
        x, y, z = (p.load(v, i) for v in (left, right, by))
        for kind, out in outs.items():
            p.store(out, i, p.binary(kind, x, z if kind in ("shl", "shr") else y))
    shifts = np.abs(rng.integers(0, dtype.bits, n)).astype(a.dtype)
    args = {"A": a, "B": b, "S": shifts, **{k: sample(rng, dtype, n) for k in kinds}}
    Compiled(p.func(), arch)(args, (1,))
    for kind in kinds:
        given = shifts if kind in ("shl", "shr") else b
        with np.errstate(all="ignore"):
            want = num.binary(kind, a, given, dtype)
        keep = np.ones(n, bool)
        if kind in ("floordiv", "mod", "truncdiv", "truncmod"):
            keep = b.astype(np.float64) != 0 if dtype.is_int else finite_ratio(a, b)
        if dtype in num.SATURATING:  # NumPy's arithmetic overflows to nan or infinity instead
            got = np.abs(args[kind].astype(np.float64))
            most = float(num.ml_dtypes.finfo(num.numpy_dtype(dtype)).max)
            keep &= ~((got == most) & ~np.isfinite(want.astype(np.float64)))
        loose = dtype == t.FLOAT32 and kind in ("pow", "atan2")
        close = {"rtol": 3e-7, "atol": 1e-44} if loose else {}
        if dtype == t.FLOAT64:
            close = {"rtol": 1e-14, "atol": 0}
        same(args[kind][keep], want[keep], f"{dtype} {kind}", **close)


def finite_ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where a / b is finite and small enough that its whole part is exact."""
    with np.errstate(all="ignore"):
        return np.abs(a.astype(np.float64) / b.astype(np.float64)) < 200


SMALLEST_ULP = 2.0**-149


def ulps(got: np.ndarray, exact: np.ndarray) -> float:
    """Largest error in units in the last place of float32 (nan and infinity must agree)."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        unit = np.maximum(np.spacing(np.abs(rounded)).astype(np.float64), SMALLEST_ULP)
    special = ~np.isfinite(rounded)
    np.testing.assert_array_equal(got[special], rounded[special])
    error = np.abs(got.astype(np.float64)[~special] - exact[~special]) / unit[~special]
    return float(error.max(initial=0.0))


RANGES = {
    "exp": (-110, 95), "exp2": (-155, 135), "exp10": (-48, 40), "sin": (-90, 90), "cos": (-90, 90),
    "tan": (-90, 90), "tanh": (-12, 12), "erf": (-6, 6), "sigmoid": (-90, 95), "log1p": (-0.99, 3),
}  # fmt: skip
BOUNDS = {"sigmoid": 3.0, "log10": 2.5, "log1p": 3.0, "tanh": 2.0, "exp10": 2.0, "log2": 2.0}


@pytest.mark.covering(1)
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("kind", ROUNDED)
def test_functions_of_float32_are_accurate(kind: str, arch: str, rng: np.random.Generator) -> None:
    n = 40_001
    low, high = RANGES.get(kind, (1e-3, 8.0))
    x = rng.uniform(low, high, n).astype(np.float32)
    x[: n // 4] = np.exp2(rng.uniform(-140, 18, n // 4)) * rng.choice([-1, 1], n // 4)
    x[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1e-45, -1.0]
    y = sample(rng, t.FLOAT32, n)
    func = elementwise(lambda p, v: p.unary(kind, v), t.FLOAT32, out=t.FLOAT32, n=n)
    Compiled(func, arch)({"X0": x, "Y": y}, (1,))
    with np.errstate(all="ignore"):
        exact = num.function(kind)(x.astype(np.float64))
    assert ulps(y, exact) < BOUNDS.get(kind, 1.7)


@pytest.mark.parametrize("arch", ["host", "x86-64"])
def test_circular_functions_of_huge_numbers(arch: str, rng: np.random.Generator) -> None:
    x = np.exp2(rng.uniform(15, 100, 77)).astype(np.float32)
    for kind in ("sin", "cos", "tan"):
        y = sample(rng, t.FLOAT32, 77)
        func = elementwise(lambda p, v, k=kind: p.unary(k, v), t.FLOAT32, out=t.FLOAT32, n=77)
        Compiled(func, arch)({"X0": x, "Y": y}, (1,))
        assert ulps(y, num.function(kind)(x.astype(np.float64))) < 2


@pytest.mark.covering(1)
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dtype", [t.FLOAT64, t.FLOAT16, t.BFLOAT16, t.FLOAT8_E4M3], ids=str)
def test_functions_of_other_floats(dtype: t.DType, arch: str, rng: np.random.Generator) -> None:
    n = 211
    p = Program()
    x = p.tensor("X", (n,), dtype)
    kinds = [*ROUNDED, *(k for k in num.EXACT if not k.startswith("is"))]
    ys = {k: p.tensor(k, (n,), dtype) for k in kinds}
    with p.parallel(n) as (i,):
        v = p.load(x, i)
        for k, y in ys.items():
            p.store(y, i, p.unary(k, v))
    source = rng.uniform(0.1, 2.0, n).astype(num.numpy_dtype(dtype))
    args = {"X": source, **{k: sample(rng, dtype, n, mild=True) for k in kinds}}
    # one rounding apart, where float32's error decides which way a result goes
    step = {t.FLOAT64: 2e-14, t.FLOAT16: 2**-10, t.BFLOAT16: 2**-7, t.FLOAT8_E4M3: 2**-3}[dtype]
    check(p.func(), args, (1,), arch, rtol=step, atol=0)


@pytest.mark.covering(1)
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dtype", [*INTS, *FLOATS], ids=str)
def test_exact_unary_ops(dtype: t.DType, arch: str, rng: np.random.Generator) -> None:
    kinds = ["neg", "abs", "floor", "ceil", "trunc", "isnan", "isinf"]
    kinds += ["round"] if dtype.is_float else ["not", *num.OF_BITS]
    x = every_value(dtype, rng)
    if dtype in (t.INT8, t.INT16, t.INT32, t.INT64):  # NumPy's own abs of the least number warns
        x = x[x != dtype_range(dtype)[0]]
    if dtype == t.FLOAT8_E5M2:  # what is rounded to float8 saturates
        x = x[~np.isinf(x.astype(np.float32))]
    p = Program()
    xs = p.tensor("X", (len(x),), dtype)
    outs = {k: p.tensor(k, (len(x),), t.BOOL if k.startswith("is") else dtype) for k in kinds}
    with p.parallel(len(x)) as (i,):
        v = p.load(xs, i)
        for k, y in outs.items():
            p.store(y, i, p.unary(k, v))
    args = {"X": x, **{k: sample(rng, y.dtype, len(x)) for k, y in outs.items()}}
    check(p.func(), args, (1,), arch)


@pytest.mark.covering(1)
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dtype", [t.BOOL, *INTS, *FLOATS], ids=str)
def test_comparisons_selects_and_bits(dtype: t.DType, arch: str, rng: np.random.Generator) -> None:
    n = 1001
    p = Program()
    a, b = p.tensor("A", (n,), dtype), p.tensor("B", (n,), dtype)
    outs = {k: p.tensor(k, (n,), t.BOOL) for k in COMPARE_KINDS}
    chosen = p.tensor("S", (n,), dtype)
    word = t.DTYPES[f"uint{dtype.bits}"]
    bits = p.tensor("W", (n,), word)
    back = p.tensor("R", (n,), dtype)
    with p.parallel(n) as (i,):
        x, y = p.load(a, i), p.load(b, i)
        for k, o in outs.items():
            p.store(o, i, p.compare(k, x, y))
        p.store(chosen, i, p.select(p.compare("lt", x, y), x, y))
        w = p.bitcast(x, word)
        p.store(bits, i, w)
        p.store(back, i, p.bitcast(w, dtype))
    x = sample(rng, dtype, n)
    y = np.where(rng.random(n) < 0.3, x, sample(rng, dtype, n)[::-1])
    args = {"A": x, "B": y, "S": x[::-1].copy(), "R": x[::-1].copy()}
    args["W"] = sample(rng, word, n)
    args.update({k: rng.integers(0, 2, n).astype(bool) for k in COMPARE_KINDS})
    check(p.func(), args, (1,), arch)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dtype", [t.INT32, t.INT64, *FLOATS], ids=str)
def test_fma(dtype: t.DType, arch: str, rng: np.random.Generator) -> None:
    func = elementwise(lambda p, a, b, c: p.fma(a, b, c), dtype, dtype, dtype, out=dtype, n=301)
    args = {name: sample(rng, dtype, 301, mild=True) for name in ("X0", "X1", "X2", "Y")}
    close = {t.FLOAT64: {"rtol": 1e-12, "atol": 1e-14}, t.FLOAT32: {"rtol": 6e-8, "atol": 0}}
    check(func, args, (1,), arch, **close.get(dtype, {}))


@pytest.mark.parametrize("arch", ["host", "x86-64"])
@pytest.mark.parametrize("lanes", [1, 37])
def test_integer_division_never_traps(lanes: int, arch: str, rng: np.random.Generator) -> None:
    kinds = ("floordiv", "truncdiv", "mod", "truncmod")
    for dtype in INTS:
        low, high = dtype_range(dtype)
        p = Program()
        left, right = p.tensor("A", (lanes,), dtype), p.tensor("B", (lanes,), dtype)
        outs = {k: p.tensor(k, (lanes,), dtype) for k in kinds}
        with p.parallel(lanes) as (i,):
            x, y = p.load(left, i), p.load(right, i)
            for kind, out in outs.items():
                p.store(out, i, p.binary(kind, x, y))
        compiled = Compiled(p.func(), arch)
        a = np.resize(np.array([low, high, 5, 0], num.numpy_dtype(dtype)), lanes)
        for divisor in (0, high if dtype.kind == "uint" else -1):
            b = np.full(lanes, divisor).astype(a.dtype)
            args = {"A": a, "B": b, **{k: np.full(lanes, 77).astype(a.dtype) for k in kinds}}
            compiled(args, (1,))
            for kind in kinds:
                with np.errstate(all="ignore"):
                    want = np.zeros_like(a) if divisor == 0 else num.function(kind)(a, b)
                np.testing.assert_array_equal(
                    args[kind], want.astype(a.dtype), f"{dtype} {kind} {divisor}"
                )


@pytest.mark.parametrize("exponent", [0, 1, 5, -2, None])
def test_integer_powers(exponent: int | None, rng: np.random.Generator) -> None:
    n = 65
    x = rng.integers(-9, 9, n).astype(np.int32)
    e = (
        rng.integers(0, 12, n).astype(np.int32)
        if exponent is None
        else np.full(n, exponent, np.int32)
    )

    def power(p: Program, a: Any, b: Any) -> Any:
        return p.binary("pow", a, b if exponent is None else exponent)

    y = rng.integers(0, 99, n).astype(np.int32)
    func = elementwise(power, t.INT32, t.INT32, out=t.INT32, n=n)
    Compiled(func)({"X0": x, "X1": e, "Y": y}, (1,))
    np.testing.assert_array_equal(y, np.power(x, np.maximum(e, 0)))


def test_shifts_by_the_width_or_more(rng: np.random.Generator) -> None:
    x = sample(rng, t.INT32, 40)
    by = rng.integers(30, 70, 40).astype(np.int32)
    for kind in ("shl", "shr"):
        func = elementwise(
            lambda p, a, b, k=kind: p.binary(k, a, b), t.INT32, t.INT32, out=t.INT32, n=40
        )
        y = sample(rng, t.INT32, 40)
        Compiled(func)({"X0": x, "X1": by, "Y": y}, (1,))
        wide = [int(a) << int(b) if kind == "shl" else int(a) >> int(b) for a, b in zip(x, by)]
        np.testing.assert_array_equal(
            y, np.array([v & 0xFFFFFFFF for v in wide], np.uint32).view(np.int32)
        )


# --- control flow -------------------------------------------------------------------------------


def collatz(p: Program, x: Any) -> Any:
    """Steps until 1: a loop of a different length in every lane, with a branch inside."""
    limit = p.const(200)

    def goes_on(n: Any, steps: Any) -> Any:
        return p.binary("and", p.compare("gt", n, 1), p.compare("lt", steps, limit))

    def step(n: Any, steps: Any) -> Any:
        odd = p.compare("eq", p.binary("mod", n, 2), 1)
        (after,) = p.if_(
            odd,
            lambda: (p.add(p.mul(n, 3), 1),),
            lambda: (p.binary("floordiv", n, 2),),
        )
        return after, p.add(steps, 1)

    return p.while_((x, p.const(0)), goes_on, step)[1]


def triangle(p: Program, x: Any) -> Any:
    """A sum over a range whose end differs between lanes, counted down."""
    return p.loop(x, 0, (p.const(0),), lambda i, total: (p.add(total, p.mul(i, i)),), step=-2)[0]


def nested(p: Program, x: Any) -> Any:
    """A loop of equal length round one of different lengths, carrying both kinds of value."""

    def outer(i: Any, total: Any, count: Any) -> Any:
        inner = p.loop(0, p.binary("min", x, 5), (total,), lambda j, t: (p.add(t, p.mul(j, i)),))
        return inner[0], p.add(count, 2)

    total, count = p.loop(1, 4, (x, p.const(7)), outer)
    return p.add(total, count)


def private(p: Program, x: Any) -> Any:
    """A small buffer of each iteration's own, read at an index that differs."""
    table = p.alloc((5,), t.INT32, "local")

    def fill(i: Any) -> Any:
        p.store(table, i, p.mul(i, x))
        return ()

    p.loop(0, 5, (), fill)
    return p.load(table, p.binary("mod", x, 5))


@pytest.mark.covering(2)
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("n", [1, 16, 53])
@pytest.mark.parametrize("body", [collatz, triangle, nested, private])
def test_control_flow_in_parallel_loops(
    body: Any, n: int, arch: str, rng: np.random.Generator
) -> None:
    args = {"X0": rng.integers(1, 90, n).astype(np.int32), "Y": sample(rng, t.INT32, max(n, 4))[:n]}
    check(elementwise(body, t.INT32, out=t.INT32, n=n), args, (1,), arch)


@pytest.mark.parametrize("arch", ARCHES)
def test_stores_under_conditions(arch: str, rng: np.random.Generator) -> None:
    """Conditions that agree in all lanes, that differ, and that were known before."""
    n, rows = 37, 5
    p = Program()
    x, y = p.tensor("X", (rows, n), t.FLOAT32), p.tensor("Y", (rows, n), t.FLOAT32)
    flag = p.scalar("flag", t.BOOL)
    with p.parallel(rows, n) as (i, j):
        v = p.load(x, i, j)
        even = p.compare("eq", p.binary("mod", i, 2), 0)
        third = p.compare("eq", p.binary("mod", j, 3), 0)
        p.if_(even, lambda: p.store(y, i, j, v))
        p.if_(
            third,
            lambda: p.store(y, i, j, p.unary("neg", v)),
            lambda: p.if_(flag, lambda: p.store(y, i, j, 2.5)),
        )
        p.if_(p.const(False, t.BOOL), lambda: p.store(y, i, j, -1.0))
    for given in (True, False):
        args = {"X": sample(rng, t.FLOAT32, rows * n, mild=True).reshape(rows, n), "flag": given}
        args["Y"] = args["X"][::-1].copy()
        check(p.func(), args, (1,), arch)


@pytest.mark.parametrize("arch", ARCHES)
def test_loops_under_conditions(arch: str, rng: np.random.Generator) -> None:
    """Only the lanes that took the branch and are still in the loop may store."""
    p = Program()
    x, y = p.tensor("X", (53,), t.INT32), p.tensor("Y", (53,), t.INT32)
    with p.parallel(53) as (i,):
        v = p.load(x, i)

        def count(k: Any) -> None:
            p.store(y, i, p.add(k, 100))

        p.if_(p.compare("gt", v, 4), lambda: p.loop(0, p.binary("mod", v, 5), (), count))
    args = {"X": rng.integers(0, 20, 53).astype(np.int32), "Y": np.arange(53, dtype=np.int32)}
    check(p.func(), args, (1,), arch)


@pytest.mark.parametrize("arch", ["host", "x86-64"])
def test_sequential_code_outside_of_parallel_loops(arch: str, rng: np.random.Generator) -> None:
    p = Program()
    x, y = p.tensor("X", ("N",), t.FLOAT32), p.tensor("Y", ("N",), t.FLOAT32)
    n = p.sizes["N"]

    def step(i: Any, running: Any) -> Any:
        now = p.add(running, p.load(x, i))
        p.if_(p.compare("gt", now, p.const(1.0, t.FLOAT32)), lambda: p.store(y, i, now))
        return (now,)

    p.loop(0, n, (p.const(0.0, t.FLOAT32),), step)
    args = {"X": sample(rng, t.FLOAT32, 33, mild=True), "Y": sample(rng, t.FLOAT32, 33, mild=True)}
    check(p.func(), args, (1,), arch)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86-64 machines")
@pytest.mark.parametrize("cpu", ["x86-64-v3", "skylake-avx512", "sapphirerapids", "znver4"])
def test_no_serial_loop_ends_the_process(cpu: str) -> None:
    """LLVM's loop vectoriser asserts that its two cost models agree; about the maximum of 126 to
    129 float32 they do not where vectors have 512 bits. Such code is made without it."""

    def extremum(n: int, dtype: t.DType, kind: str) -> str:
        p = Program()
        x, y, one = p.tensor("X", (n,), dtype), p.tensor("Y", (1,), dtype), p.const(1)
        first = p.load(x, p.const(0))
        done = p.loop(one, n, (first,), lambda i, v: (p.binary(kind, v, p.load(x, i)),))
        p.store(y, p.const(0), done[0])
        return emit_cpu(p.func(), TARGETS["cpu"])

    for n in (126, 129):
        for dtype in (t.FLOAT32, t.FLOAT16, t.INT32):
            for kind in ("max", "add"):
                assert assemble(extremum(n, dtype, kind), Target("cpu", "cpu", cpu, 1)).binary


def test_vectors_of_two_widths_do_not_end_the_process() -> None:
    """LLVM's pass over vectors joins conversions to one type, whatever they are from, and asserts
    that the operands it shuffles are of one type: such code is made by scalar passes. The first
    program was found by `python -m tilec fuzz --seed 20261122 --program 5229`."""
    text = """
define <4 x i64> @f(<4 x float> %a, <4 x double> %b) {
  %x = call <4 x i64> @llvm.fptosi.sat.v4i64.v4f32(<4 x float> %a)
  %y = call <4 x i64> @llvm.fptosi.sat.v4i64.v4f64(<4 x double> %b)
  %z = shufflevector <4 x i64> %x, <4 x i64> %y, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  ret <4 x i64> %z
}
declare <4 x i64> @llvm.fptosi.sat.v4i64.v4f32(<4 x float>)
declare <4 x i64> @llvm.fptosi.sat.v4i64.v4f64(<4 x double>)
"""
    made = assemble(text, TARGETS["cpu"])
    assert made.binary and "fptosi.sat.v4i64.v4f32" in made.llvm_opt and made.asm


def relocations(binary: bytes) -> set[int]:
    """The kinds of relocations in an ELF64 object (System V ABI: sections of type RELA)."""
    start = struct.unpack_from("<Q", binary, 40)[0]
    size, count = struct.unpack_from("<HH", binary, 58)
    found: set[int] = set()
    for n in range(count):
        kind, _, _, at, length = struct.unpack_from("<IQQQQ", binary, start + n * size + 4)
        if kind == 4:
            found |= {struct.unpack_from("<I", binary, at + i + 8)[0] for i in range(0, length, 24)}
    return found


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="ELF of x86-64 is read"
)
def test_parts_of_an_object_may_lie_far_apart() -> None:
    """In a process with arrays of many GiB the linker may find room for a kernel's constants only
    farther from its code than 32 bits reach, and LLVM ends the process."""

    @tilec.kernel
    def waves(A: T.Tensor((100,), "float32"), C: T.Tensor((100,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(100):
                C[i] = T.exp(A[i]) * 1.2345 + T.sin(A[i])

    binary = waves.compile(*[tilec.spec((100,), "float32")] * 2, target="cpu").image.binary
    kinds = relocations(binary)
    near = {2, 4, 9, 10, 11, 41, 42}  # R_X86_64_PC32, PLT32, GOTPCREL, 32, 32S, GOTPCRELX
    assert binary[:4] == b"\x7fELF" and kinds and not kinds & near, kinds
