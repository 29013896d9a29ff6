"""bring_tiles: which tiles beside a loop's products come by TMA, ahead, and that numbers stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.target import TARGETS as MACHINES

pytestmark = pytest.mark.turns

M, N = T.dynamic("M, N")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
HOPPER = TARGETS[0]


def attention(how: str = "") -> Any:
    """With a bias for each score, read where the scores are scaled; `how`: what is read instead."""

    @tilec.kernel
    def kernel(
        Q: T.Tensor((M, 64), "float16"),
        Kx: T.Tensor((N, 64), "float16"),
        V: T.Tensor((N, 64), "float16"),
        Bias: T.Tensor((M, N), "float16"),
        O: T.Tensor((M, 64), "float16"),
    ):
        with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
            if how == "safe":
                T.annotate_safe_value({Bias: 1.0})
            q, k, v = (T.alloc_shared((64, 64), "float16") for _ in range(3))
            s, o = (T.alloc_fragment((64, 64), "float32") for _ in range(2))
            p = T.alloc_fragment((64, 64), "float16")
            total, more = (T.alloc_fragment((64,), "float32") for _ in range(2))
            T.copy(Q[bx * 64, 0], q)
            T.clear(o)
            T.clear(total)
            steps = T.ceildiv(N, 64)
            for n in T.serial(steps) if how == "no stages" else T.Pipelined(steps, num_stages=2):
                T.copy(Kx[n * 64, 0], k)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(64, 64):
                    row, column = bx * 64 + i, n * 64 + j
                    if how == "column":
                        x = Bias[0, column]
                    elif how == "same":
                        x = Bias[row, j]
                    elif how == "shifted":
                        x = Bias[row, column + 1]
                    elif how == "twice":
                        x = Bias[row, column] * 0.5 + Bias[row, column] * 0.5
                    else:
                        x = Bias[row, column]
                    s[i, j] = T.if_then_else(column < N, T.exp(s[i, j] * 0.125 + x), 0.0)
                T.reduce_sum(s, more, dim=1)
                for i in T.Parallel(64):
                    total[i] += more[i]
                T.copy(s, p)
                T.copy(V[n * 64, 0], v)
                T.gemm(p, v, o)
                if how == "written" and bx == 0:
                    Bias[0, n] = T.float16(0)
            for i, j in T.Parallel(64, 64):
                o[i, j] /= total[i]
            T.copy(o, O[bx * 64, 0])

    return kernel


def given(m: int, n: int) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    rng = np.random.default_rng(m * n)
    q, k, v = (rng.standard_normal((rows, 64)).astype(np.float16) for rows in (m, n, n))
    bias = rng.standard_normal((m, n)).astype(np.float16)
    e = np.exp(q.astype(np.float64) @ k.T.astype(np.float64) / 8 + bias)
    return (q, k, v, bias, np.full((m, 64), np.nan, np.float16)), e / e.sum(1, keepdims=True) @ v


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", ["", "twice"])
@pytest.mark.parametrize(("m", "n"), [(100, 136), (64, 192), (1, 1), (70, 75)])
def test_numbers(m: int, n: int, how: str, target: str) -> None:
    args, want = given(m, n)
    report = tilec.simulate(attention(how), *args, target=target)
    assert report.ok, str(report)
    np.testing.assert_allclose(args[4], want, atol=5e-3)


def brought(how: str, n: int = 136, target: str = HOPPER) -> bool:
    args, _ = given(100, n)
    made = attention(how).plan_launch(target, None, args, {}).variant
    assert (text := made.stages["bring_tiles"]).count("%Bias_tile = alloc shared") < 2
    assert ("copy %Bias" in text) == ("ahead: Bias_tile, by tma" in made.stages["plan"])
    return "copy %Bias" in text


@pytest.mark.parametrize("how", ["", "twice"])
def test_a_bias_is_brought_ahead(how: str) -> None:
    assert brought(how)
    assert not brought(how, n=75)  # whose rows begin anywhere
    assert not any(brought(how, target=target) for target in TARGETS[1:])


@pytest.mark.parametrize("how", ["column", "same", "shifted", "written", "safe", "no stages"])
def test_what_is_loaded_where_it_is_used(how: str) -> None:
    """Less than a tile, what no iteration moves, tiles that begin between 16 bytes, tensors that
    are written or whose elements outside are not 0, loops without stages."""
    assert not brought(how)


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("rows", [64, 256])
def test_where_there_is_room(rows: int) -> None:
    """128 x 256 float32 numbers beside 128 KiB of keys and values are loaded where they are
    used."""

    @tilec.kernel
    def large(
        Q: T.Tensor((M, 128), "float16"),
        Kx: T.Tensor((N, 128), "float16"),
        V: T.Tensor((N, 128), "float16"),
        Bias: T.Tensor((M, N), "float32"),
        O: T.Tensor((M, 128), "float16"),
    ):
        with T.Kernel(T.ceildiv(M, 128), threads=256) as bx:
            q = T.alloc_shared((128, 128), "float16")
            k, v = (T.alloc_shared((rows, 128), "float16") for _ in range(2))
            s, o = (T.alloc_fragment((128, e), "float32") for e in (rows, 128))
            p = T.alloc_fragment((128, rows), "float16")
            T.copy(Q[bx * 128, 0], q)
            T.clear(o)
            for n in T.Pipelined(N // rows, num_stages=1):
                T.copy(Kx[n * rows, 0], k)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(128, rows):
                    s[i, j] = T.exp(s[i, j] + Bias[bx * 128 + i, n * rows + j])
                T.copy(s, p)
                T.copy(V[n * rows, 0], v)
                T.gemm(p, v, o)
            T.copy(o, O[bx * 128, 0])

    f = tilec.spec((2048, 128), "float16")
    made = large.compile(f, f, f, tilec.spec((2048, 2048), "float32"), f, target=HOPPER)
    assert made.resources.shared_bytes <= MACHINES["cuda:sm_90a"].shared_bytes
    assert ("copy %Bias" in made.stages["bring_tiles"]) == (rows == 64)


def test_only_beside_a_product() -> None:
    @tilec.kernel
    def sums(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, 64), "float32")):
        with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
                for i, j in T.Parallel(64, 64):
                    acc[i, j] += X[bx * 64 + i, k * 64 + j]
            T.copy(acc, Y[bx * 64, 0])

    x, y = np.ones((70, 128), np.float32), np.zeros((70, 64), np.float32)
    assert "copy %X" not in sums.compile(x, y, target=HOPPER).stages["bring_tiles"]
    assert tilec.simulate(sums, x, y, target=HOPPER).ok
    np.testing.assert_array_equal(y, np.full_like(y, 2))


# --- what is decoded ------------------------------------------------------------------------------

K, H = T.dynamic("K, H")


@tilec.kernel
def nibbles(X: T.Tensor((M, K), "float16"), W: T.Tensor((N, H), "uint8"),
            S: T.Tensor((N, H), "float16"), Y: T.Tensor((M, N), "float32")):  # fmt: skip
    """Two weights to a byte; S has a scale for 32 in its first columns."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 16), threads=128) as (bx, by):
        x, w = T.alloc_shared((16, 128), "float16"), T.alloc_shared((64, 128), "float16")
        y = T.alloc_fragment((16, 64), "float32")
        T.clear(y)
        for k in T.Pipelined(T.ceildiv(K, 128), num_stages=2):
            T.copy(X[by * 16, k * 128], x)
            for n, j in T.Parallel(64, 128):
                at = k * 128 + j
                code = T.int32(W[bx * 64 + n, at // 2] >> T.uint8(at % 2 * 4)) & 15
                w[n, j] = T.float16(code - 8) * S[bx * 64 + n, at // 32]
            T.gemm(x, w, y, transpose_B=True)
        T.copy(y, Y[by * 16, bx * 64])


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cpu", *TARGETS])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 70, 416), (1, 1, 2), (17, 64, 130), (3, 9, 0)])
def test_decoded_numbers(m: int, n: int, k: int, target: str, rng: np.random.Generator) -> None:
    x = rng.integers(-2, 3, (m, k)).astype(np.float16)
    w = rng.integers(0, 256, (n, k // 2)).astype(np.uint8)
    s = (2.0 ** rng.integers(-2, 2, (n, k // 2))).astype(np.float16)
    y = np.full((m, n), np.nan, np.float32)
    run(nibbles, target, x, w, s, y)
    codes = np.stack([w & 15, w >> 4], -1).reshape(n, k).astype(float) - 8
    np.testing.assert_array_equal(y, x.astype(float) @ (codes * s[:, np.arange(k) // 32]).T)


def test_what_is_decoded_is_brought_ahead_and_read_in_words() -> None:
    given = ((16, 4096), "float16"), ((4096, 2048), "uint8"), ((4096, 2048), "float16")
    specs = [*(tilec.spec(*g) for g in given), tilec.spec((16, 4096), "float32")]
    made = nibbles.compile(*specs, target=HOPPER)
    assert "%W_tile = alloc shared<64x64xu8" in made.stages["bring_tiles"]
    assert "ahead: W_tile, by tma" in made.stages["plan"]
    assert "ld.shared.b8" not in made.stages["ptx"] and "ld.global.nc.b8" not in made.stages["ptx"]
    other = nibbles.compile(*specs, target="cuda:sm_80").stages
    assert "copy %W" not in other["bring_tiles"], "no TMA"
    assert "ld.global.nc.b8" not in other["ptx"], "nor do threads load bytes"
