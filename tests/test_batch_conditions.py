"""Loops that do something in the iterations of which a tensor says so (`batch_conditions`)."""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

M, N, K, J = T.dynamic("M, N, K, J")
TARGETS = ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu"]
GPUS = TARGETS[:3]
pytestmark = [
    pytest.mark.usefixtures("unassembled"),
    pytest.mark.filterwarnings("ignore::tilec.PerformanceWarning"),
    pytest.mark.turns,
]


@tilec.kernel
def sparse_product(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    Taken: T.Tensor((J,), "int8"),
    C: T.Tensor((M, N), "float32"),
    roles: T.constexpr = False,
    persistent: T.constexpr = False,
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        if roles:
            T.annotate_schedule(specialise=True, persistent=persistent)
        a, b = T.alloc_shared((64, 16), "float16"), T.alloc_shared((16, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 16), num_stages=2):
            if Taken[k] != 0:
                T.copy(A[by * 64, k * 16], a)
                T.copy(B[k * 16, bx * 64], b)
                T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


@tilec.kernel
def chosen_rows(
    A: T.Tensor((N, 64), "float32"),
    Taken: T.Tensor((N,), "int32"),
    least: T.int32,
    first: T.int32,
    S: T.Tensor((64,), "float32"),
    met: T.constexpr = False,
):
    """No product: the sum of some rows of a tensor; `met`: each thread reads what others bring."""
    with T.Kernel(1, threads=64):
        row, total = T.alloc_fragment((64,), "float32"), T.alloc_fragment((64,), "float32")
        brought = T.alloc_shared((64,), "float32")
        T.clear(total)
        for n in T.serial(first, N):
            if Taken[n] >= least:
                if met:
                    T.copy(A[n, 0:64], brought)
                    for j in T.Parallel(64):
                        row[j] = brought[63 - j]
                    for j in T.Parallel(64):
                        total[j] += row[j]
                else:
                    T.copy(A[n, 0:64], row)
                    for j in T.Parallel(64):
                        total[j] += row[j]
        T.copy(total, S)


def batched(kernel: Any, *arrays: Any, target: str) -> str:
    return str(kernel.compile(*arrays, target=target).stages["batch_conditions"])


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "steps, chance", [(0, 1), (1, 1), (5, 0.5), (33, 0.3), (70, 0.1), (64, 1), (40, 0)]
)
def test_a_product_over_some_blocks(
    steps: int, chance: float, target: str, rng: np.random.Generator
) -> None:
    a = rng.integers(-3, 4, (72, 16 * steps)).astype(np.float16)
    b = rng.integers(-3, 4, (16 * steps, 72)).astype(np.float16)
    taken = (rng.random(max(steps, 1)) < chance).astype(np.int8)
    c = np.full((72, 72), np.nan, np.float32)
    run(sparse_product, target, a, b, taken, c)
    if target == GPUS[0] and steps:
        for persistent in (False, True):
            again = np.full_like(c, np.nan)
            run(sparse_product, target, a, b, taken, again, True, persistent)
            np.testing.assert_array_equal(again, c)
    on = np.repeat(taken[:steps], 16).astype(bool)
    np.testing.assert_array_equal(c, a[:, on].astype(np.float64) @ b[on].astype(np.float64))


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count, first", [(1, 0), (3, 1), (100, 0), (100, 7), (64, 64), (65, 1)])
def test_a_sum_of_some_rows(count: int, first: int, target: str, rng: np.random.Generator) -> None:
    a = rng.integers(-9, 9, (count, 64)).astype(np.float32)
    taken = rng.integers(0, 4, count).astype(np.int32)
    s = np.full(64, np.nan, np.float32)
    run(chosen_rows, target, a, taken, 2, first, s)
    np.testing.assert_array_equal(s, a[first:][taken[first:] >= 2].sum(0))
    run(chosen_rows, target, a, taken, 2, first, s, True)
    np.testing.assert_array_equal(s, a[first:, ::-1][taken[first:] >= 2].sum(0))


def test_lanes_of_producers_and_consumers_ask_for_one_each() -> None:
    """For the first word, and in each iteration for the next; only the first lane brings tiles."""
    shapes = ((2048, 1008), (1008, 2048), (63,), (2048, 2048))
    dtypes = ("float16", "float16", "int8", "float32")
    specs = [tilec.spec(*s) for s in zip(shapes, dtypes)]
    text = batched(sparse_product, *specs, True, target=GPUS[0])
    assert "scope producer" in text and text.count("load %Taken") == 2 * 2
    assert text.count("unary.ctz") == text.count(" = while ") == 2
    assert text.count("shuffle_xor") == 2 * 5
    producer = text[text.index("scope producer") :]
    loop = producer[producer.index(" = while ") :]
    lead = re.search(r"if (%\d+) then \{", loop)
    assert lead and loop.index("mbarrier_wait") > lead.start() < loop.index("tma_load")
    whole = re.search(rf"{lead[1]} = binary.and (%\d+), (%\d+) : i1\s+if \2 then", producer)
    assert whole, "the whole warp runs the loop"


def test_a_thread_that_walks_over_blocks_asks_for_itself() -> None:
    """The producer of a persistent kernel: its loop stands in another one."""
    shapes = ((2048, 1008), (1008, 2048), (63,), (2048, 2048))
    dtypes = ("float16", "float16", "int8", "float32")
    specs = [tilec.spec(*s) for s in zip(shapes, dtypes)]
    text = batched(sparse_product, *specs, True, True, target=GPUS[0])
    consumer, producer = text.split("scope producer")
    assert "for.persistent" in producer and producer.count("load %Taken") == 32
    assert consumer.count("load %Taken") == 2 and "shuffle" not in producer


@pytest.mark.parametrize("target", GPUS)
def test_32_conditions_are_asked_for_at_once(target: str) -> None:
    """By 32 lanes; by each thread where threads meet in the loop."""
    vector, total = tilec.spec((99,), "int32"), tilec.spec((64,), "float32")
    text = batched(chosen_rows, tilec.spec((99, 64), "float32"), vector, 2, 0, total, target=target)
    assert text.count("load %Taken") == 2 and text.count("unary.ctz") == 1
    assert text.count("shuffle_xor") == 5
    rows = tilec.spec((99, 64), "float32")
    text = batched(chosen_rows, rows, vector, 2, 0, total, True, target=target)
    assert text.count("load %Taken") == 32 and text.count("unary.ctz") == 1
    assert "barrier" in text and "shuffle" not in text


@tilec.kernel
def own(Taken: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32"), how: T.constexpr):
    with T.Kernel(1, threads=32):
        for n in T.serial(N):
            if how == "written":
                if Taken[n] != 0:
                    Taken[n] = 0
            elif how == "used":
                x = Taken[n]
                if x != 0:
                    C[n] = x
            elif how == "more":
                C[n] = 1
                if Taken[n] != 0:
                    C[n] = 2
            elif how == "else":
                if Taken[n] != 0:
                    C[n] = 2
                else:
                    C[n] = 3
            elif how == "no tensor":
                if n % 3 == 0:
                    C[n] = 4
            elif how == "few":
                if n < 2:
                    C[n] = 5


@pytest.mark.parametrize("how", ["written", "used", "more", "else", "no tensor", "few"])
def test_other_loops_stay(how: str, rng: np.random.Generator) -> None:
    taken = rng.integers(0, 2, 40).astype(np.int32)
    before, c = taken.copy(), np.zeros(40, np.int32)
    text = batched(own, tilec.spec((40,), "int32"), tilec.spec((40,), "int32"), how, target=GPUS[0])
    assert "ctz" not in text
    report = tilec.simulate(own, taken, c, how, target=GPUS[0])
    assert report.ok, report
    n = np.arange(40)
    want = {
        "written": 0 * n, "used": before, "more": np.where(before, 2, 1),
        "else": np.where(before, 2, 3), "no tensor": np.where(n % 3, 0, 4),
        "few": np.where(n < 2, 5, 0),
    }  # fmt: skip
    np.testing.assert_array_equal(c, want[how])
    assert how != "written" or not taken.any()


def test_two_blocks_compute_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention over some blocks: threads wait for each product, which another block's fill."""
    monkeypatch.undo()  # the fixture that leaves out the assembler
    monkeypatch.syspath_prepend("examples/attention")
    example = importlib.import_module("block_sparse")
    made = example.block_sparse(128).compile(*example.specs(128, 64, 64), target=GPUS[0])
    assert "2 blocks at once" in made.plan.name and made.plan.residents == 2
    # They take tiles as they come: what the next one needs is there as this one ends.
    assert made.plan.persistent and any(p.role == "counters" for p in made.image.params)
    assert made.resources.blocks_per_sm == 2 and made.resources.spilled_bytes == 0
    ptx = made.stages["ptx"]
    assert ".minnctapersm 2" in ptx
    split = re.findall(r"setmaxnreg\.(\w+)\.\S+ (\d+);", ptx)
    assert split == [("inc", "216"), ("dec", "40")] and 128 * (216 + 40) <= 65536 // 2


@pytest.mark.parametrize("length, width", [(1024, 32), (2048, 16), (8192, 8)])
def test_long_rows_of_more_heads_begin_first(
    length: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many heads as the L2 cache holds keys and values of."""
    monkeypatch.syspath_prepend("examples/attention")
    example = importlib.import_module("block_sparse")
    x, blocks = tilec.spec((1, length, 64, 128), "float16"), (1, 64, length // 64, length // 64)
    specs = [x, x, x, tilec.spec(blocks, "int8"), x, tilec.spec((1, 64, length), "float32")]
    made = example.block_sparse(128).compile(*specs, target=GPUS[0])
    assert made.plan.residents == 2 and made.plan.raster_group == width
