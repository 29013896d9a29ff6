"""Environment variables: what is none of tilec's values is an error that names those it takes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.passes import stage_names
from tilec.runtime import cpu
from tilec.runtime.devices import default_target, named_place
from tilec.support import settings
from tilec.support.tools import find_ptxas

ROOT = Path(__file__).parent.parent


def fresh() -> tilec.Kernel:
    """A kernel that nothing has compiled yet."""

    @tilec.kernel
    def double(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = A[i] + A[i]

    return double


ARRAYS = np.ones(64, np.float32), np.zeros(64, np.float32)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("nonsense", "TILEC_DUMP names 'nonsense', which is no stage"),
        ("al", "did you mean 'all'?"),
        ("tile,lvm", "TILEC_DUMP names 'lvm', which is no stage; did you mean 'llvm'?"),
        ("simplfy", "did you mean 'simplify'?"),
        ("1", "TILEC_DUMP names '1'"),
        ("tile;llvm", "TILEC_DUMP names 'tile;llvm'"),
        ("ptx-", "TILEC_DUMP names 'ptx-'"),
    ],
)
@pytest.mark.parametrize("cached", [False, True])
def test_stages_that_are_none(
    said: str, says: str, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = fresh()
    if cached:
        fresh().compile(*ARRAYS, target="cpu")
    monkeypatch.setenv("TILEC_DUMP", said)
    with pytest.raises(tilec.TilecError) as caught:
        kernel(*ARRAYS)
    assert says in caught.value.message
    takes = "it takes all, or of these, with commas between: tile, group_threads, join_blocks"
    assert (
        caught.value.hint.startswith(takes) and "llvm-opt, ptx, gcn, asm, sass" in caught.value.hint
    )
    monkeypatch.delenv("TILEC_DUMP")
    kernel(*ARRAYS)
    assert (ARRAYS[1] == 2).all(), "nothing is lost"


def test_every_stage_there_is_can_be_named(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    for target in ("cpu", "cuda:sm_90a", "hip:gfx942"):
        made = fresh().compile(*ARRAYS, target=target)
        names = [n for n in made.stages if n != "sass"]
        monkeypatch.setenv("TILEC_DUMP", ",".join(names))
        fresh().compile(*ARRAYS, target=target)
        monkeypatch.delenv("TILEC_DUMP")
        told = re.findall(r"^// double: \d+-(\S+)$", capsys.readouterr().err, re.MULTILINE)
        assert told == names
    assert "simplify-2" in stage_names()


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEC_DUMP", "tile")
    monkeypatch.setenv("TILEC_DUMP_DIR", str(tmp_path / "file"))
    with pytest.raises(tilec.TilecError, match="TILEC_DUMP_DIR is .*file") as caught:
        fresh().compile(*ARRAYS, target="cpu")
    assert "it takes a folder" in caught.value.hint


@pytest.mark.parametrize("name", ["TILEC_DEBUG", "TILEC_DISABLE_CACHE"])
@pytest.mark.parametrize("said", ["maybe", "2", "-1", "yess", "1,0"])
def test_switches(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, said)
    with pytest.raises(tilec.TilecError, match=rf"{name} is '{said}'; it takes 1 or 0"):
        fresh()(*ARRAYS)


@pytest.mark.parametrize(
    ("said", "on"),
    [("", False), ("0", False), ("1", True), ("true", True), ("False", False), ("ON", True)],
)
def test_what_switches_take(said: str, on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_DEBUG", said)
    assert settings.is_on("TILEC_DEBUG") is on


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("cuda:sm_90", "TILEC_TARGET: unknown target 'cuda:sm_90'; did you mean 'cuda:sm_90a'?"),
        ("gpu", "TILEC_TARGET: unknown target 'gpu'"),
        ("hip:gfx1200", "TILEC_TARGET: unknown target 'hip:gfx1200'"),
    ],
)
def test_targets(said: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_TARGET", said)
    for asked in (default_target, lambda: named_place(None, None)):
        with pytest.raises(tilec.TargetError) as caught:
            asked()
        assert says in caught.value.message
        assert caught.value.hint.startswith("set TILEC_TARGET to one of cuda:sm_")
    spec = tilec.spec((64,), "float32")
    with pytest.raises(tilec.TargetError, match="TILEC_TARGET"):
        fresh().compile(spec, spec)


@pytest.mark.parametrize("said", ["many", "0", "-3", "1.5"])
def test_numbers_of_threads(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_NUM_THREADS", said)
    with pytest.raises(tilec.DriverError, match=f"TILEC_NUM_THREADS is '{said}', not a positive"):
        cpu.thread_count()


def test_an_assembler_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_PTXAS", "/nowhere/ptxas")
    with pytest.raises(tilec.TilecError, match="TILEC_PTXAS='/nowhere/ptxas' is not an exec") as e:
        find_ptxas()
    assert "'off'" in e.value.hint


def test_names_that_tilec_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_DUPM", "all")
    monkeypatch.setattr(settings, "_told", set())
    with pytest.warns(UserWarning, match="reads no environment variable TILEC_DUPM; did you mean "):
        fresh().compile(*ARRAYS, target="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh().compile(*ARRAYS, target="cpu")  # said once


def test_all_that_the_source_reads_are_listed() -> None:
    files = [p for p in (ROOT / "tilec").rglob("*.py") if p.name != "export.py"]  # writes C guards
    named = {n for p in files for n in re.findall(r"\bTILEC_[A-Z_]*[A-Z]\b", p.read_text())}
    assert named <= settings.VARIABLES.keys()


def test_an_error_in_a_program_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np, tilec, tilec.language as T\n"
        "@tilec.kernel\n"
        'def k(A: T.Tensor((64,), "float32")):\n'
        "    with T.Kernel(1, threads=64):\n"
        "        T.clear(A)\n"
        "k(np.ones(64, np.float32))\n"
    )
    environment = os.environ | {"TILEC_DUMP": "nonsense", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1
    last = done.stderr.split("Traceback")[-1]
    assert "tilec.TilecError: " in last and "names 'nonsense', which is no stage" in last
    assert last.count("File ") == 1, "the user's line alone"
