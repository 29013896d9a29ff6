"""int4, uint4 and float4_e2m1, two in a byte of a tensor, and float8_e8m0: numbers on chip."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import Atomic, Store
from tilec.jit.build import trace_variant

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
DTYPES = ("int4", "uint4", "float4_e2m1")
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
M, N, K = T.dynamic("M, N, K")


def unpacked(b: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers in bytes, in float64."""
    codes = np.stack([b & 15, b.view(np.uint8) >> 4], -1).reshape(*b.shape[:-1], -1).astype(int)
    if dtype == "float4_e2m1":
        return np.concatenate([E2M1, -E2M1])[codes]
    return np.where(codes > 7, codes - 16, codes).astype(float) if dtype == "int4" else codes * 1.0


def narrowed(x: np.ndarray, dtype: str) -> np.ndarray:
    """What a store of `x` leaves, in float64."""
    if dtype == "float4_e2m1":
        return x.astype(ml_dtypes.float4_e2m1fn).astype(float)
    low = x.astype(np.int64) & 15
    return np.where((low > 7) & (dtype == "int4"), low - 16, low).astype(float)


def tiles(dtype: str) -> Any:
    @tilec.kernel
    def read(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(M, 32), T.ceildiv(N, 32), threads=64) as (bx, by):
            s = T.alloc_shared((32, 32), dtype)
            T.copy(A[bx * 32, by * 32], s)
            T.copy(s, B[bx * 32, by * 32])

    return read


def elements(dtype: str) -> Any:
    @tilec.kernel
    def read(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), "float32")):
        with T.Kernel(M, threads=32) as row:
            for j in T.Parallel(32):
                for k in T.serial(T.ceildiv(N, 32)):
                    if k * 32 + j < N:
                        B[row, k * 32 + j] = A[row, N - 1 - (k * 32 + j)] * 2

    return read


def odd_tiles(dtype: str) -> Any:
    @tilec.kernel
    def read(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), "float32")):
        with T.Kernel(M, threads=32) as row:
            f = T.alloc_fragment((1, 7), "float32")
            for k in T.serial(T.ceildiv(N, 7)):
                T.copy(A[row, k * 7], f)
                T.copy(f, B[row, k * 7])

    return read


READS = {"tiles": (tiles, 1, 1), "elements": (elements, 2, -1), "odd tiles": (odd_tiles, 1, 1)}


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ("cpu", "cuda:sm_90a", "hip:gfx942"))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("shape", [(33, 70), (1, 2), (8, 32)])
def test_reads(
    target: str, dtype: str, how: str, shape: tuple[int, int], rng: np.random.Generator
) -> None:
    make, factor, step = READS[how]
    A = rng.integers(0, 256, (shape[0], shape[1] // 2)).astype(np.uint8)
    B = np.full(shape, 99, np.float32)
    run(make(dtype), target, A, B)
    np.testing.assert_array_equal(B, unpacked(A, dtype)[:, ::step] * factor)


def write_tiles(dtype: str) -> Any:
    @tilec.kernel
    def write(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, 32), T.ceildiv(N, 32), threads=64) as (bx, by):
            f = T.alloc_fragment((32, 32), "float32")
            T.copy(A[bx * 32, by * 32], f)
            T.copy(f, B[bx * 32, by * 32])

    return write


def write_elements(dtype: str) -> Any:
    @tilec.kernel
    def write(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=32) as row:
            for j in T.Parallel(32):
                for k in T.serial(T.ceildiv(N, 32)):
                    B[row, k * 32 + j] = A[row, k * 32 + j]

    return write


def write_rounded(dtype: str) -> Any:
    @tilec.kernel
    def write(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=32) as row:
            s = T.alloc_shared((1, 6), dtype)
            for k in T.serial(T.ceildiv(N, 6)):
                T.copy(A[row, k * 6], s)
                T.copy(s, B[row, k * 6])

    return write


WRITES = {"tiles": write_tiles, "elements": write_elements, "rounded": write_rounded}


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ("cpu", "cuda:sm_90a", "hip:gfx942"))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("shape", [(33, 70), (1, 2), (8, 32)])
def test_writes(
    target: str, dtype: str, how: str, shape: tuple[int, int], rng: np.random.Generator
) -> None:
    A = (rng.standard_normal(shape) * 4).astype(np.float32)
    A = A if dtype == "float4_e2m1" else A.round() * 3
    B = rng.integers(0, 256, (shape[0], shape[1] // 2)).astype(np.uint8)
    run(WRITES[how](dtype), target, A, B)
    np.testing.assert_array_equal(unpacked(B, dtype), narrowed(A, dtype))


def test_roundings_are_those_of_ml_dtypes() -> None:
    limits = np.concatenate([E2M1, (E2M1[1:] + E2M1[:-1]) / 2, [7, 100, np.inf, 1e-30]])
    near = [np.nextafter(np.float32(x), np.float32(y)) for x in limits for y in (-1, 100)]
    A = np.array([*limits, *near], np.float32)
    A = np.concatenate([A, -A])[None]
    B = np.zeros((1, A.size // 2), np.uint8)
    write_tiles("float4_e2m1")(A, B)
    np.testing.assert_array_equal(unpacked(B, "float4_e2m1"), narrowed(A, "float4_e2m1"))
    assert (np.signbit(unpacked(B, "float4_e2m1")) == np.signbit(A)).all()
    write_tiles("float4_e2m1")(np.full((1, 2), np.nan, np.float32), B[:, :1])
    assert abs(unpacked(B, "float4_e2m1")[0, 0]) == 6


@pytest.mark.parametrize(("make", "atomics"), [(write_tiles, 0), (write_elements, 2)])
def test_whole_bytes_are_written_as_such(make: Callable[[str], Any], atomics: int) -> None:
    kernel = make("int4")
    specs = [tilec.spec((64, 64), "float32"), tilec.spec((64, 64), "int4")]
    func = trace_variant(kernel.signature, kernel.key_of(specs, "cuda:sm_90a", {}))
    found = [type(o) for o in walk(func.body)]
    assert found.count(Atomic) == atomics and found.count(Store) == (not atomics)


@tilec.kernel
def product(A: T.Tensor((M, K), "int4"), B: T.Tensor((N, K), "int4"), C: T.Tensor((M, N), "int32")):
    with T.Kernel(T.ceildiv(M, 64), T.ceildiv(N, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 64), "int4")
        b = T.alloc_shared((64, 64), "int4")
        c = T.alloc_fragment((64, 64), "int32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
            T.copy(A[bx * 64, k * 64], a)
            T.copy(B[by * 64, k * 64], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[bx * 64, by * 64])


def decoded(dtype: str) -> Any:
    """Weights of four bits beside activations of sixteen."""

    @tilec.kernel
    def weights(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), "float32")
    ):
        with T.Kernel(T.ceildiv(M, 64), T.ceildiv(N, 64), threads=128) as (bx, by):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), dtype)
            wide = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                T.copy(A[bx * 64, k * 64], a)
                T.copy(B[by * 64, k * 64], b)
                T.copy(b, wide)
                T.gemm(a, wide, c, transpose_B=True)
            T.copy(c, C[bx * 64, by * 64])

    return weights


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(70, 40, 50), (64, 64, 128)])
def test_product(target: str, shape: tuple[int, int, int], rng: np.random.Generator) -> None:
    m, n, k = shape
    A, B = (rng.integers(-128, 128, (x, k // 2)).astype(np.int8) for x in (m, n))
    C = np.full((m, n), -1, np.int32)
    run(product, target, A, B, C)
    np.testing.assert_array_equal(C, unpacked(A, "int4") @ unpacked(B, "int4").T)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights(target: str, dtype: str, rng: np.random.Generator) -> None:
    A = rng.integers(-4, 5, (70, 96)).astype(np.float16)
    B = rng.integers(0, 256, (40, 48)).astype(np.uint8)
    C = np.full((70, 40), -1, np.float32)
    run(decoded(dtype), target, A, B, C)
    np.testing.assert_array_equal(C, A.astype(float) @ unpacked(B, dtype).T)


@tilec.kernel
def quantised(A: T.Tensor((M, N), "float32")):
    C = T.empty((M, N), "float4_e2m1")
    D = T.empty((M, N), "uint8")
    with T.Kernel(M, threads=32) as row:
        for j in T.Parallel(64):
            x = T.alloc_var("float4_e2m1")
            x = A[row, j]
            C[row, j] = x
            D[row, j] = T.reinterpret(T.cast(A[row, j], "float4_e2m1"), "uint8")
    return C, D


def test_results_and_bits(rng: np.random.Generator) -> None:
    A = rng.standard_normal((5, 64)).astype(np.float32)
    C, D = quantised(A)
    assert C.shape == (5, 32)
    np.testing.assert_array_equal(unpacked(C, "float4_e2m1"), narrowed(A, "float4_e2m1"))
    np.testing.assert_array_equal(C, D[:, ::2] | D[:, 1::2] << 4)


def test_fills_variables_and_views() -> None:
    @tilec.kernel
    def kernel(
        A: T.Tensor((4, 16), "int4"), B: T.Tensor((64,), "int32"), C: T.Tensor((8,), "int4")
    ):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((4, 16), "int4")
            T.copy(A, s)
            flat = T.reshape(s, (64,))
            for i in T.Parallel(64):
                flat[i] += 7
            T.copy(flat, B)
            T.fill(C, -3)
            C[5] = T.int32(A.shape[0]) + 5  # 9, which wraps
            assert A.dtype == "int4" and s.dtype == "int4"

    A = np.arange(32, dtype=np.uint8).reshape(4, 8) * 7
    B, C = np.zeros(64, np.int32), np.zeros(4, np.uint8)
    kernel(A, B, C)
    np.testing.assert_array_equal(B, narrowed(unpacked(A, "int4").ravel() + 7, "int4"))
    np.testing.assert_array_equal(unpacked(C, "int4"), [-3, -3, -3, -3, -3, -7, -3, -3])


@pytest.mark.covering(2)
@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("target", TARGETS[1:])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [*WRITES.values(), *(r[0] for r in READS.values())])
def test_compiles(target: str, dtype: str, make: Callable[[str], Any]) -> None:
    kernel = make(dtype)
    specs = [tilec.spec((64, 64), p.dtype) for p in kernel.parameters]
    assert "define" in kernel.compile(*specs, target=target).stages["llvm"]


@tilec.kernel
def scaled(
    A: T.Tensor((M, N), "float4_e2m1"),
    S: T.Tensor((M, K), "float8_e8m0"),
    B: T.Tensor((M, N), "float32"),
    R: T.Tensor((M, K), "float8_e8m0"),
):
    """Groups of 32 with a scale each, and scales of what comes of them."""
    with T.Kernel(M, threads=32) as row:
        for k in T.serial(K):
            x = T.alloc_fragment((32,), "float32")
            largest = T.alloc_fragment((1,), "float32")
            scale = T.alloc_shared((1,), "float8_e8m0")
            T.copy(S[row, k], scale)
            for i in T.Parallel(32):
                x[i] = A[row, k * 32 + i] * scale[0]
            T.reduce_absmax(x, largest)
            T.copy(x, B[row, k * 32])
            T.copy(largest, R[row, k])


@pytest.mark.parametrize("target", TARGETS)
def test_scales(target: str, rng: np.random.Generator) -> None:
    A = rng.integers(0, 256, (5, 48)).astype(np.uint8)
    S = rng.integers(100, 150, (5, 3)).astype(np.uint8)
    B, R = np.zeros((5, 96), np.float32), np.zeros((5, 3), np.uint8)
    run(scaled, target, A, S.view(ml_dtypes.float8_e8m0fnu), B, R.view(ml_dtypes.float8_e8m0fnu))
    wanted = unpacked(A, "float4_e2m1") * np.repeat(2.0 ** (S.astype(int) - 127), 32, 1)
    np.testing.assert_array_equal(B, wanted)
    largest = np.abs(wanted).reshape(5, 3, 32).max(-1).astype(np.float32)
    np.testing.assert_array_equal(R, largest.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8))


def test_roundings_of_scales_are_those_of_torch() -> None:
    @tilec.kernel
    def kernel(
        A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float8_e8m0"), C: T.Tensor((N,), "float32")
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                B[i] = A[i]
                C[i] = T.cast(A[i], "float8_e8m0")

    tiny = 2.0**-127
    A = [0, 1e-40, tiny, tiny * 0.99, tiny * 1.5, tiny * 2.5, tiny * 3, 1, 1.4, 1.5, 1.6, 2.9, 3]
    A += [-3, np.inf, -np.inf, np.nan, 1.7e38 * 1.2, 2.6e38, 3.4e38]
    codes = [0, 0, 0, 0, 1, 1, 2, 127, 127, 128, 128, 128, 129, 129, 255, 255, 255, 254, 255, 255]
    B, C = np.zeros(len(A), ml_dtypes.float8_e8m0fnu), np.zeros(len(A), np.float32)
    kernel(np.array(A, np.float32), B, C)
    np.testing.assert_array_equal(B.view(np.uint8), codes)
    np.testing.assert_array_equal(C, B.astype(np.float32))


def test_strides_count_elements(rng: np.random.Generator) -> None:
    """Those of the array count bytes, of which each holds two."""
    S = T.dynamic("S")

    @tilec.kernel
    def kernel(
        A: T.StridedTensor((M, N), (S, 1), "int4"),
        B: T.Tensor((M, N), "int32"),
        C: T.Tensor((1,), "int32"),
    ):
        with T.Kernel(M, threads=32) as row:
            for j in T.Parallel(32):
                B[row, j] = A[row, j]
            for _ in T.Parallel(1):
                C[0] = S

    wide = rng.integers(0, 256, (5, 40)).astype(np.uint8)
    B, C = np.zeros((5, 32), np.int32), np.zeros(1, np.int32)
    kernel(wide[:, :16], B, C)
    np.testing.assert_array_equal(B, unpacked(wide[:, :16].copy(), "int4"))
    assert C[0] == 80


# --- mistakes -------------------------------------------------------------------------------------


def mistake(run: Callable[[], Any], *words: str) -> None:
    with pytest.raises(tilec.TilecError) as e:
        run()
    for word in words:
        assert re.search(word, str(e.value)), e.value


def test_odd_extents() -> None:
    def annotated() -> None:
        @tilec.kernel
        def kernel(A: T.Tensor((4, 7), "int4")):
            with T.Kernel(1):
                pass

        kernel.compile(tilec.spec((4, 8), "int4"), target="cpu")

    @tilec.kernel
    def allocates(A: T.Tensor((4, 8), "int4")):
        B = T.empty((4, 3), "uint4")
        with T.Kernel(1):
            pass
        return B

    mistake(annotated, "last extent of A is 7", "come in pairs", "even extent")
    mistake(lambda: tilec.spec((4, 7), "int4"), r"\(4, 7\)", "even last extent")
    mistake(lambda: allocates.compile(tilec.spec((4, 8), "int4"), target="cpu"), "last extent is 3")


def test_arrays() -> None:
    read = tiles("int4")
    B = np.zeros((4, 8), np.float32)
    mistake(lambda: read(np.zeros((4, 8), np.uint8), B), "expected", "8", "16")
    mistake(lambda: read(np.zeros((4, 4), np.float16), B), "A: expected int8, got float16")
    mistake(lambda: read(np.zeros((4, 8), ml_dtypes.int4), B), "one per byte")


def of_tensor(body: Callable[[Any], Any]) -> Callable[[], Any]:
    @tilec.kernel
    def kernel(A: T.Tensor((64, 64), "int4")):
        with T.Kernel(1, threads=128):
            body(A)

    return lambda: kernel.compile(tilec.spec((64, 64), "int4"), target="cuda:sm_90a")


def _atomic(A: Any) -> None:
    T.atomic_add(A[0, 0], 1)


def _view(A: Any) -> None:
    T.view(A, (64 * 64, 1), "uint4")


def _gemm(A: Any) -> None:
    c = T.alloc_fragment((64, 64), "int32")
    T.gemm(A, A, c)


def _safe(A: Any) -> None:
    T.annotate_safe_value({A: 1})


def _float(A: Any) -> None:
    A[0, 0] = T.reinterpret(A[0, 0], "float32")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (_atomic, ("atomic", "int4")),
        (_view, ("of four bits come in pairs",)),
        (_gemm, ("must be shared or a fragment",)),
        (_safe, ("no safe value but 0",)),
        (_float, ("8 and 32",)),
    ],
)
def test_mistakes(body: Callable[[Any], Any], words: tuple[str, ...]) -> None:
    mistake(of_tensor(body), *words)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_the_gpu(dtype: str, rng: np.random.Generator, torch: Any) -> None:
    a = rng.integers(0, 256, (333, 250)).astype(np.uint8)
    for make, factor, step in READS.values():
        out = torch.full((333, 500), 99.0, device="cuda")
        make(dtype)(torch.from_numpy(a).cuda(), out)
        np.testing.assert_array_equal(out.cpu().numpy(), unpacked(a, dtype)[:, ::step] * factor)
    x = (rng.standard_normal((333, 500)) * 9).round().astype(np.float32)
    for write in WRITES.values():
        packed = torch.from_numpy(a.copy()).cuda()
        write(dtype)(torch.from_numpy(x).cuda(), packed)
        np.testing.assert_array_equal(unpacked(packed.cpu().numpy(), dtype), narrowed(x, dtype))
    A = rng.integers(-4, 5, (70, 96)).astype(np.float16)
    C = torch.full((70, 333), -1.0, device="cuda")
    decoded(dtype)(torch.from_numpy(A).cuda(), torch.from_numpy(a[:, :48].copy()).cuda(), C)
    wanted = A.astype(float) @ unpacked(a[:, :48], dtype).T
    np.testing.assert_array_equal(C.cpu().numpy(), wanted)
