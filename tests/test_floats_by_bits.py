"""Small integers that become floats by their bits: all values of each dtype, with what is
subtracted, and what is left to conversions."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.instr import nvidia
from tilec.ir.loc import Loc
from tilec.ir.types import UINT32

pytestmark = pytest.mark.turns

N = T.dynamic("N")
FLOATS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
NUMBERS = (0, 8, 128, -8, 0.5, 1000, 3000, 70000.0)


def converted(dtype: str, to: str, number: float, mask: int | None = None) -> Any:
    @tilec.kernel
    def kernel(A: T.Tensor((N,), dtype), B: T.Tensor((N,), to)):
        with T.Kernel(T.ceildiv(N, 256), threads=64) as bx:
            for i in T.Parallel(256):
                x = A[bx * 256 + i]
                if mask is not None:
                    x = x & mask
                B[bx * 256 + i] = T.cast(x, to) - number

    return kernel


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942", "cpu"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("to", FLOATS)
@pytest.mark.parametrize("number", NUMBERS)
def test_all_values(target: str, dtype: str, to: str, number: float) -> None:
    """Whatever is subtracted, the bits are those of two operations, each rounded."""
    A = np.arange(256).astype(np.uint8).view(dtype)[:-1].copy()  # 255: the last vector is ragged
    B = np.full(255, np.nan, np.float32).astype(FLOATS[to])
    run(converted(dtype, to, number), target, A, B)
    with np.errstate(over="ignore"):
        wanted = A.astype(FLOATS[to]) - np.asarray(number).astype(FLOATS[to])
    np.testing.assert_array_equal(B.astype(np.float64), wanted.astype(np.float64))
    assert not np.signbit(B[wanted == 0].astype(np.float32)).any()


def from_ints(text: str) -> int:
    """The integers of up to eight bits that an LLVM text converts to floats."""
    return len(re.findall(r"[us]itofp", text))


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("to", FLOATS)
def test_no_conversion_is_left(to: str) -> None:
    given = [tilec.spec((256,), "int8"), tilec.spec((256,), to)]
    for target, left in (("cuda:sm_80", False), ("cuda:sm_90a", False), ("hip:gfx942", True)):
        made = converted("int8", to, 8).compile(*given, target=target)
        assert bool(from_ints(str(made.stages["llvm"]))) == left
        less = re.findall(r"const (\S+), f(?:16|32)", str(made.stages["pair_halves"]))
        biased = {"float16": 1024.0, "bfloat16": 2.0**23, "float32": 2.0**23}[to] + 128 + 8
        assert (str(biased) in less) != left  # one subtraction, of both


@pytest.mark.usefixtures("unassembled")
def test_wider_integers_are_converted_unless_they_are_parts_of_a_word() -> None:
    given = [tilec.spec((256,), "int32"), tilec.spec((256,), "float32")]
    for mask in (None, 15, 255, 511):
        made = converted("int32", "float32", 0, mask).compile(*given, target="cuda:sm_90a")
        assert bool(from_ints(str(made.stages["llvm"]))) == (mask not in (15, 255))


def parts(order: tuple[int, ...], to: str) -> Any:
    """The four-bit parts of words, in an order that their author has, less others' and scaled."""

    @tilec.kernel
    def kernel(
        W: T.Tensor((64,), "int32"), Z: T.Tensor((64,), "int32"), Y: T.Tensor((64, 8), to),
        S: T.Tensor((64,), to),
    ):  # fmt: skip
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                for k, n in enumerate(order):
                    less = (Z[i] >> (4 * k)) & 15
                    Y[i, k] = T.cast(((W[i] >> (4 * n)) & 15) - less, to) * S[i]
                    if k == 7:
                        Y[i, k] += T.cast((W[i] >> 28) & 15, to)

    return kernel


@pytest.mark.parametrize("to", FLOATS)
@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5, 6, 7), (0, 4, 1, 5, 2, 6, 3, 7)])
def test_parts_of_a_word(order: tuple[int, ...], target: str, to: str) -> None:
    """Of GPTQ, and of AWQ, whose neighbours are halves of a word."""
    rng = np.random.default_rng(1)
    w, z = (rng.integers(-(2**31), 2**31, 64).astype(np.int32) for _ in range(2))
    s = rng.integers(1, 5, 64).astype(FLOATS[to])
    y = np.full((64, 8), np.nan, np.float32).astype(FLOATS[to])
    run(parts(order, to), target, w, z, y, s)
    number = (w[:, None] >> 4 * np.array(order)) & 15
    wanted = (number - ((z[:, None] >> 4 * np.arange(8)) & 15)) * s[:, None].astype(float)
    wanted[:, 7] += (w >> 28) & 15
    np.testing.assert_array_equal(y.astype(np.float64), wanted)


@pytest.mark.usefixtures("unassembled")
def test_halves_of_a_word_take_one_mask() -> None:
    @tilec.kernel
    def kernel(W: T.Tensor((64,), "int32"), Y: T.Tensor((64, 2), "float16")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                word = W[i]
                Y[i, 0] = T.cast((word >> 4) & 15, "float16")
                Y[i, 1] = T.cast((word >> 20) & 15, "float16")

    given = [tilec.spec((64,), "int32"), tilec.spec((64, 2), "float16")]
    made = kernel.compile(*given, target="cuda:sm_90a")
    text = str(made.stages["pair_halves"])
    assert text.count("and_or") == 1 and not from_ints(str(made.stages["llvm"]))
    w = np.arange(64, dtype=np.int32) * 0x2468ACE + 0x1234567
    y = np.zeros((64, 2), np.float16)
    assert tilec.simulate(kernel, w, y, target="cuda:sm_90a").ok
    np.testing.assert_array_equal(y, (w[:, None] >> np.array([4, 20])) & 15)


# --- two parts of a byte --------------------------------------------------------------------------


def nibbles(dtype: str, less: int, by_hand: bool = False) -> Any:
    """All bytes, taken apart for a product with the identity."""

    @tilec.kernel
    def kernel(
        X: T.Tensor((32, 32), "float16"),
        W: T.Tensor((64, 16), "uint8"),
        Y: T.Tensor((32, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            x, f = T.alloc_shared((32, 32), "float16"), T.alloc_fragment((64, 32), "float16")
            y = T.alloc_fragment((32, 64), "float32")
            T.copy(X, x)
            if by_hand:
                w = T.alloc_shared((64, 16), "uint8")
                T.copy(W, w)
                for i, j in T.Parallel(64, 32):
                    part = (T.int32(w[i, j // 2]) >> (j % 2 * 4)) & 15
                    f[i, j] = T.cast(T.uint8(part), "float16") - less
            else:
                v = T.alloc_shared((64, 32), dtype)
                T.copy(T.view(W, (64, 32), dtype), v)
                for i, j in T.Parallel(64, 32):
                    f[i, j] = T.cast(v[i, j], "float16") - less
            T.gemm(x, f, y, transpose_B=True, clear_accum=True)
            T.copy(y, Y)

    return kernel


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942", "cpu"])
@pytest.mark.parametrize("dtype", ["uint4", "int4", "by hand"])
@pytest.mark.parametrize("less", [0, 8, -3])
def test_nibbles(target: str, dtype: str, less: int) -> None:
    W = np.arange(1024).astype(np.uint8).reshape(64, 16)
    X, Y = np.eye(32, dtype=np.float16), np.full((32, 64), np.nan, np.float32)
    run(nibbles(dtype, less, dtype == "by hand"), target, X, W, Y)
    codes = np.stack([W & 15, W >> 4], -1).reshape(64, 32).astype(int)
    wanted = np.where(codes > 7, codes - 16, codes) if dtype == "int4" else codes
    np.testing.assert_array_equal(Y, (wanted - less).T)


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("dtype", ["uint4", "int4", "by hand"])
@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a"])
def test_both_nibbles_have_one_mask(target: str, dtype: str) -> None:
    given = [tilec.spec((32, 32), "float16"), tilec.spec((64, 16), "uint8")]
    made = nibbles(dtype, 8, dtype == "by hand").compile(
        *given, tilec.spec((32, 64), "float32"), target=target
    )
    assert "and_or" in str(made.stages["floats_by_bits"])
    asm = str(made.stages["ptx"])
    loads, masks = (len(re.findall(p, asm)) for p in (r"ld\.shared\.b8", r"lop3\.b32.*0xEA"))
    assert masks == loads > 0 and "cvt.rn.f16.u" not in asm and "cvt.rn.f16.s" not in asm


@pytest.mark.parametrize("chosen", [(0, 1, 2, 3), (0, 0, 4, 4), (3, 3, 7, 7), (1, 2, 5, 6)])
def test_permuted_bytes(chosen: tuple[int, ...], rng: np.random.Generator) -> None:
    """The op's meaning and the instruction's are those of the bytes in memory."""
    low, high = rng.integers(0, 1 << 32, (2, 50), dtype=np.uint32)
    every = np.concatenate([x.view(np.uint8).reshape(50, 4) for x in (low, high)], axis=1)
    wanted = np.ascontiguousarray(every[:, list(chosen)]).view(np.uint32)[:, 0]
    b = Builder(Loc("", 1, 1))
    word = b.cast(b.const(0), UINT32)
    op = ops.PermuteBytes(word, word, chosen, loc=b.loc)
    np.testing.assert_array_equal(op.evaluate(low, high), wanted)
    number = np.uint32(sum(n << 4 * i for i, n in enumerate(chosen)))
    np.testing.assert_array_equal(nvidia._permuted(low, high, number), wanted)
