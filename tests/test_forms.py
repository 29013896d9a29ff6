"""Forms of matrix products: transposed, batched, grouped, ragged, empty, far apart in memory. Each
is run for the CPU and, thread by thread, under plans of three GPU targets."""

from __future__ import annotations

import numpy as np
import pytest
from form_help import GPUS, SM90, Arrays, aligned, close, lowered, on_cpu, on_threads, tile_func
from form_programs import (
    Kernel,
    batched,
    batched_one_weight,
    gathered,
    grouped,
    grouped_in_while,
    grouped_with_break,
    product,
)
from pairwise import pairwise
from thread_interp import run_threads

import tilec
from tilec.ir.core import Func, walk
from tilec.ir.ops import Scope, TmaLoad
from tilec.passes import run_plan
from tilec.target import Target
from tilec.tune.plans import plans

pytestmark = pytest.mark.turns

Rng = np.random.Generator
TARGETS = pytest.mark.parametrize("target", GPUS, ids=lambda t: t.arch)


def matrix(rng: Rng, rows: int, columns: int, pitch: int = 0, start: int = 0) -> np.ndarray:
    """Random numbers, aligned; `start` elements after that, rows `pitch` elements longer."""
    whole = aligned(rng.standard_normal((max(rows, 1), columns + pitch)).astype(np.float16))
    return whole[:rows, start : start + columns]


def blank(a: np.ndarray) -> np.ndarray:
    a[...] = np.nan
    return a


def specialised(done: Func) -> bool:
    return any(isinstance(o, Scope) and o.name == "producer" for o in walk(done.body))


def tma_ranks(done: Func) -> set[int]:
    return {len(o.coords) for o in walk(done.body) if isinstance(o, TmaLoad)}


def check(kernel: Kernel, target: Target, arrays: Arrays, want: np.ndarray) -> list[Func]:
    """Run every plan of the target; the lowered functions."""
    made = []
    for _, done, held in on_threads(tile_func(kernel, arrays), target, arrays):
        close(held["C"], want)
        made.append(done)
    return made


# --- two matrices -------------------------------------------------------------------------------

SIZES = {
    "whole": (128, 64, 96, 0, 0),
    "ragged": (70, 136, 40, 0, 0),
    "M=1": (1, 72, 50, 0, 0),
    "N=1": (65, 1, 33, 0, 0),
    "K=1": (64, 40, 1, 0, 0),
    "K=0": (65, 64, 0, 0, 0),
    "one": (1, 1, 1, 0, 0),
    "long rows": (64, 72, 64, 8, 0),
    "odd rows": (33, 40, 37, 3, 1),
    "misaligned": (64, 64, 64, 8, 4),
}


def two_matrices(rng: Rng, size: str, ta: bool, tb: bool) -> tuple[Arrays, np.ndarray]:
    m, n, k, pitch, start = SIZES[size]
    a = matrix(rng, *((k, m) if ta else (m, k)), pitch, start)
    b = matrix(rng, *((n, k) if tb else (k, n)), pitch, start)
    c = blank(matrix(rng, m, n, pitch, start))
    left, right = (a.T if ta else a), (b.T if tb else b)
    return {"A": a, "B": b, "C": c}, left.astype(np.float64) @ right.astype(np.float64)


ALL_FORMS = [(False, False), (False, True), (True, False), (True, True)]
FORMS = pytest.mark.parametrize(("ta", "tb"), ALL_FORMS, ids=["NN", "NT", "TN", "TT"])


@pytest.mark.covering(1)
@pytest.mark.parametrize("size", SIZES)
@FORMS
def test_products_on_the_cpu(size: str, ta: bool, tb: bool, rng: Rng) -> None:
    arrays, want = two_matrices(rng, size, ta, tb)
    close(on_cpu(product(ta, tb), arrays)["C"], want)


@pytest.mark.parametrize("size, form, target", pairwise(["ragged", "K=0"], ALL_FORMS, GPUS))
def test_products(size: str, form: tuple[bool, bool], target: Target, rng: Rng) -> None:
    ta, tb = form
    arrays, want = two_matrices(rng, size, ta, tb)
    check(product(ta, tb), target, arrays, want)


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@TARGETS
@pytest.mark.parametrize("size", sorted(set(SIZES) - {"ragged", "K=0"}))
def test_other_sizes(size: str, target: Target, rng: Rng) -> None:
    arrays, want = two_matrices(rng, size, False, True)
    made = check(product(False, True), target, arrays, want)
    if target is SM90:
        by_tma = any(tma_ranks(f) for f in made)
        assert by_tma == (size in ("whole", "long rows"))


# --- batches ------------------------------------------------------------------------------------


def batch(rng: Rng, count: int, rows: int, columns: int, gap: int) -> np.ndarray:
    """A batch whose entries are `gap` elements further apart than they are long."""
    whole = aligned(rng.standard_normal((count, rows * columns + gap)).astype(np.float16))
    return np.ndarray(
        (count, rows, columns),
        whole.dtype,
        whole.base,
        whole.ctypes.data - whole.base.ctypes.data,  # type: ignore[union-attr]
        (whole.strides[0], 2 * columns, 2),
    )


BATCHES = {"close": (0, True), "gaps": (64, True), "odd gaps": (3, False)}


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("gap", BATCHES)
@pytest.mark.parametrize("target", [None, *GPUS], ids=lambda t: t.arch if t else "cpu")
def test_batched(gap: str, target: Target | None, rng: Rng) -> None:
    extra, by_tma = BATCHES[gap]
    a, w = batch(rng, 3, 70, 40, extra), batch(rng, 3, 40, 72, 2 * extra)
    arrays = {"A": a, "W": w, "C": blank(batch(rng, 3, 70, 72, extra))}
    want = a.astype(np.float64) @ w.astype(np.float64)
    if target is None:
        close(on_cpu(batched, arrays)["C"], want)
        return
    made = check(batched, target, arrays, want)
    if target is SM90:
        assert any(tma_ranks(f) == {3} for f in made) == by_tma


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize("target", [None, *GPUS], ids=lambda t: t.arch if t else "cpu")
def test_one_operand_for_the_whole_batch(target: Target | None, rng: Rng) -> None:
    one = aligned(rng.standard_normal((40, 72)).astype(np.float16))
    a = batch(rng, 2, 33, 40, 0)
    arrays = {"A": a, "W": np.broadcast_to(one, (2, 40, 72)), "C": blank(batch(rng, 2, 33, 72, 0))}
    want = a.astype(np.float64) @ one.astype(np.float64)
    bias = rng.standard_normal(72).astype(np.float32)
    shared = {
        "A": a,
        "W": aligned(one.T),
        "bias": bias,
        "C": aligned(np.full((2, 33, 72), np.nan, np.float32)),
    }
    if target is None:
        close(on_cpu(batched, arrays)["C"], want)
        close(on_cpu(batched_one_weight, shared)["C"], want + bias)
        return
    check(batched, target, arrays, want)
    made = check(batched_one_weight, target, shared, want + bias)
    if target is SM90:
        assert any(tma_ranks(f) == {2, 3} for f in made)


# --- groups -------------------------------------------------------------------------------------

GROUPS = {
    "uneven": [70, 0, 130, 1, 0, 17],
    "one": [100],
    "empty ends": [0, 0, 64, 65, 0],
    "nothing": [0, 0],
}


def groups(rng: Rng, sizes: list[int], transposed: bool) -> tuple[Arrays, np.ndarray]:
    n, k = 72, 40
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    a = aligned(rng.standard_normal((int(offsets[-1]), k)).astype(np.float16))
    b = aligned(rng.standard_normal((len(sizes), k, n)).astype(np.float16))
    spans = list(zip(offsets, offsets[1:]))
    parts = [a[s:e].astype(np.float64) @ b[g].astype(np.float64) for g, (s, e) in enumerate(spans)]
    c = aligned(np.full((len(a), n), np.nan, np.float16))
    given = aligned(b.transpose(0, 2, 1)) if transposed else b
    return {"A": a, "B": given, "offsets": offsets, "C": c}, np.concatenate(parts)


@pytest.mark.covering(2)
@pytest.mark.parametrize("persistent", [True, False], ids=["walking", "searching"])
@pytest.mark.parametrize("transposed", [False, True], ids=["NN", "NT"])
@pytest.mark.parametrize("sizes", GROUPS)
def test_grouped_on_the_cpu(sizes: str, transposed: bool, persistent: bool, rng: Rng) -> None:
    arrays, want = groups(rng, GROUPS[sizes], transposed)
    close(on_cpu(grouped(transposed, persistent=persistent), arrays)["C"], want)


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize(
    "transposed, persistent, target", pairwise([False, True], [True, False], GPUS)
)
def test_grouped(transposed: bool, persistent: bool, target: Target, rng: Rng) -> None:
    arrays, want = groups(rng, GROUPS["uneven"], transposed)
    made = check(grouped(transposed, persistent=persistent), target, arrays, want)
    if target is SM90:
        assert any(specialised(f) and tma_ranks(f) == {2, 3} for f in made)


@pytest.mark.parametrize("sizes", ["one", "empty ends", "nothing"])
def test_grouped_sizes(sizes: str, rng: Rng) -> None:
    for persistent in (True, False):
        arrays, want = groups(rng, GROUPS[sizes], True)
        check(grouped(True, persistent=persistent), SM90, arrays, want)


def test_many_groups(rng: Rng) -> None:
    arrays, want = groups(rng, [int(n) for n in rng.integers(0, 4, 64)], False)
    func = tile_func(grouped(False), arrays)
    done = run_plan(func, SM90, plans(func, SM90)[0])
    run_threads(done, SM90, arrays, 3)
    close(arrays["C"], want)


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("kernel", [grouped_with_break, grouped_in_while])
@pytest.mark.parametrize("target", [None, *GPUS], ids=lambda t: t.arch if t else "cpu")
def test_loops_that_end_early(kernel: Kernel, target: Target | None, rng: Rng) -> None:
    arrays, want = groups(rng, GROUPS["uneven"], False)
    if target is None:
        close(on_cpu(kernel, arrays)["C"], want)
        return
    made = check(kernel, target, arrays, want)
    if target is SM90:
        assert any(specialised(f) and tma_ranks(f) == {2, 3} for f in made)


@pytest.mark.parametrize("target", [None, *GPUS], ids=lambda t: t.arch if t else "cpu")
def test_rows_gathered_and_scattered(target: Target | None, rng: Rng) -> None:
    a, w = matrix(rng, 150, 40), aligned(rng.standard_normal((3, 72, 40)).astype(np.float16))
    index = rng.permutation(150)[:100].astype(np.int32)
    index[[3, 70]] = -1
    expert = np.array([2, 0], np.int32)
    c = aligned(np.full((150, 72), 77, np.float16))
    want = c.astype(np.float64)
    for at, row in enumerate(index):
        if row >= 0:
            want[row] = a[row].astype(np.float64) @ w[expert[at // 64]].T.astype(np.float64)
    arrays = {"A": a, "index": index, "expert": expert, "W": w, "C": c}
    if target is None:
        close(on_cpu(gathered, arrays)["C"], want)
        return
    check(gathered, target, arrays, want)


# --- far apart in memory --------------------------------------------------------------------------


def far(rng: Rng, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """Random numbers in memory that is mostly never touched; `strides` in elements."""
    whole = np.zeros(1 + sum((e - 1) * s for e, s in zip(shape, strides)) + 8, np.float16)
    start = -whole.ctypes.data % 16
    view = np.ndarray(shape, np.float16, whole, start, tuple(2 * s for s in strides))
    view[...] = rng.standard_normal(shape)
    return view


@TARGETS
@pytest.mark.parametrize("step", [2**30 + 64, 2**30 + 1], ids=["aligned", "odd"])
def test_rows_far_apart(step: int, target: Target, rng: Rng) -> None:
    a, b = far(rng, (4, 40), (step, 1)), far(rng, (40, 8), (72, 1))
    want = a.astype(np.float64) @ b.astype(np.float64)
    c = far(rng, (4, 8), (step, 1))
    func = tile_func(product(False, False), {"A": a, "B": b, "C": c}, True)
    for _, done in lowered(func, target):
        c[...] = np.nan
        run_threads(done, target, {"A": a, "B": b, "C": c}, 2)
        close(c, want)


@TARGETS
def test_batches_far_apart(target: Target, rng: Rng) -> None:
    step = 2**31 + 64
    a, w = far(rng, (3, 5, 40), (step, 40, 1)), far(rng, (3, 40, 8), (step, 8, 1))
    want = a.astype(np.float64) @ w.astype(np.float64)
    c = far(rng, (3, 5, 8), (step, 8, 1))
    func = tile_func(batched, {"A": a, "W": w, "C": c}, True)
    for _, done in lowered(func, target):
        c[...] = np.nan
        run_threads(done, target, {"A": a, "W": w, "C": c}, 2)
        close(c, want)


def test_far_apart_on_the_cpu(rng: Rng) -> None:
    step = 2**31 + 64
    a, w = far(rng, (3, 5, 40), (step, 40, 1)), far(rng, (3, 40, 8), (step, 8, 1))
    c = far(rng, (3, 5, 8), (step, 8, 1))
    tilec.kernel(batched)(a, w, c)
    close(c, a.astype(np.float64) @ w.astype(np.float64))
