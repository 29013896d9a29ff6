"""What the simulator makes of LLVM's intrinsics, against NumPy and exact fractions; and that
nothing is printed for GPUs which has no meaning."""

from __future__ import annotations

import importlib
import math
from collections import OrderedDict
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from instruction_rows import CLUSTER_INSTRUCTIONS, MEMORY_INSTRUCTIONS, SYNC_INSTRUCTIONS
from meanings import meaningless
from sim_bench import Bench
from test_examples import EXAMPLES

from tilec.codegen import gpu
from tilec.ir.instr import (
    MATRIX_INSTRUCTIONS,
    MmaInstruction,
    SparseMmaInstruction,
    WgmmaInstruction,
)
from tilec.ir.llvm import Function
from tilec.sim.arithmetic import fma
from tilec.sim.intrinsics import intrinsic, round_tf32
from tilec.sim.undefined import OVERFLOWS, UNDEF

RNG = np.random.default_rng(11)
TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


def of(name: str, *args: Any, m: Any = None) -> Any:
    semantics = intrinsic(name)
    assert semantics is not None, name
    with np.errstate(all="ignore"):
        (got,) = semantics(m, *args)
    return got


# --- nothing without semantics ---


class Emitted(BaseException):
    """Records are about to be printed."""


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_record_of_the_examples_has_a_meaning(
    example: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Usually each example for one target: what runs in the simulator has one, or it fails."""
    found: list[Function] = []

    def print_function(f: Function, debug: Any = None) -> str:
        found.append(f)
        raise Emitted

    monkeypatch.setattr(gpu, "print_function", print_function)
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")  # or nothing is printed
    for kernel, specs, meta in importlib.import_module(example).SPECS:
        monkeypatch.setattr(kernel, "_variants", OrderedDict())  # what other tests have compiled
        with pytest.raises(Emitted):
            kernel.compile(*specs, target=target, **meta)
    assert found and not {m for f in found for m in meaningless(f)}


def test_every_row_has_a_meaning() -> None:
    rows = [*SYNC_INSTRUCTIONS, *CLUSTER_INSTRUCTIONS, *MEMORY_INSTRUCTIONS]
    forms = [r.asm for r in rows]
    for row in MATRIX_INSTRUCTIONS.values():
        if isinstance(row, MmaInstruction | SparseMmaInstruction):
            forms.append(row.asm())
        elif isinstance(row, WgmmaInstruction):
            forms.append(row.product(1, (0,), (0,)))
    assert all(callable(f.semantics) for f in forms)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_classes_of_floats(kind: Any) -> None:
    """Each number is in one of the ten classes: what LLVM makes of several comparisons."""
    info = ml_dtypes.finfo(kind)
    least, tiny = info.smallest_normal, info.smallest_subnormal
    numbers = [-np.inf, -1.5, -least, -tiny, -0.0, 0.0, tiny, least, 1.5, np.inf, np.nan]
    bits = [2, 3, 3, 4, 5, 6, 7, 8, 8, 9, 1]
    suffix = "bf16" if kind is ml_dtypes.bfloat16 else f"f{info.bits}"
    for mask in (1, 2, 3, 8, 96, 0x1F8, 0x204, 1023, 0):
        got = of(f"llvm.is.fpclass.{suffix}", np.array(numbers, kind), np.int32(mask))
        assert [bool(g) for g in got] == [bool(mask & (3 if b == 1 else 1 << b)) for b in bits]


# --- arithmetic ---


@pytest.mark.parametrize(
    ("name", "given", "want"),
    [("bitreverse", (1,), 8), ("ctlz", (1, False), 3), ("cttz", (0, False), 4), ("ctpop", (15,), 4),
     ("fshl", (9, 5, 1), 2), ("fshr", (9, 6, 1), 11), ("umax", (9, 5), 9)],
)  # fmt: skip
def test_integers_narrower_than_a_byte(name: str, given: tuple[int, ...], want: int) -> None:
    """LLVM's optimiser makes i4 of four conditions; it is held without a sign, in a byte."""
    values = [np.array([v] * 3, np.int8) if type(v) is int else np.bool_(v) for v in given]
    assert of(f"llvm.{name}.i4", *values).tolist() == [want] * 3


def nearest(exact: Fraction, bits: int, least: int) -> float:
    """The fraction rounded to `bits` bits, to a multiple of 2**least at the finest, ties to
    even."""
    if not exact:
        return 0.0
    size = abs(exact)
    e = size.numerator.bit_length() - size.denominator.bit_length()
    e -= Fraction(2) ** e > size
    step = Fraction(2) ** max(e - bits + 1, least)
    return math.copysign(float(round(size / step) * step), exact)


@pytest.mark.parametrize(
    ("kind", "bits", "least", "reach"),
    [(np.float16, 11, -24, 6), (np.float32, 24, -149, 30), (np.float64, 53, -1074, 90)],
)
def test_fma_rounds_once(kind: Any, bits: int, least: int, reach: int) -> None:
    n = 500

    def spread() -> np.ndarray:
        return (RNG.standard_normal(n) * 2.0 ** RNG.integers(-reach, reach, n)).astype(kind)

    def few() -> np.ndarray:
        return RNG.integers(1, 2**9, n).astype(kind)

    x, y = spread(), spread()
    ties = (RNG.integers(-5, 5, n) * 2.0 ** RNG.integers(-reach, reach, n)).astype(kind)
    tiny = (RNG.standard_normal(n) * 2.0 ** (least / 2)).astype(kind)
    with np.errstate(all="ignore"):
        cases = [(x, y, spread()), (x, y, -(x * y)), (few(), few(), ties), (tiny, tiny, tiny[::-1])]
    for a, b, c in cases:
        with np.errstate(all="ignore"):
            got = fma(a, b, c)
        for i in range(n):
            exact = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
            want = nearest(exact, bits, least)
            if abs(want) <= float(np.finfo(kind).max) and (
                kind is not np.float64 or abs(want) > 1e-280
            ):
                assert float(got[i]) == want, (a[i], b[i], c[i])


def test_functions_of_floats() -> None:
    x = np.concatenate([RNG.standard_normal(50) * 20, [0.5, 1.5, 2.5, -0.5]]).astype(np.float32)
    for name, want in (("floor", np.floor), ("ceil", np.ceil), ("trunc", np.trunc),
                       ("roundeven", np.rint), ("rint", np.rint), ("fabs", np.abs)):  # fmt: skip
        np.testing.assert_array_equal(of(f"llvm.{name}.f32", x), want(x))
    np.testing.assert_array_equal(of("llvm.sqrt.f32", np.abs(x)), np.sqrt(np.abs(x)))
    y, nan = x[::-1].copy(), np.float32(np.nan)
    np.testing.assert_array_equal(of("llvm.maxnum.f32", x, y), np.maximum(x, y))
    assert of("llvm.maxnum.f32", nan, x[0]) == of("llvm.minnum.f32", x[0], nan) == x[0]
    np.testing.assert_array_equal(of("llvm.copysign.f32", x, y), np.abs(x) * np.sign(y))
    assert of("llvm.fma.f32", UNDEF, x, y) is UNDEF
    assert intrinsic("llvm.nonsense.f32") is None


def test_functions_of_integers() -> None:
    for kind, name in ((np.int8, "i8"), (np.int16, "i16"), (np.int32, "i32"), (np.int64, "i64")):
        info = np.iinfo(kind)
        bits = info.bits
        x = np.concatenate([RNG.integers(info.min, info.max, 40), [0, 1, -1, info.min]]).astype(
            kind
        )
        texts = [f"{int(v) & (1 << bits) - 1:0{bits}b}" for v in x]
        ones = [t.count("1") for t in texts]
        zeros = [bits - len(t.lstrip("0")) for t in texts]
        assert of(f"llvm.ctpop.{name}", x).tolist() == ones
        assert of(f"llvm.ctlz.{name}", x, np.bool_(False)).tolist() == zeros


def test_floats_to_integers_saturate() -> None:
    x = np.array([1.9, -1.9, 3e9, -3e9, 5e9, np.nan, np.inf, -np.inf], np.float32)
    got = of("llvm.fptosi.sat.i32.f32", x)
    top, low = 2**31 - 1, -(2**31)
    assert got.tolist() == [1, -1, top, low, top, 0, top, low] and got.dtype == np.int32
    got = of("llvm.fptoui.sat.i32.f32", x).view(np.uint32)
    assert got.tolist() == [1, 0, 3_000_000_000, 0, 2**32 - 1, 0, 2**32 - 1, 0]


def test_fast_functions() -> None:
    x = np.concatenate([RNG.standard_normal(100) * 30, [0.0, -200.0, 200.0]]).astype(np.float32)
    wide = x.astype(np.float64)
    for name in ("llvm.nvvm.ex2.approx.ftz.f", "llvm.amdgcn.exp2.f32"):
        want = np.where(wide < -126, 0.0, np.exp2(np.minimum(wide, 127)))
        want = np.where(wide > 127, np.inf, want).astype(np.float32)
        np.testing.assert_allclose(of(name, x), want, rtol=2e-7)
    for name in ("llvm.nvvm.rcp.approx.ftz.f", "llvm.amdgcn.rcp.f32"):
        np.testing.assert_allclose(of(name, x[:100]), 1 / wide[:100], rtol=2e-7)
        assert of(name, np.float32(0)) == np.inf and of(name, np.float32(3e38)) == 0
    for name in ("llvm.nvvm.rsqrt.approx.f", "llvm.amdgcn.rsq.f32"):
        np.testing.assert_allclose(of(name, abs(x[:100])), abs(wide[:100]) ** -0.5, rtol=2e-7)


def test_tf32() -> None:
    x = RNG.standard_normal(300).astype(np.float32)
    x[:4] = [np.inf, -np.inf, np.float32(1 + 2**-11), np.float32(1 + 3 * 2**-11)]
    got = of("llvm.nvvm.f2tf32.rn", x).view(np.float32)
    assert got[:4].tolist() == [np.inf, -np.inf, 1.0, 1 + 2**-9]
    want = [nearest(Fraction(float(v)), 11, -149) for v in x[4:]]
    assert got[4:].tolist() == want
    assert round_tf32(np.float32(np.nan)).view(np.uint32) == 0x7FFFFFFF


# --- float8 ---


@pytest.mark.parametrize("word", ["e4m3", "e5m2"])
def test_float8_of_ptx(word: str) -> None:
    kind = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[word]
    top = float(ml_dtypes.finfo(kind).max)
    x = (RNG.standard_normal(200) * 50).astype(np.float32)
    y = np.array([top, 2 * top, -np.inf, np.nan, 1e-9] * 40, np.float32)
    got = of(f"llvm.nvvm.ff.to.{word}x2.rn", x, y).view(np.uint16)
    low, high = (got & 255).astype(np.uint8), (got >> 8).astype(np.uint8)
    assert (low[:5].view(kind).astype(float)[[0, 1, 2, 4]] == [top, top, -top, 0]).all()
    assert low[3] == 0x7F
    want = np.clip(x, -top, top).astype(kind)
    assert high.tobytes() == want.tobytes()
    back = of(f"llvm.nvvm.{word}x2.to.f16x2.rn", got.view(np.int16))
    np.testing.assert_array_equal(back[1].astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize(
    ("target", "word", "kind", "nan"),
    [
        ("hip:gfx942", "fp8", ml_dtypes.float8_e4m3fnuz, 0x80),
        ("hip:gfx942", "bf8", ml_dtypes.float8_e5m2fnuz, 0x80),
        ("hip:gfx950", "fp8", ml_dtypes.float8_e4m3fn, 0x7F),
        ("hip:gfx950", "bf8", ml_dtypes.float8_e5m2, 0x7F),
    ],
)
def test_float8_of_amd(target: str, word: str, kind: Any, nan: int) -> None:
    m = Bench(128, target).active()
    x = (RNG.standard_normal(100) * 5).astype(np.float32)
    y = x[::-1].copy()
    x[0] = np.nan
    old = np.full(100, 0x12345678, np.int32)
    name = f"llvm.amdgcn.cvt.pk.{word}.f32"
    got = [of(name, x, y, old, np.bool_(h), m=m) for h in (False, True)]
    assert (got[0].view(np.uint32) >> 16 == 0x1234).all() and (got[1] & 0xFFFF == 0x5678).all()
    for number, want in enumerate((x, y)):
        value = of(f"llvm.amdgcn.cvt.f32.{word}", got[0], np.int32(number), m=m)
        np.testing.assert_array_equal(value, want.astype(kind).astype(np.float32))
    assert got[0].view(np.uint32)[0] & 255 == nan


# --- lanes ---


def test_shuffles_of_ptx() -> None:
    bench = Bench(96)
    m = bench.active()
    x = RNG.integers(0, 1000, 96).astype(np.int32)
    lane = RNG.integers(0, 32, 96).astype(np.int32)
    every, last = np.int32(-1), np.int32(31)
    got = of("llvm.nvvm.shfl.sync.idx.i32", every, x, lane, last, m=m)
    assert got.tolist() == [x[t // 32 * 32 + lane[t]] for t in range(96)]
    for flip in (1, 2, 4, 8, 16, 5):
        got = of("llvm.nvvm.shfl.sync.bfly.i32", every, x, np.int32(flip), last, m=m)
        assert got.tolist() == [x[t ^ flip] for t in range(96)]
    part = bench.active(range(32, 64))
    got = of("llvm.nvvm.shfl.sync.bfly.i32", every, x[32:64], np.int32(3), last, m=part)
    assert got.tolist() == [x[t ^ 3] for t in range(32, 64)] and not bench.kinds
    half = bench.active(range(16))
    of("llvm.nvvm.shfl.sync.bfly.i32", every, x[:16], np.int32(16), last, m=half)
    assert bench.kinds == ["barrier divergence"]


def test_shuffles_of_amd() -> None:
    bench = Bench(128, "hip:gfx942")
    m = bench.active()
    x = RNG.integers(0, 1000, 128).astype(np.int32)
    for mask in (1, 2, 3):
        control = np.int32(sum((i ^ mask) << 2 * i for i in range(4)))
        flags = control, np.int32(15), np.int32(15), np.bool_(True)
        got = of("llvm.amdgcn.update.dpp.i32", x, x, *flags, m=m)
        assert got.tolist() == [x[t ^ mask] for t in range(128)]
    for mask in (4, 8, 16, 21):
        got = of("llvm.amdgcn.ds.swizzle", x, np.int32(31 | mask << 10), m=m)
        assert got.tolist() == [x[t ^ mask] for t in range(128)]
    lane = RNG.integers(0, 64, 128).astype(np.int32)
    got = of("llvm.amdgcn.ds.bpermute", lane << np.int32(2), x, m=m)
    assert got.tolist() == [x[t // 64 * 64 + lane[t]] for t in range(128)]
    got = of("llvm.amdgcn.readfirstlane.i32", x, m=m)
    assert got.tolist() == [x[t // 64 * 64] for t in range(128)]


def test_who_and_where() -> None:
    bench = Bench(64, blocks=2)
    m = bench.active(range(5, 9), 1)
    assert of("llvm.nvvm.read.ptx.sreg.tid.x", m=m).tolist() == [5, 6, 7, 8]
    assert of("llvm.nvvm.read.ptx.sreg.ctaid.x", m=m) == 1
    assert of("llvm.nvvm.read.ptx.sreg.nctaid.x", m=m) == 2
    assert of("llvm.nvvm.read.ptx.sreg.cluster.ctaid.x", m=m) == 1
    assert of("llvm.amdgcn.workgroup.id.y", m=m) == 0


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_products_that_do_not_fit(bits: int) -> None:
    """At the ends, and about the root, of what fits: lane by lane, and one number for all."""
    m, kind = 1 << bits - 1, np.dtype(f"int{bits}").type
    root = math.isqrt(m)
    edges = [0, 1, -1, 2, -2, m - 1, -m, 1 - m, root, root + 1, -root, -root - 1, m // 3]
    pairs = [(x, y) for x in (*edges, *RNG.integers(-m, m - 1, 20).tolist()) for y in edges]
    a, b = (np.array(x, np.int64).astype(kind) for x in zip(*pairs))
    made, of_signs, of_none = a * b, OVERFLOWS["mul", "nsw"], OVERFLOWS["mul", "nuw"]
    signed = [not -m <= x * y < m for x, y in pairs]
    unsigned = [(x % (2 * m)) * (y % (2 * m)) >= 2 * m for x, y in pairs]
    assert of_signs(a, b, made).tolist() == signed
    assert of_none(a, b, made).tolist() == unsigned
    for n in range(40):
        with np.errstate(over="ignore"):
            one = [bool(bad(a[n], b[n], made[n])) for bad in (of_signs, of_none)]
        assert one == [signed[n], unsigned[n]]
