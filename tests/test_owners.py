"""Stores of threads' own code of which each element is one thread's: no barrier orders them among
themselves, in whatever loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

THREADS, EACH, TURNS = 128, 8, 4
SIZE = THREADS * EACH * TURNS
N = T.dynamic("N")


def staged(how: str) -> Any:
    """Rows of 64 through a tile that threads fill by themselves, and read by others."""

    @tilec.kernel
    def kernel(X: T.Tensor((N, SIZE), "float16"), Y: T.Tensor((N, SIZE), "float16")):
        with T.Kernel(1, threads=THREADS):
            tile = T.alloc_shared((SIZE // 64, 64), "float16")
            own = T.alloc_local((EACH,), "float16")
            tx = T.get_thread_binding(0)
            for n in T.serial(N):
                for i in T.serial(TURNS):
                    for v in T.vectorized(EACH):
                        own[v] = X[n, (i * THREADS + tx) * EACH + v] * 2
                    for v in T.vectorized(EACH):
                        at = (i * THREADS + tx) * EACH + v
                        if how == "shared":  # the next iteration's threads write the same
                            at = (i * (THREADS - 1) + tx) * EACH + v
                        elif how == "turned":
                            at = (i * THREADS + (tx + n) % THREADS) * EACH + v
                        tile[at // 64, at % 64] = own[v]
                for i, j in T.Parallel(SIZE // 64, 64):
                    Y[n, i * 64 + j] = tile[SIZE // 64 - 1 - i, j]

    return kernel


def barriers(compiled: Any) -> tuple[int, int]:
    """In the loop that fills the tile, and in all."""
    text = compiled.stages["insert_sync"]
    inner = text[text.index("for.serial", text.index("for.serial") + 1) :]
    inner = inner[: inner.index("parallel")]
    filling = inner[: inner.rindex("store")]
    return filling.count("barrier"), text.count("barrier")


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_no_barrier_among_a_threads_own_elements(target: str) -> None:
    """One before the tile is filled again, and one before it is read."""
    specs = [tilec.spec((3, SIZE), "float16")] * 2
    compiled = staged("own").compile(*specs, target=target)
    assert barriers(compiled) == (0, 2)
    if target.startswith("cuda"):
        assert "st.shared.v4" in compiled.stages["ptx"]
    for how in ("shared", "turned"):
        filling, _ = barriers(staged(how).compile(*specs, target=target))
        assert filling == 1


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cpu"])
@pytest.mark.parametrize("how", ["own", "turned"])
def test_numbers(how: str, target: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, SIZE)).astype(np.float16)
    y = np.full_like(x, np.nan)
    if target == "cpu":
        staged(how).compile(x, y, target=target)(x, y)
    else:
        report = tilec.simulate(staged(how), x, y, target=target)
        assert report.ok, report
    tiles = (2 * x).reshape(3, TURNS, THREADS, EACH)
    if how == "turned":
        tiles = np.stack([np.roll(t, n, axis=1) for n, t in enumerate(tiles)])
    want = tiles.reshape(3, SIZE // 64, 64)[:, ::-1].reshape(3, SIZE)
    np.testing.assert_array_equal(y, want)


def chosen(counters: int) -> Any:
    """Where elements of X are that exceed the threshold, in any order, and their histogram; a place
    is given out by one of so many counters."""

    @tilec.kernel
    def kernel(
        X: T.Tensor((N,), "int32"), Y: T.Tensor((1024,), "int32"), H: T.Tensor((16,), "int32")
    ):
        with T.Kernel(1, threads=THREADS):
            tx = T.get_thread_binding(0)
            places = T.alloc_shared((1024,), "int32")
            taken = T.alloc_shared((2,), "int32")
            bins = T.alloc_shared((16,), "int32")
            T.fill(places, -1)
            T.fill(taken, 0)
            T.fill(bins, 0)
            for s in T.serial(T.ceildiv(N, THREADS)):
                n = s * THREADS + tx
                if n < N:
                    T.atomic_add(bins[X[n] & 15], 1)
                    if X[n] >= 8:
                        at = T.atomic_add(taken[s % counters], 1, return_prev=True)
                        places[at + s % counters * 512] = n
            T.copy(places, Y)
            T.copy(bins, H)

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu"])
@pytest.mark.parametrize("counters", [1, 2])
def test_atomics_and_what_counters_give_out(
    counters: int, target: str, rng: np.random.Generator
) -> None:
    """Sums need no order, and one counter gives a place out once; of two the places may be the
    same, for all that is known."""
    x = rng.integers(0, 16, 700).astype(np.int32)
    y, h = np.zeros(1024, np.int32), np.zeros(16, np.int32)
    if target == "cpu":
        chosen(counters).compile(x, y, h, target=target)(x, y, h)
    else:
        report = tilec.simulate(chosen(counters), x, y, h, target=target)
        assert report.ok, report
        text = chosen(counters).compile(x, y, h, target=target).stages["insert_sync"]
        loop = text[text.index("for.serial") :]
        assert loop[: loop.index("\n  }\n")].count("barrier") == counters - 1
    np.testing.assert_array_equal(np.sort(y[y >= 0]), np.flatnonzero(x >= 8))
    np.testing.assert_array_equal(h, np.bincount(x, minlength=16))


def passes_over(how: str) -> Any:
    """Butterflies in place between barriers of the author's; `how`: who reads what in between."""

    @tilec.kernel
    def kernel(X: T.Tensor((N, 256), "float32"), Y: T.Tensor((N, 256), "float32")):
        with T.Kernel(N, threads=128) as row:
            s = T.alloc_shared((256,), "float32")
            t = T.get_thread_binding(0)
            for k in T.unroll(2):
                s[t + k * 128] = X[row, t + k * 128]
            T.sync_threads()
            for b in range(8):
                if how == "own" and t == 127:
                    s[255] = s[255] + 0.0
                low = (t >> b) * (2 << b) + (t & ((1 << b) - 1))
                high = low + (1 << b)
                x, y = s[low], s[high]
                if how == "neighbours":
                    y = s[(high + 1) % 256]
                s[low] = x + y
                s[high] = x - y
                if how != "no barrier":
                    T.sync_threads()
            T.sync_threads()
            for k in T.unroll(2):
                Y[row, t + k * 128] = s[t + k * 128]

    return kernel


@pytest.mark.parametrize("how, more", [("own", 0), ("neighbours", 1), ("no barrier", 1)])
def test_between_the_authors_barriers(how: str, more: int, rng: np.random.Generator) -> None:
    """No others stand where threads have elements of their own up to the next one; in an iteration
    without one they are those of other threads in the next."""
    x = rng.integers(-3, 4, (2, 256)).astype(np.float32)
    y = np.full_like(x, np.nan)
    compiled = passes_over(how).compile(x, y, target="cuda:sm_90a")
    authors = 3 - (how == "no barrier")
    assert compiled.stages["insert_sync"].count("barrier") >= authors + more
    assert (compiled.stages["insert_sync"].count("barrier") == authors) == (not more)
    report = tilec.simulate(passes_over(how), x, y, target="cuda:sm_90a")
    assert report.ok, report
    if how == "own":
        signs = [[(-1) ** (i & j).bit_count() for i in range(256)] for j in range(256)]
        assert (y == x @ np.array(signs)).all()
