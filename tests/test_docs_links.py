"""From the README everything is found within two clicks, and every link leads somewhere."""

from __future__ import annotations

import os
import re
from pathlib import Path

import docs_blocks
import pytest
from docs_blocks import ROOT

from tilec.__main__ import COMMANDS
from tilec.target import TARGETS, cuda_target

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
PAGES = docs_blocks.pages()

# What a new user looks for: where it is, and what stands there.
SUBJECTS = {
    "softmax": ("examples/softmax.py", r"T\.reduce_max"),
    "layer norm": ("examples/layer_norm.py", r"T\.rsqrt"),
    "streams": ("docs/cookbook.md#streams", r"stream=stream"),
    "CUDA graphs": ("docs/cookbook.md#cuda-graphs", r"CUDAGraph"),
    "measured tuning": ("docs/tuning.md#tuning-by-measurement", r"tilec\.autotune"),
    "torch.compile": ("docs/pytorch.md#an-operator", r"fullgraph=True"),
    "PTX": ("docs/dumps.md#ptx", r'stages\["ptx"\]'),
    "the explain page": ("docs/command_line.md#explain", r"tilec explain"),
    "the chosen layout": ("docs/dumps.md#the-chosen-layout", r"lane 4:\(0,2\)"),
    "why a kernel is slow": ("docs/performance.md", r"blocks_per_sm"),
    "a wrong value": ("docs/debugging.md#following-values", r"trace="),
    "AOT": ("docs/cookbook.md#ahead-of-time", r"export_c"),
    "dynamic shapes": ("docs/cookbook.md#dynamic-shapes", r"T\.dynamic"),
    "bf16": ("docs/cookbook.md#bf16", r"bfloat16"),
    "fp8": ("docs/cookbook.md#fp8", r"fast_accum"),
    "groups": ("docs/cookbook.md#grouped-products", r"offsets"),
    "AMD": ("docs/install.md#amd", r"ROCm"),
    "several GPUs": ("docs/cookbook.md#several-gpus", r"device_count"),
    "autograd": ("docs/pytorch.md#gradients", r"backward="),
    "nn.Module": ("docs/pytorch.md#a-module-that-learns", r"nn\.Module"),
    "the cache": ("docs/environment.md#the-cache", r"TILEC_CACHE_DIR"),
    "environment variables": ("docs/environment.md", r"TILEC_DUMP"),
    "changes": ("CHANGELOG.md", r"0\.1\.0"),
    "API reference": ("docs/reference/api.md", r"entries: tilec "),
    "a word of the language": ("docs/reference/atomics.md", r"entries: tilec\.builtins\.atomics"),
}


def links(path: str) -> set[str]:
    """Where a page's links lead, from the root, with anchors."""
    if not path.endswith(".md"):
        return set()
    text = re.sub(r"^```.*?^```$", "", (ROOT / path).read_text(), flags=re.M | re.S)
    found = set()
    for _, target in _LINK.findall(re.sub(r"`[^`\n]*`", lambda m: "x" * len(m[0]), text)):
        if re.match(r"[a-z]+:", target):
            continue
        file, mark, anchor = target.partition("#")
        there = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
        found.add(there + mark + anchor)
    return found


def sections(path: str) -> dict[str, str]:
    """A page's headings, as GitHub and mkdocs name them, and the text below each."""
    text = (ROOT / path).read_text()
    bare = re.sub(r"^```.*?^```$", lambda m: re.sub(r"^#", "\\#", m[0], flags=re.M), text,
                  flags=re.M | re.S)  # fmt: skip
    parts = re.split(r"^#+ (.+)$", bare, flags=re.M)
    made = {}
    for heading, body in zip(parts[1::2], parts[2::2]):
        words = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower()).strip()
        made[words.replace(" ", "-")] = body
    return made


@pytest.mark.parametrize("subject", SUBJECTS)
def test_it_is_found_within_two_clicks(subject):
    target, what = SUBJECTS[subject]
    first = links("README.md")
    reached = first | {link for page in first for link in links(page.partition("#")[0])}
    file, _, anchor = target.partition("#")
    assert target in reached, f"{target} is not within two clicks of the README"
    text = (ROOT / file).read_text()
    assert re.search(what, sections(file)[anchor] if anchor else text), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    path = str(page.relative_to(ROOT))
    made = {}
    for link in links(path):
        file, _, anchor = link.partition("#")
        assert (ROOT / file).exists(), f"{path}: {link}"
        if anchor and file.endswith(".md") and not anchor.startswith(("T.", "tilec.")):
            made[file] = made.get(file) or sections(file)
            assert anchor in made[file], f"{path}: {link}; {file} has {list(made[file])}"


def test_every_environment_variable_is_told():
    told = (ROOT / "docs" / "environment.md").read_text()
    read = set()
    for path in (ROOT / "tilec").rglob("*.py"):
        read |= set(re.findall(r"""["'](TILEC_[A-Z_]+)["']""", path.read_text()))
    assert {"TILEC_DUMP", "TILEC_PTXAS"} <= read
    for name in read:
        assert f"| `{name}` |" in told, f"docs/environment.md does not tell {name}"


def test_the_table_of_chips_is_that_of_targets():
    text = (ROOT / "docs" / "install.md").read_text()
    table = text.split("## Which chip takes which road")[1].split("\n## ")[0]
    assert all(f"`{name}`" in table for name in TARGETS)
    rows = [[c.strip() for c in r.split("|")[1:-1]] for r in re.findall(r"^\|.*\|$", table, re.M)]
    found = 0
    for _, capabilities, told, _ in rows[2:]:
        for major, minor in re.findall(r"(\d+)\.(\d|x)", capabilities):
            is_target = cuda_target(int(major), 0 if minor == "x" else int(minor))
            assert told == (f"`{is_target.name}`" if is_target else "none"), capabilities
            found += 1
    assert found >= 8


def test_shared_memory_is_as_told():
    text = (ROOT / "docs" / "reference" / "kernel.md").read_text()
    for name, target in TARGETS.items():
        if name != "cpu":
            assert f"{target.shared_bytes >> 10} KB on `{name}`" in text


def test_commands_in_a_line_name_what_there_is():
    commands = set(re.findall(r"`(python [^`]+)`", "\n".join(p.read_text() for p in PAGES)))
    assert len(commands) > 5
    for command in commands:
        words = command.split()
        if words[1:3] == ["-m", "tilec"]:
            assert len(words) < 4 or words[3].isupper() or words[3] in {*COMMANDS, "--version"}, (
                command
            )
        elif words[1] == "-m":
            name = words[2].replace(".", "/")
            found = (ROOT / name).exists() or (ROOT / f"{name}.py").exists()
            assert found or words[2] in ("pytest", "pip"), command
        elif not words[1].startswith(("-", "program")):
            assert list(ROOT.glob(words[1])), command


def test_every_example_is_told():
    told = links("docs/examples.md")
    for path in (ROOT / "examples").rglob("*.py"):
        name = str(path.relative_to(ROOT))
        assert name in told or name.endswith("_support.py"), f"docs/examples.md lacks {name}"
