"""Every example runs, and its own checks pass: on the CPU here, and on the GPU where there is
one."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(p.stem for p in FOLDER.glob("*.py") if p.stem != "example_support")


def test_there_are_examples() -> None:
    assert {"quickstart", "vector_add", "matmul", "stencil", "transpose"} <= set(EXAMPLES)


PRINT_ONE_LINE = [name for name in EXAMPLES if name != "quickstart"]


def run_example(name: str, capsys: pytest.CaptureFixture[str], *cases: Any) -> None:
    importlib.import_module(name).main(*cases)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 and printed[0].startswith(f"{name} on ")


@pytest.mark.parametrize("name", PRINT_ONE_LINE)
def test_example(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("example_support"), "ON_GPU", False)
    run_example(name, capsys)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PRINT_ONE_LINE)
def test_example_on_gpu(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not importlib.import_module("example_support").ON_GPU:
        pytest.skip("needs torch with CUDA")
    run_example(name, capsys)


def test_quickstart_as_a_program(tmp_path: Path) -> None:
    """A size that no tile divides, and the stages written as its last line says."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(FOLDER.parent),
        "TILEC_DUMP": "all",
        "TILEC_DUMP_DIR": str(tmp_path / "stages"),
    }
    done = subprocess.run(
        [sys.executable, str(FOLDER / "quickstart.py"), "200"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert first.startswith("matmul 200x200x200") and "GFLOP/s" in first and " of " in first
    assert "TILEC_DUMP=all" in last
    written = sorted(p.name for p in (tmp_path / "stages").iterdir() if p.is_file())
    assert written[0] == "00-tile.txt" and any(n.endswith("-llvm.txt") for n in written)


def test_a_ratio_is_of_runs_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is slow for a while, and for one call, changes no ratio."""
    support = importlib.import_module("example_support")
    calls = 0

    def once(run) -> float:
        nonlocal calls
        calls += 1
        slow = 5.0 if calls > 70 else 1.0
        return run() * slow * (100.0 if calls % 9 == 0 else 1.0)

    monkeypatch.setattr(support, "_once", once)
    time, ratios = support.compared(lambda: 2e-3, lambda: 3e-3)
    assert ratios == sorted(ratios) and len(ratios) == 9
    assert ratios[4] == pytest.approx(1.5) and time == pytest.approx(10e-3)


def test_checks_can_fail() -> None:
    """An example's check refuses a wrong number and one that was not written."""
    support = importlib.import_module("example_support")
    want = support.float64(support.random((5, 7), "float32"))
    got = support.random((5, 7), "float32")
    assert support.check("right", got, want) < 1e-6
    got[3, 2] += 0.01
    with pytest.raises(AssertionError, match="relative error"):
        support.check("wrong", got, want)
    got[3, 2] = float("nan")
    with pytest.raises(AssertionError, match="1 elements not written"):
        support.check("unwritten", got, want)
