"""A condition on the indices of an element loop is asked once for the whole tile, where a corner
decides it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from frontend_help import ops, traced
from interp import run_tile

import tilec
import tilec.language as T
from tilec.ir.core import Func
from tilec.ir.ops import Binary, Compare, Copy, For, If, Parallel, Select
from tilec.ir.verify import verify
from tilec.passes.recognise_idioms import recognise_idioms
from tilec.passes.simplify import simplify
from tilec.passes.version_loops import version_loops
from tilec.target import TARGETS

M, N, P = T.dynamic("M, N, P")
TARGET = TARGETS["cuda:sm_90a"]


def below(
    A: T.Tensor((M, N), "float32"), E: T.Tensor((P,), "int32"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(M, 8), threads=32) as b:
        tile = T.alloc_shared((8, 16), "float32")
        T.copy(A[b * 8, 0], tile)
        for i, j in T.Parallel(8, 16):
            if b * 8 + i < E[0]:
                C[b * 8 + i, j] = tile[i, j]


def between(
    A: T.Tensor((M, N), "float32"), E: T.Tensor((P,), "int32"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(M, 8), threads=32) as b:
        end = E[0]
        for i, j in T.Parallel(8, 16):
            if b * 8 + i >= 3 and j * 2 - i <= end:
                C[b * 8 + i, j] = A[b * 8 + i, j]


def diagonal(
    A: T.Tensor((M, N), "float32"), E: T.Tensor((P,), "int32"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(M, 8), threads=32) as b:
        for i, j in T.Parallel(8, 16):
            if b * 8 + i == j:
                C[b * 8 + i, j] = A[b * 8 + i, j]


def by_element(
    A: T.Tensor((M, N), "float32"), E: T.Tensor((P,), "int32"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(M, 8), threads=32) as b:
        for i, j in T.Parallel(8, 16):
            if j < E[i]:
                C[b * 8 + i, j] = A[b * 8 + i, j]


def otherwise(
    A: T.Tensor((M, N), "float32"), E: T.Tensor((P,), "int32"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(M, 8), threads=32) as b:
        end = E[0]
        for i, j in T.Parallel(8, 16):
            if b * 8 + i < end:
                C[b * 8 + i, j] = A[b * 8 + i, j]
            else:
                C[b * 8 + i, j] = -A[b * 8 + i, j]


def inside(
    A: T.Tensor((M, N), "float32"), E: T.Tensor((P,), "int32"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(M, 8), threads=32) as b:
        for i, j in T.Parallel(8, 16):
            if b * 8 + i < M and j < N:
                C[b * 8 + i, j] = A[b * 8 + i, j] * 2.0


def arrays(rng: np.random.Generator, end: int) -> dict[str, np.ndarray]:
    return {
        "A": rng.standard_normal((21, 16)).astype(np.float32),
        "E": np.array([end, *rng.integers(0, 16, 7)], np.int32),
        "C": np.full((21, 16), 77, np.float32),
    }


def split(kernel: Callable[..., Any], held: dict[str, np.ndarray]) -> tuple[Func, Func]:
    before = simplify(traced(kernel, held), TARGET)
    after = recognise_idioms(version_loops(before, TARGET), TARGET)
    verify(after, "TILE")
    return before, after


@pytest.mark.parametrize("end", [-2, 0, 1, 8, 13, 21, 99])
@pytest.mark.parametrize("kernel", [below, between, diagonal, by_element, otherwise, inside])
def test_numbers_stay(kernel: Callable[..., Any], end: int, rng: np.random.Generator) -> None:
    held = arrays(rng, end)
    before, after = split(kernel, held)
    got = []
    for func in (before, after):
        mine = {k: v.copy() for k, v in held.items()}
        run_tile(func, mine)
        got.append(mine["C"])
    np.testing.assert_array_equal(got[0], got[1])


def test_the_whole_tile_leaves_as_a_copy(rng: np.random.Generator) -> None:
    for kernel in (below, between):
        _, after = split(kernel, arrays(rng, 5))
        (outer, *_) = [o for o in after.body.ops if isinstance(o, If)]
        assert any(isinstance(o, Copy) for o in outer.then.ops)
        assert any(isinstance(o, Parallel) for o in outer.orelse.ops)


def test_where_a_tile_leaves_its_tensors_nobody_asks_again(rng: np.random.Generator) -> None:
    """There is one form of the loop there, guarded; where another number bounds it, two."""
    for kernel, known in ((inside, True), (below, False)):
        _, after = split(kernel, arrays(rng, 5))
        (left,) = (o for x in after.body.every(If) for o in x.orelse.every(Parallel))
        assert left.outside == known
    held = [np.zeros((21, 16), np.float32), np.zeros(8, np.int32), np.zeros((21, 16), np.float32)]
    compiled = tilec.kernel(inside).compile(*held, target="cuda:sm_90a")
    assert compiled.stages["lower_parallel"].count("mem_store %C") == 2


def test_what_no_corner_decides_stays(rng: np.random.Generator) -> None:
    for kernel in (diagonal, by_element, otherwise):
        before, _ = split(kernel, arrays(rng, 5))
        assert version_loops(before, TARGET) is before
        assert len(ops(before, Parallel)) == 1


def masked(
    A: T.Tensor((M, N), "float32"), E: T.Tensor((P,), "int32"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(M, 8), threads=32) as b:
        part, total = T.alloc_fragment((8, 4), "float32"), T.alloc_fragment((8, 4), "float32")
        T.clear(total)
        for n in T.Pipelined(4, num_stages=0):
            T.copy(A[b * 8, n * 4], part)
            for i, j in T.Parallel(8, 4):
                part[i, j] = T.if_then_else(n * 4 + j <= b * 8 + i, part[i, j], -1)
            for i, j in T.Parallel(8, 4):
                total[i, j] += part[i, j]
        for i, j in T.Parallel(8, 4):
            C[b * 8 + i, j] = total[i, j]


def mirrored(
    A: T.Tensor((M, N), "float32"), E: T.Tensor((P,), "int32"), C: T.Tensor((M, N), "float32")
):
    """The element that stays is another one."""
    with T.Kernel(T.ceildiv(M, 8), threads=32) as b:
        part, other = T.alloc_fragment((8, 4), "float32"), T.alloc_fragment((8, 4), "float32")
        for n in T.Pipelined(4, num_stages=0):
            T.copy(A[b * 8, n * 4], part)
            for i, j in T.Parallel(8, 4):
                other[i, j] = T.if_then_else(n * 4 + j <= b * 8 + i, part[i, j], -1)
            for i, j in T.Parallel(8, 4):
                C[b * 8 + i, n * 4 + j] = other[i, j]


def test_elements_that_stay_are_left_alone(rng: np.random.Generator) -> None:
    """A mask behind what it masks: there is no loop where all of a tile is seen."""
    held = arrays(rng, 5)
    before, after = split(masked, held)
    (loop,) = ops(after, For)
    (branch,) = [o for o in loop.body.ops if isinstance(o, If)]
    assert len(branch.then.ops) == 1 and any(isinstance(o, Parallel) for o in branch.orelse.ops)
    seen = np.arange(16)[None] <= np.arange(21)[:, None]
    want = np.where(seen, held["A"], np.float32(-1)).reshape(21, 4, 4)
    for func in (before, after):
        mine = {k: v.copy() for k, v in held.items()}
        run_tile(func, mine)
        np.testing.assert_allclose(mine["C"][:, :4], want.sum(1), rtol=1e-5)
    kept, _ = split(mirrored, held)
    assert version_loops(kept, TARGET) is kept


def scaled_and_masked(
    A: T.Tensor((M, N), "float32"), E: T.Tensor((P,), "int32"), C: T.Tensor((M, N), "float32")
):
    """What stays of an element is what is made of it."""
    with T.Kernel(T.ceildiv(M, 8), threads=32) as b:
        part, total = T.alloc_fragment((8, 4), "float32"), T.alloc_fragment((8, 4), "float32")
        T.clear(total)
        for n in T.Pipelined(4, num_stages=0):
            T.copy(A[b * 8, n * 4], part)
            for i, j in T.Parallel(8, 4):
                scaled = part[i, j] * 0.5
                part[i, j] = T.if_then_else(n * 4 + j <= b * 8 + i, scaled, -1)
            for i, j in T.Parallel(8, 4):
                total[i, j] += part[i, j]
        for i, j in T.Parallel(8, 4):
            C[b * 8 + i, j] = total[i, j]


def test_a_mask_of_what_is_made_of_an_element(rng: np.random.Generator) -> None:
    """Most tiles are scaled alone."""
    held = arrays(rng, 5)
    before, after = split(scaled_and_masked, held)
    (loop,) = ops(after, For)
    (branch,) = [o for o in loop.body.ops if isinstance(o, If)]
    (seen_whole,) = [o for o in branch.then.ops if isinstance(o, Parallel)]
    (in_part,) = [o for o in branch.orelse.ops if isinstance(o, Parallel)]
    assert not seen_whole.body.has(Select) and in_part.body.has(Select)
    seen = np.arange(16)[None] <= np.arange(21)[:, None]
    want = np.where(seen, held["A"] * np.float32(0.5), np.float32(-1)).reshape(21, 4, 4)
    for func in (before, after):
        mine = {k: v.copy() for k, v in held.items()}
        run_tile(func, mine)
        np.testing.assert_allclose(mine["C"][:, :4], want.sum(1), rtol=1e-5)


def masked_by_what_is_loaded(
    A: T.Tensor((M, N), "float32"), E: T.Tensor((P,), "int32"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(M, 8), threads=32) as b:
        part, total = T.alloc_fragment((8, 4), "float32"), T.alloc_fragment((8, 4), "float32")
        T.clear(total)
        for n in T.Pipelined(4, num_stages=0):
            T.copy(A[b * 8, n * 4], part)
            for i, j in T.Parallel(8, 4):
                part[i, j] = T.if_then_else(n * 4 + j < E[0], part[i, j], -1)
            for i, j in T.Parallel(8, 4):
                total[i, j] += part[i, j]
        for i, j in T.Parallel(8, 4):
            C[b * 8 + i, j] = total[i, j]


@pytest.mark.parametrize("end", [0, 5, 8, 16])
def test_what_a_mask_is_compared_with_may_be_loaded(end: int, rng: np.random.Generator) -> None:
    held = arrays(rng, end)
    before, after = split(masked_by_what_is_loaded, held)
    (loop,) = ops(after, For)
    assert any(isinstance(o, If) and len(o.then.ops) == 1 for o in loop.body.ops)
    want = np.where(np.arange(16)[None] < end, held["A"], np.float32(-1)).reshape(21, 4, 4)
    for func in (before, after):
        mine = {k: v.copy() for k, v in held.items()}
        run_tile(func, mine)
        np.testing.assert_allclose(mine["C"][:, :4], want.sum(1), rtol=1e-5)


def banded(
    A: T.Tensor((M, N), "float32"), E: T.Tensor((P,), "int32"), C: T.Tensor((M, N), "float32")
):
    """A window: the first tiles that a block sees are cut on one side, the last ones on the other,
    where E[0] is small on both."""
    with T.Kernel(T.ceildiv(M, 8), threads=32) as b:
        part, total = T.alloc_fragment((8, 4), "float32"), T.alloc_fragment((8, 4), "float32")
        width = E[0]
        T.clear(total)
        for n in T.Pipelined(4, num_stages=0):
            for i, j in T.Parallel(8, 4):
                seen = n * 4 + j <= b * 8 + i and n * 4 + j > b * 8 + i - width
                part[i, j] = T.if_then_else(seen, T.float32(1), T.float32(-1))
            for i, j in T.Parallel(8, 4):
                total[i, j] = total[i, j] * 3 + part[i, j]
        for i, j in T.Parallel(8, 4):
            C[b * 8 + i, j] = total[i, j]


@pytest.mark.parametrize("width", [1, 6, 12, 40])
def test_one_side_of_a_mask_is_asked_for_alone(width: int, rng: np.random.Generator) -> None:
    held = arrays(rng, 5)
    held["E"][0] = width
    before, after = split(banded, held)
    (loop,) = ops(after, For)
    (whole,) = [o for o in loop.body.ops if isinstance(o, If)]
    compares = []
    block = whole.orelse
    while branches := [o for o in block.ops if isinstance(o, If)]:
        (branch,) = branches
        (side,) = [o for o in branch.then.ops if isinstance(o, Parallel)]
        compares.append([o.kind for o in conditions(side)])
        block = branch.orelse
    assert sorted(compares) == [["gt"], ["le"]]
    (both,) = [o for o in block.ops if isinstance(o, Parallel)]
    assert len(conditions(both)) == 2
    at, column = np.arange(21)[:, None], np.arange(16)[None]
    seen = np.where((column <= at) & (column > at - width), 1.0, -1.0).reshape(21, 4, 4)
    want = sum(seen[:, n] * 3.0 ** (3 - n) for n in range(4))
    for func in (before, after):
        mine = {k: v.copy() for k, v in held.items()}
        run_tile(func, mine)
        np.testing.assert_array_equal(mine["C"][:, :4], want)


def causal(
    A: T.Tensor((M, N), "float32"), E: T.Tensor((P,), "int32"), C: T.Tensor((M, N), "float32")
):
    """What a row sees ends with it, or with the columns."""
    with T.Kernel(T.ceildiv(M, 8), threads=32) as b:
        part, total = T.alloc_fragment((8, 4), "float32"), T.alloc_fragment((8, 4), "float32")
        T.clear(total)
        for n in T.Pipelined(5, num_stages=0):
            for i, j in T.Parallel(8, 4):
                seen = n * 4 + j < N and n * 4 + j <= b * 8 + i
                part[i, j] = T.if_then_else(seen, T.float32(1), T.float32(-1))
            for i, j in T.Parallel(8, 4):
                total[i, j] = total[i, j] * 3 + part[i, j]
        for i, j in T.Parallel(8, 4):
            C[b * 8 + i, j] = total[i, j]


def test_two_bounds_of_a_column_are_one(rng: np.random.Generator) -> None:
    held = arrays(rng, 5)
    before, after = split(causal, held)
    (loop,) = ops(after, For)
    (whole,) = [o for o in loop.body.ops if isinstance(o, If)]
    (masked,) = [o for o in whole.orelse.ops if isinstance(o, Parallel)]
    (compare,) = conditions(masked)
    assert compare.kind == "le"
    rows, columns = held["A"].shape
    at, column = np.arange(rows)[:, None], np.arange(20)[None]
    seen = np.where((column < columns) & (column <= at), 1.0, -1.0).reshape(rows, 5, 4)
    want = sum(seen[:, n] * 3.0 ** (4 - n) for n in range(5))
    for func in (before, after):
        mine = {k: v.copy() for k, v in held.items()}
        run_tile(func, mine)
        np.testing.assert_array_equal(mine["C"][:, :4], want)


def conditions(loop: Parallel) -> list[Compare]:
    """The comparisons that what an element loop chooses depends on."""
    made = {r: o for o in loop.body.ops for r in o.results}
    (choice,) = [o for o in loop.body.ops if isinstance(o, Select)]
    found, left = [], [choice.cond]
    while left:
        o = made[left.pop()]
        left += o.operands if isinstance(o, Binary) else []
        found += [o] if isinstance(o, Compare) else []
    return found
