"""`tilec` and `python -m tilec`: compile, bench, env, --version; what is said of wrong usage."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
from tilec.__main__ import COMMANDS, main
from tilec.cli import bench as measuring
from tilec.cli import env
from tilec.cli.bench import on_device
from tilec.support.progress import Progress, is_wanted

ROOT = Path(__file__).parent.parent

KERNELS = """
import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")

@tilec.kernel
def double(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
        for i in T.Parallel(64):
            B[bx * 64 + i] = A[bx * 64 + i] * 2

@tilec.kernel
def twice(A: T.Tensor((N,), "float32")):
    B = T.empty((N,), "float32")
    C = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
        for i in T.Parallel(64):
            B[bx * 64 + i] = A[bx * 64 + i] * 2
    with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
        for i in T.Parallel(64):
            C[bx * 64 + i] = B[bx * 64 + i] + 1
    return C

@tilec.kernel
def halves(A: T.Tensor((N,), "bfloat16"), gain: T.float32, BN: T.constexpr = 64):
    B = T.empty((N,), "bfloat16")
    bx = T.program_id(0)
    for i in T.Parallel(BN):
        B[bx * BN + i] = A[bx * BN + i] * gain
    return B

@tilec.kernel
def wrong(A: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64) as bx:
        for i in T.Parallel(64):
            A[i] = missing[i]
"""
DOUBLE = ("kernels.py:double", "--dim", "N=1000")
HALVES = ("kernels.py:halves", "--dim", "N=100", "--set", "gain=0.5")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "kernels.py").write_text(KERNELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("TILEC_PROGRESS", "")
    return tmp_path


# --- the command itself ---


def test_version_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tilec {tilec.__version__}\n"
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in COMMANDS)
    assert main([]) == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_helps_and_refuses(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        main([name, "--help"])
    assert e.value.code == 0 and f"tilec {name}" in capsys.readouterr().out
    with pytest.raises(SystemExit) as e:
        main([name, "--nonsense"])
    assert e.value.code == 2 and "unrecognized arguments: --nonsense" in capsys.readouterr().err


def test_the_entry_point_is_this_function() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert '\n[project.scripts]\ntilec = "tilec.__main__:main"\n' in text


def test_a_process_ends_without_a_traceback(folder: Path) -> None:
    for words, status, says in (
        (["--version"], 0, tilec.__version__),
        (["--vresion"], 2, "did you mean '--version'?"),
        (["compile", "kernels.py:wrong", "--dim", "N=64", "--target", "cpu"], 2, "missing"),
    ):
        command = [sys.executable, "-m", "tilec", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == status, done.stderr
        assert says in done.stdout + done.stderr and "Traceback" not in done.stderr


# --- compile ---


def test_stages_are_written_for_each_target(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942", "cpu")
    given = [w for t in targets for w in ("--target", t)]
    assert main(["compile", *DOUBLE, *given, "--out", "stages", "--save", "k.tilec"]) == 0
    out, err = capsys.readouterr()
    assert all(f"double for {t}" in out for t in targets) and err == ""
    for target, last in zip(targets, ("ptx", "ptx", "gcn", "asm")):
        name = f"double-{target.replace(':', '-')}"
        names = sorted(p.name for p in (folder / "stages" / name).glob("*.txt"))
        assert names[0] == "00-tile.txt" and any(n.endswith(f"-{last}.txt") for n in names)
        assert tilec.load(folder / f"k-{name}.tilec").target == target
    assert "sm_80" in next((folder / "stages/double-cuda-sm_80").glob("*-ptx.txt")).read_text()


def test_one_stage_is_printed_or_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compile", *HALVES, "--target", "cuda:sm_80"]
    assert main([*words, "--stage", "tile"]) == 0
    assert capsys.readouterr().out.startswith("kernel @halves")
    assert main([*words, "--stages"]) == 0
    assert capsys.readouterr().out.split()[0] == "tile"
    assert main([*words, "--stage", "ptx", "--out", "d/e", "--export-c", "half"]) == 0
    assert [p.suffix for p in (folder / "d/e").iterdir()] == [".txt"]
    assert (folder / "half.h").exists()


def test_each_kernel_of_several_is_compiled(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compile", "kernels.py:twice", "--dim", "N=100", "--target", "cuda:sm_90a"]
    assert main([*words, "--out", "stages"]) == 0
    assert capsys.readouterr().out.count("for cuda:sm_90a") == 2
    assert len(list((folder / "stages").iterdir())) == 2


# --- bench ---


def test_a_kernel_is_timed_on_the_cpu(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", *DOUBLE, "--device", "cpu", "--seconds", "0.02", "--json", "t.json"]
    assert main(words) == 0
    found = json.loads((folder / "t.json").read_text())
    assert found["kernel"] == "double" and found["bytes"] == 8000 and found["samples"] >= 3
    assert 0 < found["p10"] <= found["median"] <= found["p90"] < 1
    assert "median" in capsys.readouterr().out
    assert main(["bench", *HALVES, "--grid", "2", "--device", "cpu", "--seconds", "0.01"]) == 0


@pytest.mark.gpu
def test_a_kernel_is_timed_on_the_gpu(
    folder: Path, torch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    size = 1 << 26  # two arrays of 256 MB: at least 50 us at 10 TB/s, at most 5 ms at 100 GB/s
    words = ["bench", "kernels.py:double", "--dim", f"N={size}", "--arg", "A=::ones"]
    assert main([*words, "--device", "cuda", "--seconds", "0.1", "--json", "t.json"]) == 0
    found = json.loads((folder / "t.json").read_text())
    assert 50e-6 < found["p10"] <= found["median"] <= found["p90"] < 5e-3
    assert found["device"] == "cuda:0" and found["predicted"] > 0
    assert main(["env"]) == 0
    assert "cuda:0 runs cuda:sm_" in capsys.readouterr().out


@pytest.mark.gpu
def test_arrays_reach_a_gpu_as_they_are(torch: Any) -> None:
    base = np.zeros((6, 8), ml_dtypes.bfloat16)
    view = base[:, :5]
    view[...] = np.arange(30).reshape(6, 5)
    made = on_device(view, "cuda:0")
    assert made.stride() == (8, 1)
    assert np.array_equal(made.float().cpu().numpy(), view.astype(np.float32))


def test_long_timings_are_taken_second_by_second(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, float]] = []

    def bench(call: Any, warmup: float, rep: float, **options: Any) -> list[float]:
        asked.append((warmup, rep))
        return [float(len(asked))] * 3

    monkeypatch.setattr(measuring, "do_bench", bench)
    stream = io.StringIO()
    progress = Progress("timing k", 1, "seconds", stream, 0.0, shown=True, threaded=False)
    timing = measuring.measure(lambda: None, "cpu", 2.5, progress)
    assert asked == [(measuring.WARM, 1000.0), (0.0, 1000.0), (0.0, 500.0)]
    assert timing.samples == (1.0,) * 3 + (2.0,) * 3 + (3.0,) * 3 and float(timing) == 2.0
    assert [x[:26] for x in stream.getvalue().splitlines()][0] == "timing k: 1 of 3 seconds, "


def test_arrays_keep_dtype_and_strides_on_a_device(torch: Any) -> None:
    base = np.zeros((6, 8), ml_dtypes.bfloat16)
    view = base[:, :5]
    view[...] = np.arange(30).reshape(6, 5)
    made = on_device(view, "meta")
    assert made.shape == (6, 5) and made.stride() == (8, 1) and made.dtype == torch.bfloat16


# --- env ---


def test_the_table_has_every_variable_that_the_source_reads() -> None:
    found = set()
    for path in (ROOT / "tilec").rglob("*.py"):
        found |= set(re.findall(r"""["'$]?\b(TILEC_[A-Z_]*[A-Z])\b""", path.read_text()))
    found -= {"TILEC_ARITHMETIC", "TILEC_DMUP"}  # a guard of exported C
    assert found == set(env.VARIABLES)


def test_what_is_found_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["compile", *DOUBLE, "--target", "cuda:sm_80"]) == 0
    capsys.readouterr()
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path / 'cache'}: 1 kernels" in out and "hip:gfx942" in out
    assert main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cache"]["kernels"] == 1 and found["cache"]["bytes"] > 1000
    assert found["variables"]["TILEC_CACHE_DIR"]["value"] == str(tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("TILEC_TARGET", "cuda:sm_91", "unknown target"),
        ("TILEC_PTXAS", "/nowhere/ptxas", "is not an executable file"),
        ("TILEC_NUM_THREADS", "many", "not a positive number"),
        ("TILEC_PROGRESS", "yes", "TILEC_PROGRESS is 'yes'"),
        ("TILEC_DISABLE_CACH", "1", "did you mean 'TILEC_DISABLE_CACHE'?"),
    ],
)
def test_variables_that_cannot_be_used(
    name: str,
    value: str,
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(name, value)
    assert main(["env"]) == 2
    assert says in capsys.readouterr().out


# --- wrong usage: the words and what is said ---

WRONG = [
    (("compile",), "which kernel is it?", "tilec compile FILE.py:kernel"),
    (("compile", "gone.py"), "there is no file 'gone.py'", ""),
    (("compile", "kernels.py"), "has 4 kernels", "kernels.py:double"),
    (("compile", "kernels.py:double"), "the size N of double is not known", "--dim N=256"),
    (("compile", *DOUBLE, "--target", "cuda:sm_90"), "did you mean 'cuda:sm_90a'?", ""),
    (("compile", *DOUBLE, "--stage", "ptxx", "--target", "cuda:sm_80"), "did you mean 'ptx'?", ""),
    (("compile", *DOUBLE, "--save", "no/k"), "--save no/k: that place cannot be written", ""),
    (("compile", *DOUBLE, "--out", "kernels.py"), "--out kernels.py: File exists", ""),
    (("compile", "kernels.py:wrong", "--dim", "N=64"), "missing", ""),
    (("bench",), "which kernel is it?", "tilec bench FILE.py:kernel"),
    (("bench", *DOUBLE, "--device", "tpu"), "which is none that tilec knows", "cuda:0"),
    (("bench", *DOUBLE, "--seconds", "0"), "--seconds 0.0: expected more than 0", "write 1"),
    (("bench", *DOUBLE, "--grid", "no"), "--grid no: a grid is one to three sizes", ""),
    (("bench", *DOUBLE, "--json", "no/t"), "--json no/t: that place cannot be written", ""),
    (("bench", *DOUBLE[:1], "--dim", "N=999999999999"), "no memory for 999999999999 elements", ""),
    (("compile", *DOUBLE[:1], f"--dim=N={'9' * 30}"), "no array is so large", ""),
    (("compile", *DOUBLE, "--target", "cpu", "--out", "/dev/null/x"), "--out /dev/null/x: ", ""),
    (("fuzz", "--out", "/dev/null/x"), "--out /dev/null/x: that place cannot be written", ""),
    (("bench", *HALVES, "--device", "cpu"), "halves has no grid", "T.Kernel"),
]


@pytest.mark.parametrize(("words", "says", "fix"), WRONG, ids=lambda w: str(w)[:50])
def test_wrong_usage(
    words: tuple[str, ...], says: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(list(words))
    out, err = capsys.readouterr()
    assert status == 2 and out == "", out
    assert says in " ".join(err.split()) and fix in err
    assert len(err.splitlines()) <= 12


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is full")
@pytest.mark.parametrize(
    "words",
    [
        ("compile", *DOUBLE, "--target", "cpu", "--save", "/dev/full"),
        ("bench", *DOUBLE, "--device", "cpu", "--seconds", "0.01", "--json", "/dev/full"),
        ("explain", *DOUBLE, "--target", "cpu", "--out", "/dev/full"),
    ],
    ids=lambda w: w[0],
)
def test_a_full_disk(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(words)) == 2
    err = capsys.readouterr().err
    assert "No space left on device" in err and "__main__.py" not in err


@pytest.mark.parametrize(
    "words", ["--count 0", "--jobs -3", "--seed -1", "--first x", "--seconds nan", "--limit -1"]
)
def test_numbers_of_the_fuzzer(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        main(["fuzz", *words.split()])
    assert e.value.code == 2
    assert f"argument {words.split()[0]}: expected a number from" in capsys.readouterr().err


# --- progress ---


def test_progress_goes_to_terminals_or_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, terminal = io.StringIO(), io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    assert not is_wanted(file) and is_wanted(terminal)
    monkeypatch.setenv("TILEC_PROGRESS", "1")
    assert is_wanted(file)
    monkeypatch.setenv("TILEC_PROGRESS", "0")
    assert not is_wanted(terminal)
    monkeypatch.setenv("TILEC_PROGRESS", "perhaps")
    with pytest.raises(tilec.TilecError, match="set TILEC_PROGRESS to 1 or 0"):
        is_wanted(file)


def test_a_line_is_written_over_on_a_terminal_and_taken_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    with Progress("compiling k", 4, "targets", stream, silent=0.01) as progress:
        progress.done, progress.label = 1, "cpu"
        while "compiling k: 1 of 4 targets" not in stream.getvalue():
            pass
    said = stream.getvalue()
    assert said.startswith("\r\033[K[####............] compiling k") and "s left  cpu" in said
    assert said.endswith("\r\033[K")


def test_steps_and_words_of_a_file() -> None:
    stream = io.StringIO()
    progress = Progress("tuning k", 3, "configurations", stream, 0.0, shown=True, threaded=False)
    for name in ("BM=64", "BM=128"):
        progress.step(name)
    progress.say("one is left out")
    progress.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "tuning k: 0 of 3 configurations, 0 s  BM=64" and len(lines) == 3
    assert lines[1].startswith("tuning k: 1 of 3") and lines[1].endswith("  BM=128")
    assert lines[2] == "one is left out"
    silent = io.StringIO()
    with Progress("tuning k", 3, "configurations", silent, silent=0.0, shown=False) as progress:
        progress.step("BM=64")
        progress.say("nothing")
    assert silent.getvalue() == ""


def test_options_ask_for_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["compile", *DOUBLE, "--target", "cpu", "--progress"]) == 0
    assert os.environ["TILEC_PROGRESS"] == "1"
