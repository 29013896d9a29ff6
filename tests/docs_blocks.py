"""The code blocks of the documentation, and how they are run.

A page's `python` blocks run in order in one namespace, its `sh` blocks in a folder that has
examples/ and the like. A comment above a block says what it needs:

    <!-- test: torch -->            it needs torch (with the marker `torch`)
    <!-- test: gpu -->              it needs torch and an NVIDIA GPU (with the marker `gpu`)
    <!-- test: raises CompileError --> the block ends with this error
    <!-- test: not run, REASON -->  a command that is not run here
    <!-- output -->                 above a `text` block: the block before has printed these lines;
                                    "…" stands for anything
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parent.parent
# Pages whose blocks a script has run to write them: tests/test_docs.py.
MADE = {"debugging.md", "errors.md", "stages.md", "mutants.md", "results.md"}
NEEDS = ("", "torch", "gpu")  # each has what those before it have
_BLOCK = re.compile(
    r"(?:^<!-- (?P<what>test: .*?|output) -->\n+)?^```(?P<language>\w+)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A code block of `page`; its text begins at line `line`. `says`: the comment above it."""

    page: Path
    line: int
    language: str
    text: str
    says: str

    @property
    def need(self) -> str:
        return next((n for n in ("gpu", "torch") if self.says == n), "")

    @property
    def raises(self) -> str:
        return self.says.removeprefix("raises ") if self.says.startswith("raises ") else ""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(p for p in found if p.name not in MADE)


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("text")) + 1
        says = (match["what"] or "").removeprefix("test: ")
        found.append(Block(page, line, match["language"], match["text"], says))
    return found


def run_python(page: Path, need: str) -> None:
    """Run the Python blocks of a page that need at most `need`, in order; look at what they print.
    Raises AssertionError with the page's line."""
    namespace: dict[str, Any] = {"__name__": f"page_{page.stem}"}
    printed: str | None = ""
    with mock.patch.dict(os.environ):
        for block in blocks(page):
            if block.language == "text" and block.says == "output":
                if printed is not None:
                    check_output(block, printed)
            elif block.language == "python":
                runs = NEEDS.index(block.need) <= NEEDS.index(need)
                printed = _run(block, namespace) if runs else None


def _run(block: Block, namespace: dict[str, Any]) -> str:
    # The lines before it, empty: messages name the page's own lines.
    text = "\n" * (block.line - 1) + block.text
    file = f"{block.where}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(text, file, "exec"), namespace)
    except Exception as e:
        if block.raises and block.raises in {c.__name__ for c in type(e).__mro__}:
            return f"{type(e).__module__}.{type(e).__name__}: {e}"
        raise AssertionError(f"{block.where}\n{traceback.format_exc()}") from e
    assert not block.raises, f"{block.where}: no {block.raises}"
    return out.getvalue()


def check_output(block: Block, printed: str) -> None:
    """Raise AssertionError unless each line of `block` stands in `printed`, in order."""
    rest = printed
    for line in filter(str.strip, block.text.splitlines()):
        pattern = r"[^\n]*?".join(re.escape(p.strip()) for p in line.strip().split("…"))
        found = re.search(pattern, rest)
        assert found, f"{block.where}: {line!r} is not printed:\n{printed}"
        rest = rest[found.end() :]


def commands(block: Block) -> list[str]:
    """The commands of a `sh` block, continued lines joined, comments left out."""
    joined = block.text.replace("\\\n", " ")
    lines = (line.strip().removeprefix("$ ") for line in joined.splitlines())
    return [line for line in lines if line and not line.startswith("#")]
