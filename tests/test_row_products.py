"""Whole products in every dtype of the matrix instructions, executed thread by thread: which
instruction a product gets on each target, and what comes out."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from form_help import (
    GFX942,
    SM80,
    SM90,
    aligned,
    close,
    lowered,
    on_cpu,
    on_threads,
    outermost,
    tile_func,
)
from pairwise import pairwise
from thread_interp import run_threads

import tilec.language as T
from tilec.ir import semantics as num
from tilec.ir.core import Func, walk
from tilec.ir.intervals import dtype_range
from tilec.ir.ops import Gemm, Ldmatrix, Mma, TmaLoad, Wgmma, WgmmaWait
from tilec.ir.types import DTYPES
from tilec.passes.two_level_accumulation import two_level_accumulation
from tilec.target import Target

M, N, K = T.dynamic("M, N, K")


@dataclass(frozen=True)
class Product:
    """C = A @ B in tiles: dtypes by name, a tile (bm, bn, bk), the stored order of A and B."""

    a: str
    b: str
    acc: str
    out: str
    tile: tuple[int, int, int] = (64, 64, 64)
    transpose_a: bool = False
    transpose_b: bool = True
    threads: int = 128
    tf32: bool = False
    fast: bool = True

    def kernel(self) -> Callable[..., Any]:
        bm, bn, bk = self.tile
        ta, tb, tf32, fast = self.transpose_a, self.transpose_b, self.tf32, self.fast
        a_shape, b_shape = ((K, M) if ta else (M, K)), ((N, K) if tb else (K, N))
        a_tile, b_tile = ((bk, bm) if ta else (bm, bk)), ((bn, bk) if tb else (bk, bn))
        a_type, b_type, sums, out, threads = self.a, self.b, self.acc, self.out, self.threads
        narrow = bn < 32

        def product(
            A: T.Tensor(a_shape, a_type), B: T.Tensor(b_shape, b_type), C: T.Tensor((M, N), out)
        ):
            with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=threads) as (bx, by):
                if narrow:
                    T.annotate_min_blocks_per_sm(1)  # these very blocks: none are joined
                A_s = T.alloc_shared(a_tile, a_type)
                B_s = T.alloc_shared(b_tile, b_type)
                acc = T.alloc_fragment((bm, bn), sums)
                T.clear(acc)
                for k in T.Pipelined(T.ceildiv(K, bk), num_stages=2):
                    if ta:
                        T.copy(A[k * bk, by * bm], A_s)
                    else:
                        T.copy(A[by * bm, k * bk], A_s)
                    if tb:
                        T.copy(B[bx * bn, k * bk], B_s)
                    else:
                        T.copy(B[k * bk, bx * bn], B_s)
                    T.gemm(
                        A_s,
                        B_s,
                        acc,
                        transpose_A=ta,
                        transpose_B=tb,
                        allow_tf32=tf32,
                        fast_accum=fast,
                    )
                T.copy(acc, C[by * bm, bx * bn])

        return product

    def arrays(self, m: int, n: int, k: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(m * 10000 + n * 100 + k)
        a = values(rng, (k, m) if self.transpose_a else (m, k), self.a, self.acc)
        b = values(rng, (n, k) if self.transpose_b else (k, n), self.b, self.acc)
        return {"A": aligned(a), "B": aligned(b), "C": aligned(values(rng, (m, n), self.out, ""))}

    def want(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        wide = np.int64 if self.acc == "int32" else np.float64
        a, b = arrays["A"], arrays["B"]
        if self.tf32:
            a, b = num.round_tf32(a), num.round_tf32(b)
        a, b = a.astype(wide), b.astype(wide)
        return (a.T if self.transpose_a else a) @ (b.T if self.transpose_b else b)


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, acc: str) -> np.ndarray:
    """Random elements; a sum of them stays in the range of `acc`."""
    t = DTYPES[dtype]
    if not t.is_float:
        low, high = dtype_range(t)
        return rng.integers(low, high, shape, endpoint=True).astype(num.numpy_dtype(t))
    return (rng.standard_normal(shape) * (0.5 if acc == "float16" else 1)).astype(
        num.numpy_dtype(t)
    )


def check(got: np.ndarray, want: np.ndarray, p: Product) -> None:
    if p.acc == "int32":
        out = DTYPES[p.out]
        low, high = dtype_range(out) if not out.is_float else (-np.inf, np.inf)
        if not out.is_float and out.bits < 32:
            want = want.astype(num.numpy_dtype(out))  # int to int wraps
        elif out.is_float:
            close(got, want.astype(np.float64), 1e-3)
            return
        assert low <= want.min() and want.max() <= high
        np.testing.assert_array_equal(got, want)
        return
    loose = {"float16": 1e-3, "bfloat16": 5e-3, "float8_e4m3": 4e-2, "float8_e5m2": 8e-2}
    bound = max(loose.get(p.out, 1e-6), 3e-3 if p.acc == "float16" else 0)
    close(got, want, bound)


def rows(func: Func) -> set[str]:
    return {o.instr for o in walk(func.body) if isinstance(o, (Mma, Wgmma))}


def stem(name: str) -> str:
    """ "wgmma.m64n64k16.f16" -> "wgmma f16"."""
    kind, _, dtypes = name.split(".", 2)
    return f"{kind} {dtypes}"


def run(p: Product, target: Target, size: tuple[int, int, int], expected: str) -> Func:
    """The numbers under the first and the last plan that fit; the first plan's function."""
    arrays = p.arrays(*size)
    want = p.want(arrays)
    found = outermost(tile_func(p.kernel(), arrays), target)
    for plan, func in found:
        assert {stem(r) for r in rows(func)} == ({expected} if expected else set()), plan
        held = {k: aligned(v) for k, v in arrays.items()}
        run_threads(func, target, held, 2)
        check(held["C"], want, p)
    return found[0][1]


E4, E5 = "float8_e4m3", "float8_e5m2"
SIZE = (72, 48, 144)  # two blocks, of which neither is full, and iterations likewise
CASES: list[tuple[Product, Target, str]] = [
    (Product("float16", "float16", "float16", "float16"), SM90, "wgmma f16.f16"),
    (Product("float16", "float16", "float16", "float16"), SM80, "mma f16.f16"),
    (Product("float16", "float16", "float16", "float16"), GFX942, "mfma f16"),
    (Product("bfloat16", "bfloat16", "float32", "bfloat16"), SM90, "wgmma bf16"),
    (Product("float32", "float32", "float32", "float32", (64, 64, 32), tf32=True), SM90,
     "wgmma tf32"),
    (Product("float32", "float32", "float32", "float32", (64, 64, 32), tf32=True), SM80,
     "mma tf32"),
    (Product("float32", "float32", "float32", "float32", (64, 64, 32), tf32=True), GFX942,
     "mfma tf32"),
    (Product("float32", "float32", "float32", "float16", (64, 64, 32)), GFX942, "mfma f32"),
    (Product("float64", "float64", "float64", "float64", (32, 32, 16)), SM80, "mma f64"),
    (Product("float64", "float64", "float64", "float32", (32, 16, 16)), SM90, "mma f64"),
    (Product("float64", "float64", "float64", "float64", (32, 32, 16)), GFX942, "mfma f64"),
    (Product(E4, E4, "float32", "float16"), SM90, "wgmma e4m3"),
    (Product(E4, E5, "float32", "bfloat16"), SM90, "wgmma e4m3xe5m2"),
    (Product(E5, E4, "float32", E4), SM90, "wgmma e5m2xe4m3"),
    (Product(E5, E5, "float16", E5), SM90, "wgmma e5m2.f16"),
    (Product(E4, E5, "float32", "float32"), SM80, "mma f16"),
    (Product(E4, E4, "float16", "float16"), SM80, "mma f16.f16"),
    (Product(E5, E4, "float32", "float32"), GFX942, "mfma e5m2xe4m3"),
    (Product(E4, E4, "float16", "float16"), GFX942, "mfma e4m3"),
    (Product("int8", "int8", "int32", "int32"), SM90, "wgmma i8"),
    (Product("int8", "uint8", "int32", "float32"), SM90, "wgmma i8xu8"),
    (Product("uint8", "int8", "int32", "int8"), SM90, "wgmma u8xi8"),
    (Product("uint8", "uint8", "int32", "int32"), SM80, "mma u8"),
    (Product("int8", "uint8", "int32", "int32"), SM80, "mma i8xu8"),
    (Product("int8", "int8", "int32", "int32"), GFX942, "mfma i8"),
    (Product("int8", "uint8", "int32", "int32", (32, 16, 16)), GFX942, ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("p", "target", "row"),
    CASES,
    ids=[f"{t.arch}-{p.a}-{p.b}-{p.acc}-{p.out}" for p, t, _ in CASES],
)
def test_dtypes(p, target, row):
    func = run(p, target, SIZE if row and DTYPES[p.a].bits < 64 else (40, 24, 40), row)
    bits = DTYPES[p.a].bits
    if row.startswith("wgmma"):
        assert any(isinstance(o, TmaLoad) for o in walk(func.body))
    if row.startswith("mma") and row.split()[1].startswith(DTYPES[p.a].short) and bits < 64:
        assert any(isinstance(o, Ldmatrix) for o in walk(func.body)), "K-major comes by ldmatrix"


ORDERS = [(False, False), (False, True), (True, False), (True, True)]

TURNED = [
    (Product("float16", "float16", "float32", "float16", (24, 64, 32)), 24),
    (Product("bfloat16", "bfloat16", "float32", "bfloat16", (40, 128, 32)), 40),
    (Product("float16", "float16", "float32", "float32", (96, 64, 32), transpose_a=True), 96),
    (Product("float16", "float16", "float16", "float16", (32, 64, 32), transpose_b=False), 32),
    (Product("float32", "float32", "float32", "float32", (16, 64, 32), tf32=True), 16),
    (Product(E4, E5, "float32", "bfloat16", (16, 64, 64)), 16),
    (Product("int8", "uint8", "int32", "int32", (32, 64, 64)), 32),
    (Product("float16", "float16", "float32", "float16", (72, 128, 32), threads=256), 72),
]


@pytest.mark.parametrize(("p", "n"), TURNED, ids=[f"{p.a}-{p.b}-{p.tile}" for p, _ in TURNED])
def test_turned(p: Product, n: int) -> None:
    """A tile whose rows are not those of wgmma is the product with operands swapped: its rows are
    the columns of the instruction."""
    arrays = p.arrays(41, 48, 96)
    want = p.want(arrays)
    for _, func in outermost(tile_func(p.kernel(), arrays), SM90):
        (row,) = {o.instr for o in walk(func.body) if isinstance(o, Wgmma)}
        assert row.startswith(f"wgmma.m64n{n}k"), row
        held = {k: aligned(v) for k, v in arrays.items()}
        run_threads(func, SM90, held, 2)
        check(held["C"], want, p)


KINDS = [
    ("float16", "float16", "float16", False),
    ("float32", "float32", "float32", True),
    (E4, E5, "float32", False),
    ("int8", "int8", "int32", False),
]


# What wgmma can read hangs on the dtype and both orders at once; other targets read any.
@pytest.mark.parametrize(
    "target, kind, order",
    [*itertools.product([SM90], KINDS, ORDERS), *pairwise([SM80, GFX942], KINDS, ORDERS)],
)
def test_orders(target, kind, order):
    """Whatever lies contiguous: an operand that the wide instruction cannot read so comes through
    registers (B as A of the product with operands swapped); if it can read neither, a narrower one
    is taken."""
    (a, b, acc, tf32), (ta, tb) = kind, order
    out = "int32" if acc == "int32" else "float32"
    p = Product(a, b, acc, out, (64, 64, 32), ta, tb, tf32=tf32)
    arrays = p.arrays(80, 68, 64)
    func = tile_func(p.kernel(), arrays)
    plan, done = next(iter(lowered(func, target)))
    held = {k: aligned(v) for k, v in arrays.items()}
    run_threads(done, target, held, 2)
    check(held["C"], p.want(arrays), p)
    names = {r.split(".")[0] for r in rows(done)}
    readable = DTYPES[a].bits == 16 or tb or not ta
    wide = {SM90: "wgmma" if readable else "mma", SM80: "mma", GFX942: "mfma"}[target]
    assert names == {wide}, (plan, rows(done))
    if wide == "wgmma":
        (product,) = {o for o in walk(done.body) if isinstance(o, Wgmma)}
        turned = DTYPES[a].bits != 16 and not tb
        assert (product.a.buffer.space == "fragment") == (DTYPES[a].bits != 16 and (ta or turned))
        assert product.b.name.startswith("A_s" if turned else "B_s")


@pytest.mark.parametrize(
    "kind, size, target",
    pairwise(["fp8", "int8", "tf32"], [(1, 1, 1), (67, 35, 50), (5, 130, 3)], [SM90, SM80, GFX942]),
)
def test_ragged(kind, size, target):
    a, b, acc, out = {
        "fp8": (E5, E4, "float32", "bfloat16"),
        "int8": ("uint8", "int8", "int32", "int32"),
        "tf32": ("float32", "float32", "float32", "float32"),
    }[kind]
    if target is GFX942 and kind == "int8":
        a = "int8"
    p = Product(a, b, acc, out, (64, 64, 32), tf32=kind == "tf32")
    arrays = p.arrays(*size)
    plan, done = next(iter(lowered(tile_func(p.kernel(), arrays), target)))
    run_threads(done, target, held := {k: aligned(v) for k, v in arrays.items()}, 2)
    check(held["C"], p.want(arrays), p)


@pytest.mark.parametrize("bn", [40, 56, 72, 24])
def test_integers_of_widths_that_no_warpgroup_takes(bn):
    """wgmma of integers has no n of 40, 56 or 72."""
    p = Product("int8", "int8", "int32", "int32", (64, bn, 32))
    run(p, SM90, (64, bn + 3, 40), "wgmma i8" if bn == 24 else "mma i8")


@pytest.mark.parametrize("bk", [4, 8, 16])
def test_short_sums(bk):
    """Half a step of K has an instruction, too."""
    p = Product("float32", "float32", "float32", "float32", (32, 32, bk), tf32=True)
    run(p, SM80, (40, 33, 20), "mma tf32")
    p = Product("int8", "int8", "int32", "int32", (32, 32, 4 * bk))
    func = run(p, SM80, (40, 33, 100), "mma i8")
    assert {r.split(".")[1] for r in rows(func)} == {"m16n8k16" if bk == 4 else "m16n8k32"}


# --- A in registers -------------------------------------------------------------------------------


def from_registers(a_type: str, a_tile: str, b_type: str, sums: str, tf32: bool = False) -> Any:
    """C = (A * 2) @ B^T, A multiplied and converted in registers."""
    A_shape, B_shape = (M, K), (N, K)

    def scaled(
        A: T.Tensor(A_shape, a_type), B: T.Tensor(B_shape, b_type), C: T.Tensor((M, N), sums)
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            A_s = T.alloc_shared((64, 64), a_type)
            A_f = T.alloc_fragment((64, 64), a_tile)
            B_s = T.alloc_shared((64, 64), b_type)
            acc = T.alloc_fragment((64, 64), sums)
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                T.copy(A[by * 64, k * 64], A_s)
                T.copy(B[bx * 64, k * 64], B_s)
                for i, j in T.Parallel(64, 64):
                    A_f[i, j] = A_s[i, j] * 2
                T.gemm(A_f, B_s, acc, transpose_B=True, allow_tf32=tf32)
            T.copy(acc, C[by * 64, bx * 64])

    return scaled


@pytest.mark.parametrize(
    ("a", "tile", "b", "sums", "row"),
    [
        ("float16", "float16", "float16", "float32", "wgmma f16"),
        ("int8", "bfloat16", "bfloat16", "float32", "wgmma bf16"),
        ("float16", "float16", "float16", "float16", "wgmma f16.f16"),
        ("float32", "float32", "float32", "float32", "wgmma tf32"),
        ("float16", E5, E4, "float32", "wgmma e5m2xe4m3"),
        ("int8", "int8", "uint8", "int32", "wgmma i8xu8"),
    ],
)
def test_a_in_registers(a, tile, b, sums, row):
    tf32 = a == "float32"
    rng = np.random.default_rng(5)
    left = values(rng, (80, 130), a, sums)
    if a == "int8":
        left //= 2
    arrays = {"A": aligned(left), "B": aligned(values(rng, (70, 130), b, sums))}
    arrays["C"] = aligned(values(rng, (80, 70), sums, ""))
    scaled = left.astype(np.float64) * 2
    held = np.clip(scaled, -57344, 57344).astype(num.numpy_dtype(DTYPES[tile])).astype(np.float64)
    right = arrays["B"]
    if tf32:
        held, right = num.round_tf32(held.astype(np.float32)), num.round_tf32(right)
    want = held.astype(np.float64) @ right.astype(np.float64).T
    func = tile_func(from_registers(a, tile, b, sums, tf32), arrays)
    # One target beside Hopper. Integers have no matrix instruction on gfx942: a long way round,
    # seen in `test_dtypes`.
    for target in (SM90, GFX942 if tile in ("bfloat16", "float32") else SM80):
        plan, done = next(iter(lowered(func, target)))
        got = {k: aligned(v) for k, v in arrays.items()}
        run_threads(done, target, got, 2)
        if target is SM90:
            assert {stem(r) for r in rows(done)} == {row}
            waits = [o for o in walk(done.body) if isinstance(o, WgmmaWait)]
            wgmma = next(o for o in walk(done.body) if isinstance(o, Wgmma))
            assert wgmma.a.buffer.space == "fragment"
            assert all(wgmma.a in o.fragments for o in waits), "A is read until the wait"
        close(got["C"], want, 3e-3 if sums == "float16" else 1e-6)


def kept_in_registers(changes: bool) -> Any:
    """C = (A @ B^T) with A (64, 64) in registers for the whole loop; or C = sum of k * A @ B_k^T,
    where every round changes A."""

    def held(A: T.Tensor((64, 64), "float16"), B: T.Tensor((N, 64), "float16"),
             C: T.Tensor((64, 64), "float32")):  # fmt: skip
        with T.Kernel(1, threads=128):
            A_f = T.alloc_fragment((64, 64), "float16")
            B_s = T.alloc_shared((64, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            T.copy(A, A_f)
            for k in T.Pipelined(T.ceildiv(N, 64), num_stages=3):
                T.copy(B[k * 64, 0], B_s)
                if changes:
                    for i, j in T.Parallel(64, 64):
                        A_f[i, j] = A_f[i, j] * 2
                T.gemm(A_f, B_s, acc, transpose_B=True)
            T.copy(acc, C)

    return held


@pytest.mark.parametrize("changes", [False, True])
def test_a_is_not_written_while_a_product_reads_it(changes):
    rng = np.random.default_rng(9)
    arrays = {
        "A": aligned(values(rng, (64, 64), "float16", "")),
        "B": aligned(values(rng, (64 * 5, 64), "float16", "")),
        "C": aligned(values(rng, (64, 64), "float32", "")),
    }
    a, b = arrays["A"].astype(np.float64), arrays["B"].astype(np.float64).reshape(5, 64, 64)
    scale = [2.0 ** (k + 1) if changes else 1.0 for k in range(5)]
    want = sum(s * a @ x.T for s, x in zip(scale, b))
    for plan, done, got in on_threads(tile_func(kept_in_registers(changes), arrays), SM90, arrays):
        close(got["C"], want, 1e-6)
        waits = [o for o in walk(done.body) if isinstance(o, WgmmaWait)]
        if plan.specialise:
            assert max(o.pending for o in waits) == (0 if changes else 1)
            a_used = next(o.a for o in walk(done.body) if isinstance(o, Wgmma))
            assert all(a_used in o.fragments for o in waits if o.pending == 0)


def chained(Q: T.Tensor((M, 64), "float16"), K: T.Tensor((N, 64), "float16"),
            V: T.Tensor((N, 64), "float16"), C: T.Tensor((M, 64), "float32")):  # fmt: skip
    """C = relu(Q @ K^T) @ V: the second product's A is the first one's result."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        Q_s = T.alloc_shared((64, 64), "float16")
        K_s = T.alloc_shared((64, 64), "float16")
        V_s = T.alloc_shared((64, 64), "float16")
        scores = T.alloc_fragment((64, 64), "float32")
        weights = T.alloc_fragment((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.copy(Q[bx * 64, 0], Q_s)
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
            T.copy(K[k * 64, 0], K_s)
            T.copy(V[k * 64, 0], V_s)
            T.gemm(Q_s, K_s, scores, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(64, 64):
                weights[i, j] = T.max(scores[i, j], 0.0)
            T.gemm(weights, V_s, acc)
        T.copy(acc, C[bx * 64, 0])


def transposed(A: T.Tensor((64, M), "float16"), B: T.Tensor((N, 64), "float16"),
               C: T.Tensor((M, N), "float32")):  # fmt: skip
    """C = A^T @ B^T with A, as it is stored, in registers."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        A_f = T.alloc_fragment((64, 64), "float16")
        B_s = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.copy(A[0, by * 64], A_f)
        T.copy(B[bx * 64, 0], B_s)
        T.gemm(A_f, B_s, acc, transpose_A=True, transpose_B=True, clear_accum=True)
        T.copy(acc, C[by * 64, bx * 64])


@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_a_product_of_a_product(target):
    rng = np.random.default_rng(2)
    q, k, v = (aligned(values(rng, (n, 64), "float16", "")) for n in (70, 130, 130))
    arrays = {"Q": q, "K": k, "V": v, "C": aligned(values(rng, (70, 64), "float32", ""))}
    scores = np.maximum(q.astype(np.float64) @ k.astype(np.float64).T, 0)
    plan, done = next(iter(lowered(tile_func(chained, arrays), target)))
    run_threads(done, target, arrays, 2)
    close(arrays["C"], scores @ v.astype(np.float64), 1e-3)
    if target is SM90:
        places = {o.a.buffer.space for o in walk(done.body) if isinstance(o, Wgmma)}
        assert places == {"shared", "fragment"} and not any(
            isinstance(o, Mma) for o in walk(done.body)
        )


@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_a_transposed_in_registers(target):
    rng = np.random.default_rng(4)
    a, b = (aligned(values(rng, s, "float16", "")) for s in ((64, 72), (66, 64)))
    arrays = {"A": a, "B": b, "C": aligned(values(rng, (72, 66), "float32", ""))}
    plan, done = next(iter(lowered(tile_func(transposed, arrays), target)))
    run_threads(done, target, arrays, 2)
    close(arrays["C"], a.astype(np.float64).T @ b.astype(np.float64).T, 1e-6)
    assert {r.split(".")[0] for r in rows(done)} == {
        {SM90: "wgmma", SM80: "mma", GFX942: "mfma"}[target]
    }


def read_back(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"),
              C: T.Tensor((M, N), "float32"), turn: T.constexpr = False):  # fmt: skip
    """C = A @ B^T with A copied from shared memory to registers; `turn`: C = A'^T @ B^T, where A'
    is a tile of A as it is stored."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        A_s = T.alloc_shared((64, 64), "float16")
        A_f = T.alloc_fragment((64, 64), "float16")
        B_s = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
            T.copy(A[by * 64, k * 64], A_s)
            T.copy(B[bx * 64, k * 64], B_s)
            T.copy(A_s, A_f)
            T.gemm(A_f, B_s, acc, transpose_A=turn, transpose_B=True)
        T.copy(acc, C[by * 64, bx * 64])


@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_registers_are_filled_from_shared_memory(target, turn):
    rng = np.random.default_rng(6)
    m = 64 if turn else 72
    a, b = (aligned(values(rng, s, "float16", "")) for s in ((m, 128), (66, 128)))
    arrays = {"A": a, "B": b, "C": aligned(values(rng, (m, 66), "float32", ""))}
    left = a.astype(np.float64)
    if turn:
        left = np.concatenate([left[:, :64].T, left[:, 64:].T], 1)
    plan, done = next(iter(lowered(tile_func(read_back, arrays, turn=turn), target)))
    run_threads(done, target, arrays, 2)
    close(arrays["C"], left @ b.astype(np.float64).T, 1e-6)
    loads = [o for o in walk(done.body) if isinstance(o, Ldmatrix) and o.dest.name == "A_f"]
    if target is GFX942:
        assert not loads
    else:
        assert {(o.count, o.transposed) for o in loads} == {(4, turn)}
        assert len(loads) == (2 if target is SM90 else 1)  # of A_f, one of which is being read


# --- sums in two levels ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tile", "order"),
    [
        ((64, 64, 64), (False, True)),
        ((64, 32, 128), (False, True)),
        ((64, 32, 192), (False, True)),
        ((64, 64, 256), (False, True)),
        ((32, 16, 64), (True, False)),
    ],
)
def test_partial_sums_are_added_in_float32(tile, order):
    p = Product(E4, E5, "float32", "float32", tile, *order, fast=False)
    arrays = p.arrays(70, 35, 260)
    func = tile_func(p.kernel(), arrays)
    parts = [o for o in walk(two_level_accumulation(func, SM90).body) if isinstance(o, Gemm)]
    assert [o.shape[2] for o in parts] == {64: [64], 128: [128], 192: [128, 64], 256: [128, 128]}[
        tile[2]
    ]
    assert all(o.clear and o.fast_accum for o in parts) and len({o.c for o in parts}) == len(parts)
    for target in (SM80, GFX942):
        assert two_level_accumulation(func, target).body == func.body
    plan, done = next(iter(lowered(func, SM90)))
    run_threads(done, SM90, held := {k: aligned(v) for k, v in arrays.items()}, 2)
    check(held["C"], p.want(arrays), p)
    assert any(isinstance(o, Wgmma) for o in walk(done.body)) == order[1]


def test_only_coarse_sums_are_promoted():
    p = Product("float16", "float16", "float32", "float32", fast=False)
    func = tile_func(p.kernel(), p.arrays(64, 64, 64))
    assert two_level_accumulation(func, SM90).body == func.body


# --- the cpu target -------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [c[0] for c in CASES if c[1] is SM90], ids=lambda p: f"{p.a}-{p.out}")
def test_on_the_cpu(p):
    arrays = p.arrays(70, 50, 90)
    check(on_cpu(p.kernel(), arrays)["C"], p.want(arrays), p)
