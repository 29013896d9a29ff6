"""`tilec explain`: what the page says of a kernel, and the page in a browser."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
import tilec.layout
from tilec.__main__ import main
from tilec.explain import layouts, schedule
from tilec.explain.facts import Facts, gather
from tilec.explain.page import as_script, highlighted, page
from tilec.ir.core import walk
from tilec.ir.layout import row_major, swizzled
from tilec.ir.ops import Alloc
from tilec.ir.types import BufferType, find_dtype
from tilec.jit import build
from tilec.passes import run_plan
from tilec.target import TARGETS, find_target

SHOTS = Path(__file__).parent.parent / "build" / "explain"
LLVM = ("llvm", "llvm-opt")
M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def product(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr = 64,
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, BM), threads=128) as (bx, by):
        a = T.alloc_shared((BM, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((BM, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=3):
            T.copy(A[by * BM, k * 64], a)
            T.copy(B[k * 64, bx * 64], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * BM, bx * 64])


@tilec.kernel
def attention(
    Q: T.Tensor((M, 64), "float16"),
    Ks: T.Tensor((N, 64), "float16"),
    V: T.Tensor((N, 64), "float16"),
    O: T.Tensor((M, 64), "float16"),
):
    with T.Kernel(T.ceildiv(M, 128), threads=256) as bx:
        q, o = T.alloc_shared((128, 64), "float16"), T.alloc_fragment((128, 64), "float32")
        k, v = (T.alloc_shared((128, 64), "float16") for _ in range(2))
        s, p = T.alloc_fragment((128, 128), "float32"), T.alloc_fragment((128, 128), "float16")
        T.annotate_schedule(overlap=True)
        T.copy(Q[bx * 128, 0], q)
        T.clear(o)
        for n in T.Pipelined(T.ceildiv(N, 128), num_stages=2):
            T.copy(Ks[n * 128, 0], k)
            T.gemm(q, k, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
            for i, j in T.Parallel(128, 128):
                s[i, j] = T.exp2(s[i, j])
            T.copy(s, p)
            T.copy(V[n * 128, 0], v)
            T.gemm(p, v, o, policy=T.GemmWarpPolicy.FullRow)
        T.copy(o, O[bx * 128, 0])


@tilec.kernel
def columns(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=64) as _:
        s = T.alloc_shared((64, 64), "float32")
        T.annotate_layout({s: tilec.layout.make_linear_layout(s)})
        T.copy(A, s)
        t = T.get_thread_binding()
        for j in T.serial(64):
            B[t, j] = s[t, j] + 1  # </script><b>one row a thread: conflicts</b>


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line)


COPY_A, COPY_B, GEMM = map(line_of, ("T.copy(A[by", "T.copy(B[k * 64", "T.gemm(a, b, acc)"))


def random(*shape: int, dtype: Any = np.float16) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@functools.cache
def facts_of(name: str, target: str) -> Facts:
    match name:
        case "product":
            given = product, [random(256, 256)] * 2 + [np.zeros((256, 256), np.float16)]
        case "attention":
            given = attention, [random(256, 64)] * 3 + [np.zeros((256, 64), np.float16)]
        case _:
            square = random(64, 64, dtype=np.float32)
            given = columns, [square, square.copy()]
    return gather(given[0], given[1], {}, target, 0 if target == "cpu" else 1)


# --- stages, line by line ---


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
    call = line_of("= doubled(A[bx")
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


def buffers(name: str, target: str) -> dict[str, Any]:
    """The layouts of a kernel's buffers, by name."""
    kernel, facts = {"product": product, "attention": attention}[name], facts_of(name, target)
    specs = [tilec.spec(s, "float16") for s in [(256, 256)] * 3]
    key = kernel.key_of(specs, target, {})
    seen: dict[str, Any] = {}
    traced = build.trace_variant(kernel.signature, key)
    run_plan(traced, find_target(target), facts.compiled.plan, seen.__setitem__)
    return {
        o.result.name: o.type.layout for o in walk(seen["arrange"].body) if isinstance(o, Alloc)
    }


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
    assert {unit for unit, _ in a.bounds} == {"tensor", "shared", "vector", "special"}
    for unit, n in a.bounds:
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


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_a_page(target: str) -> None:
    for name in ("product", "columns"):
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
    words = ["explain", f"{__file__}:product", *(f"--dim={n}=128" for n in "MNK")]
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


# --- in a browser ---


def find_browser() -> str | None:
    """A Chromium on PATH; "" where playwright brings its own; None where there is none."""
    if importlib.util.find_spec("playwright") is None:
        return None
    named = os.environ.get("BROWSER_PATH")
    names = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
    found = named or next(filter(None, map(shutil.which, names)), None)
    if found:
        return found
    with sync_api().sync_playwright() as p:
        return "" if Path(p.chromium.executable_path).exists() else None


def sync_api() -> Any:
    return pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = find_browser()
    if path is None:
        pytest.skip("needs playwright and a Chromium")
    with sync_api().sync_playwright() as p:
        found = p.chromium.launch(executable_path=path or None, args=["--no-sandbox"])
        yield found
        found.close()


def opened(browser: Any, name: str, target: str, tmp_path: Path, scheme: str = "light") -> Any:
    """The page, offline; whatever it says on the console fails the test when it is closed."""
    file = tmp_path / f"{name}.html"
    file.write_text(page(facts_of(name, target)), encoding="utf-8")
    context = browser.new_context(
        viewport={"width": 1440, "height": 1000}, color_scheme=scheme, offline=True
    )
    shown = context.new_page()
    said: list[str] = []
    shown.on("console", lambda m: said.append(m.text))
    shown.on("pageerror", lambda e: said.append(str(e)))
    shown.on("request", lambda r: said.append(r.url) if not r.url.startswith("file:") else None)
    shown.goto(file.as_uri())
    shown.said = said
    return shown


def test_lines_are_linked(browser: Any, tmp_path: Path) -> None:
    shown = opened(browser, "product", "cuda:sm_90a", tmp_path)
    facts = facts_of("product", "cuda:sm_90a")
    assert shown.locator("#source .sel .n").inner_text() == str(GEMM)
    shown.locator("#stages").select_option(label=f"{len(stage_names(facts, 'ptx'))}. ptx")
    ptx = next(s for s in facts.stages if s.name == "ptx")
    assert shown.locator("#stage .row").count() == len(ptx.lines)
    assert shown.locator("#stage .hit").count() == ptx.places.count(GEMM) > 5
    shown.locator(f"#L{COPY_A}").click()
    assert shown.locator("#stage .hit").count() == ptx.places.count(COPY_A) > 0
    assert f"line {COPY_A}: {ptx.places.count(COPY_A)} of" in shown.locator("#status").inner_text()
    # A line of the stage selects its line of the source, and what is drawn of it.
    at = next(i for i, p in enumerate(ptx.places) if p == COPY_B)
    shown.locator("#stage .row").nth(at).click()
    assert shown.locator("#source .sel .n").inner_text() == str(COPY_B)
    assert shown.locator(".timeline .b.sel").count() >= 2
    assert shown.said == []


def stage_names(facts: Facts, last: str) -> list[str]:
    names = [s.name for s in facts.stages]
    return names[: names.index(last) + 1]


def test_it_goes_by_keys(browser: Any, tmp_path: Path) -> None:
    shown = opened(browser, "product", "cuda:sm_90a", tmp_path)
    keys, stage = shown.keyboard, shown.locator("#stages")
    shown.locator("#source").focus()
    keys.press("ArrowUp")
    assert shown.locator("#source .sel .n").inner_text() == str(GEMM - 1)
    first = stage.input_value()
    keys.press("]")
    assert stage.input_value() == str(int(first) + 1)
    keys.press("[")
    assert stage.input_value() == first
    keys.press("n")
    assert shown.locator("#stage .cursor .n").inner_text() == str(GEMM - 1)
    shown.locator(".timeline").focus()
    for _ in range(3):
        keys.press("ArrowRight")
    told = shown.locator("#schedule .told").inner_text()
    assert "clocks" in told and shown.locator(".timeline .cursor").count() == 1
    keys.press("Enter")
    assert f"line {shown.locator('#source .sel .n').inner_text()};" in told
    # Everything that can be done is reached by Tab, and shows that it is.
    reached = set()
    shown.reload()
    for _ in range(80):
        keys.press("Tab")
        reached.add(shown.evaluate("document.activeElement.id || document.activeElement.className"
                                   ".baseVal || document.activeElement.className"))  # fmt: skip
        if "way" in reached:
            break
    assert {"theme", "source", "stages", "stage", "timeline", "tile", "way", "line"} <= reached
    assert shown.said == []


@pytest.mark.parametrize("target", ["cuda:sm_90a", "hip:gfx942"])
def test_the_drawn_layouts_are_those_of_the_compiler(
    browser: Any, tmp_path: Path, target: str
) -> None:
    shown = opened(browser, "product", target, tmp_path)
    found = buffers("product", target)
    solved = shown.evaluate(
        "tilec.data.layouts.map(l => { const s = tilec.solve(l); return [l.name, l.space,"
        "Object.fromEntries(Object.entries(s).map(([k, v]) => [k, [...v]]))]; })"
    )
    assert {name for name, _, _ in solved} >= {"a", "b", "acc"}
    for name, space, places in solved:
        layout = found[name]
        if space == "shared":
            assert places["offset"] == layout.offsets().ravel().tolist()
        else:
            for owner, wanted in zip(("reg", "lane", "warp"), layout.owners_of()):
                assert places[owner] == wanted.ravel().tolist(), (name, owner)
    shown.locator("#buffers button", has_text=re.compile("^acc$")).click()
    shown.locator("#tile").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        shown.keyboard.press(key)
    reg, lane, warp = (int(a[1, 2]) for a in found["acc"].owners_of())
    told = shown.locator("#spot").inner_text()
    assert f"acc[1, 2]: thread {warp * found['acc'].size('lane') + lane} " in told
    assert f"lane {lane}), element {reg} of the thread" in told and shown.said == []


@pytest.mark.parametrize("pad", [(32, 8), None])
def test_padded_and_swizzled_tiles_are_drawn(browser: Any, tmp_path: Path, pad: Any) -> None:
    layout = swizzled((16, 64), 16, 128)
    if pad:
        layout = dataclasses.replace(row_major((16, 32)), pad=pad)
    kind = BufferType(layout.shape, find_dtype("float16"), "shared", layout=layout)
    given = layouts.of_buffer("s", kind, 1, "")
    shown = opened(browser, "columns", "cuda:sm_80", tmp_path)
    found = shown.evaluate("l => [...tilec.solve(l).offset]", given)
    assert found == layout.offsets().ravel().tolist()


CONTRAST = """() => {
  const part = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = c => {
    const [r, g, b] = c.match(/[\\d.]+/g).map(Number);
    return .2126 * part(r) + .7152 * part(g) + .0722 * part(b);
  };
  const ground = e => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (!c.startsWith("rgba")) return c;
    }
  };
  const texts = "h1, h2, h3, p, td, th, small, .row span, button, .told, a", low = [];
  for (const e of document.querySelectorAll(texts)) {
    if (!e.textContent.trim() || e.closest("svg, .zoom")) continue;
    const a = light(getComputedStyle(e).color), b = light(ground(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) low.push([e.className, e.textContent.slice(0, 30), ratio.toFixed(2)]);
  }
  return low.slice(0, 5);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_reads_in_light_and_in_dark(browser: Any, tmp_path: Path, scheme: str) -> None:
    """Text and ground differ enough (WCAG: 4.5 to 1); pictures are kept in build/explain."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    for name, target in (("product", "cuda:sm_90a"), ("attention", "cuda:sm_90a"),
                         ("columns", "cuda:sm_80")):  # fmt: skip
        shown = opened(browser, name, target, tmp_path, scheme)
        assert shown.evaluate(CONTRAST) == []
        picture = SHOTS / f"{name}-{scheme}.png"
        shown.screenshot(path=picture, full_page=True)
        assert picture.stat().st_size > 50_000
        before = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        shown.locator("#theme").click()
        assert shown.evaluate("getComputedStyle(document.body).backgroundColor") != before
        assert shown.evaluate(CONTRAST) == [] and shown.said == []


def test_it_fits_a_narrow_window(browser: Any, tmp_path: Path) -> None:
    shown = opened(browser, "attention", "cuda:sm_90a", tmp_path)
    shown.set_viewport_size({"width": 420, "height": 800})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 420
