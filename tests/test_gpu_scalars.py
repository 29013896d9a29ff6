"""The GPU's scalar arithmetic: what it computes, run on this machine (see `scalar_jit`)."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import scalar_jit as jit

import tilec
import tilec.language as T
from tilec.codegen.casts import Casts
from tilec.codegen.ranges import Ranges
from tilec.codegen.scalars import Scalars
from tilec.ir import semantics as num
from tilec.ir import types as t
from tilec.ir.errors import CompileError
from tilec.ir.intervals import dtype_range
from tilec.ir.llvm import Function, Val, int_val
from tilec.ir.loc import Loc

INTS = (t.INT8, t.INT16, t.INT32, t.INT64, t.UINT8, t.UINT16, t.UINT32, t.UINT64)
DIVISIONS = ("floordiv", "mod", "truncdiv", "truncmod")
COMMON = ("add", "sub", "mul", "min", "max", "and", "or", "xor", "shl", "shr", *DIVISIONS)


def integers(rng: np.random.Generator, dtype: t.DType, count: int) -> np.ndarray:
    """Random over the whole range, dense near zero and at the ends."""
    low, high = dtype_range(dtype)
    near = rng.integers(max(low, -9), 10, count, dtype=np.int64)
    far = rng.integers(low, high, count, dtype=num.numpy_dtype(dtype), endpoint=True)
    mixed = np.where(rng.random(count) < 0.5, near.astype(num.numpy_dtype(dtype)), far)
    mixed[:2] = low, high
    return mixed.astype(num.numpy_dtype(dtype))


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("kind", COMMON)
def test_integers(rng, dtype, kind):
    a, b = integers(rng, dtype, 999), integers(rng, dtype, 999)
    got = jit.run(lambda s, x, y: s.binary(kind, x, y, dtype), [a, b], [dtype] * 2, dtype)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, num.binary(kind, a, b, dtype))


@pytest.mark.parametrize("divisor", [1, 2, 7, 8, 96, -3, -8, 1 << 20])
@pytest.mark.parametrize("kind", ["floordiv", "mod"])
@pytest.mark.parametrize("known", [False, True])
def test_division_by_a_number(rng, kind, divisor, known):
    """A literal divisor takes shorter forms, and so does a dividend known not to be negative."""
    a = integers(rng, t.INT32, 999)
    a = np.abs(a // 2) if known else a

    def build(s, x):
        if known:
            s.ranges.set(x, 0, (1 << 31) - 1)
        return s.binary(kind, x, s.literal(divisor, t.INT32), t.INT32)

    got = jit.run(build, [a], [t.INT32], t.INT32)
    np.testing.assert_array_equal(got, num.binary(kind, a, np.int32(divisor), t.INT32))


def test_power(rng):
    base, small = rng.integers(-7, 8, 500).astype(np.int64), rng.integers(0, 20, 500)
    got = jit.run(
        lambda s, x, y: s.binary("pow", x, y, t.INT64), [base, small], [t.INT64] * 2, t.INT64
    )
    np.testing.assert_array_equal(got, base**small)


@pytest.mark.parametrize("kind", ["neg", "abs", "not", *num.OF_BITS])
@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_unary(rng, kind, dtype):
    a = integers(rng, dtype, 300)
    got = jit.run(lambda s, x: s.unary(kind, x, dtype), [a], [dtype], dtype)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, num.unary(kind, a, dtype))


@pytest.mark.parametrize("kind", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize(
    "dtype", [t.INT32, t.UINT8, t.INT64, t.FLOAT32, t.FLOAT64, t.BOOL], ids=str
)
def test_compare(rng, kind, dtype):
    if dtype.is_float:
        a, b = (rng.integers(-3, 4, 300).astype(num.numpy_dtype(dtype)) for _ in range(2))
        a[::7] = np.nan
    elif dtype == t.BOOL:
        a, b = (rng.random(300) < 0.5 for _ in range(2))
    else:
        a, b = integers(rng, dtype, 300), integers(rng, dtype, 300)
    got = jit.run(lambda s, x, y: s.compare(kind, x, y, dtype), [a, b], [dtype] * 2, t.BOOL)
    np.testing.assert_array_equal(got, num.compare(kind, a, b))


@pytest.mark.parametrize("kind", ["add", "sub", "mul", "div", "min", "max"])
@pytest.mark.parametrize("dtype", [t.FLOAT32, t.FLOAT64], ids=str)
def test_floats(rng, kind, dtype):
    a, b = (rng.standard_normal(500).astype(num.numpy_dtype(dtype)) * 9 for _ in range(2))
    a[::50], b[7::50] = np.nan, np.inf
    got = jit.run(lambda s, x, y: s.binary(kind, x, y, dtype), [a, b], [dtype] * 2, dtype)
    with np.errstate(invalid="ignore"):
        want = num.binary(kind, a, b, dtype)
    np.testing.assert_array_equal(got, want)


# --- casts ---

SPECIAL = [
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1e-8,
    448,
    449,
    464,
    465,
    1e30,
    -3e4,
    57344,
    65519,
]
SOURCES = (t.FLOAT32, t.FLOAT64, t.INT8, t.UINT8, t.INT32, t.UINT32, t.INT64, t.BOOL)
DESTS = (t.BOOL, *INTS, t.FLOAT32, t.TFLOAT32, t.FLOAT8_E4M3, t.FLOAT8_E5M2)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dest", DESTS, ids=str)
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_cast(rng, source, dest):
    """(LLVM's host JIT has no routines for half and bfloat: those run on a GPU.)"""
    if source.is_float:
        x = np.concatenate([rng.standard_normal(400) * np.exp(rng.uniform(-12, 30, 400)), SPECIAL])
    elif source == t.BOOL:
        x = rng.random(100) < 0.5
    else:
        x = integers(rng, source, 400)
    x = x.astype(num.numpy_dtype(source))
    got = jit.run(lambda s, v: s.cast(v, source, dest), [x], [source], dest)
    with np.errstate(all="ignore"):
        want = num.cast(x, source, dest)
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize(
    ("source", "value", "want"),
    [
        (t.INT16, 2**15 - 1, 2.0**15),
        (t.FLOAT64, 1 + 2**-11 + 2**-40, 1 + 2**-10),
        (t.INT64, 2**62 + 2**51 + 1, 2.0**62 + 2.0**52),
    ],
    ids=str,
)
def test_a_conversion_rounds_once(source, value, want):
    """To tfloat32, of numbers whose nearest float32 or float64 lies halfway (or is not rounded)."""
    x = np.array([value], num.numpy_dtype(source))
    got = jit.run(lambda s, v: s.cast(v, source, t.TFLOAT32), [x], [source], t.TFLOAT32)
    assert got[0] == want


@pytest.mark.parametrize("source", [t.FLOAT8_E4M3, t.FLOAT8_E5M2], ids=str)
def test_float8_is_read_exactly(source):
    x = np.arange(256, dtype=np.uint8).view(num.numpy_dtype(source))
    got = jit.run(lambda s, v: s.cast(v, source, t.FLOAT32), [x], [source], t.FLOAT32)
    np.testing.assert_array_equal(got, x.astype(np.float32))


@pytest.mark.parametrize("dtype", [t.FLOAT8_E4M3, t.FLOAT8_E5M2], ids=str)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -0.3, 449.0, 1e9, 2.0**-9, 2.0**-11, 3e-3])
def test_float8_literal(dtype, value):
    made = Casts(Function("f", [], linkage="", attrs=""), Ranges()).literal(value, dtype).literal
    want = num.cast(np.float64(value), t.FLOAT64, dtype).view(np.int8)
    assert made == int(want)


def test_infinity_is_a_literal_of_float8_e5m2():
    """A conversion to it saturates."""
    scalars = Casts(Function("f", [], linkage="", attrs=""), Ranges())
    assert scalars.literal(-np.inf, t.FLOAT8_E5M2).literal == int(np.uint8(0xFC).view(np.int8))
    assert num.literal(-np.inf, t.FLOAT8_E5M2).view(np.uint8) == 0xFC
    assert scalars.literal(np.inf, t.FLOAT8_E4M3).literal == 0x7E
    assert num.cast(np.float32(np.inf), t.FLOAT32, t.FLOAT8_E5M2).view(np.uint8) == 0x7B


# --- functions ---

POSITIVE = ("log", "log2", "log10", "log1p", "rsqrt", "sqrt")
RANGES = {
    "exp": (-87, 88.7), "exp2": (-126, 127.9), "exp10": (-37, 38.5), "sin": (-1e5, 1e5),
    "cos": (-1e5, 1e5), "tan": (-1e4, 1e4), "tanh": (-10, 10), "erf": (-4, 4), "sigmoid": (-80, 80),
}  # fmt: skip


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    """The largest distance in units in the last place, where the result is a normal float32."""
    normal = np.isfinite(want) & (np.abs(want) >= 2.0**-126) & (np.abs(want) < 2.0**128)
    unit = np.spacing(np.abs(want[normal]).astype(np.float32)).astype(np.float64)
    return float((np.abs(got[normal].astype(np.float64) - want[normal]) / unit).max())


@pytest.mark.parametrize("kind", [*RANGES, *POSITIVE])
def test_function_is_accurate(rng, kind):
    tiny = rng.standard_normal(20_000) * np.exp(rng.uniform(-20, 0, 20_000))
    if kind in POSITIVE:
        x = np.concatenate([np.exp(rng.uniform(-80, 80, 20_000)), np.abs(1 + tiny)])
    else:
        x = np.concatenate([rng.uniform(*RANGES[kind], 20_000), tiny])
    if kind == "log1p":
        x = np.concatenate([x, tiny[np.abs(tiny) < 1]])
    x = x.astype(np.float32)
    got = jit.run(lambda s, v: s.unary(kind, v, t.FLOAT32), [x], [t.FLOAT32], t.FLOAT32)
    exact = num.function(kind)(x.astype(np.float64))
    assert ulps(got, exact) <= (4.0 if kind == "sigmoid" else 2.5)


@pytest.mark.parametrize("kind", [*RANGES, *POSITIVE])
def test_function_of_special_values(kind):
    x = np.array([0.0, math.inf, -math.inf, math.nan, -1.0, 200.0, -200.0], np.float32)
    if "exp" in kind or kind == "sigmoid":
        x = np.append(x, np.float32([3.4e38, -3.4e38, 2.5e38, -2.5e38]))
    got = jit.run(lambda s, v: s.unary(kind, v, t.FLOAT32), [x], [t.FLOAT32], t.FLOAT32)
    with np.errstate(all="ignore"):
        want = num.unary(kind, x, t.FLOAT32)
    want = np.where(np.abs(want) < 2.0**-126, 0, want)
    np.testing.assert_allclose(np.where(np.abs(got) < 2.0**-126, 0, got), want, rtol=1e-6)


@pytest.mark.parametrize("kind", ["pow", "atan2"])
def test_function_of_two(rng, kind):
    a = np.exp(rng.uniform(-60, 60, 20_000))
    b = rng.uniform(-3, 3, 20_000)
    if kind == "atan2":
        a, b = a * rng.choice([-1, 1], 20_000), np.exp(rng.uniform(-60, 60, 20_000)) * np.sign(b)
    a, b = a.astype(np.float32), b.astype(np.float32)
    got = jit.run(
        lambda s, x, y: s.binary(kind, x, y, t.FLOAT32), [a, b], [t.FLOAT32] * 2, t.FLOAT32
    )
    assert ulps(got, num.function(kind)(a.astype(np.float64), b.astype(np.float64))) <= 2.0
    edges = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 1.5], np.float32
    )
    a, b = (g.ravel() for g in np.meshgrid(edges, edges))
    got = jit.run(
        lambda s, x, y: s.binary(kind, x, y, t.FLOAT32), [a, b], [t.FLOAT32] * 2, t.FLOAT32
    )
    with np.errstate(all="ignore"):
        want = num.function(kind)(a, b)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


# --- what is folded and marked ---


def scalars() -> Scalars:
    f = Function("k", [("i32", "", "%x")], linkage="", attrs="")
    f.known = {}
    return jit.HostScalars(f, Ranges())


def test_constants_fold_and_sums_reassociate():
    s, x = scalars(), Val("i32", "%x")
    once = s.binary("add", x, int_val(3), t.INT32)
    twice = s.binary("add", once, int_val(4), t.INT32)
    assert s.split_sum(twice) == (x, 7)
    assert s.binary("sub", twice, int_val(7), t.INT32) is x
    assert s.binary("floordiv", int_val(-7), int_val(2), t.INT32).literal == -4
    assert s.binary("mod", int_val(-7), int_val(4), t.INT32).literal == 1
    assert len(s.f.block.insts) == 2


def test_known_ranges_decide_and_mark():
    s, x = scalars(), Val("i32", "%x")
    s.ranges.set(x, 0, 127)
    assert s.compare("lt", x, int_val(128), t.INT32).literal == 1
    assert s.binary("floordiv", x, int_val(128), t.INT32).literal == 0
    assert s.binary("mod", x, int_val(200), t.INT32) is x
    s.binary("mul", x, int_val(1 << 20), t.INT32)
    s.binary("mul", x, int_val(1 << 25), t.INT32)
    texts = [i.text for i in s.f.block.insts]
    assert texts == ["mul nuw nsw i32 %x, 1048576", "mul i32 %x, 33554432"]


def test_what_a_gpu_cannot_do_is_refused():
    s = scalars()
    s.f.loc = Loc(__file__, 1)
    with pytest.raises(CompileError, match="int4 cannot be computed with"):
        s.cast(int_val(1), t.INT32, t.INT4)


def test_a_bit_with_a_sign_as_bfloat16():
    """LLVM 22 prints the conversion of 0 or -1, where it has seen that it is no more, as one of 0
    or 1 for sm_90 and later (found by the fuzzer on an H200)."""
    n = T.dynamic("n")

    @tilec.kernel
    def kernel(A: T.Tensor((2, n), "bool"), C: T.Tensor((2, n), "bfloat16")):
        with T.Kernel(2, threads=32) as by:
            held = T.alloc_fragment((1, 64), "int32")
            for i, j in T.Parallel(1, 64):
                held[i, j] = -T.Cast("int32", A[by + i, j])
            T.copy(held, C[by, 0])

    specs = tilec.spec((2, 9), "bool"), tilec.spec((2, 9), "bfloat16")
    ptx = kernel.compile(*specs, target="cuda:sm_90a").stages["ptx"]
    assert "cvt.rn.bf16.f32" in ptx and "cvt.rn.bf16.s32" not in ptx
    a = np.random.default_rng(0).random((2, 9)) < 0.5
    for target in ("cuda:sm_90a", "cuda:sm_80"):
        c = np.zeros((2, 9), ml_dtypes.bfloat16)
        assert tilec.simulate(kernel, a, c, target=target).ok
        np.testing.assert_array_equal(c.astype(np.float32), -a.astype(np.float32))


@tilec.kernel
def narrow_scalars(
    A: T.Tensor((3,), "float32"), b: T.bfloat16, e4: T.float8_e4m3, e5: T.float8_e5m2
):
    with T.Kernel(1, threads=32):
        A[0], A[1], A[2] = (T.cast(x, "float32") for x in (b, e4, e5))


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942", "hip:gfx950"])
def test_narrow_parameters(target):
    """gfx942 has float8 of its own: twice the value in the same bits."""
    a = np.zeros(3, np.float32)
    for given in ((0.1, 0.3, 0.3), (-3e38, -240.0, 57344.0)):
        if target == "cpu":
            narrow_scalars(a, *given)
        else:
            assert tilec.simulate(narrow_scalars, a, *given, target=target).ok
        kinds = "bfloat16", "float8_e4m3fn", "float8_e5m2"
        want = [float(getattr(ml_dtypes, kind)(x)) for kind, x in zip(kinds, given)]
        np.testing.assert_array_equal(a, want)


@pytest.mark.parametrize("given", [(1e39, 1, 1), (1, 500, 1), (1, math.inf, 1), (1, 1, 1e5)])
def test_narrow_parameters_that_do_not_fit(given):
    """They would have become infinity or nan."""
    with pytest.raises(tilec.LaunchError, match="does not fit in b?float"):
        narrow_scalars(np.zeros(3, np.float32), *given)


def test_numbers_are_no_elements_of_four_bits():
    @tilec.kernel
    def kernel(A: T.Tensor((1,), "int8"), x: T.int4):
        with T.Kernel(1, threads=32):
            A[0] = x

    with pytest.raises(CompileError, match="x is int4, which elements of tensors are") as e:
        kernel(np.zeros(1, np.int8), 1)
    assert "x: T.int8" in e.value.hint and "x: T.int4" in e.value.loc.source_line()
