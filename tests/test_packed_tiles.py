"""Shared tiles of elements that are narrower than a byte: those that copies of a tensor's bytes
fill hold these bytes, which come ahead and are taken apart where elements are read; others have
elements of a byte or two."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from simulated import run
from test_narrow import DTYPES, narrowed, unpacked

import tilec
import tilec.language as T
from tilec.ir.ops import Alloc, Copy
from tilec.jit.build import trace_variant

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
ENGINES = {"cuda:sm_80": "cp_async", "cuda:sm_90a": "tma", "hip:gfx942": "threads"}
M, N, K, G = T.dynamic("M, N, K, G")
GROUP = 32


def weights(dtype: str, way: str) -> Any:
    """Y = X W^T, W less 3 where threads decode it (`elements`), or as it is, by a copy to registers
    or to another shared tile."""

    @tilec.kernel
    def kernel(
        X: T.Tensor((M, K), "float16"), W: T.Tensor((N, K), dtype), Y: T.Tensor((M, N), "float32")
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 16), threads=128) as (bx, by):
            x = T.alloc_shared((16, 64), "float16")
            w = T.alloc_shared((64, 64), dtype)
            alloc = T.alloc_shared if way == "shared" else T.alloc_fragment
            f = alloc((64, 64), "float16")
            y = T.alloc_fragment((16, 64), "float32")
            T.clear(y)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=3):
                T.copy(X[by * 16, k * 64], x)
                T.copy(W[bx * 64, k * 64], w)
                if way == "elements":
                    for i, j in T.Parallel(64, 64):
                        f[i, j] = T.cast(w[i, j], "float16") - 3
                else:
                    T.copy(w, f)
                T.gemm(x, f, y, transpose_B=True)
            T.copy(y, Y[by * 16, bx * 64])

    return kernel


def grouped(dtype: str) -> Any:
    """A scale and a zero point for each group of a row, another scale for each row."""

    @tilec.kernel
    def kernel(
        X: T.Tensor((M, K), "float16"),
        W: T.Tensor((N, K), dtype),
        S: T.Tensor((N, G), "float16"),
        Z: T.Tensor((N, G), "float16"),
        R: T.Tensor((N,), "float32"),
        Y: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 16), threads=128) as (bx, by):
            x = T.alloc_shared((16, 64), "float16")
            w = T.alloc_shared((64, 64), dtype)
            f = T.alloc_fragment((64, 64), "float16")
            y = T.alloc_fragment((16, 64), "float32")
            T.clear(y)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                T.copy(X[by * 16, k * 64], x)
                T.copy(W[bx * 64, k * 64], w)
                for i, j in T.Parallel(64, 64):
                    g = (k * 64 + j) // GROUP
                    f[i, j] = (w[i, j] - Z[bx * 64 + i, g]) * S[bx * 64 + i, g]
                T.gemm(x, f, y, transpose_B=True)
            for i, j in T.Parallel(16, 64):
                y[i, j] *= R[bx * 64 + j]
            T.copy(y, Y[by * 16, bx * 64])

    return kernel


def facts(kernel: Any, target: str, *specs: Any) -> tuple[dict[str, Alloc], list[Copy], str]:
    """The buffers that a kernel allocates, by name, its copies, and the text of its plan."""
    compiled = kernel.compile(*specs, target=target)
    found = trace_variant(kernel.signature, kernel.key_of(specs, target, {}))
    allocs = {o.result.name: o for o in found.body.every(Alloc)}
    return allocs, [*found.body.every(Copy)], str(compiled.stages["plan"])


def specs(m: int, n: int, k: int, dtype: str) -> list[Any]:
    return [tilec.spec((m, k), "float16"), tilec.spec((n, k), dtype), tilec.spec((m, n), "float32")]


@pytest.mark.covering(1)
@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("target", TARGETS[1:])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", ["elements", "registers", "shared"])
def test_bytes_come_ahead(target: str, dtype: str, way: str) -> None:
    allocs, copies, plan = facts(weights(dtype, way), target, *specs(70, 128, 256, dtype))
    assert str(allocs["w"].type) == "shared<64x32xu8>"
    assert [o.source.buffer.name for o in copies if o.dest.buffer is allocs["w"].result] == ["W"]
    assert f"ahead: w, by {ENGINES[target]}" in plan


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", ["elements", "registers", "shared"])
@pytest.mark.parametrize("shape", [(17, 70, 130), (1, 1, 2), (16, 64, 192)])
def test_products(
    target: str, dtype: str, way: str, shape: tuple[int, int, int], rng: np.random.Generator
) -> None:
    m, n, k = shape
    X = rng.integers(-4, 5, (m, k)).astype(np.float16)
    W = rng.integers(0, 256, (n, k // 2)).astype(np.uint8)
    Y = np.full((m, n), np.nan, np.float32)
    run(weights(dtype, way), target, X, W, Y)
    less = 3 if way == "elements" else 0
    np.testing.assert_array_equal(Y, X.astype(float) @ (unpacked(W, dtype) - less).T)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 70, 224), (16, 64, 128), (1, 1, 32)])
def test_groups(
    target: str, dtype: str, shape: tuple[int, int, int], rng: np.random.Generator
) -> None:
    m, n, k = shape
    X = rng.integers(-2, 3, (m, k)).astype(np.float16)
    W = rng.integers(0, 256, (n, k // 2)).astype(np.uint8)
    S = (2.0 ** rng.integers(-2, 2, (n, k // GROUP))).astype(np.float16)
    Z = rng.integers(0, 16, (n, k // GROUP)).astype(np.float16)
    R = rng.integers(1, 4, n).astype(np.float32)
    Y = np.full((m, n), np.nan, np.float32)
    run(grouped(dtype), target, X, W, S, Z, R, Y)
    zeros, scales = (np.repeat(x.astype(float), GROUP, 1) for x in (Z, S))
    wanted = X.astype(float) @ ((unpacked(W, dtype) - zeros) * scales).T * R
    np.testing.assert_array_equal(Y, wanted)


# --- what is no product ---------------------------------------------------------------------------


def sums(dtype: str) -> Any:
    """Sums of the columns of a tensor, by tiles that are read the other way round; the tile's last
    rows are filled with 1 for each other column."""

    @tilec.kernel
    def kernel(A: T.Tensor((M, N), dtype), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 32), threads=64) as bx:
            tile = T.alloc_shared((16, 32), dtype)
            turned = T.alloc_fragment((32, 16), "float32")
            part = T.alloc_fragment((32,), "float32")
            total = T.alloc_fragment((32,), "float32")
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(M, 16), num_stages=2):
                T.copy(A[k * 16, bx * 32], tile)
                for j, i in T.Parallel(32, 16):
                    turned[j, i] = tile[i, j]
                T.reduce_sum(turned, part, dim=1)
                for j in T.Parallel(32):
                    total[j] += part[j]
            T.fill(tile, 1)
            for j in T.Parallel(32):
                total[j] += tile[3, 31 - j]
            T.copy(total, B[bx * 32])

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(37, 70), (1, 2), (16, 32)])
def test_columns(target: str, dtype: str, shape: tuple[int, int], rng: np.random.Generator) -> None:
    A = rng.integers(0, 256, (shape[0], shape[1] // 2)).astype(np.uint8)
    B = np.full(shape[1], np.nan, np.float32)
    kernel = sums(dtype)
    run(kernel, target, A, B)
    np.testing.assert_array_equal(B, unpacked(A, dtype).sum(0) + 1)
    given = [tilec.spec(shape, dtype), tilec.spec(shape[1:], "float32")]
    func = trace_variant(kernel.signature, kernel.key_of(given, "cuda:sm_90a", {}))
    assert "shared<16x16xu8>" in [str(o.type) for o in func.body.every(Alloc)]


@tilec.kernel
def scaled(
    A: T.Tensor((M, K), "float4_e2m1"),
    S: T.Tensor((M, G), "float8_e8m0"),
    B: T.Tensor((M, K), "float32"),
):
    """Groups of 32 with a scale each: scales are bytes on chip as well."""
    with T.Kernel(T.ceildiv(M, 16), T.ceildiv(K, 512), threads=64) as (bx, by):
        a = T.alloc_shared((16, 512), "float4_e2m1")
        s = T.alloc_shared((16, 16), "float8_e8m0")
        T.copy(A[bx * 16, by * 512], a)
        T.copy(S[bx * 16, by * 16], s)
        for i, j in T.Parallel(16, 512):
            if bx * 16 + i < M and by * 512 + j < K:
                B[bx * 16 + i, by * 512 + j] = a[i, j] * s[i, j // 32]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(17, 544), (1, 32)])
def test_scales(target: str, shape: tuple[int, int], rng: np.random.Generator) -> None:
    m, k = shape
    A = rng.integers(0, 256, (m, k // 2)).astype(np.uint8)
    S = rng.integers(0, 255, (m, k // 32)).astype(np.uint8)
    B = np.full((m, k), np.nan, np.float32)
    run(scaled, target, A, S.view(ml_dtypes.float8_e8m0fnu), B)
    wanted = unpacked(A, "float4_e2m1") * np.repeat(2.0 ** (S.astype(int) - 127), 32, 1)
    np.testing.assert_array_equal(B, wanted.astype(np.float32))


# --- who holds bytes, and who does not ------------------------------------------------------------


def copied(a: Any, s: Any, B: Any) -> None:
    T.copy(s, B)


def half_filled(a: Any, s: Any, B: Any) -> None:
    T.fill(s[0:8, 2:8], 3)
    T.copy(s, B)


def by_elements(a: Any, s: Any, B: Any) -> None:
    for i, j in T.Parallel(16, 32):
        s[i, j] = s[i, j] + 1
    T.copy(s, B)


def one_element(a: Any, s: Any, B: Any) -> None:
    for _ in T.Parallel(1):
        s[0, 1] = 5
    T.copy(s, B)


def from_registers(a: Any, s: Any, B: Any) -> None:
    f = T.alloc_fragment((16, 32), "int8")
    T.copy(s, f)
    T.copy(f, s)
    T.copy(s, B)


def odd_columns(a: Any, s: Any, B: Any) -> None:
    T.copy(a[0:16, 1:5], s[0:16, 0:4])
    T.copy(s, B)


def shown_flat(a: Any, s: Any, B: Any) -> None:
    flat = T.reshape(s, (512,))
    for i, j in T.Parallel(16, 32):
        B[i, j] = flat[i * 32 + j]


def one_more(x: np.ndarray) -> np.ndarray:
    return narrowed(x + 1, "int4")


def one_five(x: np.ndarray) -> np.ndarray:
    x[0, 1] = 5
    return x


def three(x: np.ndarray) -> np.ndarray:
    x[:8, 2:8] = 3
    return x


def moved(x: np.ndarray) -> np.ndarray:
    x[:, :4] = x[:, 1:5].copy()
    return x


USES = {
    copied: (True, lambda x: x),
    half_filled: (True, three),
    by_elements: (False, one_more),
    one_element: (False, one_five),
    from_registers: (False, lambda x: x),
    odd_columns: (False, moved),
    shown_flat: (False, lambda x: x),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("use", USES)
def test_what_threads_write_has_elements_of_a_byte(
    target: str, use: Any, rng: np.random.Generator
) -> None:
    """Two threads would write one byte, each its own half."""

    @tilec.kernel
    def kernel(A: T.Tensor((16, 32), "int4"), B: T.Tensor((16, 32), "int32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((16, 32), "int4")
            T.copy(A, s)
            use(A, s, B)

    in_bytes, wanted = USES[use]
    given = [tilec.spec((16, 32), "int4"), tilec.spec((16, 32), "int32")]
    func = trace_variant(kernel.signature, kernel.key_of(given, "cuda:sm_90a", {}))
    held = next(str(o.type) for o in func.body.every(Alloc) if o.result.name == "s")
    assert held == ("shared<16x16xu8>" if in_bytes else "shared<16x32xi8>")
    A = rng.integers(0, 256, (16, 16)).astype(np.uint8)
    B = np.full((16, 32), -99, np.int32)
    run(kernel, target, A, B)
    np.testing.assert_array_equal(B, wanted(unpacked(A, "int4")))


@pytest.mark.parametrize("target", TARGETS)
def test_one_call_for_several_tiles(target: str, rng: np.random.Generator) -> None:
    """What one statement allocates is of one form: here one of its tiles is written by threads."""

    @tilec.macro
    def brought(A, row):  # type: ignore[no-untyped-def]
        s = T.alloc_shared((1, 32), "uint4")
        T.copy(A[row, 0], s)
        return s

    @tilec.kernel
    def kernel(A: T.Tensor((2, 32), "uint4"), B: T.Tensor((2, 32), "int32")):
        with T.Kernel(1, threads=32):
            first, second = brought(A, 0), brought(A, 1)
            for j in T.Parallel(32):
                second[0, j] = 15 - second[0, j]
            for j in T.Parallel(32):
                B[0, j] = first[0, j]
                B[1, j] = second[0, j]

    A = rng.integers(0, 256, (2, 16)).astype(np.uint8)
    B = np.full((2, 32), -99, np.int32)
    run(kernel, target, A, B)
    wanted = unpacked(A, "uint4")
    wanted[1] = 15 - wanted[1]
    np.testing.assert_array_equal(B, wanted)


def test_tiles_of_odd_rows(rng: np.random.Generator) -> None:
    """Their rows would end within a byte."""

    @tilec.kernel
    def kernel(A: T.Tensor((4, 8), "uint4"), B: T.Tensor((4, 7), "int32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((4, 7), "uint4")
            T.copy(A[0:4, 0:6], s[0:4, 0:6])
            T.copy(A[0:4, 6], s[0:4, 6])
            T.copy(s, B)

    A = rng.integers(0, 256, (4, 4)).astype(np.uint8)
    B = np.full((4, 7), -99, np.int32)
    kernel(A, B)
    np.testing.assert_array_equal(B, unpacked(A, "uint4")[:, :7])


def test_places_out_of_bounds_are_named_by_elements() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((4, 64), "uint4"), B: T.Tensor((4, 64), "int32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((4, 64), "uint4")
            T.copy(A, s)
            T.copy(s[0:4, 32:66], B[0:4, 0:34])

    with pytest.raises(tilec.CompileError, match=r"index 65 in dimension 1 of s .*\(4, 64\) uint4"):
        kernel.compile(tilec.spec((4, 64), "uint4"), tilec.spec((4, 64), "int32"), target="cpu")


# --- banks ----------------------------------------------------------------------------------------


def by_hand(bits: int) -> Any:
    """Weights of a byte, or two in one, that a product's threads decode."""

    @tilec.kernel
    def kernel(
        X: T.Tensor((16, 128), "float16"),
        W: T.Tensor((64, 16 * bits), "uint8"),
        Y: T.Tensor((16, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((16, 128), "float16")
            w = T.alloc_shared((64, 16 * bits), "uint8")
            f = T.alloc_fragment((64, 128), "float16")
            y = T.alloc_fragment((16, 64), "float32")
            T.copy(X, x)
            T.copy(W, w)
            for i, j in T.Parallel(64, 128):
                if bits == 4:
                    f[i, j] = (w[i, j // 2] >> (j % 2 * 4)) & 15
                else:
                    f[i, j] = T.cast(w[i, j], "float16") * 2 - 8
            T.gemm(x, f, y, transpose_B=True, clear_accum=True)
            T.copy(y, Y)

    return kernel


@pytest.mark.parametrize("target", TARGETS[1:3])
@pytest.mark.parametrize("bits", [4, 8])
def test_loops_of_operands_read_without_bank_conflicts(
    target: str, bits: int, rng: np.random.Generator
) -> None:
    """Lanes of a warp read eight rows at once, which lie in the same banks as they are."""
    X = rng.integers(-4, 5, (16, 128)).astype(np.float16)
    W = rng.integers(0, 256, (64, 16 * bits)).astype(np.uint8)
    Y = np.full((16, 64), np.nan, np.float32)
    kernel = by_hand(bits)
    report = tilec.simulate(kernel, X, W, Y, target=target)
    assert report.ok
    wide = unpacked(W, "uint4") if bits == 4 else W.astype(float) * 2 - 8
    np.testing.assert_array_equal(Y, X.astype(float) @ wide.T)
    place = next(n for n, s in enumerate(open(__file__), 1) if "j // 2] >> (j % 2" in s)
    place += 0 if bits == 4 else 2
    lines = [x for x in report.counts.lines if x.loc.line == place and x.shared_requests]
    assert lines and sum(x.conflicts for x in lines) == 0


# --- ways through a tile --------------------------------------------------------------------------


def through(dtype: str) -> Any:
    @tilec.kernel
    def kernel(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, 32), T.ceildiv(N, 32), threads=64) as (bx, by):
            s = T.alloc_shared((32, 32), dtype)
            T.copy(A[bx * 32, by * 32], s)
            T.copy(s, B[bx * 32, by * 32])

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [*DTYPES, "float8_e8m0"])
@pytest.mark.parametrize("shape", [(33, 70), (1, 2), (32, 64)])
def test_bytes_go_through_as_they_are(
    target: str, dtype: str, shape: tuple[int, int], rng: np.random.Generator
) -> None:
    """Between tensors no element is taken apart: also nan of scales, and -0, stay what they are."""
    rows, columns = shape
    per = 1 if dtype == "float8_e8m0" else 2
    A = rng.integers(0, 256, (rows, columns // per)).astype(np.uint8)
    B = rng.integers(0, 256, A.shape).astype(np.uint8)
    like = ml_dtypes.float8_e8m0fnu if per == 1 else np.uint8
    kernel = through(dtype)
    run(kernel, target, A.view(like), B.view(like))
    np.testing.assert_array_equal(B, A)
    given = [tilec.spec((64, 64), dtype)] * 2
    func = trace_variant(kernel.signature, kernel.key_of(given, "cuda:sm_90a", {}))
    assert len([*func.body.every(Copy)]) == 2


def turns(dtype: str) -> Any:
    """Two stages by hand, in the first dimension of one buffer."""

    @tilec.kernel
    def kernel(A: T.Tensor((M, N), dtype), B: T.Tensor((M, 64), "float32")):
        with T.Kernel(T.ceildiv(M, 16), threads=64) as bx:
            s = T.alloc_shared((2, 16, 64), dtype)
            total = T.alloc_fragment((16, 64), "float32")
            T.clear(total)
            T.copy(A[bx * 16, 0], s[0, :, :])
            for k in T.serial(T.ceildiv(N, 64)):
                T.copy(A[bx * 16, (k + 1) * 64], s[(k + 1) % 2, :, :])
                for i, j in T.Parallel(16, 64):
                    total[i, j] += s[k % 2, i, 63 - j]
            T.copy(total, B[bx * 16, 0])

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(33, 192), (1, 64)])
def test_stages_by_hand(
    target: str, dtype: str, shape: tuple[int, int], rng: np.random.Generator
) -> None:
    A = rng.integers(0, 256, (shape[0], shape[1] // 2)).astype(np.uint8)
    B = np.full((shape[0], 64), np.nan, np.float32)
    kernel = turns(dtype)
    run(kernel, target, A, B)
    wanted = unpacked(A, dtype).reshape(shape[0], -1, 64).sum(1)[:, ::-1]
    np.testing.assert_array_equal(B, wanted)
    given = [tilec.spec(shape, dtype), tilec.spec((shape[0], 64), "float32")]
    func = trace_variant(kernel.signature, kernel.key_of(given, "cuda:sm_90a", {}))
    assert "shared<2x16x32xu8>" in [str(o.type) for o in func.body.every(Alloc)]
