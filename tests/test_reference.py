"""The reference has every word, with what the docstring says, and the site builds without a
warning."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tilec.language as T

ROOT = Path(__file__).parent.parent


def _module(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


reference = _module("make_reference")


def test_every_word_and_every_name_of_tilec_is_on_a_page():
    words, names = reference.missing()
    where = "add it to a `<!-- entries: … -->` line of docs/reference/*.md"
    assert not words and not names, where
    assert {"copy", "gemm", "exp", "Parallel", "float16", "__exp"} <= reference.words()
    assert "Any" not in reference.words() and "FLOAT16" not in reference.words()


def test_no_entry_is_there_twice():
    listed = [e for p in reference.PAGES.glob("*.md") for e in reference.listed(p.read_text())]
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("path", sorted(reference.PAGES.glob("*.md")), ids=lambda p: p.stem)
def test_a_page_says_what_holds_for_its_words(path):
    text = path.read_text()
    if path.stem in ("index", "api"):
        return
    for fact in reference.FACTS:
        said = re.search(rf"^\| {fact} \| (.+) \|$", text, re.MULTILINE)
        assert said and len(said[1]) > 2, f"{path.name} does not say {fact}"


def test_entries_have_signature_docstring_and_examples():
    pages = reference.pages()
    copy = pages["copies.md"].split("### `T.copy`")[1].split("\n### ")[0]
    assert "T.copy(\n    src,\n    dst,\n    coalesced_width=None,\n" in copy
    assert "Copy region `src` onto region `dst`" in copy
    assert "<summary>Example, of examples/" in copy and "    T.copy(" in copy
    assert "T.exp(x)" in pages["maths.md"] and "ulp on GPUs" in pages["maths.md"]
    assert "The same as [`T.if_then_else`](#T.if_then_else)." in pages["maths.md"]
    assert "policy=T.GemmWarpPolicy.Square" in pages["products.md"]
    assert '<span id="T.float16"></span>`T.float16` | 16 |' in pages["parameters.md"]


def test_an_example_is_the_shortest_kernel_that_uses_the_word():
    found = reference.examples()
    assert "T.atomic_add(" in found["atomic_add"].text
    assert all(e.lines <= reference.MOST_LINES for e in found.values())
    assert all(f"T.{name}" in e.text for name, e in found.items())
    assert {"copy", "gemm", "reduce_sum", "atomic_add", "shfl_xor", "tma_copy"} <= set(found)


def test_a_word_without_a_docstring_fails(monkeypatch):
    def silent():
        pass

    monkeypatch.setattr(T, "clear", silent)
    with pytest.raises(ValueError, match="T.clear has no docstring"):
        reference.entry("tilec.language", "clear")


def test_docstrings_are_shown_as_they_are_written():
    text = "2**32 of `a**b`, a<b and __exp\nA line:\n    code(x)"
    made = reference.markdown(text)
    assert made == "2\\*\\*32 of `a**b`, a&lt;b and \\_\\_exp\nA line:\n\n    code(x)"


def test_a_table_of_arguments_is_a_list():
    text = "Do it.\n\nrep, n  how often\n        or not.\nname    what.\n\nRaises it."
    want = "Do it.\n\n\n- `rep`, `n`: how often\n  or not.\n- `name`: what.\n\nRaises it."
    assert reference.markdown(text) == want


def test_what_needs_an_absent_package_is_left_out():
    page = "<!-- entries: tilec.nowhere -->\n"
    assert reference.listed(page) == []
    assert "`tilec.nowhere` is not shown: " in reference.with_entries(page)


def _build(config: Path, into: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", into]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_the_site_is_built_without_warnings(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    made = _build(ROOT / "mkdocs.yml", tmp_path)
    assert made.returncode == 0, made.stderr
    page = (tmp_path / "reference" / "atomics" / "index.html").read_text()
    assert 'id="T.atomic_add"' in page and "compare-and-swap" in page
    assert (tmp_path / "source" / "examples" / "softmax.py" / "index.html").exists()
    home = (tmp_path / "index.html").read_text()
    assert "A compiler for" in home and "changelog/" in home


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("[there](nowhere.md)\n")
    text = (ROOT / "mkdocs.yml").read_text()
    text = re.sub(r"hooks:\n.*?(?=theme:)", "", text, flags=re.DOTALL).split("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(text)
    made = _build(tmp_path / "mkdocs.yml", tmp_path / "made")
    assert made.returncode != 0 and "nowhere.md" in made.stderr
