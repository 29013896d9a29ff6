"""`python -m tilec simulate`: kernels found in files, arguments from words, wrong usage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tilec.__main__ import main

ROOT = Path(__file__).parent.parent

KERNELS = """
import sibling
import tilec
import tilec.language as T

R, C = T.dynamic("R, C")

@tilec.kernel
def blend(X: T.Tensor((R, C), "bfloat16"), w: T.Tensor((C,), "float32"),
          Y: T.Tensor((R, C), "float32"), gain: T.float32, BR: T.constexpr = 8):
    with T.Kernel(T.ceildiv(C, 32), T.ceildiv(R, BR), threads=64) as (bx, by):
        x = T.alloc_shared((BR, 32), "bfloat16")
        T.copy(X[by * BR, bx * 32], x)
        for i, j in T.Parallel(BR, 32):
            Y[by * BR + i, bx * 32 + j] = x[i, j] * w[bx * 32 + j] * gain

@tilec.kernel
def gather(idx: T.Tensor((R,), "int32"), table: T.Tensor((64,), "float32"),
           out: T.Tensor((R,), "float32")):
    with T.Kernel(T.ceildiv(R, 64), threads=64) as bx:
        s = T.alloc_shared((64,), "float32")
        T.copy(table, s)
        for i in T.Parallel(64):
            out[bx * 64 + i] = s[idx[bx * 64 + i]]

@tilec.kernel
def triple(A, BM: T.constexpr):
    n = T.const("n")
    A: T.Tensor((n, n), "float16")
    B = T.empty((n, n), "float16")
    bx, by = T.program_id(0), T.program_id(1)
    for i, j in T.Parallel(BM, BM):
        B[by * BM + i, bx * BM + j] = A[by * BM + i, bx * BM + j] * 3
    return B

def make(dtype, n=32):
    if dtype == "none":
        return None
    @tilec.kernel
    def moved(A: T.Tensor((n, C), dtype), B: T.Tensor((n, C), dtype)):
        with T.Kernel(T.ceildiv(C, 64), threads=64) as bx:
            T.copy(A[0:n, bx * 64 : bx * 64 + 64], B[0:n, bx * 64 : bx * 64 + 64])
    return moved

number = 7
if __name__ == "__main__":
    raise SystemExit("it was run")
"""

BLEND = ("kernels.py:blend", "--set", "gain=0.5", "--dim", "R=11", "--dim", "C=40")
GATHER = ("kernels.py:gather", "--dim", "R=70")
SM80 = ("--target", "cuda:sm_80")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "sibling.py").write_text("")
    (tmp_path / "one.py").write_text("from kernels import gather\n")
    (tmp_path / "none.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("import sys\nx = 1 // (len(sys.argv) - 1)\n")
    (tmp_path / "syntax.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "ends.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def run(*words: str) -> int:
    return main(["simulate", *words])


# --- what works ---


def test_a_kernel_with_arrays_made_from_its_annotations(capsys: pytest.CaptureFixture[str]) -> None:
    targets = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
    assert run(*BLEND, *(w for t in targets for w in ("--target", t))) == 0
    out = capsys.readouterr().out
    for target in targets:
        assert f"blend for {target}" in out
    assert out.count("4 of 4 blocks") == 3 and out.count("0 findings") == 3


def test_findings_give_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*GATHER, "--arg", "idx=::0..63") == 0
    assert run(*GATHER, "--arg", "idx=::64..64") == 1
    assert "out of bounds" in capsys.readouterr().out
    assert run(*GATHER, "--arg", "idx=::64..64", "--no-checks", "--blocks", "[1]") == 1


def test_arrays_from_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    idx = np.arange(70, dtype=np.int32) % 64
    np.save(folder / "idx.npy", idx)
    table = np.arange(64, dtype=np.float32)
    np.savez(folder / "all.npz", idx=idx, table=table, t2=table * 2, other=idx)
    trace = ("--trace", "out[69]", *SM80)
    assert run("kernels.py:gather", "--arg", "idx=idx.npy", "--arg", "table=::arange", *trace) == 0
    first = capsys.readouterr().out
    assert run("one.py", "--arg", "all.npz", *trace) == 0
    assert "\n    11  1, 0, 0" in first or " 5  " in first
    second = capsys.readouterr().out
    assert first.split("values of")[1] == second.split("values of")[1]
    assert run("one.py", "--arg", "all.npz", "--arg", "table=all.npz:t2", *trace) == 0
    rows = capsys.readouterr().out.split("values of")[1].splitlines()
    assert any(" 10 " in row for row in rows)


def test_dtypes_that_files_lose(folder: Path) -> None:
    np.save(folder / "x.npy", np.ones((11, 40), ml_dtypes.bfloat16))
    assert run("kernels.py:blend", "--arg", "X=x.npy", "--set", "gain=2", *SM80) == 0


def test_factories_constants_and_grids() -> None:
    assert run("kernels.py:make('float32', n=16)", "--dim", "C=70", *SM80) == 0
    assert run("kernels.py:triple", "--arg", "A=40x40", "--set", "BM=16", "--grid", "3x3") == 0
    assert run(*BLEND, "--set", "BR=4", "--set", "threads=64", "--schedules", "2", *SM80) == 0
    words = ("kernels.py:triple", "--dim", "n=40", "--set", "BM=16", "--check-outputs")
    assert run(*words, "--grid", "3,3") == 0
    assert run(*words, "--grid", "2,3") == 1  # columns 32 to 39 are never written


def test_a_file_of_a_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = folder / "a_package" / "inner"
    inner.mkdir(parents=True)
    for part in (inner, inner.parent):
        (part / "__init__.py").touch()
    (inner.parent / "sizes.py").write_text("BLOCK = 32\n")
    relative = "from ..sizes import BLOCK\nfrom . import nothing_more\n"
    (inner / "nothing_more.py").touch()
    text = (folder / "kernels.py").read_text()
    (inner / "kernels.py").write_text(relative + text)
    assert run("a_package/inner/kernels.py:blend", *BLEND[1:], *SM80) == 0
    monkeypatch.chdir(inner)
    assert run("kernels.py:blend", *BLEND[1:], *SM80) == 0


def test_a_report_is_saved_and_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*GATHER, "--arg", "idx=::64..64", "--save", "r.json") == 1
    shown = capsys.readouterr().out
    assert run("--show", "r.json") == 1
    assert capsys.readouterr().out == shown
    assert run(*BLEND, *SM80, "--target", "hip:gfx942", "--save", "b.json") == 0
    names = sorted(p.name for p in folder.glob("b*.json"))
    assert names == ["b-cuda-sm_80.json", "b-hip-gfx942.json"]
    assert json.loads((folder / names[1]).read_text())["target"] == "hip:gfx942"
    assert run("--show", names[0]) == 0


# --- wrong usage: the words, what is said, and the fix that is named ---

WRONG = [
    ((), "which kernel is it?", "simulate FILE.py:kernel"),
    (("kernels.txt",), "'kernels.txt' is not a Python file", "FILE.py"),
    (("kernel.py",), "no file 'kernel.py'; did you mean 'kernels.py'?", ""),
    (("none.py",), "none.py defines no kernel", "@tilec.kernel"),
    (("kernels.py",), "has 3 kernels: blend, gather, triple", "kernels.py:blend"),
    (("kernels.py:blnd",), "no kernel 'blnd'; did you mean 'blend'?", "blend, gather"),
    (("kernels.py:number",), "number of kernels.py is a int, not a kernel", "@tilec.kernel"),
    (("kernels.py:make",), "make of kernels.py is a function", "kernels.py:make(…)"),
    (("kernels.py:make()",), "make() failed: TypeError", ""),
    (("kernels.py:make('none')",), "is a NoneType, not a kernel", ""),
    (("kernels.py:make(T.float16)",), "no numbers or strings", '"float16"'),
    (("kernels.py:blend(3)",), "blend of kernels.py is a kernel", "--set"),
    (("kernels.py:1 +",), "names no kernel", "kernels.py:kernel"),
    (("broken.py",), "broken.py:2:5: broken.py cannot be loaded: ZeroDivisionError", ""),
    (("syntax.py",), "syntax.py:2:7: syntax.py cannot be loaded: SyntaxError", ""),
    (("ends.py",), "ends.py:2:1: ends.py ends the program", "__main__"),
    ((*BLEND, "--arg", "x=3x4"), "no array 'x'; did you mean 'X'?", "X, w, Y"),
    ((*BLEND, "--arg", "gain=3"), "no array 'gain'", "gain is given by --set"),
    ((*BLEND, "--arg", "X"), "--arg X: expected NAME=…", "--arg A=256x64:float16"),
    ((*BLEND, "--arg", "X=threebyfour"), "'threebyfour' is not a shape", "X=256x64:float16"),
    ((*BLEND, "--arg", "X=3x4:bflot16"), "unknown dtype 'bflot16'; did you mean 'bfloat16'?", ""),
    ((*BLEND, "--arg", "X=3x4:float32"), "expected bfloat16, got float32", "X=3x4:bfloat16"),
    ((*BLEND, "--arg", "X=3x4:bfloat16:zero"), "unknown content 'zero'; did you mean 'zeros'?", ""),
    ((*BLEND, "--arg", "X=3x4:bfloat16:9..1"), "unknown content '9..1'", "0..63"),
    ((*BLEND, "--arg", "X=3:bfloat16:zeros:1"), "expected SHAPE:DTYPE:CONTENT", ""),
    ((*BLEND, "--arg", "X=3"), "expected 2 sizes (X: Tensor((R, C), bfloat16))", "X=64x64"),
    ((*BLEND, "--arg", "X=12x40"), "expected R = 12 (from X.shape[0]), got 11", "(12, 40)"),
    ((*BLEND, "--arg", "X=gone.npy"), "gone.npy cannot be read", ""),
    ((*BLEND, "--arg", "X=text.npz"), "text.npz cannot be read", ""),
    ((*BLEND, "--arg", "X=a.npz:b"), "a.npz has no array 'b'", "it has q, 'w2'"),
    ((*BLEND, "--arg", "a.npz"), "no array of a.npz (q, w2)", "--arg X=a.npz:KEY"),
    ((*BLEND, "--dim", "M=3"), "no size 'M'", "its sizes are R, C"),
    ((*BLEND, "--dim", "R=ten"), "--dim R=ten: a size is a number", "--dim R=256"),
    (BLEND[:3], "the sizes R, C of blend are not known", "--dim R=256 --dim C=256"),
    ((BLEND[0], *BLEND[3:]), "blend also takes gain: float32", "--set gain=0.5"),
    ((*BLEND, "--set", "gian=1"), "'gian'; did you mean 'gain'?", "gain, BR, threads"),
    ((*BLEND, "--set", "BR"), "--set BR: expected NAME=…", "--set BM=64"),
    ((*BLEND, "--set", "gain=loud"), "gain: expected a number", ""),
    ((*BLEND, "--target", "cuda:sm_90"), "did you mean 'cuda:sm_90a'?", ""),
    ((*BLEND, "--target", "cpu"), "the simulator runs the code of GPUs", ""),
    ((*BLEND, "--blocks", "9"), "", ""),
    ((*BLEND, "--blocks", "[9]"), "9 is not a block of the 2x2x1 blocks", "from 0 to 3"),
    ((*BLEND, "--blocks", "0"), "there is nothing to run", "--blocks 1 runs one"),
    ((*BLEND, "--blocks", "first"), "expected a number or a list", "--blocks 4"),
    ((*BLEND, "--schedules", "0"), "schedules: expected an int of at least 1, got 0", ""),
    ((*BLEND, "--seed", "-1"), "--seed -1: expected a number from 0", "--seed 1"),
    ((*BLEND, "--trace", "z[0]"), "there is no buffer 'z'", "X"),
    ((*BLEND, "--grid", "2"), "grid", ""),
    (("kernels.py:triple", "--dim", "n=8", "--set", "BM=4"), "grid from the launch", "--grid"),
    (("kernels.py:triple", "--arg", "B=8x8", "--set", "BM=4"), "no array 'B'", "by the call"),
    (("kernels.py:triple", "--set", "BM=4", "--grid", "two"), "--grid two", "--grid 4,2"),
    ((*BLEND, "--save", "nowhere/r.json"), "nowhere/r.json: that place cannot be written", ""),
    (("--show", "gone.json"), "gone.json cannot be read", ""),
    (("--show", "kernels.py"), "not a report of tilec.simulate", "report.save"),
    ((*BLEND, "--show", "r.json"), "--show prints a report and runs nothing", "--show r.json"),
]


@pytest.mark.parametrize(("words", "says", "fix"), WRONG, ids=lambda w: str(w)[:40])
def test_wrong_usage(
    words: tuple[str, ...],
    says: str,
    fix: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    np.savez(folder / "a.npz", q=np.zeros(3), w2=np.zeros(4))
    (folder / "text.npz").write_text("text")
    status = run(*words)
    out, err = capsys.readouterr()
    if not says:
        assert status == 0 and not err
        return
    assert status == 2 and out == "", out
    message, _, hint = err.partition("help: ")
    assert says in " ".join(message.split()), err
    assert all(part.strip(" '") in hint for part in fix.split(",")), err
    assert len(err.splitlines()) <= 12


def test_wrong_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        run(*BLEND, "--sav", "x.json", "--check-output", "--tarce", "X")
    assert e.value.code == 2
    assert "did you mean '--trace'?" in capsys.readouterr().err
    assert main(["simulte", "x.py"]) == 2
    assert "did you mean 'simulate'?" in capsys.readouterr().err
    assert main(["--help"]) == 0 and "simulate" in capsys.readouterr().out


def test_ctrl_c_gives_the_report_of_what_was_run(folder: Path) -> None:
    words = ["--dim", "R=4000000", "--target", "cuda:sm_80", "--progress"]
    command = [sys.executable, "-m", "tilec", "simulate", "kernels.py:gather", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [*command, "--save", "part.json"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "simulating gather" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "interrupted: what follows is of the blocks that were run" in out
    assert not json.loads((folder / "part.json").read_text())["complete"]
