"""Programs that were written to test the simulator from outside: right ones of many kinds, in which
nothing may be found, and mistakes as users make them, of which the finding has to name the line,
the buffer, the elements and the threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stranger_programs import PROGRAMS

import tilec
import tilec.language as T
from tilec.sim.findings import Finding

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
M, N, K = T.dynamic("M, N, K")
EVERY_TARGET = pytest.mark.parametrize("target", TARGETS)


def singles(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def halves(*shape: int) -> np.ndarray:
    return singles(*shape).astype(np.float16)


def only(report: Any) -> Finding:
    """The one finding, whose part of the report is short enough to read."""
    assert len(report.findings) == 1, str(report)
    text = str(report).split("\n1. ")[1].split("\n\n")[0]
    assert len(text.splitlines()) <= 12, text
    (finding,) = report.findings
    return finding


def lines(finding: Finding) -> list[str]:
    return [loc.source_line().strip() for loc in finding.locations]


# --- nothing is wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(PROGRAMS)), ids=PROGRAMS)
def test_right_programs(number: int) -> None:
    """In the simulator for a target, in two orders of the warps, and on the CPU."""
    name = [*PROGRAMS][number]
    kernel, make, want = PROGRAMS[name]
    arrays = make(np.random.default_rng(len(name)))
    right = want({n: a.copy() for n, a in arrays.items()})
    for target in (TARGETS[number % len(TARGETS)], "cpu"):
        mine = {n: a.copy() for n, a in arrays.items()}
        if target == "cpu":
            kernel(**mine)
        else:
            given = tuple(mine.values())
            report = tilec.simulate(
                kernel, *given, target=target, schedules=2, seed=3, check_outputs=True
            )
            assert report.ok, str(report)
        for n, x in right.items():
            scale = 3e-3 * max(1.0, float(np.abs(x).max()))
            np.testing.assert_allclose(mine[n].astype(np.float64), x, rtol=0, atol=scale)


# --- registers that nobody has written ------------------------------------------------------------


@tilec.kernel
def kept_where_positive(A: T.Tensor((M, 32), "float32"), C: T.Tensor((M, 32), "float32")):
    with T.Kernel(M, threads=64) as r:
        f = T.alloc_fragment((32,), "float32")
        for j in T.Parallel(32):
            if A[r, j] > 0:
                f[j] = A[r, j]
        for j in T.Parallel(32):
            C[r, j] = f[j]


@EVERY_TARGET
def test_a_fragment_that_some_threads_have_not_written(target: str) -> None:
    A = singles(1, 32)
    found = only(tilec.simulate(kept_where_positive, A, np.zeros_like(A), target=target))
    missing = np.flatnonzero(A[0] <= 0)[:8]
    assert found.kind == "uninitialised read" and lines(found) == ["C[r, j] = f[j]"]
    assert found.buffer == "f" and found.indices == tuple((int(j),) for j in missing)
    assert found.threads == tuple(int(j) for j in missing)
    assert not tilec.simulate(kept_where_positive, abs(A), np.zeros_like(A), target=target).findings


@tilec.kernel
def largest(A: T.Tensor((M, N), "float32"), C: T.Tensor((M,), "float32")):
    with T.Kernel(T.ceildiv(M, 8), threads=64) as b:
        most = T.alloc_fragment((8,), "float32")
        for j in T.serial(N):
            for i in T.Parallel(8):
                most[i] = T.max(most[i], A[b * 8 + i, j])
        T.copy(most, C[b * 8])


@EVERY_TARGET
def test_a_maximum_without_a_start(target: str) -> None:
    """Where it is read first, and where the result is used."""
    found = only(tilec.simulate(largest, singles(8, 5), np.zeros(8, np.float32), target=target))
    assert found.kind == "uninitialised read" and found.buffer == "most"
    assert lines(found) == [
        "most[i] = T.max(most[i], A[b * 8 + i, j])",
        "T.copy(most, C[b * 8])",
    ]
    assert found.indices == tuple((i,) for i in range(8))


@tilec.kernel
def sum_without_clear(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


@EVERY_TARGET
def test_an_accumulator_that_is_not_cleared(target: str) -> None:
    arrays = halves(64, 64), halves(64, 64), np.zeros((64, 64), np.float32)
    found = only(tilec.simulate(sum_without_clear, *arrays, target=target))
    assert found.kind == "uninitialised read" and lines(found) == ["T.gemm(a, b, acc)"]
    assert found.buffer == "acc" and (0, 0) in found.indices and 0 in found.threads


@tilec.kernel
def triangle(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16"),
             C: T.Tensor((64, 64), "float32")):  # fmt: skip
    with T.Kernel(1, threads=128):
        b = T.alloc_shared((64, 64), "float16")
        p = T.alloc_fragment((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.copy(B, b)
        T.clear(acc)
        for i, j in T.Parallel(64, 64):
            if j <= i:
                p[i, j] = A[i, j]
        T.gemm(p, b, acc)
        T.copy(acc, C)


@EVERY_TARGET
def test_a_factor_of_which_half_is_written(target: str) -> None:
    arrays = halves(64, 64), halves(64, 64), np.zeros((64, 64), np.float32)
    found = only(tilec.simulate(triangle, *arrays, target=target))
    assert found.kind == "uninitialised read" and lines(found)[-1] == "T.gemm(p, b, acc)"
    assert found.buffer == "p" and found.indices and all(i < j for i, j in found.indices)


@tilec.kernel
def first_above(A: T.Tensor((M, 64), "float32"), C: T.Tensor((M, 64), "float32")):
    with T.Kernel(M, threads=64) as r:
        tx = T.get_thread_binding()
        best = T.alloc_var("float32")
        if A[r, tx] > 0:
            best = A[r, tx] * 2.0
        C[r, tx] = best


@tilec.kernel
def last_above(A: T.Tensor((M, 64), "float32"), C: T.Tensor((M, 64), "float32")):
    """The value that is not there yet is not looked at: nothing is wrong."""
    with T.Kernel(M, threads=64) as r:
        tx = T.get_thread_binding()
        best = T.alloc_var("float32")
        found = T.alloc_var("bool")
        found = False
        for k in T.serial(4):
            if found and best > 1.0:
                C[r, tx] = best
            if A[r, (tx + k) % 64] > 0:
                best = A[r, (tx + k) % 64]
                found = True
        C[r, tx] = T.if_then_else(found, best, 0.0)


@EVERY_TARGET
def test_a_variable_that_has_no_value_in_some_threads(target: str) -> None:
    A = singles(1, 64)
    found = only(tilec.simulate(first_above, A, np.zeros_like(A), target=target))
    missing = tuple(int(j) for j in np.flatnonzero(A[0] <= 0)[:8])
    assert found.kind == "uninitialised read" and lines(found) == ["C[r, tx] = best"]
    assert found.buffer == "best" and found.threads == missing
    C = np.full_like(A, 77)
    report = tilec.simulate(last_above, A, C, target=target)
    assert not report.findings, str(report)
    after = np.stack([np.roll(A[0], -k) for k in range(4)])
    last = [next((x for x in column[::-1] if x > 0), 0.0) for column in after.T]
    np.testing.assert_array_equal(C[0], np.array(last, np.float32))


# --- arrays of a thread ---------------------------------------------------------------------------


@tilec.kernel
def chosen_of_eight(
    A: T.Tensor((64,), "float32"), at: T.Tensor((M,), "int32"), C: T.Tensor((M,), "float32")
):
    with T.Kernel(1, threads=64) as _:
        tx = T.get_thread_binding()
        mine = T.alloc_local((8,), "float32")
        for i in T.serial(8):
            mine[i] = A[i]
        if tx < M:
            mine[at[M - 1 - tx]] = 7.0
            C[tx] = mine[at[tx]]


@EVERY_TARGET
def test_a_local_array_is_indexed_out_of_bounds(target: str) -> None:
    at = np.array([1, 2, 9, 4, -1], np.int32)
    A, C = singles(64), np.zeros(5, np.float32)
    report = tilec.simulate(chosen_of_eight, A, at, C, target=target)
    write, read = report.findings
    assert write.kind == read.kind == "out of bounds"
    assert lines(write) == ["mine[at[M - 1 - tx]] = 7.0"] and lines(read) == [
        "C[tx] = mine[at[tx]]"
    ]
    assert write.buffer == read.buffer == "mine" and write.indices == ((-1,), (9,))
    assert read.indices == ((9,), (-1,)) and read.threads == (2, 4) and write.threads == (0, 2)
    assert "mine[9] is read; mine has 8 elements" in str(report)
    np.testing.assert_array_equal(C[[0, 1, 3]], A[at[[0, 1, 3]]])


# --- shared memory --------------------------------------------------------------------------------


@tilec.kernel
def turns(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32"),
    write: T.constexpr, read: T.constexpr,
):  # fmt: skip
    """A buffer of two tiles by hand; `write` and `read`: how many the indices think it has."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        b = T.alloc_shared((32, 64), "float16")
        a = T.alloc_shared((2, 64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.serial(T.ceildiv(K, 32)):
            T.copy(A[by * 64, k * 32], a[k % write, :, :])
            T.copy(B[k * 32, bx * 64], b)
            T.gemm(a[k % read, :, :], b, acc)
        T.copy(acc, C[by * 64, bx * 64])


@EVERY_TARGET
def test_the_turn_of_a_buffer_is_wrong(target: str) -> None:
    """The factor is named whose index is wrong, also where a product reads two buffers."""
    A, B, C = halves(64, 96), halves(96, 64), np.zeros((64, 64), np.float32)
    found = only(tilec.simulate(turns, A, B, C, write=2, read=3, target=target))
    assert found.kind == "out of bounds" and found.buffer == "a"
    assert lines(found) == ["T.gemm(a[k % read, :, :], b, acc)"]
    assert (
        found.indices[0] == (2, 0, 0)
        and "a[2, 0, 0]" in found.message
        and "(2, 64, 32)" in found.message
    )
    report = tilec.simulate(turns, A, B, C, write=2, read=2, target=target)
    assert not report.findings, str(report)
    np.testing.assert_allclose(C, A.astype(float) @ B.astype(float), atol=1e-2)


@tilec.kernel
def differences(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 64), threads=64) as b:
        s = T.alloc_shared((64,), "float32")
        T.copy(A[b * 64], s)
        for i in T.Parallel(64):
            if b * 64 + i > 0:
                C[b * 64 + i] = s[i] - s[i - 1]
            else:
                C[b * 64 + i] = 0.0


@EVERY_TARGET
def test_a_border_is_forgotten(target: str) -> None:
    """The first block is right by its condition; the others read in front of their tile."""
    found = only(
        tilec.simulate(differences, singles(200), np.zeros(200, np.float32), target=target)
    )
    assert found.kind == "out of bounds" and found.times == 3 and found.buffer == "s"
    assert found.indices == ((-1,),) and found.threads == (0,) and found.block == (1, 0, 0)
    assert lines(found) == ["C[b * 64 + i] = s[i] - s[i - 1]"]


@tilec.kernel
def flag_between_warps(A: T.Tensor((128,), "float32"), C: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=128):
        tx = T.get_thread_binding()
        ready = T.alloc_shared((1,), "int32")
        s = T.alloc_shared((64,), "float32")
        T.clear(ready)
        if tx >= 64:
            s[tx - 64] = A[tx]
            if tx == 64:
                ready[0] = 1
        else:
            while ready[0] == 0:
                C[tx] = 0.0
            C[tx] = s[tx]


@EVERY_TARGET
def test_a_flag_of_ones_own(target: str) -> None:
    """Who waits for it lets the others run, so that what is wrong shows, not only that it waits."""
    report = tilec.simulate(
        flag_between_warps, singles(128), np.zeros(64, np.float32), target=target
    )
    kinds = {(f.kind, f.buffer) for f in report.findings}
    assert ("data race", "ready") in kinds and ("data race", "s") in kinds
    assert all(f.kind != "step limit" for f in report.findings)
    race = next(f for f in report.findings if f.buffer == "s")
    assert lines(race) == ["C[tx] = s[tx]", "s[tx - 64] = A[tx]"] and race.indices[0] == (0,)
    assert {0, 64} <= set(race.threads) or {0, 1} <= set(race.threads)


# --- several blocks -------------------------------------------------------------------------------


@tilec.kernel
def column_sums(A: T.Tensor((M, 64), "float32"), C: T.Tensor((64,), "float32")):
    with T.Kernel(M, threads=64) as r:
        for j in T.Parallel(64):
            C[j] += A[r, j]


@EVERY_TARGET
def test_blocks_that_add_up_without_atomics(target: str) -> None:
    report = tilec.simulate(column_sums, singles(3, 64), np.zeros(64, np.float32), target=target)
    assert {f.kind for f in report.findings} == {"data race"} and "help: blocks run" in str(report)
    for f in report.findings:
        assert set(lines(f)) == {"C[j] += A[r, j]"} and f.buffer == "C" and f.block == (1, 0, 0)
        assert f.indices[:3] == ((0,), (1,), (2,)) and "another block" in f.message


@tilec.kernel
def groups_without_a_guard(
    A: T.Tensor((M, K), "float16"), W: T.Tensor((3, K, 32), "float16"),
    first: T.Tensor((4,), "int32"), C: T.Tensor((M, 32), "float32"),
):  # fmt: skip
    with T.Kernel(3, threads=128) as g:
        a = T.alloc_shared((64, 32), "float16")
        w = T.alloc_shared((32, 32), "float16")
        acc = T.alloc_fragment((64, 32), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[first[g], k * 32], a)
            T.copy(W[g, k * 32, 0], w)
            T.gemm(a, w, acc)
        T.copy(acc, C[first[g], 0])


@EVERY_TARGET
def test_a_group_overwrites_the_next_ones_rows(target: str) -> None:
    first = np.array([0, 20, 33, 50], np.int32)
    arrays = halves(50, 32), halves(3, 32, 32), first, np.zeros((50, 32), np.float32)
    found = only(tilec.simulate(groups_without_a_guard, *arrays, target=target))
    assert found.kind == "data race" and lines(found) == ["T.copy(acc, C[first[g], 0])"]
    assert found.buffer == "C" and found.block == (1, 0, 0) and found.indices[0][0] == 20


@tilec.kernel
def histogram_of_threads(A: T.Tensor((64,), "int32"), H: T.Tensor((8,), "int32")):
    with T.Kernel(1, threads=64):
        t = T.get_thread_binding()
        h = T.alloc_shared((8,), "int32")
        T.clear(h)
        h[A[t]] += 1
        h[3] += 5
        T.copy(h, H)


@EVERY_TARGET
def test_threads_that_add_to_one_element(target: str) -> None:
    """All write the same value, and all but one addition are lost. Where all threads act as one
    (`h[3] += 5`), and where each has its own element, nothing is."""
    bins = np.random.default_rng(4).integers(0, 8, 64).astype(np.int32)
    found = only(tilec.simulate(histogram_of_threads, bins, np.zeros(8, np.int32), target=target))
    assert found.kind == "data race" and found.buffer == "h"
    assert lines(found) == ["h[A[t]] += 1"]
    assert "several threads write back what they read from h[" in found.message


@tilec.kernel
def plus_one(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 64), threads=64) as b:
        for i in T.Parallel(64):
            C[b * 64 + i] = A[b * 64 + i] + 1.0


@EVERY_TARGET
def test_arguments_that_share_memory(target: str) -> None:
    """Parts of one array that overlap are one history; the same array twice, and columns beside
    each other, are no fault."""
    whole = singles(300)
    report = tilec.simulate(plus_one, whole[:256], whole[32:288], target=target)
    assert {f.kind for f in report.findings} == {"data race"}, str(report)
    assert {f.buffer for f in report.findings} == {"A", "C"}
    found = next(f for f in report.findings if f.buffer == "A")
    assert found.indices[0] == (64,) and found.block == (1, 0, 0)
    assert lines(found) == ["C[b * 64 + i] = A[b * 64 + i] + 1.0"] * 2
    again = singles(300)
    want = again + np.float32(1)
    assert not tilec.simulate(plus_one, again, again, target=target).findings
    np.testing.assert_array_equal(again, want)
    pairs = singles(200, 2)
    report = tilec.simulate(plus_one, pairs[:, 0], pairs[:, 1], target=target, check_outputs=True)
    assert not report.findings, str(report)
    np.testing.assert_array_equal(pairs[:, 1], pairs[:, 0] + 1)


@tilec.kernel
def narrowed(A: T.Tensor((2, 64), "float32")):
    C = T.empty((2, 64), "float8_e4m3")
    with T.Kernel(1, threads=64):
        S = T.alloc_shared((2, 64), "float8_e4m3")
        T.copy(A, S)
        T.copy(S, C)
    return C


@pytest.mark.turns("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
@EVERY_TARGET
def test_float8_that_the_call_allocates(target: str) -> None:
    """AMD's encoding for gfx942, the Open Compute Project's for others."""
    a = singles(2, 64)
    (c,) = tilec.simulate(narrowed, a, target=target).outputs.values()
    kind = "float8_e4m3fnuz" if target == "hip:gfx942" else "float8_e4m3fn"
    assert c.dtype.name == kind
    np.testing.assert_array_equal(c.astype(np.float32), a.astype(c.dtype).astype(np.float32))
