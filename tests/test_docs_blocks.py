"""Every Python block and every shell command of the README and the documentation runs."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest import mock

import docs_blocks
import pytest
import test_attention_examples
import test_examples
from docs_blocks import ROOT, Block, blocks

from tilec.__main__ import main

PAGES = docs_blocks.pages()
ALL = {page: blocks(page) for page in PAGES}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_PROGRAM = re.compile(r"((?:\w+=\S+ )*)python (examples/(?:attention/)?(\w+)\.py)")
# What a command may need that is not there: a network, minutes. These are held to what exists.
_NOT_RUN = ("pip install", "python -m pytest", "mkdocs", "git ", "pre-commit", ".ci/run")


def _with(need: str) -> list[Path]:
    return [p for p in PAGES if any(b.language == "python" and b.need == need for b in ALL[p])]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", _with(""), ids=_name)
def test_python_blocks_run(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    docs_blocks.run_python(page, "")


@pytest.mark.torch
@pytest.mark.parametrize("page", _with("torch"), ids=_name)
def test_python_blocks_with_torch_run(page, monkeypatch, tmp_path):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    docs_blocks.run_python(page, "torch")


@pytest.mark.gpu
@pytest.mark.parametrize("page", _with("gpu"), ids=_name)
def test_python_blocks_with_a_gpu_run(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    docs_blocks.run_python(page, "gpu")


def _shell() -> list[Block]:
    found = [b for page in PAGES for b in ALL[page] if b.language in ("sh", "bash", "console")]
    return [b for b in found if not b.says.startswith("not run")]


def _is_run(command: str) -> bool:
    return not command.startswith(_NOT_RUN)


def _commands(need: str) -> list[tuple[Block, list[str]]]:
    found = [(b, docs_blocks.commands(b)) for b in _shell() if b.need == need]
    return [(b, c) for b, c in found if any(map(_is_run, c))]


@pytest.mark.parametrize("block, commands", _commands(""), ids=lambda x: getattr(x, "where", ""))
def test_commands_run(block, commands, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _run_commands(block, commands, tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("block, commands", _commands("gpu"), ids=lambda x: getattr(x, "where", ""))
def test_commands_with_a_gpu_run(block, commands, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _run_commands(block, commands, tmp_path)


def _run_commands(block: Block, commands: list[str], folder: Path) -> None:
    """In `folder`, where this process is: what a program does as one of its own is for other tests
    (tests/test_cli.py), and to start it takes longer than most commands."""
    for name in ("examples", "benchmarks", "docs", "tilec"):
        (folder / name).symlink_to(ROOT / name)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    for command in filter(_is_run, commands):
        if command.startswith("python -m tilec "):
            assert main(shlex.split(command)[3:]) == 0, f"{block.where}: {command}"
            continue
        if program := _PROGRAM.fullmatch(command):
            _run_program(*program.groups())
            continue
        made = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True
        )
        assert made.returncode == 0, f"{block.where}: {command}\n{made.stdout}{made.stderr}"


def _run_program(settings: str, path: str, name: str) -> None:
    """A program of the examples, here; what it does without settings has its test."""
    text = (ROOT / path).read_text()
    assert text.endswith('\n\nif __name__ == "__main__":\n    main()\n'), path
    if not settings:
        assert name in (*test_examples.PRINT_ONE_LINE, *test_attention_examples.NAMES)
        return
    with mock.patch.dict(os.environ, (s.split("=") for s in settings.split())):
        runpy.run_path(path, run_name="__main__")


def test_commands_that_are_not_run_name_what_there_is():
    extras = set(PROJECT["project"]["optional-dependencies"])
    markers = {m.split(":")[0] for m in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    for block in _shell():
        for line in docs_blocks.commands(block):
            for command in line.split(" && "):
                words = shlex.split(command)
                if command.startswith("pip install"):
                    for asked in re.findall(r"\[([\w,]+)\]", command):
                        assert set(asked.split(",")) <= extras, block.where
                elif command.startswith("python -m pytest"):
                    named = {words[i + 1] for i, w in enumerate(words) if w == "-m" and i > 1}
                    assert named <= markers, block.where
                    for path in (w for w in words if w.startswith("tests/")):
                        assert (ROOT / path).exists(), block.where


def test_blocks_say_what_the_tests_know():
    known = re.compile(r"torch|gpu|raises \w+|not run, .+|output|")
    for page in PAGES:
        text = page.read_text()
        for block in ALL[page]:
            assert known.fullmatch(block.says), f"{block.where}: {block.says!r}"
            if block.language == "python":
                assert not block.says.startswith(("not run", "output")), block.where
        said = len(re.findall(r"^<!-- (?:test: .*|output) -->$", text, re.MULTILINE))
        code = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        outside = len(re.findall(r"^<!-- (?:test: .*|output) -->$", code, re.MULTILINE))
        used = sum(bool(b.says) for b in ALL[page])
        assert used == outside <= said, f"{_name(page)}: a comment that is above no block"


def test_a_block_that_fails_names_the_line(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("# A\n\n```python\nx = 1\n```\n\n```python\nassert x == 2, 'no'\n```\n")
    monkeypatch.setattr(docs_blocks, "ROOT", tmp_path)
    with pytest.raises(AssertionError, match="page.md:8"):
        docs_blocks.run_python(page, "")


def test_what_is_printed_is_compared(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    text = '```python\nprint("one 17 two")\n```\n\n<!-- output -->\n```text\none … two\n```\n'
    page.write_text(text)
    monkeypatch.setattr(docs_blocks, "ROOT", tmp_path)
    docs_blocks.run_python(page, "")
    page.write_text(text.replace("one … two", "one … three"))
    with pytest.raises(AssertionError, match="three"):
        docs_blocks.run_python(page, "")


def test_an_error_that_does_not_come_fails(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("<!-- test: raises ValueError -->\n```python\nint('x')\n```\n")
    monkeypatch.setattr(docs_blocks, "ROOT", tmp_path)
    docs_blocks.run_python(page, "")
    page.write_text(page.read_text().replace("int('x')", "int('1')"))
    with pytest.raises(AssertionError, match="no ValueError"):
        docs_blocks.run_python(page, "")
