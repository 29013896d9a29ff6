"""TF32 products round their operands to nearest even: who does it on each road, and the numbers,
against float64 products of rounded operands. Half of the elements are ties. The interpreter's
instructions ignore the low 13 bits, as the hardware's do, so a rounding that is left out shows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from form_help import GFX942, SM80, SM90, aligned, close, lowered, on_cpu, tile_func
from test_row_products import Product, rows
from thread_interp import run_threads

import tilec.language as T
from tilec.ir import semantics as num
from tilec.ir.core import Func, walk
from tilec.ir.ops import Alloc, Cast, CpAsync, Ldmatrix, TmaLoad
from tilec.ir.types import FLOAT32, TFLOAT32
from tilec.target import Target

M, N, K = T.dynamic("M, N, K")
F32 = ("float32",) * 4
Arrays = dict[str, np.ndarray]


def with_ties(rng: np.random.Generator, *shape: int) -> np.ndarray:
    x = rng.standard_normal(shape).astype(np.float32)
    bits = x.view(np.uint32)
    ties = rng.random(shape) < 0.5
    bits[ties] = bits[ties] & ~np.uint32(0x1FFF) | np.uint32(0x1000)
    return x


def rounded(x: np.ndarray) -> np.ndarray:
    return num.round_tf32(x).astype(np.float64)


def casts(func: Func) -> int:
    """Conversions to TF32 in the code of one thread."""
    return sum(isinstance(o, Cast) and o.dtype == TFLOAT32 for o in walk(func.body))


def dtype_of(func: Func, name: str, space: str = "shared") -> Any:
    (found,) = {
        o.type.dtype
        for o in walk(func.body)
        if isinstance(o, Alloc) and o.result.name == name and o.type.space == space
    }
    return found


def first(kernel: Callable[..., Any], arrays: Arrays, target: Target, **options: Any) -> Func:
    """The first plan's function, run on copies of `arrays`, which then hold what it wrote."""
    _, done = next(iter(lowered(tile_func(kernel, arrays, **options), target)))
    run_threads(done, target, arrays, 2)
    return done


# The road: instruction, the dtype of both shared tiles, whether TMA brings them, whether threads
# round, whether ldmatrix is used.
ROADS = [
    ("TMA, read in place", SM90, "NT", 64, ("wgmma", TFLOAT32, True, False, False)),
    ("TMA, B through registers", SM90, "NN", 64, ("wgmma", TFLOAT32, True, False, False)),
    ("TMA, A through registers", SM90, "TT", 64, ("wgmma", TFLOAT32, True, False, False)),
    ("TMA, both through registers", SM90, "TN", 64, ("mma", TFLOAT32, True, False, False)),
    ("no TMA, read in place", SM90, "NT", 50, ("wgmma", TFLOAT32, False, True, False)),
    ("cp.async, ldmatrix", SM80, "NT", 64, ("mma", FLOAT32, False, True, True)),
    ("cp.async, narrow", SM80, "NT", 50, ("mma", FLOAT32, False, True, True)),
    ("cp.async, elements", SM80, "TN", 64, ("mma", FLOAT32, False, True, False)),
    ("registers", GFX942, "NT", 64, ("mfma", FLOAT32, False, True, False)),
    ("registers", GFX942, "NN", 50, ("mfma", FLOAT32, False, True, False)),
]


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("target", "order", "k", "road"),
    [r[1:] for r in ROADS],
    ids=[f"{r[1].arch}-{r[2]}-{r[0]}" for r in ROADS],
)
@pytest.mark.parametrize("m", [72, 33])
def test_roads(target, order, k, road, m):
    row, tile, tma, by_threads, matrices = road
    p = Product(*F32, (64, 64, 32), order[0] == "T", order[1] == "T", tf32=True)
    if order[0] == "T":
        m = (m + 3) // 4 * 4  # rows of A that TMA can bring
    arrays = {k: aligned(v) for k, v in p.arrays(m, 68, k).items()}
    rng = np.random.default_rng(m)
    for name in "AB":
        arrays[name][...] = with_ties(rng, *arrays[name].shape)
    done = first(p.kernel(), arrays, target)
    assert {r.split(".")[0] for r in rows(done)} == {row}
    assert {dtype_of(done, n) for n in ("A_s", "B_s")} == {tile}
    loads = [o for o in walk(done.body) if isinstance(o, TmaLoad)]
    assert bool(loads) == tma and all(o.map.type.dtype == TFLOAT32 for o in loads)
    assert bool(casts(done)) == by_threads
    assert any(isinstance(o, Ldmatrix) for o in walk(done.body)) == matrices
    assert any(isinstance(o, CpAsync) for o in walk(done.body)) == (target is SM80)
    close(arrays["C"], p.want(arrays), 1e-6)


def test_every_plan_rounds():
    p = Product(*F32, (64, 64, 32), transpose_b=False, tf32=True)
    arrays = p.arrays(72, 68, 80)
    for k in (80, 78):
        arrays = p.arrays(72, 68, k)
        want = p.want(arrays)
        for _, done in lowered(tile_func(p.kernel(), arrays), SM90):
            held = {n: aligned(v) for n, v in arrays.items()}
            run_threads(done, SM90, held, 2)
            close(held["C"], want, 1e-6)


def test_one_of_two_operands_by_tma():
    """Rows of A, 70 long, do not begin at multiples of 16 bytes; those of B do."""
    p = Product(*F32, (64, 64, 32), True, True, tf32=True)
    arrays = p.arrays(70, 68, 64)
    want = p.want(arrays)
    for plan, done in lowered(tile_func(p.kernel(), arrays), SM90):
        run_threads(done, SM90, held := {n: aligned(v) for n, v in arrays.items()}, 2)
        close(held["C"], want, 1e-6)
        maps = {o.map.type.tensor for o in walk(done.body) if isinstance(o, TmaLoad)}
        assert maps == ({"B"} if plan.specialise else set()), plan


# --- who else reads or writes ---------------------------------------------------------------------


def observed(A: T.Tensor((M, K), "float32"), B: T.Tensor((N, K), "float32"),
             C: T.Tensor((M, N), "float32"), D: T.Tensor((M, K), "float32")):  # fmt: skip
    """C = A @ B^T in TF32; D = 3 A, of the same tile."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        A_s = T.alloc_shared((64, 32), "float32")
        B_s = T.alloc_shared((64, 32), "float32")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[bx * 64, k * 32], A_s)
            T.copy(B[0, k * 32], B_s)
            for i, j in T.Parallel(64, 32):
                D[bx * 64 + i, k * 32 + j] = A_s[i, j] * 3.0
            T.gemm(A_s, B_s, acc, transpose_B=True, allow_tf32=True)
        T.copy(acc, C[bx * 64, 0])


@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_another_reader_sees_what_was_stored(target):
    rng = np.random.default_rng(7)
    a, b = aligned(with_ties(rng, 72, 64)), aligned(with_ties(rng, 56, 64))
    arrays = {"A": a, "B": b, "C": aligned(np.full((72, 56), np.nan, np.float32))}
    arrays["D"] = aligned(np.full((72, 64), np.nan, np.float32))
    done = first(observed, arrays, target)
    assert dtype_of(done, "A_s") == FLOAT32
    assert dtype_of(done, "B_s") == (TFLOAT32 if target is SM90 else FLOAT32)
    assert not any("wgmma" in r for r in rows(done)), "which would have read A_s as it is"
    np.testing.assert_array_equal(arrays["D"], a * np.float32(3))
    close(arrays["C"], rounded(a) @ rounded(b).T, 1e-6)


def both(A: T.Tensor((64, 32), "float32"), B: T.Tensor((64, 32), "float32"),
         C: T.Tensor((64, 64), "float32"), D: T.Tensor((64, 64), "float32")):  # fmt: skip
    """A @ B^T in TF32 and in float32."""
    with T.Kernel(1, threads=128):
        A_s = T.alloc_shared((64, 32), "float32")
        B_s = T.alloc_shared((64, 32), "float32")
        fast = T.alloc_fragment((64, 64), "float32")
        exact = T.alloc_fragment((64, 64), "float32")
        T.copy(A, A_s)
        T.copy(B, B_s)
        T.gemm(A_s, B_s, fast, transpose_B=True, clear_accum=True, allow_tf32=True)
        T.gemm(A_s, B_s, exact, transpose_B=True, clear_accum=True)
        T.copy(fast, C)
        T.copy(exact, D)


@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_a_product_in_float32_beside_it(target):
    rng = np.random.default_rng(8)
    a, b = aligned(with_ties(rng, 64, 32)), aligned(with_ties(rng, 64, 32))
    arrays = {"A": a, "B": b} | {n: aligned(np.zeros((64, 64), np.float32)) for n in "CD"}
    first(both, arrays, target)
    close(arrays["C"], rounded(a) @ rounded(b).T, 1e-6)
    close(arrays["D"], a.astype(np.float64) @ b.astype(np.float64).T, 1e-6)


def filled(A: T.Tensor((M, 32), "float32"), C: T.Tensor((M, 64), "float32"),
           scale: T.float32):  # fmt: skip
    """C = (A * scale) @ W^T: A is multiplied on its way to shared memory, W is 1.000244 and, in its
    lower half, index by index."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        A_s = T.alloc_shared((64, 32), "float32")
        W_s = T.alloc_shared((64, 32), "float32")
        acc = T.alloc_fragment((64, 64), "float32")
        T.fill(W_s, 1.000244140625)
        for i, j in T.Parallel(32, 32):
            W_s[32 + i, j] = (i - j) * 0.3001
        for i, j in T.Parallel(64, 32):
            A_s[i, j] = A[bx * 64 + i, j] * scale
        T.gemm(A_s, W_s, acc, transpose_B=True, clear_accum=True, allow_tf32=True)
        T.copy(acc, C[bx * 64, 0])


@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_tiles_that_the_user_fills(target):
    rng = np.random.default_rng(9)
    a = aligned(with_ties(rng, 70, 32))
    arrays: dict[str, Any] = {"A": a, "C": aligned(np.zeros((70, 64), np.float32))}
    arrays["scale"] = np.float32(1.7)
    done = first(filled, arrays, target)
    w = np.full((64, 32), 1 + 2.0**-12, np.float32)
    index = np.arange(32)[:, None] - np.arange(32)
    w[32:] = index.astype(np.float32) * np.float32(0.3001)
    close(arrays["C"], rounded(a * np.float32(1.7)) @ rounded(w).T, 1e-6)
    assert any("wgmma" in r for r in rows(done)) == (target is SM90)
    assert dtype_of(done, "A_s") == (TFLOAT32 if target is SM90 else FLOAT32) and casts(done)


# --- A in registers -------------------------------------------------------------------------------


def kept(A: T.Tensor((64, 32), "float32"), B: T.Tensor((N, 32), "float32"),
         C: T.Tensor((64, 64), "float32"), D: T.Tensor((64, 32), "float32"),
         seen: T.constexpr = False):  # fmt: skip
    """C = sum of A @ B_k^T, A in registers for the whole loop; `seen`: and D = A."""
    with T.Kernel(1, threads=128):
        A_f = T.alloc_fragment((64, 32), "float32")
        B_s = T.alloc_shared((64, 32), "float32")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        T.copy(A, A_f)
        for k in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
            T.copy(B[k * 64, 0], B_s)
            T.gemm(A_f, B_s, acc, transpose_B=True, allow_tf32=True)
        if seen:
            T.copy(A_f, D)
        T.copy(acc, C)


@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
@pytest.mark.parametrize("seen", [False, True])
def test_a_stays_in_registers(target, seen):
    rng = np.random.default_rng(10)
    a, b = aligned(with_ties(rng, 64, 32)), aligned(with_ties(rng, 192, 32))
    arrays = {"A": a, "B": b, "C": aligned(np.zeros((64, 64), np.float32))}
    arrays["D"] = aligned(np.zeros((64, 32), np.float32))
    done = first(kept, arrays, target, seen=seen)
    assert dtype_of(done, "A_f", "fragment") == (FLOAT32 if seen else TFLOAT32)
    np.testing.assert_array_equal(arrays["D"], a if seen else 0 * a)
    want = sum(rounded(a) @ rounded(b[64 * k : 64 * k + 64]).T for k in range(3))
    close(arrays["C"], want, 1e-6)


def chained(Q: T.Tensor((M, 32), "float32"), K: T.Tensor((64, 32), "float32"),
            V: T.Tensor((64, 64), "float32"), C: T.Tensor((M, 64), "float32")):  # fmt: skip
    """C = (Q @ K^T) @ V^T: A of the second product is the result of the first, which stays
    float32."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        Q_s = T.alloc_shared((64, 32), "float32")
        K_s = T.alloc_shared((64, 32), "float32")
        V_s = T.alloc_shared((64, 64), "float32")
        scores = T.alloc_fragment((64, 64), "float32")
        acc = T.alloc_fragment((64, 64), "float32")
        T.copy(Q[bx * 64, 0], Q_s)
        T.copy(K, K_s)
        T.copy(V, V_s)
        T.gemm(Q_s, K_s, scores, transpose_B=True, clear_accum=True, allow_tf32=True)
        T.gemm(scores, V_s, acc, transpose_B=True, clear_accum=True, allow_tf32=True)
        T.copy(acc, C[bx * 64, 0])


@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_a_result_as_an_operand(target):
    rng = np.random.default_rng(11)
    q, k, v = (aligned(with_ties(rng, *s)) for s in ((70, 32), (64, 32), (64, 64)))
    arrays = {"Q": q, "K": k, "V": v, "C": aligned(np.zeros((70, 64), np.float32))}
    done = first(chained, arrays, target)
    assert dtype_of(done, "scores", "fragment") == FLOAT32
    scores = (rounded(q) @ rounded(k).T).astype(np.float32)
    # The sums of the first product may differ in their last bit, and so fall to the other side.
    close(arrays["C"], rounded(scores) @ rounded(v).T, 2e-5)


# --- tiles that the user declares to be TF32 ------------------------------------------------------


def declared(A: T.Tensor((M, K), "float32"), B: T.Tensor((N, K), "float32"),
             C: T.Tensor((M, N), "float32"), D: T.Tensor((M, K), "float32")):  # fmt: skip
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        A_s = T.alloc_shared((64, 32), "tfloat32")
        B_s = T.alloc_shared((64, 32), "tfloat32")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[bx * 64, k * 32], A_s)
            T.copy(B[0, k * 32], B_s)
            T.copy(A_s, D[bx * 64, k * 32])
            T.gemm(A_s, B_s, acc, transpose_B=True)
        T.copy(acc, C[bx * 64, 0])


@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_a_tile_of_tf32(target):
    rng = np.random.default_rng(12)
    a, b = aligned(with_ties(rng, 72, 64)), aligned(with_ties(rng, 56, 64))
    a[0, :4] = [np.inf, -np.inf, 3.4028234663852886e38, -1e-39]
    b[:, :3] = 0
    arrays = {"A": a, "B": b, "C": aligned(np.zeros((72, 56), np.float32))}
    arrays["D"] = aligned(np.zeros((72, 64), np.float32))
    with np.errstate(invalid="ignore"):  # the first row of C is nan
        done = first(declared, arrays, target)
    np.testing.assert_array_equal(arrays["D"], num.round_tf32(a).astype(np.float32))
    assert np.isinf(arrays["D"][0, :3]).all() and arrays["D"][0, 3] != 0
    assert any(isinstance(o, TmaLoad) for o in walk(done.body)) == (target is SM90)
    close(arrays["C"][1:], rounded(a[1:]) @ rounded(b).T, 1e-6)


def test_the_cpu_rounds_alike():
    p = Product(*F32, (64, 64, 32), tf32=True)
    arrays = p.arrays(40, 37, 50)
    close(on_cpu(p.kernel(), arrays)["C"], p.want(arrays), 1e-6)
