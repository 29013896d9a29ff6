"""Loads of a thread that one wide load makes, or that are all asked for before the first is used:
what lies side by side in a part of a row, in a loop of few iterations, behind a division."""

from __future__ import annotations

import re

import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
ROWS, WORDS, PER = 16, 64, 4
SPLITS = 12
HIGH, WIDE, DEEP = 10, 24, 64


@tilec.kernel
def nibbles(
    A: T.Tensor((ROWS, WORDS * PER), "uint8"),
    X: T.Tensor((WORDS * PER * 2,), "float32"),
    O: T.Tensor((ROWS,), "float32"),
):
    """Products of numbers of 4 bits: a thread has `PER` bytes of a row at once."""
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((ROWS, WORDS * PER), "uint8")
        x = T.alloc_shared((WORDS * PER * 2,), "float32")
        part = T.alloc_fragment((ROWS, WORDS), "float32")
        total = T.alloc_fragment((ROWS,), "float32")
        T.copy(A, a)
        T.copy(X, x)
        T.clear(part)
        for i, j in T.Parallel(ROWS, WORDS):
            for n in T.serial(PER):
                byte = T.cast(a[i, j * PER + n], "int32")
                at = 2 * (j * PER + n)
                part[i, j] += T.cast(byte % 16, "float32") * x[at]
                part[i, j] += T.cast(byte // 16, "float32") * x[at + 1]
        T.reduce_sum(part, total, dim=1)
        T.copy(total, O)


@tilec.kernel
def combine(
    P: T.Tensor((3, SPLITS, 128), "float16"),
    S: T.Tensor((3, SPLITS), "float16"),
    O: T.Tensor((3, 128), "float32"),
):
    """Partial results of attention, weighed."""
    with T.Kernel(3, threads=128) as b:
        total = T.alloc_fragment((128,), "float32")
        T.clear(total)
        for k in T.serial(SPLITS):
            weight = T.exp2(T.cast(S[b, k], "float32"))
            for i in T.Parallel(128):
                total[i] += weight * T.cast(P[b, k, i], "float32")
        T.copy(total, O[b, 0])


@tilec.kernel
def window(A: T.Tensor((HIGH, WIDE), "float16"), O: T.Tensor((HIGH, WIDE), "float32")):
    """Sums of three by two neighbours, zeros around."""
    with T.Kernel(T.ceildiv(HIGH * WIDE, 128), threads=128) as b:
        total = T.alloc_fragment((128,), "float32")
        T.clear(total)
        for dy in T.serial(3):
            for dx in T.serial(2):
                for j in T.Parallel(128):
                    at = b * 128 + j
                    y, x = at // WIDE + dy - 1, at % WIDE + dx - 1
                    there = (at < HIGH * WIDE) & (y >= 0) & (y < HIGH) & (x >= 0) & (x < WIDE)
                    total[j] += T.if_then_else(there, T.cast(A[y, x], "float32"), 0.0)
        for j in T.Parallel(128):
            at = b * 128 + j
            if at < HIGH * WIDE:
                O[at // WIDE, at % WIDE] = total[j]


@tilec.kernel
def pixels(A: T.Tensor((64, HIGH, WIDE), "float16"), O: T.Tensor((64, 128), "float16")):
    """Pixels of each channel, moved by one."""
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((64, 128), "float16")
        for c, j in T.Parallel(64, 128):
            y, x = j // WIDE, j % WIDE - 1
            s[c, j] = T.if_then_else(x >= 0, A[c, y, x], 0)
        T.copy(s, O)


def random(*shape: int, dtype: str = "float16", most: int = 4) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, most, shape).astype(dtype)


@pytest.mark.parametrize("target", TARGETS)
def test_bytes_of_a_word(target: str) -> None:
    a, x = random(ROWS, WORDS * PER, dtype="uint8", most=256), random(WORDS * PER * 2)
    x, o = x.astype("float32"), np.zeros(ROWS, "float32")
    run_compiled(nibbles, target, a, x, o)
    low_first = np.stack([a % 16, a // 16], -1).reshape(ROWS, -1)
    assert np.array_equal(o, low_first.astype(float) @ x)


def test_bytes_of_a_word_are_one_load() -> None:
    """They were 64 loads of a byte, 64 bytes from lane to lane: TileOPs' product with weights of 4
    bits took three times TileLang's time."""
    specs = ((ROWS, WORDS * PER), "uint8"), ((WORDS * PER * 2,), "float32"), ((ROWS,), "float32")
    made = nibbles.compile(*(tilec.spec(*s) for s in specs), target="cuda:sm_90a")
    assert "blocked(16x64, 32, 4, 1)" in made.stages["infer_layouts"]
    assert not re.search(r"ld\.shared[.\w]*\.[bsu]8\b", made.asm)
    assert len(re.findall(r"ld\.shared\.b32", made.asm)) >= ROWS * WORDS // 128


@pytest.mark.parametrize("target", TARGETS)
def test_partial_results(target: str) -> None:
    p, s, o = random(3, SPLITS, 128), random(3, SPLITS), np.zeros((3, 128), "float32")
    run_compiled(combine, target, p, s, o)
    assert np.array_equal(o, np.einsum("bki,bk->bi", p.astype(float), np.exp2(s.astype(float))))


@pytest.mark.parametrize("target", TARGETS)
def test_a_window(target: str) -> None:
    a, o = random(HIGH, WIDE), np.zeros((HIGH, WIDE), "float32")
    run_compiled(window, target, a, o)
    wide = np.pad(a.astype(float), ((1, 1), (1, 0)))
    want = sum(wide[y : y + HIGH, x : x + WIDE] for y in range(3) for x in range(2))
    assert np.array_equal(o, want)


@pytest.mark.parametrize(("kernel", "loads"), [(combine, SPLITS), (window, 6)])
def test_loads_of_short_loops_stand_in_front(kernel: tilec.Kernel, loads: int) -> None:
    """An iteration waited for its loads: 16 of them took 10 us."""
    shapes = {"combine": ((3, SPLITS, 128), (3, SPLITS)), "window": ((HIGH, WIDE),)}
    given = [tilec.spec(shape, "float16") for shape in shapes[kernel.name]]
    out = {"combine": (3, 128), "window": (HIGH, WIDE)}[kernel.name]
    made = kernel.compile(*given, tilec.spec(out, "float32"), target="cuda:sm_90a")
    assert ".pragma" not in made.asm  # no loop is left
    text = made.stages["pair_halves"]
    first_sum = text.index("reg_write %total", text.index("mem_load"))
    assert text[:first_sum].count("mem_load") >= loads


@pytest.mark.parametrize("target", TARGETS)
def test_pixels(target: str) -> None:
    a, o = random(64, HIGH, WIDE), np.zeros((64, 128), "float16")
    run_compiled(pixels, target, a, o)
    wide = np.pad(a, ((0, 0), (0, 0), (1, 0)))[:, :, :WIDE]
    assert np.array_equal(o, wide.reshape(64, -1)[:, :128])


def test_lanes_follow_what_lies_side_by_side() -> None:
    """Eight neighbours in a thread were eight loads whose lanes lie 16 bytes apart."""
    specs = tilec.spec((64, HIGH, WIDE), "float16"), tilec.spec((64, 128), "float16")
    made = pixels.compile(*specs, target="cuda:sm_90a")
    (loop,) = re.findall(
        r"parallel \(64, 128\), layout=layout<([^>]*)>", made.stages["infer_layouts"]
    )
    assert loop == "blocked(64x128, 32, 4, 1)"


@tilec.kernel
def turned(A: T.Tensor((96, 200), "float16"), O: T.Tensor((200, 96), "float16")):
    """Columns of one matrix, twice, are rows of another."""
    with T.Kernel(T.ceildiv(200, 64), 3, threads=128) as (b, c):
        s = T.alloc_shared((64, 32), "float16")
        for i, j in T.Parallel(64, 32):
            s[i, j] = A[c * 32 + j, b * 64 + i] * 2
        T.copy(s, O[b * 64, c * 32])


@pytest.mark.parametrize("target", TARGETS[1:])
def test_lanes_run_along_another_dimension(target: str) -> None:
    """Along the last one of the loop, lanes would be a row of the tensor apart."""
    a, o = random(96, 200), np.zeros((200, 96), "float16")
    report = tilec.simulate(turned, a, o, target=target)
    assert report.ok, report
    assert np.array_equal(o, a.T * 2)
    made = turned.compile(a, o, target=target)
    assert "padded(64x32, 32, 2)" in made.stages["infer_layouts"]  # columns in banks of their own
    (line,) = [x for x in report.counts.lines if x.global_read]
    assert line.sectors <= 1.25 * a.nbytes / 32


def test_a_rest_of_multiples_ends_before_the_last_of_them() -> None:
    """`flat % 128` of a multiple of 4, and what is added, is below 128: no load is guarded."""

    @tilec.kernel
    def repeated(
        A: T.Tensor((8192,), "float16"),
        B: T.Tensor((128,), "float16"),
        C: T.Tensor((8192,), "float16"),
    ):
        with T.Kernel(8, threads=256) as b:
            for i, j in T.Parallel(256, 4):
                at = (b * 256 + i) * 4 + j
                C[at] = A[at] + B[at % 128]

    a, b, c = random(8192), random(128), np.zeros(8192, "float16")
    for target in TARGETS:
        c[:] = 0
        run_compiled(repeated, target, a, b, c)
        assert np.array_equal(c, a + np.tile(b, 64))
    made = repeated.compile(a, b, c, target="cuda:sm_90a")
    assert "guard" not in made.stages["pair_halves"]
    assert len(re.findall(r"ld\.global\.nc\.v[24]", made.asm)) == 2
