"""Tiles whose rows begin at any element: two wide loads and shifts for 16 bytes of a row.

Before `passes/utils/realign.py` a thread loaded and stored each element of such a tile by
itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pairwise import pairwise

import tilec
import tilec.language as T
from tilec.codegen import assemble, emit
from tilec.ir.core import Block, walk
from tilec.ir.ops import (
    Barrier,
    Const,
    For,
    If,
    MemLoad,
    MemStore,
    Realign,
    RegRead,
    TmaLoad,
    Wgmma,
    WgmmaWait,
)
from tilec.ir.schedule import Plan
from tilec.jit import choose
from tilec.target import find_target

pytestmark = pytest.mark.usefixtures("unassembled")


@pytest.fixture(autouse=True)
def nothing_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large products bring such tiles from copies (test_packing.py)."""
    monkeypatch.setattr(choose, "packable", lambda facts, call: ())


SM90 = find_target("cuda:sm_90a")
TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
M, N, K = T.dynamic("M, N, K")
ACCUMULATE = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "uint8": "int32"}


def product(dtype: str, kind: str, tile: tuple[int, int, int], threads: int = 128) -> Any:
    """C = A B in tiles of BM x BN x BK; A and B as `kind` says."""
    ta, tb = kind[0] == "T", kind[1] == "T"
    bm, bn, bk = tile
    a_shape, b_shape = ((K, M) if ta else (M, K)), ((N, K) if tb else (K, N))
    accumulate = ACCUMULATE[dtype]

    @tilec.kernel
    def matmul(
        A: T.Tensor(a_shape, dtype), B: T.Tensor(b_shape, dtype), C: T.Tensor((M, N), accumulate)
    ):
        with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=threads) as (bx, by):
            A_s = T.alloc_shared((bk, bm) if ta else (bm, bk), dtype)
            B_s = T.alloc_shared((bn, bk) if tb else (bk, bn), dtype)
            acc = T.alloc_fragment((bm, bn), accumulate)
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, bk)):
                if ta:
                    T.copy(A[k * bk, by * bm], A_s)
                else:
                    T.copy(A[by * bm, k * bk], A_s)
                if tb:
                    T.copy(B[bx * bn, k * bk], B_s)
                else:
                    T.copy(B[k * bk, bx * bn], B_s)
                T.gemm(A_s, B_s, acc, transpose_A=ta, transpose_B=tb)
            T.copy(acc, C[by * bm, bx * bn])

    return matmul


def rows(rng: np.random.Generator, shape: tuple[int, int], dtype: str, pad: int, first: int) -> Any:
    """A matrix that begins `first` elements into its memory and has `pad` elements behind each row
    but the last: nothing lies behind its last element."""
    count, columns = shape
    memory = np.zeros(first + count * (columns + pad) - pad, dtype)
    memory[:] = rng.integers(0, 4, memory.shape)
    size = memory.itemsize
    return np.lib.stride_tricks.as_strided(memory[first:], shape, ((columns + pad) * size, size))


def lowered(kernel: Any, m: int, n: int, k: int, kind: str, dtype: str, **given: Any) -> Any:
    """The kernel compiled for dense operands of these sizes."""
    a = tilec.spec((k, m) if kind[0] == "T" else (m, k), dtype)
    b = tilec.spec((n, k) if kind[1] == "T" else (k, n), dtype)
    return kernel.compile(a, b, tilec.spec((m, n), ACCUMULATE[dtype]), **given)


@pytest.mark.covering(1, axes=("target", "kind", "dtype"))
@pytest.mark.parametrize(
    "target, kind, dtype", pairwise(TARGETS, ["NN", "NT", "TN", "TT"], ["float16", "int8"])
)
def test_rows_that_begin_anywhere(target: str, kind: str, dtype: str) -> None:
    """Ragged in every direction, with views, gaps behind the rows, rows shorter than a tile,
    tensors shorter than 16 bytes, tiles that several threads bring, and nothing behind the last
    element: what is outside of the memory is not touched."""
    rng = np.random.default_rng(0)
    tile, small = product(dtype, kind, (64, 64, 32)), product(dtype, kind, (32, 16, 16))
    for kernel, (m, n, k), pad, first in (
        (tile, (67, 65, 97), 0, 0),
        (tile, (65, 33, 67), 0, 1),
        (tile, (129, 31, 33), 3, 5),
        (tile, (5, 9, 3), 0, 0),
        (small, (33, 17, 31), 0, 2),
        (small, (40, 1, 2), 0, 3),
        (small, (1, 1, 1), 0, 1),
    ):
        a = rows(rng, (k, m) if kind[0] == "T" else (m, k), dtype, pad, first)
        b = rows(rng, (n, k) if kind[1] == "T" else (k, n), dtype, pad, (3 * first) % 7)
        c = np.zeros((m, n), ACCUMULATE[dtype])
        report = tilec.simulate(kernel, a, b, c, target=target)
        assert not report.findings, report
        want = (a.T if kind[0] == "T" else a).astype("int32") @ (
            b.T if kind[1] == "T" else b
        ).astype("int32")
        assert np.array_equal(c, want), (m, n, k, pad, first)


@pytest.mark.parametrize("kind", ["NN", "NT", "TN", "TT"])
def test_the_last_tile_comes_in_pieces(kind: str) -> None:
    """Only parts that a tensor's first and last elements lie in come one by one. When the whole
    tile did, warps asked 357 to 368 times."""
    rng = np.random.default_rng(0)
    m, n, k = 61, 31, 119
    a = rows(rng, (k, m) if kind[0] == "T" else (m, k), "float16", 0, 0)
    b = rows(rng, (n, k) if kind[1] == "T" else (k, n), "float16", 0, 0)
    c = np.zeros((m, n), "float32")
    report = tilec.simulate(product("float16", kind, (64, 32, 128)), a, b, c, target="cuda:sm_90a")
    assert not report.findings, report
    asked = sum(line.global_requests for line in report.counts.lines if line.global_read)
    parts = (64 + 32) * 128 // 8 // 32  # 16 bytes each of a lane
    assert asked <= 2 * parts + 16


@pytest.mark.parametrize("kind", ["NN", "NT", "TN", "TT"])
def test_the_loop_loads_sixteen_bytes(kind: str) -> None:
    """Two loads for 16 bytes of the tiles, one shift by words and bits, no load of an element but
    in the loops for the tensors' last tiles."""
    made = lowered(
        product("float16", kind, (128, 128, 32), 256), 2047, 4095, 1023, kind, "float16",
        target="cuda:sm_90a",
    )  # fmt: skip
    parts = (128 + 128) * 32 // 8 // 256  # 16 bytes each, of a thread
    ops = [*walk(made.lowered.body)]
    loads = [o for o in ops if isinstance(o, MemLoad) and o.words]
    forms = 1 + 2  # before the loop; in it inside of the tensors and not
    assert len(loads) == 2 * parts * forms
    assert all(o.align == 16 for o in loads)
    assert len([o for o in ops if isinstance(o, Realign)]) == parts * forms
    serial = [o for o in ops if isinstance(o, For) and o.kind == "serial"]
    tensors = [o for o in ops if isinstance(o, MemLoad) and o.source.buffer.space == "global"]
    alone = [o for o in tensors if not o.words]
    assert len(alone) == 8 * 2 * 2
    assert all(any(o in [*walk(loop.body)] for loop in serial) for o in alone)
    assert "ld.global.nc.v4" in made.asm
    product_at, wait_at = (
        next(i for i, o in enumerate(ops) if isinstance(o, kind)) for kind in (Wgmma, WgmmaWait)
    )
    between = [o for o in ops[product_at:wait_at] if isinstance(o, MemStore)]
    assert any(o.dest.buffer.space == "shared" for o in between), "stores beside the product"


def test_what_one_step_waits_for() -> None:
    """A product of one step of K waits for memory once, at the tensors' ends too (they waited three
    times, and 543x999x1 took 2.9 us on an H200). What is the same in all iterations is computed
    before the tiles have come: the loop stands under the same condition as the first tiles."""
    made = lowered(
        product("float16", "NT", (64, 64, 16)), 543, 999, 1, "NT", "float16", target="cuda:sm_90a"
    )
    around = [o for o in made.lowered.body.ops if isinstance(o, If)]
    (around,) = (o for o in around if any(isinstance(x, Wgmma) for x in walk(o.then)))
    first = [*walk(Block((), around.then.ops[:-2]))]
    assert sum(isinstance(o, MemLoad) and o.words for o in first) == 4
    loads = [o for o in first if isinstance(o, MemLoad) and not o.words]
    assert len(loads) == 2 * 8 and {o.source.name for o in loads} == {"A", "B"}
    (place,) = (b for o in first for b in o.regions if any(x in loads for x in b.ops))
    at = [i for i, o in enumerate(place.ops) if o in loads]
    assert not any(isinstance(x, (If, MemStore, Barrier)) for x in place.ops[at[0] : at[-1]])
    assert sum(isinstance(o, Barrier) for o in first) == 1


def test_beside_tiles_that_come_by_tma() -> None:
    """Warps of their own bring A, whose slot is freed behind the product; B comes in pieces."""

    @tilec.kernel
    def mixed(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            T.annotate_schedule(specialise=True, stages=3)
            A_s = T.alloc_shared((64, 32), "float16")
            B_s = T.alloc_shared((64, 32), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 32)):
                T.copy(A[by * 64, k * 32], A_s)
                T.copy(B[bx * 64, k * 32], B_s)
                T.gemm(A_s, B_s, acc, transpose_B=True)
            T.copy(acc, C[by * 64, bx * 64])

    rng = np.random.default_rng(0)
    a = rows(rng, (70, 160), "float16", 0, 0)
    b = rows(rng, (65, 160), "float16", 1, 0)
    c = np.zeros((70, 65), "float32")
    report = tilec.simulate(mixed, a, b, c, target="cuda:sm_90a", schedules=3)
    assert not report.findings, report
    assert np.array_equal(c, a.astype("float32") @ b.astype("float32").T)
    made = mixed.compile(
        *(tilec.spec((s, 160), "float16", strides=(p, 1)) for s, p in ((70, 160), (65, 161))),
        tilec.spec((70, 65), "float32"),
        target="cuda:sm_90a",
    )
    kinds = [type(o) for o in walk(made.lowered.body)]
    assert TmaLoad in kinds and Realign in kinds


@pytest.mark.parametrize("kind", ["NT", "NN"])
def test_no_more_waits_than_registers_hold(kind: str) -> None:
    """What is beyond them is loaded where it is stored: 128x128x64 with 128 threads spilled 1244
    bytes and took seconds to compile. This is its first plan, not the one that spills least, nor
    one with twice as many threads."""
    kernel = product("float16", kind, (128, 128, 64))
    given = [tilec.spec((4095, 4095), "float16")] * 2 + [tilec.spec((4095, 4095), "float32")]
    made = kernel.compile_with_plan(Plan("plain"), *given, target="cuda:sm_90a")
    ops = [*walk(made.lowered.body)]
    (first, *_) = [o for o in ops if isinstance(o, For) and o.kind == "pipelined"]
    inside = [*walk(first.body)]
    waiting = {o.fragment: 0 for o in inside if isinstance(o, RegRead)}
    words = [v for v in waiting if v.dtype.name == "uint32"]
    numbers = {o.result: o.value for o in ops if isinstance(o, Const)}
    held = sum(
        len({numbers[o.index] for o in inside if isinstance(o, RegRead) and o.fragment is v})
        for v in words
    )
    assert 0 < held <= 255 - 128 - 56, "registers less accumulators and addresses"
    spilled = assemble(emit(made.lowered, SM90), SM90).spilled_bytes
    assert spilled is None or spilled < 400
    rng = np.random.default_rng(0)
    a, b = rows(rng, (130, 131), "float16", 0, 1), rows(rng, (131, 133), "float16", 2, 3)
    b = rows(rng, (133, 131), "float16", 2, 3) if kind == "NT" else b
    c = np.zeros((130, 133), "float32")
    report = tilec.simulate(kernel, a, b, c, target="cuda:sm_90a")
    assert not report.findings, report
    b = b.T if kind == "NT" else b
    assert np.array_equal(c, a.astype("float32") @ b.astype("float32"))
