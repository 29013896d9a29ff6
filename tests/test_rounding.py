"""T.cast(x, dtype, round=, sat=, rbits=) against the sorted numbers of each format."""

import ml_dtypes
import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
N = T.dynamic("N")
MODES = ("rn", "rz", "rm", "rp")


def kind_of(dtype, target):
    fnuz = "hip" in target
    return np.dtype(
        {
            "float8_e4m3": ml_dtypes.float8_e4m3fnuz if fnuz else ml_dtypes.float8_e4m3fn,
            "float8_e5m2": ml_dtypes.float8_e5m2fnuz if fnuz else ml_dtypes.float8_e5m2,
            "bfloat16": ml_dtypes.bfloat16,
        }.get(dtype, dtype)
    )


def casting(source, dest, mode, sat):
    @tilec.kernel
    def casts(A: T.Tensor((N,), source), B: T.Tensor((N,), dest)):
        with T.Kernel(T.ceildiv(N, 96), threads=32) as bx:
            for i in T.Parallel(96):
                B[bx * 96 + i] = T.cast(A[bx * 96 + i], dest, round=mode, sat=sat)

    return casts


def finite(kind):
    word = np.dtype(f"uint{kind.itemsize * 8}")
    every = np.arange(1 << (kind.itemsize * 8), dtype=np.uint32).astype(word).view(kind)
    with np.errstate(all="ignore"):
        every = every.astype(np.float64)
    return np.unique(every[np.isfinite(every)])


def directed(x, kind, mode, sat):
    """The rounded numbers, as float64; nan where the format has no infinity to give."""
    known = finite(kind)
    lo = known[np.clip(np.searchsorted(known, x, side="right") - 1, 0, None)]
    hi = known[np.clip(np.searchsorted(known, x, side="left"), None, len(known) - 1)]
    top = known[-1]
    toward = np.where(x < 0, hi, lo)
    found = {"rz": toward, "rm": lo, "rp": hi}.get(mode)
    if found is None:
        gap = known[-1] - known[-2]
        odd = int(top / gap) % 2
        with np.errstate(all="ignore"):
            near = np.where(np.abs(x) > top, np.copysign(top, x), x).astype(kind)
        found = near.astype(np.float64)
        over = np.abs(x) > top + gap / 2 if not odd else np.abs(x) >= top + gap / 2
    else:
        outward = {"rz": x != x, "rm": x < 0, "rp": x > 0}[mode]
        over = (np.abs(x) > top) & outward | np.isinf(x)
        found = np.where(np.abs(x) > top, np.copysign(top, x), found)
    if not sat:
        has = bool(np.isinf(np.array([np.inf]).astype(kind).astype(np.float64))[0])
        found = np.where(over, np.copysign(np.inf if has else np.nan, x), found)
    return np.where(np.isnan(x), np.nan, found)


def numbers(kind, dtype=np.float32):
    rng = np.random.default_rng(4)
    known = finite(kind)
    some = known[:: max(1, len(known) // 150)]
    middles = (some[1:] + some[:-1]) / 2
    top = known[-1]
    gap = top - known[-2]
    edges = np.array([top, top + gap / 4, top + gap / 2, top + gap * 0.6, top + gap, top * 4])
    small = known[known > 0][0] * np.array([0.25, 0.5, 0.75, 1.0, 1.5])
    wild = rng.standard_normal(200) * rng.choice([1e-3, 1, 30], 200)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
    every = np.concatenate([some, middles, edges, -edges, small, -small, wild, special])
    with np.errstate(all="ignore"):
        return every.astype(dtype)


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("dest", "sat"),
    [
        ("float8_e4m3", None),
        ("float8_e4m3", False),
        ("float8_e5m2", None),
        ("float8_e5m2", False),
        ("float16", None),
        ("float16", True),
        ("bfloat16", True),
    ],
)
def test_modes(target, dest, mode, sat):
    kind = kind_of(dest, target)
    a = numbers(kind)
    b = np.zeros(len(a), kind)
    run_compiled(casting("float32", dest, mode, sat), target, a, b)
    saturates = kind.itemsize == 1 if sat is None else sat
    want = directed(a.astype(np.float64), kind, mode, saturates)
    got = b.astype(np.float64)
    wrong = ~((got == want) | (np.isnan(got) & np.isnan(want)))
    assert not wrong.any(), (a[wrong][:5], got[wrong][:5], want[wrong][:5])


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", ("cpu", "cuda:sm_90a", "hip:gfx942"))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("source", "dest"),
    [("float64", "float32"), ("float64", "bfloat16"), ("float16", "bfloat16")],
)
def test_other_sources(target, source, dest, mode):
    rng = np.random.default_rng(9)
    a = (rng.standard_normal(300) * 100).astype(source)
    b = np.zeros(300, kind_of(dest, target))
    run_compiled(casting(source, dest, mode, None), target, a, b)
    got, x = b.astype(np.float64), a.astype(np.float64)
    near = x.astype(b.dtype)
    ulp = np.spacing(np.abs(near)).astype(np.float64)
    assert (np.abs(got - x) < ulp).all()
    sides = {"rz": np.abs(got) <= np.abs(x), "rm": got <= x, "rp": got >= x}
    assert sides.get(mode, got == near.astype(np.float64)).all()


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", MODES)
def test_to_integers(target, mode):
    a = np.array([0.5, 1.5, -1.5, 2.5, -0.1, 7.9, 1e9, -1e9, np.nan], np.float32)
    b = np.zeros(len(a), np.int16)
    run_compiled(casting("float32", "int16", mode, None), target, a, b)
    whole = {"rn": np.round, "rz": np.trunc, "rm": np.floor, "rp": np.ceil}[mode](a)
    assert np.array_equal(b, np.nan_to_num(np.clip(whole, -32768, 32767)).astype(np.int16))


def drawing(dest):
    @tilec.kernel
    def drawn(A: T.Tensor((N,), "float32"), R: T.Tensor((N,), "uint32"), B: T.Tensor((N,), dest)):
        with T.Kernel(T.ceildiv(N, 128), threads=64) as bx:
            x = T.alloc_fragment((128,), "float32")
            y = T.alloc_fragment((128,), dest)
            T.copy(A[bx * 128], x)
            for i in T.Parallel(128):
                y[i] = T.cast(x[i], dest, round="rs", rbits=R[bx * 128 + i])
            T.copy(y, B[bx * 128])

    return drawn


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dest", ["float8_e4m3", "float8_e5m2", "float16", "bfloat16"])
def test_at_random(target, dest):
    kind = kind_of(dest, target)
    rng = np.random.default_rng(7)
    a = np.concatenate([rng.standard_normal(250) * 10, finite(kind)[1:-1:997]]).astype(np.float32)
    r = rng.integers(0, 1 << 32, len(a), dtype=np.uint64).astype(np.uint32)
    b = np.zeros(len(a), kind)
    run_compiled(drawing(dest), target, a, r, b)
    x = np.abs(a.astype(np.float64))
    low, high = (directed(x, kind, mode, True) for mode in ("rz", "rp"))
    up = (x - low) > (r >> 8) * 2.0**-24 * (high - low)
    assert np.array_equal(np.abs(b.astype(np.float64)), np.where(up, high, low))
    assert 0.2 < up[:250].mean() < 0.8


@tilec.kernel
def wrong(A: T.Tensor((8,), "float32"), I: T.Tensor((8,), "int32"), which: T.constexpr):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(8):
            if which == "mode":
                A[i] = T.cast(A[i], "float16", round="up")
            elif which == "no bits":
                A[i] = T.cast(A[i], "float16", round="rs")
            elif which == "bits":
                A[i] = T.cast(A[i], "float16", round="rn", rbits=I[i])
            elif which == "float bits":
                A[i] = T.cast(A[i], "float16", round="rs", rbits=A[i])
            elif which == "sat":
                A[i] = T.cast(A[i], "float16", sat="yes")
            elif which == "int":
                A[i] = T.cast(I[i], "float16", round="rz")
            else:
                I[i] = T.cast(A[i], "int32", sat=False)


WRONG = {
    "mode": ("round of T.cast is the str 'up'", "'rz'"),
    "no bits": ('where round="rs"', "rbits=bits"),
    "bits": ('where round="rs"', "rbits=bits"),
    "float bits": ("rbits of T.cast is a run-time float32, not 32 bits",),
    "sat": ("sat of T.cast must be True or False",),
    "int": ("of a run-time int32: it is of floats", "T.float32(x)"),
    "to int": ("T.cast to int32 rounds by rn, rz, rm or rp, and saturates",),
}


@pytest.mark.parametrize("which", WRONG)
def test_what_is_no_mode(which):
    given = np.zeros(8, np.float32), np.zeros(8, np.int32)
    with pytest.raises(tilec.CompileError) as e:
        wrong.compile(*given, which=which, target="cpu")
    assert all(text in str(e.value) for text in WRONG[which]), e.value
