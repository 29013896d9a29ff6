"""Emitters whose operands were arranged in memory beforehand, and of four bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.intrinsics import (
    INT4TensorCoreIntrinEmitter,
    TensorCoreIntrinEmitterWithLadderTransform,
    TransformKind,
)

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
ROWS, COLUMNS, DEPTH = 64, 32, 64


def units(operand: str, per: int) -> list[tuple[int, int]]:
    """Where the matrices of 8 rows and 16 bytes of a tile begin, in the order of registers."""
    right = 4 * per
    return [(0, 0), (8, 0), (0, right), (8, right)] if operand == "a" else [
        (0, 0), (0, right), (8, 0), (8, right)
    ]  # fmt: skip


def arranged(x: np.ndarray, kind: int, operand: str) -> np.ndarray:
    """Rows of k elements, as `TransformKind` says."""
    if kind == 0:
        return x
    per = 4 // x.itemsize
    k = 8 * per
    tiles = x.reshape(len(x) // 16, 16, -1, k).transpose(0, 2, 1, 3).copy()
    if kind == 1:
        return tiles
    done = np.empty_like(tiles).reshape(*tiles.shape[:2], -1)
    for u, (row, column) in enumerate(units(operand, per)):
        for lane in range(32):
            for e in range(per):
                at = (u * 32 + lane) * per + e if kind == 2 else (lane * 4 + u) * per + e
                done[..., at] = tiles[..., row + lane // 4, column + lane % 4 * per + e]
    return done.reshape(tiles.shape)


def product(dtype: str, sums: str, a_kind: int, b_kind: int, packed: int = 1) -> Any:
    size = 1 if dtype == "int8" else 2
    k = 32 // size
    e = TensorCoreIntrinEmitterWithLadderTransform(
        dtype, dtype, sums, b_transposed=True, block_row_warps=2, block_col_warps=1,
        warp_row_tiles=32, warp_col_tiles=32, chunk=DEPTH,
        transform_kind_a=TransformKind(a_kind), transform_kind_b=b_kind, num_elems_per_byte=packed,
    )  # fmt: skip
    a_shape: Any = (ROWS, DEPTH) if a_kind == 0 else (ROWS // 16, DEPTH // k, 16, k)
    b_shape: Any = (COLUMNS, DEPTH) if b_kind == 0 else (COLUMNS // 16, DEPTH // k, 16, k // packed)
    stored = dtype if packed == 1 else "int8"

    @tilec.kernel
    def kernel(
        A: T.Tensor(a_shape, dtype),
        B: T.Tensor(b_shape, stored),
        C: T.Tensor((ROWS, COLUMNS), sums),
    ):
        with T.Kernel(1, threads=64):
            a_s = T.alloc_shared(a_shape, dtype)
            b_s = T.alloc_shared(b_shape, stored)
            a = T.alloc_local((e.warp_rows * e.local_size_a,), dtype)
            b = T.alloc_local((e.warp_cols * e.local_size_b // packed,), stored)
            whole = T.alloc_local((e.warp_cols * e.local_size_b,), dtype)
            c = T.alloc_local((e.warp_rows * e.warp_cols * e.local_size_out,), sums)
            T.clear(c)
            T.copy(A, a_s)
            T.copy(B, b_s)
            for ki in T.serial(DEPTH // k):
                e.ldmatrix_a(a, a_s, ki)
                e.ldmatrix_b(b, b_s, ki)
                if packed > 1:
                    for n in T.unroll(e.warp_cols * e.local_size_b):
                        whole[n] = T.cast((b[n // 2] >> (n % 2 * 4)) & 15, dtype)
                    e.mma(a, whole, c)
                else:
                    e.mma(a, b, c)
            e.stmatrix(c, C, 0, 0)

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kinds", [(0, 0), (1, 2), (2, 3), (3, 1)])
@pytest.mark.parametrize("dtype, sums", [("float16", "float32"), ("int8", "int32")])
def test_kinds(target: str, kinds: tuple[int, int], dtype: str, sums: str, rng: Any) -> None:
    a, b = (rng.integers(-9, 10, (n, DEPTH)).astype(dtype) for n in (ROWS, COLUMNS))
    c = np.zeros((ROWS, COLUMNS), sums)
    kernel = product(dtype, sums, *kinds)
    run(kernel, target, arranged(a, kinds[0], "a"), arranged(b, kinds[1], "b"), c)
    np.testing.assert_array_equal(c, a.astype(np.int64) @ b.T.astype(np.int64))


@pytest.mark.parametrize("target", TARGETS)
def test_packed(target: str, rng: np.random.Generator) -> None:
    a = rng.integers(-9, 10, (ROWS, DEPTH)).astype(np.float16)
    b = rng.integers(0, 16, (COLUMNS, DEPTH)).astype(np.float16)
    pairs = arranged(b, 3, "b").astype(np.uint8).reshape(COLUMNS // 16, DEPTH // 16, 16, 8, 2)
    packed = (pairs[..., 0] | pairs[..., 1] << 4).view(np.int8)
    c = np.zeros((ROWS, COLUMNS), np.float32)
    run(product("float16", "float32", 0, 3, 2), target, a, packed, c)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.T.astype(np.float32))


def test_a_warp_reads_in_one_piece() -> None:
    """The last arrangement is 16 bytes of each lane, side by side, without ldmatrix."""
    args = [tilec.spec((n, 4, 16, 16), "float16") for n in (4, 2)]
    args.append(tilec.spec((ROWS, COLUMNS), "float32"))
    asm = product("float16", "float32", 3, 3).compile(*args, target="cuda:sm_80").asm
    assert "ldmatrix.sync" not in asm and asm.count("ld.shared.v4.b32") == 2 + 2


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtypes", [("int8", "int8"), ("int4", "uint4")])
def test_four_bits(target: str, dtypes: tuple[str, str], rng: np.random.Generator) -> None:
    e = INT4TensorCoreIntrinEmitter(
        *dtypes, b_transposed=True, block_row_warps=2, block_col_warps=1, warp_row_tiles=32,
        warp_col_tiles=32, chunk=DEPTH,
    )  # fmt: skip
    narrow = dtypes[0] == "int4"
    held = [{"int4": "int8", "uint4": "uint8"}.get(d, d) for d in dtypes]

    @tilec.kernel
    def kernel(
        A: T.Tensor((ROWS, DEPTH), dtypes[0]),
        B: T.Tensor((COLUMNS, DEPTH), dtypes[1]),
        C: T.Tensor((ROWS, COLUMNS), "int32"),
    ):
        with T.Kernel(1, threads=64):
            a_s = T.alloc_shared((ROWS, DEPTH), held[0])
            b_s = T.alloc_shared((COLUMNS, DEPTH), held[1])
            a = T.alloc_local((e.warp_rows * e.local_size_a,), held[0])
            b = T.alloc_local((e.warp_cols * e.local_size_b,), held[1])
            c = T.alloc_local((e.warp_rows * e.warp_cols * e.local_size_out,), "int32")
            T.clear(c)
            for i, j in T.Parallel(ROWS, DEPTH):
                a_s[i, j] = T.cast(A[i, j], held[0])
            for i, j in T.Parallel(COLUMNS, DEPTH):
                b_s[i, j] = T.cast(B[i, j], held[1])
            for ki in T.serial(DEPTH // e.micro_size_k):
                e.ldmatrix_a(a, a_s, ki)
                e.ldmatrix_b(b, b_s, ki)
                e.mma(a, b, c)
            e.stmatrix(c, C, 0, 0)

    a = rng.integers(-8, 8, (ROWS, DEPTH)).astype(np.int8)
    b = rng.integers(0 if narrow else -8, 16 if narrow else 8, (COLUMNS, DEPTH)).astype(np.int8)
    c = np.zeros((ROWS, COLUMNS), np.int32)
    given = (a, b)
    if narrow:
        given = tuple((x[:, ::2] & 15 | x[:, 1::2] << 4).astype(np.int8) for x in given)
        given = (given[0], given[1].view(np.uint8))
    run(kernel, target, *given, c)
    np.testing.assert_array_equal(c, a.astype(np.int64) @ b.T.astype(np.int64))


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"transform_kind_a": 4}, "transform_kind_a is 4"),
        ({"transform_kind_b": True}, "transform_kind_b is True"),
        ({"transform_kind_a": 1, "a_transposed": True}, "transform_kind_a=1 of an operand"),
        ({"transform_kind_b": 2, "b_transposed": False}, "transform_kind_b=2 of an operand"),
        ({"num_elems_per_byte": 2, "transform_kind_b": 1}, "with transform_kind_b=1"),
        ({"num_elems_per_byte": 3, "transform_kind_b": 3}, "num_elems_per_byte=3"),
        ({"chunk": 24}, "chunk is 24"),
    ],
)
def test_mistakes(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(tilec.CompileError, match=words) as e:
        TensorCoreIntrinEmitterWithLadderTransform(**({"b_transposed": True} | wrong))
    assert "test_arranged_operands.py" in str(e.value)
