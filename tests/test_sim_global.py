"""Global memory of the simulator: tensors whose rows are far apart, histories in pages, and arrays
that get back what they held."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sim_accesses import Block, numbers, tensor

import tilec
import tilec.language as T
from tilec.sim import global_shadow
from tilec.sim.findings import Findings
from tilec.sim.tensors import Restorable

ROOT = Path(__file__).parent.parent
LANES = np.arange(64)
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # mmap.MAP_NORESERVE, from Python 3.13 on
M, N = T.dynamic("M, N")


def far(rows: int, columns: int, gap: int, dtype: Any = np.float32) -> np.ndarray:
    """Rows `gap` elements apart, in memory of which only their pages exist."""
    item = np.dtype(dtype).itemsize
    span = ((rows - 1) * gap + columns) * item
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    base = np.frombuffer(mmap.mmap(-1, span, flags=flags), dtype)
    return np.lib.stride_tricks.as_strided(base, (rows, columns), (gap * item, item))


def block_of(array: np.ndarray, **about: Any) -> tuple[Block, int]:
    made = tensor(array, **about)
    return Block(tensors=[made]), made.address


@tilec.kernel
def shifted(A: T.Tensor((M, N), "float16"), B: T.Tensor((M, N), "float16")):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 16), threads=64) as (bx, by):
        s = T.alloc_shared((16, 64), "float16")
        T.copy(A[by * 16, bx * 64], s)
        for i, j in T.Parallel(16, 64):
            B[by * 16 + i, bx * 64 + j] = s[i, j] + 1


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_a_view_over_8_gib(target: str) -> None:
    a, b = far(37, 70, 2**31 // 18, np.float16), far(37, 70, 2**31 // 18, np.float16)
    a[...] = np.random.default_rng(1).standard_normal(a.shape)
    report = tilec.simulate(shifted, a, b, target=target, schedules=2, check_outputs=True)
    assert report.ok, str(report)
    assert (b == a + 1).all()


def test_memory_grows_with_what_is_touched() -> None:
    code = """
import re, numpy as np, tilec, test_sim_global as t
a, b = t.far(33, 70, 2**27, np.float16), t.far(33, 70, 2**27, np.float16)
assert tilec.simulate(t.shifted, a, b, target="cuda:sm_90a").ok
dense = t.far(2**16, 2**16, 2**16, np.float16), t.far(2**16, 2**16, 2**16, np.float16)
assert not tilec.simulate(t.shifted, *dense, target="cuda:sm_80", blocks=[0, (999, 4001)]).findings
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2**19, "KiB"  # of spans of 8 GiB each


def test_holes_between_far_rows_are_out_of_bounds() -> None:
    gap = 2**31 // 4 + 3
    array = far(4, 64, gap)
    array[...] = numbers(4 * 64).reshape(4, 64)
    before = array.copy()
    block, start = block_of(array)
    for row in range(4):
        block.store(LANES, start + (row * gap + LANES) * 4, before[row] * 2, space="global")
    assert not block.kinds() and (array == before * 2).all()
    assert (block.load(LANES, start + (3 * gap + LANES) * 4, space="global") == array[3]).all()
    assert not block.kinds()
    block.store(LANES, start + (2 * gap + LANES + 1) * 4, before[0], space="global")
    assert np.lib.stride_tricks.as_strided(array, (4, 65), (gap * 4, 4))[2, 64] == 0
    kinds = {f.kind: f for f in block.findings}
    assert kinds["out of bounds"].message == "x[2, 64] is not in its shape (4, 64)"
    assert kinds["data race"].indices[0] == (2, 1)


def test_accesses_of_several_elements_across_the_end_of_a_row() -> None:
    array = far(4, 64, 2**20)
    block, start = block_of(array, written=False)
    at = start + (np.array([0, 60, 61, 2**20 - 2]) + 2**20) * 4
    found = block.load(LANES[:4], at, count=4, align=4, space="global")
    assert (np.stack(found)[:, :2] == np.stack([array[1, 0:4], array[1, 60:64]], axis=1)).all()
    assert not np.stack(found)[:, 2:].any()
    (fault,) = block.findings
    assert fault.message == "x[1, 61] and 3 after it is not in its shape (4, 64)"


@pytest.mark.parametrize("paged", [False, True])
def test_histories_in_pages_find_the_same(paged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_shadow, "PAGED", 7 if paged else 2**40)
    array = np.zeros((300, 1000), np.float32)
    block, start = block_of(array, output=True)
    rng = np.random.default_rng(2)
    where = rng.permutation(300_000)
    first = where[: 64 * 400].reshape(400, 64)
    for row in first:
        block.store(LANES, start + row * 4, numbers(64), space="global")
    assert not block.kinds()
    for row in first[:3]:
        block.load(LANES, start + row[::-1] * 4, space="global")
    block.load(LANES, start + where[-64:] * 4, space="global")
    found = [(f.kind, f.indices[0]) for f in block.findings]
    races = [("data race", divmod(int(row[-1]), 1000)) for row in first[:3]]
    assert found == [*races, ("uninitialised read", divmod(int(where[-64]), 1000))]
    last = Findings()
    block.globals.finish(last)
    (fault,) = last
    missing = np.setdiff1d(np.arange(300_000), first)
    assert fault.message == f"{len(missing)} of 300000 elements of x are never written"
    assert fault.indices == tuple(divmod(int(i), 1000) for i in missing[:8])


def test_unwritten_elements_of_a_view_with_gaps() -> None:
    base = np.zeros((6, 40), np.float32)
    for view in (base[:, :32], base[::-2, 3:35], base[1:5, 4:20:3]):
        block, start = block_of(view, output=True)
        strides = np.array(view.strides)
        rows, columns = view.shape
        block.store(LANES[:1], start + strides[1:], 1.0, space="global")
        found = Findings()
        block.globals.finish(found)
        (fault,) = found
        assert fault.message.startswith(f"{rows * columns - 1} of {rows * columns} elements")
        assert (0, 1) not in fault.indices
        assert all(0 <= i < rows and 0 <= j < columns for i, j in fault.indices)
        assert len(set(fault.indices)) == min(8, rows * columns - 1)


def test_index_of_reversed_rows() -> None:
    base = np.zeros((5, 7, 3), np.float32)
    for view in (base[::-1], base[:, ::-1], base[::-2, ::3, ::-1], base.transpose(2, 0, 1)):
        made = tensor(view)
        for index in np.ndindex(*view.shape):
            offset = sum(i * s for i, s in zip(index, view.strides))
            assert made.index_of(made.address + offset + 3) == index


def test_what_was_written_is_restored() -> None:
    rng = np.random.default_rng(4)
    data = rng.integers(0, 256, 70_001, np.uint8)
    before = data.copy()
    storage = Restorable(data)
    for size in (1, 2, 4, 8, 16, 48, 9000):
        at = rng.integers(0, 70_001 - size, 30)
        storage.scatter(at, rng.integers(0, 256, (30, size), np.uint8))
    assert (data != before).any()
    storage.restore()
    assert (data == before).all()
    storage.scatter(np.array([69_990]), np.full((1, 8), 7, np.uint8))
    storage.restore()
    assert (data == before).all()


@tilec.kernel
def next_and_own(P: T.Tensor((5,), "int32")):
    with T.Kernel(4, threads=32) as b:
        total = P[b + 1] + P[b]
        if T.get_thread_binding() == 0:
            P[b] = total


def test_who_reads_along_does_not_hide_who_read_before() -> None:
    """All lanes of the block that writes an element have read it, after another block has."""
    report = tilec.simulate(next_and_own, np.arange(5, dtype=np.int32), target="cuda:sm_80")
    (finding,) = report.findings
    assert finding.kind == "data race" and "another block read it" in finding.message
    assert [loc.source_line().strip() for loc in finding.locations] == [
        "P[b] = total", "total = P[b + 1] + P[b]",
    ]  # fmt: skip
