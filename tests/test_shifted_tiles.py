"""Tiles that begin anywhere in a row, in front of it too, and how their elements are asked for: a
convolution's, by a copy or by a loop that asks whether they lie inside."""

from __future__ import annotations

import re

import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
FORMS = ("copy", "plain", "asks", "two sides")
C, L, F, TAPS = 64, 200, 64, 3
BK, BN = 32, 64
Y, X, PLANE = 4, 72, 16


def convolution(form: str) -> tilec.Kernel:
    """Along rows, with a tile of one tap's channels."""

    @tilec.kernel
    def conv(
        A: T.Tensor((2, C, L), "float16"),
        W: T.Tensor((F, C * TAPS), "float16"),
        O: T.Tensor((2, F, L), "float32"),
    ):
        with T.Kernel(T.ceildiv(L, BN), 2, threads=128) as (bx, bz):
            w = T.alloc_shared((F, BK), "float16")
            s = T.alloc_shared((BK, BN), "float16")
            o = T.alloc_fragment((F, BN), "float32")
            T.clear(o)
            inside = (bx * BN - 1 >= 0) & (bx * BN + BN + TAPS - 2 < L)
            for k in T.Pipelined(C * TAPS // BK, num_stages=3):
                T.copy(W[0, k * BK], w)
                if form == "copy":
                    T.copy(A[bz, (k * BK) % C, bx * BN + k * BK // C - 1], s)
                else:
                    for i, j in T.Parallel(BK, BN):
                        c = (k * BK + i) % C
                        at = bx * BN + j + (k * BK + i) // C - 1
                        if form == "plain":
                            s[i, j] = A[bz, c, at]
                        elif form == "asks":
                            s[i, j] = T.if_then_else((at >= 0) & (at < L), A[bz, c, at], 0)
                        elif inside:
                            s[i, j] = A[bz, c, at]
                        else:
                            s[i, j] = T.if_then_else((at >= 0) & (at < L), A[bz, c, at], 0)
                T.gemm(w, s, o)
            T.copy(o, O[bz, 0, bx * BN])

    return conv


@tilec.kernel
def planes(
    A: T.Tensor((PLANE, Y, X), "float16"),
    W: T.Tensor((9, F, PLANE), "float16"),
    O: T.Tensor((F, Y, X), "float32"),
):
    """In planes: rows in front of a plane and behind it, too, and nothing in front of the first."""
    with T.Kernel(T.ceildiv(X, BN), Y, threads=128) as (bx, y):
        w = T.alloc_shared((F, PLANE), "float16")
        s = T.alloc_shared((PLANE, BN), "float16")
        o = T.alloc_fragment((F, BN), "float32")
        T.clear(o)
        for k in T.Pipelined(9, num_stages=2):
            T.copy(W[k, 0, 0], w)
            x = bx * BN + k % 3 - 1
            T.copy(A[0:PLANE, y + k // 3 - 1, x : x + BN], s)
            T.gemm(w, s, o)
        T.copy(o, O[0:F, y, bx * BN : bx * BN + BN])


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype("float16")


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_a_tile_in_front_of_its_rows(form: str, target: str) -> None:
    a, w, o = numbers(2, C, L), numbers(F, C * TAPS), np.zeros((2, F, L), "float32")
    run_compiled(convolution(form), target, a, w, o)
    wide = np.pad(a.astype(float), ((0, 0), (0, 0), (1, 1)))
    taps = (w[:, t * C : (t + 1) * C].astype(float) @ wide[:, :, t : t + L] for t in range(TAPS))
    assert np.array_equal(o, sum(taps))


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_in_front_of_its_planes(target: str) -> None:
    a, w, o = numbers(PLANE, Y, X), numbers(9, F, PLANE), np.zeros((F, Y, X), "float32")
    run_compiled(planes, target, a, w, o)
    wide = np.pad(a.astype(float), ((0, 0), (1, 1), (1, 1)))
    want = np.zeros(o.shape)
    for k in range(9):
        part = wide[:, k // 3 : k // 3 + Y, k % 3 : k % 3 + X]
        want += np.einsum("fc,cyx->fyx", w[k].astype(float), part)
    assert np.array_equal(o, want)


@pytest.mark.parametrize("form", FORMS)
def test_it_is_asked_for_by_sixteen_bytes(form: str) -> None:
    """Element by element it was, each stored before the next was asked for where a test had two
    sides: TileOPs' conv1d took 16 times TileLang's time."""
    specs = tilec.spec((2, C, L), "float16"), tilec.spec((F, C * TAPS), "float16")
    made = convolution(form).compile(*specs, tilec.spec((2, F, L), "float32"), target="cuda:sm_90a")
    assert "copy %A" in made.stages["recognise_idioms"]
    assert "ahead: s" in made.stages["plan"]
    pieces = len(re.findall(r"ld\.global\.nc\.v4", made.asm))
    assert pieces >= 2 * BK * BN // 8 // 128


def test_a_test_that_says_one_thing_has_a_loop_on_each_side() -> None:
    """Its sides do different things, so both stay; each loop is a copy or a fill then."""

    @tilec.kernel
    def either(A: T.Tensor((64, 64), "float32"), n: T.int32, O: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            for i, j in T.Parallel(64, 64):
                if n > 3:
                    O[i, j] = A[i, j]
                else:
                    O[i, j] = 1.0

    a, o = numbers(64, 64).astype("float32"), np.zeros((64, 64), "float32")
    for n, want in ((4, a), (3, np.ones_like(a))):
        for target in TARGETS:
            run_compiled(either, target, a, n, o)
            assert np.array_equal(o, want)
    text = either.compile(a, 3, o, target="cuda:sm_90a").stages["recognise_idioms"]
    assert "copy %A" in text and "fill %O" in text and "parallel" not in text
