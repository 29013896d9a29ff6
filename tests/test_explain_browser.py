"""The page of `tilec explain` in a headless browser: what is linked, drawn and reached by keys."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from explain_programs import COPY_A, COPY_B, GEMM, buffers, facts_of

from tilec.explain import layouts
from tilec.explain.facts import Facts
from tilec.explain.page import page
from tilec.ir.layout import row_major, swizzled
from tilec.ir.types import BufferType, find_dtype

SHOTS = Path(__file__).parent.parent / "build" / "explain"


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
