"""What mkdocs does not do by itself, as hooks of `mkdocs.yml`.

- The entries of the reference are made from docstrings (`make_reference.py`).
- README.md is the home page; CHANGELOG.md and CONTRIBUTING.md are pages, too.
- A page that the navigation of `mkdocs.yml` does not name comes at the end of its first section.
- A page may link to any file of the repository, as it would be read there: `../examples/softmax.py`
  becomes a page with that source.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import make_reference  # noqa: E402 (beside this file)

ROOT = Path(__file__).parent.parent
DOCS = "docs"
AT_THE_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".yml": "yaml", "": "sh"}


def on_config(config: Any) -> Any:
    """Pages that the navigation does not name come at the end of its first section."""
    named = str(config.nav)
    for path in sorted((ROOT / DOCS).glob("*.md")):
        if repr(path.name) not in named:
            next(iter(config.nav[1].values())).append(path.name)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are no files of docs/."""
    for name, page in AT_THE_ROOT.items():
        if (ROOT / name).exists():
            text = (ROOT / name).read_text()
            files.append(File.generated(config, page, content=relinked(text, name)))
    sources = set()
    for path in [*(ROOT / DOCS).rglob("*.md"), *(ROOT / name for name in AT_THE_ROOT)]:
        if path.exists():
            text = path.read_text()
            if path.parent == make_reference.PAGES:
                text = make_reference.with_entries(text)
            sources |= linked_sources(text, str(path.relative_to(ROOT)))
    for source in sorted(sources):
        files.append(File.generated(config, page_of(source), content=source_page(source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Entries behind their directives; links as the site has them."""
    if page.file.src_uri in AT_THE_ROOT.values() or page.file.generated_by:
        return markdown
    if page.file.src_uri.startswith("reference/"):
        markdown = make_reference.with_entries(markdown)
    return relinked(markdown, f"{DOCS}/{page.file.src_uri}")


def page_of(path: str) -> str:
    """The page of a file of the repository, from docs/."""
    if path in AT_THE_ROOT:
        return AT_THE_ROOT[path]
    if path.startswith(f"{DOCS}/") and not path.endswith(".py"):
        return path.removeprefix(f"{DOCS}/")
    return f"source/{path}.md"


def linked(target: str, where: str) -> str:
    """The file of the repository that a link of `where` leads to; "" for other links."""
    path = target.partition("#")[0]
    if not path or re.match(r"[a-z]+:", path):
        return ""
    found = os.path.normpath(os.path.join(os.path.dirname(where), path))
    return found if (ROOT / found).is_file() else ""


def relinked(text: str, where: str) -> str:
    """The text of the file `where` with its links as the site has them."""
    start = os.path.dirname(page_of(where)) or "."

    def link(match: re.Match[str]) -> str:
        path = linked(match[2], where)
        if not path:
            return match[0]
        _, mark, anchor = match[2].partition("#")
        return f"{match[1]}{os.path.relpath(page_of(path), start)}{mark}{anchor}{match[3]}"

    return _outside_code(text, lambda part: _LINK.sub(link, part))


def linked_sources(text: str, where: str) -> set[str]:
    """The files that a page links to which are no pages of their own."""
    found: set[str] = set()

    def look(part: str) -> str:
        paths = (linked(target, where) for _, target, _ in _LINK.findall(part))
        found.update(p for p in paths if p and page_of(p).startswith("source/"))
        return part

    _outside_code(text, look)
    return found


def _outside_code(text: str, change: Any) -> str:
    parts = _CODE.split(text)
    for i in range(0, len(parts), 2):
        parts[i] = change(parts[i])
    # A link's words may be code, `[`x`](y)`: its target begins the next part.
    return "".join(parts)


def source_page(path: str) -> str:
    """A page that shows a file."""
    text = (ROOT / path).read_text()
    language = _LANGUAGES.get(Path(path).suffix, "text")
    fence = "`" * 4
    return f"# {path}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"
