"""T.reduce_*: every kind, dimension, layout and dtype against float64, on all targets."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from form_help import SM90, tile_func
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.errors import CompileError
from tilec.ir.layout import Layout
from tilec.ir.ops import Barrier, Copy, Parallel, Reduce, ShuffleXor
from tilec.ir.schedule import Plan
from tilec.passes import run_plan

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

GPUS = ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"]
TARGETS = [*GPUS, "cpu"]
COMBINE: dict[str, Any] = {
    "sum": np.add, "max": np.maximum, "min": np.minimum, "abssum": np.add, "absmax": np.maximum,
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor,
}  # fmt: skip
ROUNDING = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 1e-6, "float64": 1e-14}


def dtype_of(name: str) -> Any:
    return getattr(ml_dtypes, {"float8_e4m3": "float8_e4m3fn"}.get(name, name), None) or name


def array(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    if dtype.startswith(("int", "uint")):
        low = 0 if dtype.startswith("u") else -100
        return rng.integers(low, 101, shape).astype(dtype)
    return (rng.standard_normal(shape) * 4).astype(dtype_of(dtype))


def wanted(a: np.ndarray, kind: str, dim: int, out: str, old: float | None) -> np.ndarray:
    whole = out.startswith(("int", "uint"))
    wide = a.astype(np.int64 if whole else np.float64)
    wide = np.abs(wide) if kind.startswith("abs") else wide
    found = COMBINE[kind].reduce(wide, axis=dim)
    if old is not None:
        found = COMBINE[kind](found, np.asarray(old, found.dtype))
    return found.astype(out) if whole else found


def check(got: np.ndarray, want: np.ndarray, dtype: str) -> None:
    if dtype not in ROUNDING:
        assert np.array_equal(got, want)
        return
    error = np.abs(got.astype(np.float64) - want)
    assert (error <= ROUNDING[dtype] * (1 + np.abs(want).max())).all(), error.max()


def reducing(shape, dim, kind, dtype, out, threads, space, clear, kept):
    alloc = getattr(T, f"alloc_{space}")
    combine = getattr(T, f"reduce_{kind}")
    left = tuple(1 if d == dim and kept else e for d, e in enumerate(shape) if d != dim or kept)

    @tilec.kernel
    def kernel(A: T.Tensor(shape, dtype), B: T.Tensor(left or (1,), out)):
        with T.Kernel(1, threads=threads):
            x = alloc(shape, dtype)
            y = alloc(left or (1,), out)
            T.copy(A, x)
            T.fill(y, 3)
            if clear:
                combine(x, y, dim=dim)
            else:
                combine(x, y, dim=dim, clear=False)
            T.copy(y, B)

    return kernel, left or (1,)


CASES = {
    "columns": ((64, 128), 1, "sum", "float32", "float32", 128, "fragment", True, False),
    "rows": ((64, 128), 0, "sum", "float32", "float32", 128, "fragment", True, False),
    "kept": ((64, 96), 1, "max", "float16", "float16", 128, "fragment", True, True),
    "one row": ((1, 1000), 1, "sum", "float32", "float32", 128, "fragment", True, False),
    "vector": ((4096,), 0, "max", "float16", "float32", 256, "fragment", True, False),
    "odd": ((7, 33), 1, "max", "float32", "float32", 128, "fragment", True, False),
    "padded": ((100, 100), 1, "sum", "float16", "float32", 128, "fragment", True, False),
    "padded rows": ((100, 100), 0, "min", "bfloat16", "bfloat16", 256, "fragment", False, False),
    "nothing to combine": ((128, 1), 1, "sum", "float32", "float32", 128, "fragment", True, False),
    "one": ((1, 1), 0, "sum", "float16", "float16", 64, "fragment", False, False),
    "three": ((4, 6, 32), 1, "max", "int32", "int32", 64, "fragment", True, False),
    "outer": ((8, 4, 16), 0, "sum", "float16", "float16", 128, "fragment", False, False),
    "inner": ((2, 3, 50), 2, "absmax", "float32", "float16", 128, "shared", True, True),
    "shared": ((48, 64), 1, "sum", "bfloat16", "float32", 128, "shared", False, False),
    "bytes": ((64, 64), 1, "sum", "int8", "int32", 128, "fragment", True, False),
    "bytes into floats": ((7, 200), 1, "sum", "int8", "float32", 128, "shared", False, False),
    "ints into halves": ((48, 33), 0, "abssum", "int16", "float16", 128, "fragment", True, False),
    "wrap": ((32, 64), 1, "sum", "uint8", "uint8", 128, "fragment", True, False),
    "long": ((16, 64), 1, "bitxor", "int64", "int64", 128, "fragment", False, False),
    "and": ((32, 48), 1, "bitand", "uint8", "uint8", 128, "fragment", True, False),
    "or": ((32, 48), 0, "bitor", "int16", "int16", 192, "fragment", True, False),
    "abs": ((40, 24), 0, "abssum", "int8", "int32", 128, "shared", False, False),
    "double": ((33, 17), 1, "abssum", "float64", "float64", 128, "fragment", True, False),
    "float8": ((32, 64), 1, "max", "float8_e4m3", "float32", 128, "fragment", True, False),
    "many threads": ((8, 2048), 1, "sum", "float16", "float32", 1024, "fragment", True, False),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_against_float64(name: str, target: str, rng: np.random.Generator) -> None:
    shape, dim, kind, dtype, out, *_, clear, _ = CASES[name]
    kernel, left = reducing(*CASES[name])
    a = array(shape, dtype, rng)
    if dtype == "float8_e4m3" and target.startswith("hip"):
        a = a.astype(ml_dtypes.float8_e4m3fnuz)
    b = np.full(left, 77, dtype_of(out))
    run(kernel, target, a, b)
    check(b, wanted(a, kind, dim, out, None if clear else 3).reshape(left), out)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", COMBINE)
def test_every_kind(kind: str, target: str, rng: np.random.Generator) -> None:
    """Negative dimensions count from the end, and `T.reduce` takes the kind by name."""

    @tilec.kernel
    def both(A: T.Tensor((24, 40), "int32"), B: T.Tensor((24,), "int32"), C: T.Tensor((40,), "int32")):  # fmt: skip  # noqa: E501
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((24, 40), "int32")
            rows = T.alloc_fragment((24,), "int32")
            columns = T.alloc_fragment((40,), "int32")
            T.copy(A, x)
            T.reduce(x, rows, kind, dim=-1)
            T.reduce(x, columns, kind, -2)
            T.copy(rows, B)
            T.copy(columns, C)

    a = array((24, 40), "int32", rng)
    b, c = np.zeros(24, np.int32), np.zeros(40, np.int32)
    run(both, target, a, b, c)
    assert np.array_equal(b, wanted(a, kind, 1, "int32", None))
    assert np.array_equal(c, wanted(a, kind, 0, "int32", None))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("propagate", [False, True])
def test_nans(propagate: bool, target: str, rng: np.random.Generator) -> None:
    @tilec.kernel
    def extremes(A: T.Tensor((16, 64), "float16"), B: T.Tensor((16,), "float16"), C: T.Tensor((16,), "float16")):  # fmt: skip  # noqa: E501
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((16, 64), "float16")
            high, low = T.alloc_fragment((16,), "float16"), T.alloc_fragment((16,), "float16")
            T.copy(A, x)
            T.reduce_max(x, high, dim=1, nan_propagate=propagate)
            T.reduce_min(x, low, dim=1, nan_propagate=propagate)
            T.copy(high, B)
            T.copy(low, C)

    a = rng.standard_normal((16, 64)).astype(np.float16)
    a[rng.random((16, 64)) < 0.02] = np.nan
    a[3] = np.nan
    b, c = np.zeros(16, np.float16), np.zeros(16, np.float16)
    run(extremes, target, a, b, c)
    high, low = (np.max, np.min) if propagate else (np.nanmax, np.nanmin)
    with np.errstate(all="ignore"), pytest.warns() if not propagate else _nothing():
        np.testing.assert_array_equal(b, high(a, axis=1))
        np.testing.assert_array_equal(c, low(a, axis=1))


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


M, N = T.dynamic("M, N")


@tilec.kernel
def softmax(A: T.Tensor((M, N), "float16"), B: T.Tensor((M, N), "float16"), BM: T.constexpr = 4, BN: T.constexpr = 128):  # fmt: skip  # noqa: E501
    """In one pass: a running maximum, and a sum that follows it."""
    with T.Kernel(T.ceildiv(M, BM), threads=128) as bx:
        T.annotate_safe_value({A: -T.infinity("float16")})
        x = T.alloc_fragment((BM, BN), "float32")
        high = T.alloc_fragment((BM,), "float32")
        before = T.alloc_fragment((BM,), "float32")
        total = T.alloc_fragment((BM,), "float32")
        more = T.alloc_fragment((BM,), "float32")
        T.fill(high, T.min_value("float32"))
        T.clear(total)
        for n in T.serial(T.ceildiv(N, BN)):
            T.copy(A[bx * BM, n * BN], x)
            T.copy(high, before)
            T.reduce_max(x, high, dim=1, clear=False)
            for i, j in T.Parallel(BM, BN):
                x[i, j] = T.exp(x[i, j] - high[i])
            T.reduce_sum(x, more, dim=1)
            for i in T.Parallel(BM):
                total[i] = total[i] * T.exp(before[i] - high[i]) + more[i]
        for n in T.serial(T.ceildiv(N, BN)):
            T.copy(A[bx * BM, n * BN], x)
            for i, j in T.Parallel(BM, BN):
                x[i, j] = T.exp(x[i, j] - high[i]) / total[i]
            T.copy(x, B[bx * BM, n * BN])


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(4, 128), (5, 1), (3, 300), (1, 4097)])
def test_softmax(shape: tuple[int, int], target: str, rng: np.random.Generator) -> None:
    a = (rng.standard_normal(shape) * 3).astype(np.float16)
    b = np.full(shape, np.nan, np.float16)
    run(softmax, target, a, b)
    e = np.exp(a.astype(np.float64) - a.max(1, keepdims=True))
    check(b, e / e.sum(1, keepdims=True), "float16")


@tilec.kernel
def attention(
    Q: T.Tensor((M, 64), "float16"),
    K: T.Tensor((N, 64), "float16"),
    V: T.Tensor((N, 64), "float16"),
    O: T.Tensor((M, 64), "float16"),
    policy: T.constexpr = T.GemmWarpPolicy.FullRow,
    causal: T.constexpr = False,
):
    """As users of TileLang write it."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        q = T.alloc_shared((64, 64), "float16")
        k, v = T.alloc_shared((32, 64), "float16"), T.alloc_shared((32, 64), "float16")
        s, p = T.alloc_fragment((64, 32), "float32"), T.alloc_fragment((64, 32), "float16")
        o = T.alloc_fragment((64, 64), "float32")
        high, before, scale = (T.alloc_fragment((64,), "float32") for _ in range(3))
        total, more = T.alloc_fragment((64,), "float32"), T.alloc_fragment((64,), "float32")
        T.copy(Q[bx * 64, 0], q)
        T.clear(o)
        T.clear(total)
        T.fill(high, -1e30)
        for n in T.Pipelined(T.ceildiv(N, 32), num_stages=2):
            T.copy(K[n * 32, 0], k)
            T.gemm(q, k, s, transpose_B=True, policy=policy, clear_accum=True)
            for i, j in T.Parallel(64, 32):
                seen = n * 32 + j < N
                if causal:
                    seen = seen and n * 32 + j <= bx * 64 + i
                s[i, j] = T.if_then_else(seen, s[i, j] / 8, -1e30)
            T.copy(high, before)
            T.reduce_max(s, high, dim=1, clear=False)
            for i in T.Parallel(64):
                scale[i] = T.exp(before[i] - high[i])
            for i, j in T.Parallel(64, 32):
                s[i, j] = T.exp(s[i, j] - high[i])
            T.reduce_sum(s, more, dim=1)
            for i in T.Parallel(64):
                total[i] = total[i] * scale[i] + more[i]
            T.copy(s, p)
            for i, j in T.Parallel(64, 64):
                o[i, j] *= scale[i]
            T.copy(V[n * 32, 0], v)
            T.gemm(p, v, o, policy=policy)
        for i, j in T.Parallel(64, 64):
            o[i, j] /= total[i]
        T.copy(o, O[bx * 64, 0])


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("policy", [T.GemmWarpPolicy.FullRow, T.GemmWarpPolicy.FullCol])
@pytest.mark.parametrize("sizes", [(64, 32), (130, 95)])
def test_attention(sizes, policy, target: str, rng: np.random.Generator) -> None:
    """With `FullCol` the statistics of a row are made by several warps."""
    causal = policy is T.GemmWarpPolicy.FullRow and sizes[0] > 64
    q, k, v = (rng.standard_normal((n, 64)).astype(np.float16) for n in (sizes[0], *sizes[1:] * 2))
    o = np.full_like(q, np.nan)
    run(attention, target, q, k, v, o, policy=policy, causal=causal)
    s = q.astype(np.float64) @ k.astype(np.float64).T / 8
    if causal:
        s[np.arange(sizes[0])[:, None] < np.arange(sizes[1])] = -np.inf
    e = np.exp(s - s.max(1, keepdims=True))
    check(o, e @ v.astype(np.float64) / e.sum(1, keepdims=True), "float16")


def passes_of(function: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    run_plan(tile_func(function, arrays), SM90, Plan("plain"), kept.__setitem__)
    return kept


def rows_in_warps(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128):
        x, high = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64,), "float32")
        T.copy(A, x)
        T.reduce_max(x, high, dim=1)
        for i, j in T.Parallel(64, 64):
            x[i, j] = x[i, j] - high[i]
        T.copy(x, B)


def test_rows_of_one_warp_need_no_memory() -> None:
    """Sixteen lanes hold a row: four shuffles for each of a thread's rows, and a result where the
    loop wants it."""
    arrays = {name: np.ones((64, 64), np.float32) for name in "AB"}
    kept = passes_of(rows_in_warps, arrays)
    (o,) = (o for o in walk(kept["infer_layouts"].body) if isinstance(o, Reduce))
    layout = o.source.buffer.buffer.layout
    assert isinstance(layout, Layout)
    assert o.dest.buffer.buffer.layout == layout.drop(1).once("reg")
    (loop,) = (o for o in walk(kept["infer_layouts"].body) if isinstance(o, Parallel))
    assert loop.layout == layout
    final = [*walk(kept["lower_parallel"].body)]
    assert sum(isinstance(o, ShuffleXor) for o in final) == 4
    assert not any(isinstance(o, Barrier) for o in final)


def columns_over_warps(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=128):
        x, total = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64,), "float32")
        T.copy(A, x)
        T.reduce_sum(x, total, dim=0)
        T.copy(total, B)


def test_warps_meet_in_shared_memory() -> None:
    arrays = {"A": np.ones((64, 64), np.float32), "B": np.ones(64, np.float32)}
    kept = passes_of(columns_over_warps, arrays)
    parts = [o for o in walk(kept["split_reductions"].body) if isinstance(o, Reduce)]
    assert [(o.parts, o.dim) for o in parts] == [(4, 0), (1, 0)]
    scratch = [o for o in walk(kept["split_reductions"].body) if isinstance(o, Copy)]
    assert [o.dest.buffer.buffer.space for o in scratch][1:3] == ["shared", "fragment"]
    after = kept["insert_sync"].body.ops
    assert sum(isinstance(o, Barrier) for o in after) == 1


ERRORS = {
    "tensor": ("T.reduce_sum(A, y, dim=1)", "buffer of T.reduce_sum is .*must be a fragment"),
    "dimension": ("T.reduce_sum(x, y, dim=2)", "dim of T.reduce_sum is the int 2, but"),
    "negative": ("T.reduce_sum(x, y, dim=-3)", "dim of T.reduce_sum is the int -3, but"),
    "run time": ("T.reduce_sum(x, y, dim=n)", "dim of T.reduce_sum is .*has 2 dimensions"),
    "shape": ("T.reduce_max(x, y, dim=0)", r"gives a tile of \(32,\) or \(1, 32\), but out is"),
    "bits": ("T.reduce_bitor(x, y, dim=1)", "combines the bits of ints, not those of x"),
    "kind": ("T.reduce(x, y, 'mean', dim=1)", "reduce_type of T.reduce is the str 'mean'"),
    "loop": ("for i in T.Parallel(16): T.reduce_sum(x, y, dim=1)", "cannot stand in T.Parallel"),
    "number": ("T.reduce_sum(x, 3, dim=1)", "out of T.reduce_sum"),
    "clear": ("T.reduce_sum(x, y, dim=1, clear=x)", "clear of T.reduce_sum must be True or False"),
    "keyword": ("T.reduce_sum(x, y, axis=1)", "T.reduce_sum has no keyword 'axis'"),
    "divergent": (
        "if T.get_thread_binding(0) < 5: T.reduce_sum(x, y, dim=1)", "under a condition that holds"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str, tmp_path: Any) -> None:
    line, message = ERRORS[name]
    text = (
        "import tilec, tilec.language as T\n"
        "@tilec.kernel\n"
        "def kernel(A: T.Tensor((16, 32), 'float32'), n: T.int32):\n"
        "    with T.Kernel(1, threads=64):\n"
        "        x = T.alloc_fragment((16, 32), 'float32')\n"
        "        y = T.alloc_fragment((16,), 'float32')\n"
        "        T.copy(A, x)\n"
        f"        {line}\n"
    )
    path = tmp_path / "kernel.py"
    path.write_text(text)
    scope: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), scope)
    with pytest.raises(CompileError, match=message) as caught:
        scope["kernel"].compile(tilec.spec((16, 32), "float32"), 1, target="cuda:sm_90a")
    assert caught.value.loc is not None and caught.value.loc.line == 8


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("space", ["shared", "fragment"])
@pytest.mark.parametrize("dtypes", [("int16", "uint64"), ("int8", "uint16"), ("uint16", "int64")])
@pytest.mark.parametrize("kind", ["max", "min", "bitand", "sum"])
def test_signed_into_unsigned(
    target: str, space: str, dtypes: tuple[str, str], kind: str, rng: np.random.Generator
) -> None:
    """Rows of 34 elements are filled up: what is added there changes nothing in the wider dtype."""

    @tilec.kernel
    def kernel(A: T.Tensor((11, 34), dtypes[0]), B: T.Tensor((11,), dtypes[1])):
        with T.Kernel(1, threads=128):
            alloc = T.alloc_shared if space == "shared" else T.alloc_fragment
            S = alloc((11, 34), dtypes[0])
            f = T.alloc_fragment((11,), dtypes[1])
            T.copy(A, S)
            T.reduce(S, f, kind, dim=-1)
            T.copy(f, B)

    A = rng.integers(0, 9, (11, 34)).astype(dtypes[0])
    A[5:] = A[5:] - 20 if dtypes[0][0] == "i" else A[5:] + 20
    B = np.zeros(11, dtypes[1])
    if target == "cpu":
        kernel(A, B)
    else:
        assert not tilec.simulate(kernel, A, B, target=target).findings
    wide = A.astype(dtypes[1])
    combine = {"max": np.maximum, "min": np.minimum, "sum": np.add, "bitand": np.bitwise_and}[kind]
    np.testing.assert_array_equal(B, combine.reduce(wide, axis=1, dtype=wide.dtype))
