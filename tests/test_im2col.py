"""T.im2col: convolutions as products, against float64, and its own matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


def taps(img: np.ndarray, kernel: int, stride: int, dilation: int, pad: int) -> np.ndarray:
    """The whole matrix, in float64."""
    n, h, w, c = img.shape
    reach = dilation * (kernel - 1) + 1
    oh, ow = ((e + 2 * pad - reach) // stride + 1 for e in (h, w))
    wide = np.pad(img.astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))

    def window(at: int) -> slice:
        return slice(at * stride, at * stride + reach, dilation)

    rows = [
        wide[b, window(y), window(x)] for b in range(n) for y in range(oh) for x in range(ow)
    ]  # fmt: skip
    return np.stack(rows).reshape(n * oh * ow, kernel * kernel * c)


@tilec.kernel
def convolution(
    data, weights, S: T.constexpr, D: T.constexpr, P: T.constexpr, BM: T.constexpr = 32
):
    N, C, H, W, F, K = T.const("N, C, H, W, F, K")
    OH = (H + 2 * P - D * (K - 1) - 1) // S + 1
    OW = (W + 2 * P - D * (K - 1) - 1) // S + 1
    data: T.Tensor((N, H, W, C), "float16")
    weights: T.Tensor((K, K, C, F), "float16")
    out = T.empty((N, OH, OW, F), "float32")
    with T.Kernel(T.ceildiv(F, 32), T.ceildiv(N * OH * OW, BM), threads=64) as (bx, by):
        a = T.alloc_shared((BM, 32), "float16")
        b = T.alloc_shared((32, 32), "float16")
        acc = T.alloc_fragment((BM, 32), "float32")
        flat = T.Tensor((K * K * C, F), "float16", weights.data)
        rows = T.Tensor((N * OH * OW, F), "float32", out.data)
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K * K * C, 32), num_stages=2):
            T.im2col(data, a, by, k, K, S, D, P)
            T.copy(flat[k * 32, bx * 32], b)
            T.gemm(a, b, acc)
        T.copy(acc, rows[by * BM, bx * 32])
    return out


CASES = [
    ((1, 6, 5, 32), 32, 3, 1, 1, 1),
    ((2, 7, 9, 16), 40, 3, 2, 1, 0),
    ((1, 9, 8, 5), 7, 2, 1, 2, 2),
    ((1, 1, 1, 1), 1, 1, 1, 1, 0),
]


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("shape", "filters", "kernel", "stride", "dilation", "pad"), CASES)
def test_convolutions(
    shape: tuple[int, ...], filters: int, kernel: int, stride: int, dilation: int, pad: int,
    target: str, rng: np.random.Generator,
) -> None:  # fmt: skip
    data = rng.standard_normal(shape).astype(np.float16)
    weights = rng.standard_normal((kernel, kernel, shape[3], filters)).astype(np.float16)
    want = taps(data, kernel, stride, dilation, pad) @ weights.reshape(-1, filters)
    if target == "cpu":
        found = convolution(data, weights, stride, dilation, pad)
    else:
        report = tilec.simulate(convolution, data, weights, stride, dilation, pad, target=target)
        assert report.ok, report
        found = report.outputs["out"]
    np.testing.assert_allclose(found.reshape(-1, filters), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("steps", [(0, 0), (1, 1), (2, 0), (5, 9)])
def test_a_tile_of_the_matrix(steps: tuple[int, int], rng: np.random.Generator) -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((2, 4, 5, 3), "float32"), B: T.Tensor((16, 8), "float32"), m: T.int32):
        with T.Kernel(1, threads=32):
            x = T.alloc_fragment((16, 8), "float32")
            T.im2col(A, x, m, steps[1], kernel=3, stride=1, dilation=1, pad=1)
            T.copy(x, B)

    img = rng.standard_normal((2, 4, 5, 3)).astype(np.float32)
    found = np.full((16, 8), np.nan, np.float32)
    kernel(img, found, steps[0])
    whole = np.zeros((256, 256))
    matrix = taps(img, 3, 1, 1, 1)
    whole[: matrix.shape[0], : matrix.shape[1]] = matrix
    m, k = steps
    np.testing.assert_array_equal(found, whole[m * 16 : m * 16 + 16, k * 8 : k * 8 + 8])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("T.im2col(x, x, 0, 0, 3, 1, 1, 1)", "img of T.im2col is x"),
        ("T.im2col(A, A, 0, 0, 3, 1, 1, 1)", "col of T.im2col is A"),
        ("T.im2col(A, x, 0.5, 0, 3, 1, 1, 1)", "nhw_step of T.im2col is"),
        ("T.im2col(A, x, 0, 0, 0, 1, 1, 1)", "kernel of T.im2col is 0"),
    ],
)
def test_errors(call: str, message: str, tmp_path: Any) -> None:
    text = f"""
import tilec
import tilec.language as T

@tilec.kernel
def kernel(A: T.Tensor((1, 4, 4, 8), "float32")):
    with T.Kernel(1, threads=32):
        x = T.alloc_shared((16, 8), "float32")
        {call}
"""
    file = tmp_path / "program.py"
    file.write_text(text)
    names: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), names)
    with pytest.raises(tilec.CompileError, match=message):
        names["kernel"].compile(tilec.spec((1, 4, 4, 8), "float32"), target="cpu")
