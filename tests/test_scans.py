"""Running sums and maxima of tiles, and conditions about all elements of one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from frontend_help import ops, run, traced
from simulated import run as launch

import tilec
import tilec.language as T
from tilec.ir.core import Func
from tilec.ir.errors import CompileError
from tilec.ir.ops import Barrier, Parallel, Scan
from tilec.ir.parser import parse_func
from tilec.jit.simulate import simulate_changed

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
TARGETS = ("cpu", *GPUS)
M, N, K, X, Y, Z = T.dynamic("M, N, K, X, Y, Z")


def scanned(x: np.ndarray, dim: int, kind: str, reverse: bool) -> np.ndarray:
    one = np.add.accumulate if kind == "sum" else np.maximum.accumulate
    wide = x.astype(np.float64)
    return np.flip(one(np.flip(wide, dim), dim), dim) if reverse else one(wide, dim)


# (shape, dim, kind, source's dtype, destination's, spaces, threads, reverse, in place)
Case = tuple[tuple[int, ...], int, str, str, str, str, int, bool, bool]
CASES: list[Case] = [
    ((128,), 0, "sum", "float32", "float32", "ss", 128, False, True),
    ((1000,), 0, "sum", "float32", "float32", "ff", 128, True, True),
    ((1,), 0, "max", "float32", "float32", "ff", 64, True, True),
    ((17,), 0, "sum", "float16", "float32", "ff", 128, False, False),
    ((64, 33), 1, "sum", "float16", "float16", "fs", 64, False, False),
    ((64, 33), 0, "max", "int32", "int32", "sf", 256, True, False),
    ((16, 16), 1, "max", "float64", "float64", "ss", 1024, False, True),
    ((32, 64), -1, "sum", "float32", "float16", "ss", 192, True, False),
    ((100, 100), 1, "sum", "float32", "float32", "ff", 128, True, True),
    ((3, 100, 5), -2, "sum", "int8", "int32", "ff", 192, True, False),
    ((5000,), 0, "sum", "int32", "int32", "sf", 256, False, False),
    ((2, 1156), 1, "max", "float32", "float32", "ss", 128, True, True),
    ((4, 31), 1, "sum", "float32", "float32", "ss", 128, False, True),
]


def test_a_thread_asks_for_a_piece_at_once() -> None:
    """8192 elements are 482 pieces, these 29, which one thread has: five steps, in each of which
    loads stand side by side."""

    @tilec.kernel
    def running(A: T.Tensor((8192,), "int32"), C: T.Tensor((8192,), "int32")):
        with T.Kernel(1, threads=256):
            x = T.alloc_shared((8192,), "int32")
            T.copy(A, x)
            T.cumsum(x)
            T.copy(x, C)

    half = [tilec.spec((8192,), "int32")] * 2
    stages = running.compile(*half, target="cuda:sm_90a").stages
    loops = [o.extents for o in ops(parse_func(stages["lower_scans"]), Parallel)]
    assert loops == [(482,), (29,), (1,), (29,), (482,)]
    runs = re.findall(r"(?:\tld\.shared.*\n){17}", stages["ptx"])
    assert len(runs) >= 2


@pytest.mark.covering(1)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_numbers(target: str, case: Case, rng: np.random.Generator) -> None:
    shape, dim, kind, source, dest, spaces, threads, reverse, in_place = case
    scan = T.cumsum if kind == "sum" else T.cummax

    @tilec.kernel
    def running(A: T.Tensor(shape, source), C: T.Tensor(shape, dest)):
        with T.Kernel(1, threads=threads):
            if spaces[0] == "f":
                x = T.alloc_fragment(shape, source)
            else:
                x = T.alloc_shared(shape, source)
            T.copy(A, x)
            if in_place:
                scan(x, dim=dim, reverse=reverse)
                T.copy(x, C)
            else:
                y = (
                    T.alloc_fragment(shape, dest)
                    if spaces[1] == "f"
                    else T.alloc_shared(shape, dest)
                )
                scan(src=x, dst=y, dim=dim, reverse=reverse)
                T.copy(y, C)

    A, C = rng.integers(-4, 5, shape).astype(source), np.zeros(shape, dest)
    launch(running, target, A, C)
    assert np.array_equal(C.astype(np.float64), scanned(A, dim, kind, reverse))


@tilec.kernel
def of_halves(A: T.Tensor((4096,), "float16"), C: T.Tensor((4096,), "float16")):
    with T.Kernel(1, threads=128):
        x = T.alloc_shared((4096,), "float16")
        T.copy(A, x)
        T.cumsum(x)
        T.copy(x, C)


@pytest.mark.parametrize("target", TARGETS)
def test_halves_are_summed_in_float32(target: str) -> None:
    """In float16 a sum of ones ends at 2048."""
    C = np.zeros(4096, np.float16)
    launch(of_halves, target, np.ones(4096, np.float16), C)
    assert np.array_equal(C, np.arange(1, 4097).astype(np.float16))


@tilec.kernel
def in_a_loop(
    A: T.Tensor((M, 40, 48), "float32"),
    flags: T.Tensor((M,), "int32"),
    C: T.Tensor((M, 40, 48), "float32"),
):
    with T.Kernel(1, threads=128):
        x = T.alloc_shared((40, 64), "float32")
        for m in T.Pipelined(M, num_stages=2):
            T.copy(A[m, :, :], x[:, 8:56])
            if flags[m] > 0:
                T.cumsum(x[0:40, 8:56], x[0:40, 8:56], dim=1)
                T.cummax(x[4:40, 8:56], dim=0)
            T.copy(x[:, 8:56], C[m, :, :])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", TARGETS)
def test_regions_in_loops_and_branches(target: str, rng: np.random.Generator) -> None:
    A = rng.integers(-4, 5, (3, 40, 48)).astype(np.float32)
    flags, C = np.array([1, 0, 2], np.int32), np.zeros_like(A)
    want = A.copy()
    for m in (0, 2):
        want[m] = want[m].cumsum(1)
        want[m, 4:] = np.maximum.accumulate(want[m, 4:], 0)
    launch(in_a_loop, target, A, flags, C)
    assert np.array_equal(C, want)


def test_meaning(rng: np.random.Generator) -> None:
    A = rng.integers(-4, 5, (1, 40, 48)).astype(np.float32)
    args = {"A": A, "flags": np.ones(1, np.int32), "C": np.zeros_like(A)}
    want = A[0].cumsum(1)
    want[4:] = np.maximum.accumulate(want[4:], 0)
    assert np.array_equal(run(in_a_loop.function, args)["C"][0], want)
    assert len(ops(traced(in_a_loop.function, args), Scan)) == 2


@pytest.mark.parametrize("target", GPUS)
def test_threads_meet_between_its_loops(target: str) -> None:
    dropped = []

    def without_barriers(func: Func) -> Func:
        dropped.extend(ops(func, Barrier))
        return func.rewrite(Barrier, lambda o: [])

    args = [np.ones(4096, np.float16), np.zeros(4096, np.float16)]
    report = simulate_changed(without_barriers, of_halves, *args, target=target)
    races = [f for f in report.findings if f.kind == "data race"]
    lines = {place.source_line().strip() for f in races for place in f.locations}
    assert len(dropped) >= 3 and "T.cumsum(x)" in lines


# --- conditions -----------------------------------------------------------------------------------


@tilec.kernel
def block_sparse(
    mask: T.Tensor((X, Y, Z, 3), "bool"),
    A: T.Tensor((N, K), "float16"),
    B: T.Tensor((K, M), "float16"),
    C: T.Tensor((N, M), "float32"),
    needed: T.constexpr = "any",
    held: T.constexpr = "tensor",
):
    with T.Kernel(T.ceildiv(M, 64), T.ceildiv(N, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        some = T.alloc_shared((3,), "bool")
        own = T.alloc_fragment((3,), "bool")
        test = T.any_of if needed == "any" else T.all_of
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            if held == "tensor":
                wanted = test(mask[bx, by, k, :])
            elif held == "shared":
                for i in T.Parallel(3):
                    some[i] = mask[bx, by, k, i]
                wanted = test(some)
            else:
                for i in T.Parallel(3):
                    own[i] = mask[bx, by, k, i]
                wanted = test(own)
            if wanted:
                T.copy(A[by * 64, k * 32], a)
                T.copy(B[k * 32, bx * 64], b)
                T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


@pytest.mark.covering(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("held", ("tensor", "shared", "fragment"))
@pytest.mark.parametrize("needed", ("any", "all"))
@pytest.mark.parametrize("target", TARGETS)
def test_conditions_around_products(
    target: str, needed: str, held: str, rng: np.random.Generator
) -> None:
    A, B = (rng.integers(-2, 3, s).astype(np.float16) for s in ((128, 128), (128, 128)))
    mask = rng.integers(0, 2, (2, 2, 4, 3)) > 0
    mask[0, 0, 0], mask[1, 1, 2] = False, True
    C, want = np.zeros((128, 128), np.float32), np.zeros((128, 128), np.float32)
    reduced = getattr(mask, needed)(-1)
    for x, y, k in np.ndindex(2, 2, 4):
        if reduced[x, y, k]:
            rows, columns, depth = (slice(n * e, n * e + e) for n, e in ((y, 64), (x, 64), (k, 32)))
            want[rows, columns] += A[rows, depth].astype(np.float32) @ B[depth, columns]
    if target == "cpu":
        block_sparse(mask, A, B, C, needed=needed, held=held)
    else:
        meta = {"needed": needed, "held": held}
        report = tilec.simulate(block_sparse, mask, A, B, C, target=target, **meta)
        assert report.ok, report
    assert np.array_equal(C, want)


@tilec.kernel
def conditions(A: T.Tensor((4, 6), "float32"), C: T.Tensor((4,), "int32")):
    with T.Kernel(1, threads=64):
        C[0] = T.any_of(A)
        C[1] = T.all_of(A)
        C[2] = T.any_of(A[0:2, 1:3])
        C[3] = T.if_then_else(T.all_of(A[2:4, :]), 7, 9)


@pytest.mark.parametrize("target", TARGETS)
def test_conditions_of_numbers(target: str) -> None:
    A, C = np.zeros((4, 6), np.float32), np.full(4, -1, np.int32)
    A[2:] = -0.25
    A[3, 3] = np.nan
    launch(conditions, target, A, C)
    assert C.tolist() == [1, 0, 0, 7]
    A[1, 2], A[2, 5] = 3, -0.0
    launch(conditions, target, A, C)
    assert C.tolist() == [1, 0, 1, 9]


# --- mistakes -------------------------------------------------------------------------------------


def compiled(body: Callable[[Any], None], target: str = "cpu") -> None:
    @tilec.kernel
    def kernel(C: T.Tensor((8, 16), "float32")):
        with T.Kernel(1, threads=64):
            body(C)

    kernel.compile(np.zeros((8, 16), np.float32), target=target)


def test_mistakes() -> None:
    def tensor(C: Any) -> None:
        T.cumsum(C)

    def shapes(_: Any) -> None:
        x, y = T.alloc_shared((8, 16), "float32"), T.alloc_shared((16, 8), "float32")
        T.cummax(x, y)

    def dimension(_: Any) -> None:
        x = T.alloc_shared((8, 16), "float32")
        T.cumsum(x, dim=2)

    def bools(_: Any) -> None:
        x = T.alloc_shared((8, 16), "bool")
        T.cumsum(x, dim=1)

    def inside(_: Any) -> None:
        x = T.alloc_shared((8, 16), "float32")
        for _ in T.Parallel(8):
            T.cumsum(x, dim=1)

    def number(_: Any) -> None:
        T.any_of(3)

    for body, match in (
        (tensor, "src of T.cumsum is C .*; it must be a fragment or a shared tile"),
        (shapes, "T.cummax of x .* gives a tile of that shape, but dst is y"),
        (dimension, "dim of T.cumsum is the int 2, but x .* has 2 dimensions"),
        (bools, "T.cumsum is of numbers, not of x"),
        (inside, "T.cumsum works on whole tiles"),
        (number, "the argument of T.any_of is the int 3"),
    ):
        with pytest.raises(CompileError, match=match):
            compiled(body)

    def by_thread(_: Any) -> None:
        x = T.alloc_shared((8, 16), "float32")
        own = T.alloc_local((1,), "int32")
        T.fill(own, T.get_thread_binding())
        if own[0] < 7:
            T.cumsum(x, dim=1)

    with pytest.raises(CompileError, match="T.cumsum needs every thread of its scope"):
        compiled(by_thread, "cuda:sm_90a")


def test_it_is_gone_before_plans_are_made() -> None:
    args = np.ones(4096, np.float16), np.zeros(4096, np.float16)
    made = of_halves.compile(*args, target="cuda:sm_90a")
    assert len(ops(parse_func(made.stages["stage_reductions"]), Scan)) == 1
    assert not ops(parse_func(made.stages["lower_scans"]), Scan)
