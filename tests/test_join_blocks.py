"""join_blocks: several of the author's blocks are one with a larger tile, where nobody sees it."""

import functools
from typing import Any

import numpy as np
import pytest
from form_help import GPUS, SM90, close, on_threads, tile_func

import tilec
import tilec.language as T
from tilec.ir.core import Func
from tilec.ir.ops import Alloc, Gemm, yielded
from tilec.ir.verify import verify
from tilec.passes.join_blocks import join_blocks, ways_to_join

pytestmark = pytest.mark.usefixtures("unassembled")

M, N, K = T.dynamic("M, N, K")
SIZES = (80, 72, 48)
ONES = (1, 1, 1)


def product(bm: int = 16, bn: int = 16, dtype: str = "float16", **how: Any) -> Any:
    """C = A B, with what else stands in `how`."""
    m, n, k = how.get("sizes", SIZES)
    total = "int32" if dtype == "int8" else "float32"
    b_shape = (n, k) if "across" in how else (k, n)
    rows = {"ceil": T.ceildiv(m, bm), "floor": m // bm}[how.get("grid", "ceil")]

    def kernel(A: T.Tensor((m, k), dtype), B: T.Tensor(b_shape, dtype),
               C: T.Tensor((m, n), total), bias: T.Tensor((n,), "float32")):  # fmt: skip
        with T.Kernel(T.ceildiv(n, bn), rows, threads=how.get("threads", 128)) as (bx, by):
            a = T.alloc_shared((bm, 16), dtype)
            b = T.alloc_shared((bn, 16) if "across" in how else (16, bn), dtype)
            acc = T.alloc_fragment((bm, bn), total)
            most = T.alloc_fragment((bm,), total)
            if "said" in how:
                T.annotate_schedule(**how["said"])
            T.clear(acc)
            for step in T.Pipelined(T.ceildiv(k, 16), num_stages=2):
                T.copy(A[by * bm, step * 16], a)
                if "across" in how:
                    T.copy(B[bx * bn, step * 16], b)
                else:
                    T.copy(B[step * 16, bx * bn], b)
                T.gemm(a, b, acc, transpose_B="across" in how)
            if "epilogue" in how:
                for i, j in T.Parallel(bm, bn):
                    row, column = by * bm + i, bx * bn + j
                    acc[i, j] = T.if_then_else(row >= column, acc[i, j] + bias[column], row // 3)
            if "block" in how:
                for i, j in T.Parallel(bm, bn):
                    acc[i, j] += bx
            if "within" in how:
                for i, j in T.Parallel(bm, bn):
                    acc[i, j] += i
            if "largest" in how:
                T.reduce_max(acc, most, dim=1)
                for i, j in T.Parallel(bm, bn):
                    acc[i, j] -= most[i]
            if "part" in how:
                T.fill(acc[0 : bm // 2, :], 1)
            if "stored" in how:
                for i, j in T.Parallel(bm, bn):
                    C[by * bm + i, bx * bn + j] = acc[i, j]
            else:
                T.copy(acc, C[by * bm, bx * bn])

    return kernel


def arrays(dtype: str = "float16", sizes: tuple[int, int, int] = SIZES, **how: Any) -> Any:
    rng = np.random.default_rng(3)
    m, n, k = sizes
    a, b = (
        rng.integers(-4, 5, shape).astype(dtype)
        for shape in ((m, k), (n, k) if "across" in how else (k, n))
    )
    c = np.zeros((m, n), "int32" if dtype == "int8" else "float32")
    return {"A": a, "B": b, "C": c, "bias": rng.standard_normal(n).astype(np.float32)}


def wanted(held: Any, **how: Any) -> np.ndarray:
    b = held["B"].T if "across" in how else held["B"]
    out = held["A"].astype(np.float64) @ b.astype(np.float64)
    if "epilogue" in how:
        row, column = np.indices(out.shape)
        out = np.where(row >= column, out + held["bias"], row // 3)
    return out


def joined(held: Any, ways: tuple[int, int, int], target: Any = SM90, **how: Any) -> Func:
    func = tile_func(product(**how), held)
    return join_blocks(func.with_attrs(joined=ways), target)


@pytest.mark.parametrize("target", GPUS, ids=str)
@pytest.mark.parametrize(
    ("ways", "how"),
    [
        ((2, 2, 1), {}),
        ((4, 2, 1), {"epilogue": True, "across": True}),
        ((3, 1, 1), {"stored": True, "epilogue": True}),
        ((1, 5, 1), {"dtype": "int8", "across": True}),
        ((2, 3, 1), {"bm": 20, "bn": 12}),
        ((3, 2, 1), {"sizes": (50, 33, 20), "stored": True}),
        ((2, 2, 1), {"sizes": (M, N, K)}),
    ],
)
def test_the_larger_tile_gives_the_same(target: Any, ways: Any, how: dict[str, Any]) -> None:
    given = {**how, "sizes": (70, 56, 40)} if M in how.get("sizes", ()) else how
    held = arrays(**given)
    func = joined(held, ways, target, **how)
    verify(func, "TILE")
    sides = how.get("bm", 16) * ways[1], how.get("bn", 16) * ways[0]
    (gemm,) = func.body.every(Gemm)
    assert gemm.shape[:2] == sides
    assert "joined" not in func.attrs and func.attrs["threads"] is None
    for _, _, out in on_threads(func, target, held):
        close(out["C"], wanted(held, **how))


def may_grow(**how: Any) -> set[tuple[bool, bool]]:
    """Along which of the dimensions 0 and 1 of the grid some way joins blocks."""
    found = ways_to_join(tile_func(product(**how), arrays(**how)), SM90)
    return {(x > 1, y > 1) for x, y, _ in found}


LARGE = {"sizes": (512, 512, 64), "bm": 32, "bn": 32}


def test_blocks_are_joined_along_sides_that_nobody_sees() -> None:
    assert (True, True) in may_grow(**LARGE)
    assert (True, True) in may_grow(**LARGE, epilogue=True, stored=True)
    # A row's largest is of the author's columns; a number of the block, of its own element.
    assert may_grow(**LARGE, largest=True) == {(False, True)}
    assert may_grow(**LARGE, block=True) == {(False, True)}
    assert may_grow(**LARGE, within=True) == {(True, False)}
    assert may_grow(**LARGE, part=True) == {(True, False)}


def test_blocks_beyond_the_author_s_grid_store_nothing() -> None:
    """Where his grid leaves rows out, only whole numbers of its blocks are joined."""
    odd = {"sizes": (7 * 32 + 5, 512, 64), "bm": 32, "bn": 32}
    assert (True, True) in may_grow(**odd)
    assert may_grow(**odd, grid="floor") == {(True, False), (True, True)}  # seven are one
    assert all(y in (1, 7) for _, y, _ in ways_to_join(
        tile_func(product(**odd, grid="floor"), arrays(**odd)), SM90))  # fmt: skip
    dynamic = product(32, 32, sizes=(M, N, K))
    assert ways_to_join(tile_func(dynamic, arrays(sizes=(512, 512, 64))), SM90)
    floor = product(32, 32, sizes=(M, N, K), grid="floor")
    found = ways_to_join(tile_func(floor, arrays(sizes=(512, 512, 64))), SM90)
    assert {y for _, y, _ in found} == {1}


def test_what_the_author_fixed_stays() -> None:
    assert may_grow(**LARGE, said={"stages": 3}) == set()
    assert may_grow(sizes=(512, 512, 64), bm=128, bn=256) == set()


def test_a_dynamic_grid_is_rounded_up() -> None:
    func = joined(arrays(sizes=(70, 56, 40)), (2, 4, 1), sizes=(M, N, K))
    defs = func.grid.defs
    assert [defs[v].kind for v in yielded(func.grid)] == ["floordiv", "floordiv"]  # type: ignore[attr-defined]
    shapes = {o.result.name: o.type.shape for o in func.body.every(Alloc)}
    assert shapes == {"a": (64, 16), "b": (16, 32), "acc": (64, 32), "most": (16,)}
    assert joined(arrays(), ONES).attrs["threads"] == 128


@functools.cache
def compiled(size: int, bm: int = 32, bn: int = 32) -> Any:
    kernel = tilec.kernel(product(bm, bn, sizes=(size, size, size)))
    specs = [tilec.spec((size, size), d) for d in ("float16", "float16", "float32")]
    return kernel, kernel.compile(*specs, tilec.spec((size,), "float32"), target="cuda:sm_90a")


def test_a_launch_has_fewer_blocks() -> None:
    """Products of 2048 in tiles of 32 load six times less, and are predicted in a fourth of the
    time; where there are too few blocks they stay."""
    kernel, made = compiled(2048)
    assert made.plan.joined == (4, 4, 1) and made.image.grid == "(16, 16, 1)"
    specs = [tilec.spec((2048, 2048), d) for d in ("float16", "float16", "float32")]
    found = kernel.recommend(*specs, tilec.spec((2048,), "float32"), target="cuda:sm_90a")
    best = found[0].estimate
    assert best.l2_bytes < 4e8 and best.seconds < 40e-6
    assert "joined=4x4x1" in made.stages["plan"]
    assert compiled(256)[1].plan.joined == ONES


def test_the_simulator_agrees() -> None:
    kernel, _ = compiled(1024, 16, 16)
    held = arrays(sizes=(1024, 1024, 1024))
    report = tilec.simulate(kernel, *held.values(), target="cuda:sm_90a", blocks=1)
    assert report.ok and "joined" in report.plan
    tile = held["C"][:64, :64]
    close(tile, wanted(held)[:64, :64])
