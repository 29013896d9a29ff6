"""Bank conflicts and sectors against a count by hand, lane by lane."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from sim_accesses import Block, numbers, tensor

import tilec
import tilec.language as L
from tilec.ir.loc import Loc
from tilec.ir.stored import read_stored
from tilec.sim.counts import Counts, LineCount

T = np.arange(64)


def wavefronts(at: np.ndarray, size: int) -> tuple[int, int]:
    """(wavefronts, ideal) of one warp: at[lane] or -1."""
    together = min(32, 128 // max(size, 4))
    total = ideal = 0
    for first in range(0, len(at), together):
        words: dict[int, set[int]] = {}
        for a in at[first : first + together]:
            if a >= 0:
                for w in range(a // 4, -(-(a + size) // 4)):
                    words.setdefault(w % 32, set()).add(w)
        if words:
            total += max(len(w) for w in words.values())
            ideal += 1
    return total, ideal


def sectors(at: np.ndarray, size: int) -> int:
    return len({b // 32 for a in at if a >= 0 for b in range(a, a + size)})


KINDS = {1: ("i8", 1), 2: ("half", 1), 4: ("float", 1), 8: ("float", 2), 16: ("float", 4)}


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("stride", [0, 1, 2, 3, 8, 17, 32, 33])
def test_bank_conflicts(size: int, stride: int):
    block = Block(size=65536, checks=False)
    at = T * stride * size
    kind, count = KINDS[size]
    block.load(T, at, kind, count)
    (line,) = block.counts.lines
    got = [wavefronts(at[w : w + 32], size) for w in (0, 32)]
    assert (line.wavefronts, line.ideal_wavefronts) == tuple(map(sum, zip(*got)))
    assert line.shared_requests == 2 and line.shared_read == 64 * size
    assert line.conflicts == line.wavefronts - line.ideal_wavefronts


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_any_addresses_of_some_lanes(size: int):
    rng = np.random.default_rng(size)
    array = numbers(4096)
    block = Block(size=65536, checks=False, tensors=[tensor(array)])
    start = block.globals._by_name["x"].tensor.address
    lanes = np.sort(rng.choice(64, 41, replace=False))
    at = rng.integers(0, 1000, 41) * size
    kind, count = KINDS[size]
    block.load(lanes, at, kind, count)
    block.load(lanes, start + at, kind, count, space="global")
    shared, other = block.counts.lines
    full = np.full(64, -1)
    full[lanes] = at
    got = [wavefronts(full[w : w + 32], size) for w in (0, 32)]
    assert (shared.wavefronts, shared.ideal_wavefronts) == tuple(map(sum, zip(*got)))
    assert other.sectors == sum(sectors(full[w : w + 32], size) for w in (0, 32))
    assert other.global_requests == 2 and other.global_read == 41 * size


def test_sectors_of_a_row_and_of_a_column():
    array = numbers(64 * 64)
    block = Block(checks=False, tensors=[tensor(array)])
    start = block.globals._by_name["x"].tensor.address
    block.load(T, start + T * 4, space="global")
    block.store(T, start + T * 256, numbers(64), space="global")
    block.load(T, np.int64(start), space="global")
    row, column, one = block.counts.lines
    assert (row.sectors, row.ideal_sectors) == (8, 8)
    assert (column.sectors, column.ideal_sectors, column.global_written) == (64, 8, 256)
    assert (one.sectors, one.ideal_sectors) == (2, 2)


def test_the_cost_of_a_pattern_is_remembered():
    block = Block(size=65536, checks=False)
    for first in (0, 128, 4, 1024):
        block.load(T, first + T * 8)
    assert len(block.counts._costs) == 2
    assert sum(line.wavefronts for line in block.counts.lines) == 4 * 4


def test_amd_waves():
    """64 lanes of 4 bytes go in two halves."""
    block = Block(size=65536, warp_size=64, checks=False)
    block.load(T, T * 4)
    block.load(T, T * 128)
    row, column = block.counts.lines
    assert (row.wavefronts, row.ideal_wavefronts, row.shared_requests) == (2, 2, 1)
    assert (column.wavefronts, column.ways) == (64, 32)


def test_engines_and_operations():
    block = Block()
    active = block.active([0])
    engine = block.order.engine(("mbarrier", 0))
    block.memory.engine_write(active, [1024, 1040], np.zeros((2, 16), np.uint8), engine)
    block.counts.flops(active.inst, "float16", 4096)
    block.counts.flops(active.inst, "float16", 4096)
    block.counts.work(active, active.inst, "special")
    (line,) = block.counts.lines
    assert line.engine_shared_written == 32 and line.flops == {"float16": 8192}
    assert line.special == 1


def test_lines_of_one_source_line_are_one():
    loc = Loc("k.py", 7, 3)
    inner = Loc("lib.py", 1, 0, 0, loc)
    counts = Counts([LineCount(loc, wavefronts=2, ways=2), LineCount(inner, wavefronts=5, ways=1)])
    (line,) = counts.lines
    assert line.wavefronts == 7 and line.ways == 2 and line.loc.line == 7
    kept = json.loads(json.dumps([asdict(line) for line in counts.lines]))
    again = Counts(read_stored(kept, tuple[LineCount, ...], "counts"))
    assert again.lines == counts.lines and again.table({}) == counts.table({})


def test_table():
    assert Counts().table() == ""
    block = Block(size=65536, checks=False)
    block.load(T, T * 128)
    text = block.counts.table({("kernel.py", 1): "    x = s[i, 0]"})
    head, row = text.split("\n")
    assert "shared wavefronts" in head and "kernel.py" in head and "sectors" not in head
    assert "64 (32x) (32 ways)" in row and row.endswith("1: x = s[i, 0]")


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_special_functions_and_shuffles_of_a_kernel(target: str) -> None:
    """One power of two and one reciprocal for each element of a sigmoid; every warp learns its
    number from one lane, once."""

    @tilec.kernel
    def squashed(A: L.Tensor((512,), "float32"), B: L.Tensor((512,), "float32")):
        with L.Kernel(2, threads=128) as b:
            for i in L.Parallel(256):
                B[b * 256 + i] = L.sigmoid(A[b * 256 + i])

    a = np.random.default_rng(3).standard_normal(512).astype(np.float32)
    out = np.zeros_like(a)
    report = tilec.simulate(squashed, a, out, target=target)
    assert report.ok and np.abs(out - 1 / (1 + np.exp(-a.astype(float)))).max() < 1e-6
    lines = report.counts.lines
    assert sum(c.special for c in lines) == 2 * 512
    warps = 2 * 128 // (64 if target.startswith("hip") else 32)
    assert sum(c.shuffles for c in lines) == warps
