"""What decoding reads of tensors for many elements comes two iterations ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from form_help import SM90, aligned, tile_func
from simulated import run
from thread_interp import run_threads

import tilec
import tilec.language as T
from tilec.ir.schedule import Plan
from tilec.passes import run_plan

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
M, N, K, G = T.dynamic("M, N, K, G")


def scaled(step: int, size: int, changed: bool = False) -> Any:
    """Y = X ((W - Z) S)^T in steps of `step` columns, with groups of `size`. `changed`: the kernel
    writes the scales, too."""

    @tilec.kernel
    def kernel(
        X: T.Tensor((M, K), "float16"),
        W: T.Tensor((N, K), "uint8"),
        S: T.Tensor((N, G), "float16"),
        Z: T.Tensor((N, G), "uint8"),
        Y: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 16), threads=128) as (bx, by):
            x, w = T.alloc_shared((16, step), "float16"), T.alloc_shared((64, step), "uint8")
            f = T.alloc_fragment((64, step), "float16")
            y = T.alloc_fragment((16, 64), "float32")
            T.clear(y)
            for k in T.Pipelined(T.ceildiv(K, step), num_stages=2):
                T.copy(X[by * 16, k * step], x)
                T.copy(W[bx * 64, k * step], w)
                for n, j in T.Parallel(64, step):
                    at = bx * 64 + n
                    group = (k * step + j) // size if size < step else k * step // size
                    less = T.cast(w[n, j], "float16") - T.cast(Z[at, group], "float16")
                    f[n, j] = less * S[at, group]
                T.gemm(x, f, y, transpose_B=True)
            T.copy(y, Y[by * 16, bx * 64])
            if changed:
                for n in T.Parallel(64):
                    if bx * 64 + n < N:
                        S[bx * 64 + n, 0] = 0

    return kernel


def arrays(m: int, n: int, k: int, size: int, rng: np.random.Generator) -> list[np.ndarray]:
    groups = -(-k // size)
    return [
        rng.integers(-2, 3, (m, k)).astype(np.float16),
        rng.integers(0, 16, (n, k)).astype(np.uint8),
        (2.0 ** rng.integers(-2, 2, (n, groups))).astype(np.float16),
        rng.integers(0, 16, (n, groups)).astype(np.uint8),
        np.full((m, n), np.nan, np.float32),
    ]


def wanted(a: list[np.ndarray], size: int) -> np.ndarray:
    x, w, s, z = (v.astype(float) for v in a[:4])
    wide = [np.repeat(v, size, 1)[:, : w.shape[1]] for v in (s, z)]
    return x @ ((w - wide[1]) * wide[0]).T


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [16, 64, 128])
@pytest.mark.parametrize("shape", [(5, 70, 448), (16, 64, 64), (1, 1, 1), (17, 65, 100), (3, 9, 0)])
def test_numbers(
    target: str, size: int, shape: tuple[int, int, int], rng: np.random.Generator
) -> None:
    """Also of one iteration, whose next one does not exist, and of none."""
    a = arrays(*shape, size, rng)
    run(scaled(64, size), target, *a)
    np.testing.assert_array_equal(a[-1], wanted(a, size))


@pytest.mark.parametrize(
    "chosen",
    [
        Plan("shared", specialise=True, stages=2, split=2, staged_store=False),
        Plan("persistent", specialise=True, persistent=True, stages=3, staged_store=False),
        Plan("turns", specialise=True, persistent=True, stages=4, consumer_groups=2),
        Plan("plain", stages=2),
    ],
    ids=lambda p: p.name,
)
def test_schedules(chosen: Plan, rng: np.random.Generator) -> None:
    a = [aligned(x) for x in arrays(16, 192, 448, 64, rng)]
    given = dict(zip("XWSZY", a))
    func = run_plan(tile_func(scaled(64, 64).signature.source.function, given), SM90, chosen)
    run_threads(func, SM90, given)
    np.testing.assert_array_equal(a[-1], wanted(a, 64))


def held(kernel: Any, target: str, k: int, groups: int) -> str:
    given = [((64, k), "float16"), ((128, k), "uint8"), ((128, groups), "float16")]
    given += [((128, groups), "uint8"), ((64, 128), "float32")]
    made = kernel.compile(*(tilec.spec(*g) for g in given), target=target)
    return str(made.stages["read_ahead"])


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("target", TARGETS[1:])
def test_they_are_in_registers(target: str) -> None:
    text = held(scaled(64, 64), target, 512, 8)
    for name in ("S_now", "S_then", "Z_now", "Z_then"):
        assert f"%{name} = alloc fragment<64x" in text
    inside = text[text.index("for.pipelined") : text.index("gemm ")]
    first = inside[: inside.index("store %f")]
    assert "load %S_now" in first and "load %S[" not in first and "load %Z[" not in first


@pytest.mark.usefixtures("unassembled")
def test_groups_within_a_step() -> None:
    """They are indices of their own."""
    text = held(scaled(64, 32), "cuda:sm_90a", 512, 16)
    assert "%S_now = alloc fragment<64x2xf16" in text and "parallel (64, 2, 32)" in text
    inside = text[text.index("parallel (64, 2, 32)") : text.index("gemm ")]
    assert "load %S_now[%n, %j_group]" in inside and "load %Z_now[%n, %j_group]" in inside


@pytest.mark.usefixtures("unassembled")
def test_what_is_read_where_it_is() -> None:
    """What the kernel writes, what differs for every few elements."""
    text = held(scaled(64, 64, changed=True), "cuda:sm_90a", 512, 8)
    assert "S_now" not in text and "Z_now" in text
    within = _within()
    given = [((16, 512), "float16"), ((64, 512), "uint8"), ((64, 64), "float16")]
    made = within.compile(
        *(tilec.spec(*g) for g in given), tilec.spec((16, 64), "float32"), target="cuda:sm_90a"
    )
    assert "_now" not in str(made.stages["read_ahead"])


def _within() -> Any:
    @tilec.kernel
    def kernel(
        X: T.Tensor((16, K), "float16"),
        W: T.Tensor((64, K), "uint8"),
        S: T.Tensor((64, G), "float16"),
        Y: T.Tensor((16, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            x, w = T.alloc_shared((16, 64), "float16"), T.alloc_shared((64, 64), "uint8")
            f = T.alloc_fragment((64, 64), "float16")
            y = T.alloc_fragment((16, 64), "float32")
            T.clear(y)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                T.copy(X[0, k * 64], x)
                T.copy(W[0, k * 64], w)
                for n, j in T.Parallel(64, 64):
                    f[n, j] = w[n, j] * S[n, (k * 64 + j) // 8]
                T.gemm(x, f, y, transpose_B=True)
            T.copy(y, Y)

    return kernel


# --- what a product is multiplied with ------------------------------------------------------------


@tilec.kernel
def promoted(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"),
             S: T.Tensor((M, G), "float32"), Z: T.Tensor((G,), "float32"),
             C: T.Tensor((M, N), "float32")):  # fmt: skip
    """Products of 32 columns, each with scales of its rows and one for all of it."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((64, 32), "float16")
        part, acc = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[bx * 64, k * 32], b)
            T.gemm(a, b, part, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(64, 64):
                acc[i, j] += part[i, j] * (S[by * 64 + i, k] * Z[k])
        T.copy(acc, C[by * 64, bx * 64])


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("m", "n", "k"), [(70, 66, 100), (64, 64, 32), (1, 1, 1), (3, 5, 0)])
def test_promoted_numbers(m: int, n: int, k: int, target: str, rng: np.random.Generator) -> None:
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((m, k), (n, k)))
    groups = -(-k // 32)
    s, z = (2.0 ** rng.integers(-2, 2, e) for e in ((m, groups), groups))
    c = np.full((m, n), np.nan, np.float32)
    run(promoted, target, a, b, s.astype(np.float32), z.astype(np.float32), c)
    wide = (s * z)[:, np.arange(k) // 32]
    np.testing.assert_array_equal(c, (a * wide) @ b.astype(float).T)


@pytest.mark.usefixtures("unassembled")
def test_scales_of_products_are_in_registers() -> None:
    shapes = ((128, 512), "float16"), ((128, 512), "float16"), ((128, 16), "float32")
    more = ((16,), "float32"), ((128, 128), "float32")
    specs = [tilec.spec(*x) for x in (*shapes, *more)]
    text = str(promoted.compile(*specs, target="cuda:sm_90a").stages["read_ahead"])
    assert "%S_now = alloc fragment<64xf32" in text and "%Z_now = alloc fragment<1xf32" in text
    inside = text[text.index("gemm ") : text.index("store %acc")]
    assert "load %S_now" in inside and "load %Z_now" in inside
    assert "load %S[" not in inside and "load %Z[" not in inside
