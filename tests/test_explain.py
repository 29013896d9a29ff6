"""`tilec explain`: what the page says of a kernel; test_explain_browser.py looks at it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import explain_programs
import numpy as np
import pytest
from explain_programs import COPY_A, COPY_B, GEMM, K, M, N, buffers, facts_of, line_of, random

import tilec
import tilec.language as T
from tilec.__main__ import main
from tilec.explain import schedule
from tilec.explain.facts import gather
from tilec.explain.page import as_script, highlighted, page
from tilec.target import TARGETS

pytestmark = pytest.mark.turns

LLVM = ("llvm", "llvm-opt")


# --- stages, line by line ---


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize("target", TARGETS)
def test_each_stage_knows_the_lines_of_the_source(target: str) -> None:
    facts = facts_of("product", target)
    names = [s.name for s in facts.stages]
    assembly = {"cuda": "ptx", "hip": "gcn", "cpu": "asm"}[target.split(":")[0]]
    assert names[0] == "tile" and {"llvm", "llvm-opt", assembly} <= {*names}
    assert len({*names}) == len(names) and all(s.about for s in facts.stages)
    for stage in facts.stages:
        assert len(stage.lines) == len(stage.places)
        if stage.name == "plan":
            continue
        places = {p for p in stage.places if p}
        assert places <= {*facts.source.lines}, stage.name
        # The CPU's emitter writes no places.
        if stage.name != "sass" and not (target == "cpu" and stage.name in (*LLVM, assembly)):
            assert GEMM in places, stage.name
    tile = facts.stages[0]
    assert [x.split()[0] for x, p in zip(tile.lines, tile.places) if p == GEMM] == ["gemm"]
    if target == "cuda:sm_90a":
        ptx = next(s for s in facts.stages if s.name == "ptx")
        mine = [x for x, p in zip(ptx.lines, ptx.places) if "wgmma.mma_async" in x and p == GEMM]
        assert mine and not any("\t.loc" in x for x in ptx.lines)
        bulk = {p for x, p in zip(ptx.lines, ptx.places) if "cp.async.bulk.tensor" in x}
        assert {COPY_A, COPY_B} <= bulk


def test_a_macro_counts_where_it_is_called() -> None:
    @T.macro
    def doubled(x):
        return x * 2

    @tilec.kernel
    def twice(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
            for i in T.Parallel(64):
                B[bx * 64 + i] = doubled(A[bx * 64 + i])

    facts = gather(twice, [tilec.spec((64,), "float32")] * 2, {}, "cuda:sm_80", 0)
    call = line_of("= doubled(A[bx", __file__)
    tile = facts.stages[0]
    assert [p for x, p in zip(tile.lines, tile.places) if "binary.mul" in x][-1] == call
    assert facts.report is None and "--blocks 0" in facts.uncounted


# --- layouts: what the page adds up is what the layout says ---


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_digits_say_where_elements_live(target: str) -> None:
    """The script's sum, in Python: the browser's own is compared below."""
    facts = facts_of("product", target)
    assert {"a", "b", "acc"} <= {x["name"] for x in facts.layouts}
    found = buffers("product", target)
    for one in facts.layouts:
        layout, memory = found[one["name"]], one["space"] == "shared"
        total = np.prod([one["sizes"][o] for o in ("reg", "lane", "warp", "offset")])
        places = np.arange(total)
        index, rest = {}, places
        for owner in ("reg", "lane", "warp", "offset"):
            index[owner], rest = rest % one["sizes"][owner], rest // one["sizes"][owner]
        add = np.zeros((len(places), len(one["shape"])), int)
        cross = add.copy()
        for owner, weight, radix, step, inside in one["digits"]:
            n = index[owner] // weight % radix
            if inside:
                cross ^= n[:, None] * np.array(step)
            else:
                add += n[:, None] * np.array(step)
        at = tuple((add + cross).T)
        if memory and one["pad"] is None:
            assert np.array_equal(layout.offsets()[at], index["offset"])
        elif not memory:
            reg, lane, warp = layout.owners_of()
            first = (reg[at] == index["reg"]) & (lane[at] == index["lane"])
            assert (first & (warp[at] == index["warp"])).sum() == layout.owners_of()[0].size


# --- the schedule ---


def test_a_ring_is_filled_ahead_and_waits_for_its_readers() -> None:
    (loop,) = facts_of("product", "cuda:sm_90a").loops
    assert [s.role for s in loop.statements] == ["ring", "ring", "product"]
    assert [s.line for s in loop.statements] == [COPY_A, COPY_B, GEMM]
    depth = loop.statements[0].stages
    assert depth >= 3 and loop.readers == {0: [2], 1: [2]}
    fills = {(b.statement, b.iteration): b for b in loop.bars if b.kind == "fill"}
    full = {(b.statement, b.iteration): b for b in loop.bars if b.kind == "full"}
    products = {b.iteration: b for b in loop.bars if b.kind == "product"}
    assert len(products) == schedule.ITERATIONS
    for (ring, i), fill in fills.items():
        assert fill.end == full[ring, i].start <= products[i].start
        assert products[i].end <= full[ring, i].end
        if (ring, i - depth) in full:
            assert full[ring, i - depth].end <= fill.start
    assert [n for n, _ in loop.lanes].count("tensor") == 1
    lanes: dict[str, list[schedule.Bar]] = {}
    for b in loop.bars:
        lanes.setdefault(b.lane, []).append(b)
    for bars in lanes.values():  # one thing at a time
        ordered = sorted(bars, key=lambda b: (b.start, b.end))
        assert all(a.end <= b.start + 1e-6 for a, b in zip(ordered, ordered[1:]))
    roles = facts_of("product", "cuda:sm_90a").roles
    assert [r.name for r in roles] == ["compute", "bring tiles"]


def test_the_arrangement_of_overlapping_iterations_is_drawn() -> None:
    facts = facts_of("attention", "cuda:sm_90a")
    (loop,) = facts.loops
    a = loop.arranged
    assert a is not None and loop.order == list(a.order)
    assert {unit for unit, _ in a.units} == {"tensor", "shared", "vector", "special"}
    for unit, n in a.units:
        assert round(loop.bounds[unit]) == pytest.approx(n, abs=2)
    late = {s.line for s in loop.statements if s.stage == 1}
    assert line_of("T.gemm(p, v, o") in late
    groups = {b.group for b in loop.bars if b.kind == "product"}
    assert groups == {0, 1}
    # What is late of iteration i is done behind the first product of iteration i + 1.
    first = loop.order.index(next(n for n in loop.order if loop.statements[n].role == "product"))
    s_of = {(b.statement, b.iteration, b.group): b for b in loop.bars if b.kind == "product"}
    early = loop.order[first]
    for n, s in enumerate(loop.statements):
        if s.role == "product" and s.stage == 1:
            assert s_of[early, 1, 0].start <= s_of[n, 0, 0].start
    text = page(facts)
    assert f"{a.stream:,} (in the order of the source {a.in_order:,})" in text
    assert "at most" in text and "of the iteration before" in text


def test_ping_pong_takes_turns() -> None:
    given = [random(512, 512)] * 2 + [np.zeros((512, 512), np.float16)]
    key_facts = gather(scheduled("pingpong"), given, {}, "cuda:sm_90a", 0)
    (loop,) = key_facts.loops
    ends = max(b.end for b in loop.bars if b.kind == "product" and b.group == 0)
    assert min(b.start for b in loop.bars if b.kind == "product" and b.group == 1) >= ends
    assert [r.name for r in key_facts.roles] == ["group 0", "group 1", "bring tiles"]


def scheduled(consumers: str) -> tilec.Kernel:
    @tilec.kernel
    def turns(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 64), threads=128) as (bx, by):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 128), "float16")
            acc = T.alloc_fragment((64, 128), "float32")
            T.annotate_schedule(specialise=True, consumers=consumers, persistent=True)
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 64)):
                T.copy(A[by * 64, k * 64], a)
                T.copy(B[k * 64, bx * 128], b)
                T.gemm(a, b, acc)
            T.copy(acc, C[by * 64, bx * 128])

    return turns


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", ["product", "columns"])
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_a_page(target: str, name: str) -> None:
    text = page(facts_of(name, target))
    assert text.startswith("<!doctype html>") and text.count("<section") == 6
    assert f'<span class="target">{target}</span>' in text
    assert "http" not in re.sub(r"<meta[^>]*>", "", text).replace("http-equiv", "")


# --- what memory costs ---


def test_conflicts_stand_at_their_line() -> None:
    facts = facts_of("columns", "cuda:sm_80")
    line = line_of("B[t, j] = s[t, j] + 1")
    count = next(c for c in facts.report.counts.lines if c.loc.line == line)
    assert count.conflicts > count.ideal_wavefronts and count.sectors > count.ideal_sectors
    text = page(facts)
    assert f"{count.conflicts:,} of {count.wavefronts:,} wavefronts are bank conflicts" in text
    assert f"{count.sectors:,}" in text and f"{count.ways} ways" in text


def test_faults_are_told() -> None:
    @tilec.kernel
    def beyond(index: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64) as _:
            s = T.alloc_shared((64,), "int32")
            T.clear(s)
            for i in T.Parallel(64):
                B[i] = s[index[i]]

    index = np.full(64, 64, np.int32)
    text = page(gather(beyond, [index, np.zeros(64, np.int32)], {}, "cuda:sm_80", 1))
    assert "out of bounds: s[64]; s has the shape (64,)" in text
    assert '<div class="card bad"><h3>faults</h3><p>1</p>' in text


def test_resources_are_the_compiled_kernels() -> None:
    facts = facts_of("product", "cuda:sm_90a")
    r, text = facts.compiled.resources, page(facts)
    assert f"{r.shared_bytes:,} of 232,448 bytes" in text and f"<p>{r.registers}</p>" in text
    assert min(facts.limits.values()) == r.blocks_per_sm
    assert all(f">{name}<" in text.replace("</i>", "<") or name in text for name in r.buffers)
    assert facts.chosen is not None and facts.chosen.plan.name == facts.compiled.plan.name


# --- text that could be mistaken for the page's own ---


def test_nothing_of_the_source_becomes_markup() -> None:
    assert "</script" not in as_script({"a": "</script><!--"})
    assert json.loads(as_script(["<\u2028>&"])) == ["<\u2028>&"]
    assert highlighted('x = "<b>"  # <i>') == (
        'x = <span class="s">&quot;&lt;b&gt;&quot;</span>  <span class="c"># &lt;i&gt;</span>'
    )
    text = page(facts_of("columns", "cuda:sm_80"))
    assert text.count("</script>") == 2 and "<b>one row" not in text
    assert "&lt;/script&gt;&lt;b&gt;one row a thread" in text


# --- the command ---


def test_pages_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["explain", f"{explain_programs.__file__}:product", *(f"--dim={n}=128" for n in "MNK")]
    assert main([*words, "--target", "cuda:sm_80", "--out", "p.html"]) == 0
    assert "p.html: product for cuda:sm_80" in capsys.readouterr().out
    assert "block simulated" in (tmp_path / "p.html").read_text()
    assert main([*words, "--target", "cpu", "--target", "hip:gfx942", "--blocks", "0"]) == 0
    assert sorted(p.name for p in tmp_path.glob("product*")) == [
        "product-cpu.html", "product-hip-gfx942.html",
    ]  # fmt: skip
    for wrong, says in (
        (["--blocks", "-1"], "--blocks -1: expected a number from 0"),
        (["--out", "no/p.html"], "--out no/p.html: that place cannot be written"),
        (["--target", "cuda:sm_70"], "unknown target"),
        (["--set", "BN=1"], "has no number or constant 'BN'"),
    ):
        assert main([*words, *wrong]) == 2
        assert says in capsys.readouterr().err
    assert main(["explain"]) == 2
    assert "tilec explain FILE.py:kernel" in capsys.readouterr().err
