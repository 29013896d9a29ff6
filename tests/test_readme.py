"""The README's promises: its commands are those that are run, its kernel is the one that is
tested."""

from __future__ import annotations

import linecache
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SHELL = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
CI = (ROOT / ".ci" / "run").read_text()


def test_the_first_shell_block_runs_the_quickstart() -> None:
    assert SHELL[0].count("\n") == 1
    assert SHELL[0].strip() == "pip install -e . && python examples/quickstart.py"
    assert (ROOT / "examples" / "quickstart.py").exists()


def test_the_second_shell_block_runs_the_tests() -> None:
    assert SHELL[1].count("\n") == 1
    assert SHELL[1].strip() == "pip install -e '.[test]' && python -m pytest"


def test_ci_runs_the_commands_of_the_readme() -> None:
    lines = [line.split(" || ")[0] for line in CI.splitlines()]
    assert SHELL[0].strip() in lines and SHELL[1].strip() in lines


def test_ci_installs_nothing_before_the_commands_of_the_readme() -> None:
    """What it had installed first hid that the tests needed torch, which `[test]` does not name."""
    lines = [line.strip().split(" || ")[0] for line in CI.splitlines()]
    installs = [line for line in lines if "pip install" in line]
    assert installs == [SHELL[0].strip(), SHELL[1].strip()]
    before = lines[: lines.index(SHELL[1].strip())]
    assert before.count("environment bare") == 1 and "environment torch" not in before
    beside = (ROOT / ".ci" / "beside").read_text()
    behind = beside[beside.index("environment torch") :]
    assert "torch==" in behind and "python -m pytest -n 0 -m torch" in behind


def test_an_editable_install_is_a_path(tmp_path: Path) -> None:
    """setuptools' import hook comes after the path, where a clone named tilec beside a program is a
    namespace of that name; a package that the path leads to comes before a namespace."""
    pytest.importorskip("setuptools", "70.1")  # makes wheels by itself
    clone = tmp_path / "tilec"
    for file in ("pyproject.toml", "README.md", "tilec/__init__.py"):
        (clone / file).parent.mkdir(parents=True, exist_ok=True)
        (clone / file).write_text((ROOT / file).read_text())
    code = "import setuptools.build_meta as b; print(b.build_editable('..'))"
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=clone, check=True, capture_output=True, text=True
    )
    with zipfile.ZipFile(tmp_path / made.stdout.split()[-1]) as wheel:
        paths = [wheel.read(n).decode().strip() for n in wheel.namelist() if n.endswith(".pth")]
    assert paths == [str(clone)]


def test_the_command_for_gpu_tests_is_named() -> None:
    assert "python -m pytest -m gpu\n" in SHELL
    markers = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert any(m.startswith("gpu:") for m in markers["tool"]["pytest"]["ini_options"]["markers"])


def test_the_first_kernel_has_eight_lines_and_runs() -> None:
    assert len([line for line in PYTHON[0].splitlines() if line.strip()]) == 8
    file = str(ROOT / "README.md:kernel")
    linecache.cache[file] = (len(PYTHON[0]), None, PYTHON[0].splitlines(True), file)
    names: dict[str, Any] = {}
    exec(compile(PYTHON[0], file, "exec"), names)
    a, b = np.random.default_rng(0).standard_normal((2, 1500)).astype(np.float32)
    c = np.empty(1500, np.float32)
    names["add"](a, b, c)
    assert (c == a + b).all()


def test_the_product_is_that_of_the_quickstart() -> None:
    quickstart = (ROOT / "examples" / "quickstart.py").read_text()
    kernel = PYTHON[1].split("import tilec.language as T\n", 1)[1]
    assert "T.gemm" in kernel and kernel.strip() in quickstart


def test_the_first_screen_has_the_kernel_and_both_commands() -> None:
    screen = "\n".join(README.splitlines()[:55])
    assert PYTHON[0] in screen and SHELL[0] in screen and SHELL[1] in screen


def test_the_state_of_hip_is_told() -> None:
    assert re.search(r"hip:gfx942.*no AMD GPU has run it", README)


def test_extras_are_the_documented_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) == {"cuda", "hip", "torch", "test", "dev", "docs"}
    assert {re.split(r"[>=<]", d)[0] for d in project["dependencies"]} == {
        "llvmlite",
        "numpy",
        "ml_dtypes",
    }
