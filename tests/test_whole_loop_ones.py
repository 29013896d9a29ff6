"""Numbers that change no index, named or written down: loops are what they are without them."""

import re
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

B, H, W, C, R, S, K, P, Q, E = map(T.dynamic, "BHWCRSKPQE")


def general(stride: int, dilation: int, pad: int) -> Any:
    @tilec.kernel
    def kernel(
        X: T.Tensor((B, H, W, C), "float16"),
        F: T.Tensor((R, S, C, K), "float16"),
        Y: T.Tensor((B, P, Q, K), "float32"),
    ):
        for b, y, x, n in T.Parallel(B, P, Q, K):
            acc = 0.0
            for r in range(R):
                for s in range(S):
                    for c in range(C):
                        if 0 <= y * stride + r * dilation - pad < H:
                            if 0 <= x * stride + dilation * s - pad < W:
                                at = y * stride + r * dilation - pad
                                value = X[b, at, x * stride + dilation * s - pad, c // stride]
                                acc += T.cast(value, "float32") * T.cast(F[r, s, c, n], "float32")
            Y[b, y, x, n] = acc * stride

    return kernel


@tilec.kernel
def plain(
    X: T.Tensor((B, H, W, C), "float16"),
    F: T.Tensor((R, S, C, K), "float16"),
    Y: T.Tensor((B, P, Q, K), "float32"),
):
    for b, y, x, n in T.Parallel(B, P, Q, K):
        acc = 0.0
        for r in range(R):
            for s in range(S):
                for c in range(C):
                    if 0 <= y + r - 1 < H:
                        if 0 <= x + s - 1 < W:
                            value = X[b, y + r - 1, x + s - 1, c]
                            acc += T.cast(value, "float32") * T.cast(F[r, s, c, n], "float32")
        Y[b, y, x, n] = acc


def operands(size: int, channels: int, stride: int, dilation: int, pad: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(size + channels)
    x = rng.integers(-2, 3, (2, size, size, channels)).astype(np.float16)
    f = rng.integers(-2, 3, (3, 3, channels, 24)).astype(np.float16)
    out = (size + 2 * pad - 2 * dilation - 1) // stride + 1
    wide = np.pad(x.astype(int), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    want = 0
    for r in range(3):
        for s in range(3):
            rows, columns = (
                slice(n * dilation, n * dilation + out * stride, stride) for n in (r, s)
            )
            want = want + wide[:, rows, columns][:, :out, :out] @ f[r, s].astype(int)
    return x, f, np.full((2, out, out, 24), np.nan, np.float32), want * stride


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu"])
@pytest.mark.parametrize("how", [(1, 1, 1), (1, 1, 0), (1, 2, 2)])
def test_the_numbers(target: str, how: tuple[int, int, int]) -> None:
    *arrays, want = operands(7, 12, *how)
    run(general(*how), target, *arrays)
    np.testing.assert_array_equal(arrays[-1], want)


@pytest.mark.usefixtures("unassembled")
def test_it_is_the_same_program() -> None:
    """Up to places in the file, and the product with 1 that is no index."""
    *arrays, _ = operands(55, 64, 1, 1, 1)
    made = [k.compile(*arrays, target="cuda:sm_90a") for k in (general(1, 1, 1), plain)]
    tiles = [re.findall(r"alloc (\S+)", str(m.stages["tile"])) for m in made]
    assert tiles[0] == tiles[1] and len({m.plan for m in made}) == 1
    copies = [str(m.stages["expand_scopes"]).count("copy ") for m in made]
    assert copies[0] == copies[1] > 0


def test_what_is_no_index_stays() -> None:
    """A product with an int may be of another dtype; a name may be another number later on."""
    one = 1

    @tilec.kernel
    def kernel(A: T.Tensor((K,), "bool"), Y: T.Tensor((K,), "int32"), Z: T.Tensor((K,), "int32")):
        for i in T.Parallel(K):
            step = 1
            for _ in range(3):
                step = step + 1
            Y[i] = A[i] * one + 0
            Z[i] = i * step + i // one

    a = np.arange(70) % 3 == 0
    y, z = np.zeros(70, np.int32), np.zeros(70, np.int32)
    for target in ("cpu", "cuda:sm_90a"):
        run(kernel, target, a, y, z)
        np.testing.assert_array_equal(y, a.astype(int))
        np.testing.assert_array_equal(z, np.arange(70) * 5)


def test_names_of_functions_inside_are_theirs() -> None:
    one = 1

    @tilec.kernel
    def kernel(A: T.Tensor((K,), "int32"), Y: T.Tensor((K,), "int32")):
        for i in T.Parallel(K):

            def times(one, j):
                return j * one + i * one + i * i  # noqa: B023

            Y[i] = times(A[i], i) + (lambda one: i * one)(2) + i * one

    a, y = np.arange(70, dtype=np.int32) % 7 + 1, np.zeros(70, np.int32)
    for target in ("cpu", "cuda:sm_90a"):
        run(kernel, target, a, y)
        i = np.arange(70)
        np.testing.assert_array_equal(y, 2 * i * a + i * i + 3 * i)


def grouped(stride: int, groups: int) -> Any:
    @tilec.kernel
    def kernel(
        X: T.Tensor((B, H, W, C), "float16"),
        F: T.Tensor((R, S, P, K), "float16"),
        Y: T.Tensor((B, E, Q, K), "float32"),
    ):
        for b, y, x, n in T.Parallel(B, E, Q, K):
            acc = 0.0
            for r in range(R):
                for s in range(S):
                    for c in range(P):
                        p = y * stride + r * stride - 1
                        q = x * stride + s * stride - 1
                        ch = n // (K // groups) * P + c
                        if 0 <= p < H and 0 <= q < W:
                            value = T.cast(X[b, p, q, ch], "float32")
                            acc += value * T.cast(F[r, s, c, n], "float32")
            Y[b, y, x, n] = acc

    return kernel


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cpu"])
def test_tiles_go_along_the_last_index(target: str) -> None:
    """As they do where the stride is written out: without it, a tile may go along rows of taps."""
    rng = np.random.default_rng(3)
    x = rng.integers(-2, 3, (2, 9, 9, 12)).astype(np.float16)
    f = rng.integers(-2, 3, (3, 3, 4, 18)).astype(np.float16)
    y = np.full((2, 9, 9, 18), np.nan, np.float32)
    wide = np.pad(x.astype(int), ((0, 0), (1, 1), (1, 1), (0, 0)))
    want = np.zeros(y.shape, int)
    for r, s, n in np.ndindex(3, 3, 18):
        group = slice(n // 6 * 4, n // 6 * 4 + 4)
        want[..., n] += wide[:, r : r + 9, s : s + 9, group] @ f[r, s, :, n].astype(int)
    kernel = grouped(1, 3)
    run(kernel, target, x, f, y)
    np.testing.assert_array_equal(y, want)
    if target != "cpu":
        text = str(kernel.compile(x, f, y, target=target).stages["tile"])
        (launched,) = re.findall(r"^  yield \[(.*)\]", text, re.M)
        assert launched.count(",") == 1 and "%K" not in launched
