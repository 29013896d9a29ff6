"""The README's promises: its commands are those that are run, its kernel is the one that is
tested."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

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


def test_the_command_for_gpu_tests_is_named() -> None:
    assert "python -m pytest -m gpu\n" in SHELL
    markers = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert any(m.startswith("gpu:") for m in markers["tool"]["pytest"]["ini_options"]["markers"])


def test_the_kernel_is_that_of_the_quickstart() -> None:
    quickstart = (ROOT / "examples" / "quickstart.py").read_text()
    kernel = PYTHON[0].split("import tilec.language as T\n", 1)[1]
    assert "T.gemm" in kernel and kernel.strip() in quickstart


def test_the_first_screen_has_the_kernel_and_both_commands() -> None:
    screen = "\n".join(README.splitlines()[:55])
    assert PYTHON[0] in screen and SHELL[0] in screen and SHELL[1] in screen


def test_the_state_of_hip_is_told() -> None:
    assert re.search(r"hip:gfx942.*no AMD GPU has run it", README)


def test_extras_are_the_documented_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) == {"cuda", "hip", "torch", "test", "dev"}
    assert {re.split(r"[>=<]", d)[0] for d in project["dependencies"]} == {
        "llvmlite",
        "numpy",
        "ml_dtypes",
    }
