"""`tilec.simulate`: what is run, what it says of wrong calls, and its report."""

from __future__ import annotations

import bdb
import io
import json
import os
import pdb
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.errors import LaunchError
from tilec.ir.loc import Loc
from tilec.sim import launch as launches
from tilec.sim import thread_state
from tilec.sim.counts import Counts
from tilec.sim.findings import KINDS, MOST_FINDINGS, Findings
from tilec.sim.launch import BlocksDone
from tilec.sim.report import Report, ReportError
from tilec.sim.trace import Change, Trace, parse_trace
from tilec.target import TargetError

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def add(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 256), threads=64) as bx:
        for i in T.Parallel(256):
            C[bx * 256 + i] = A[bx * 256 + i] + B[bx * 256 + i]


@tilec.kernel(out=["C"])
def matmul(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    BM: T.constexpr = 64,
    BN: T.constexpr = 64,
    BK: T.constexpr = 32,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
        a = T.alloc_shared((BM, BK), "float16")
        b = T.alloc_shared((BK, BN), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=2):
            T.copy(A[by * BM, k * BK], a)
            T.copy(B[k * BK, bx * BN], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * BM, bx * BN])


@tilec.kernel
def scale(X: T.Tensor((N,), "bfloat16"), by: T.float32):
    with T.Kernel(T.ceildiv(N, 128), threads=32) as bx:
        for i in T.Parallel(128):
            X[bx * 128 + i] = X[bx * 128 + i] * by


@tilec.kernel
def open_grid(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(threads=64) as bx:
        for i in T.Parallel(64):
            C[bx * 64 + i] = -A[bx * 64 + i]


@tilec.kernel
def forever(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=32) as _:
        tx = T.get_thread_binding()
        x = T.alloc_var("float32")
        x = A[tx]
        while x > 0.0:
            x = x + 1.0
        C[tx] = x


@tilec.kernel
def speaking(A: T.Tensor((N,), "int32")):
    with T.Kernel(T.ceildiv(N, 4), threads=32) as bx:
        tx = T.get_thread_binding()
        if tx < 2:
            T.print(A[bx * 4 + tx], msg="100% of it")


def vectors(n: int = 1000) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    return [rng.standard_normal(n).astype(np.float32) for _ in range(2)] + [
        np.full(n, 77, np.float32)
    ]


def matrices(m: int = 100, n: int = 72, k: int = 80) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m)
    return (
        rng.integers(-4, 5, (m, k)).astype(np.float16),
        rng.integers(-4, 5, (k, n)).astype(np.float16),
    )


# --- what is run ---


@pytest.mark.parametrize("target", TARGETS)
def test_arrays_are_filled_as_by_a_launch(target: str) -> None:
    a, b, c = vectors()
    report = tilec.simulate(add, a, b, c, target=target)
    assert report.ok and report.complete and not report.findings, str(report)
    np.testing.assert_array_equal(c, a + b)
    assert (report.blocks, report.launched, report.grid) == (4, 4, (4, 1, 1))
    assert report.target == target and report.kernel == "add" and report.seconds > 0


@pytest.mark.parametrize("target", TARGETS)
def test_outputs_are_allocated_as_by_a_call(target: str) -> None:
    a, b = matrices()
    report = tilec.simulate(matmul, a, b, target=target)
    assert report.ok, str(report)
    np.testing.assert_array_equal(report.outputs["C"], a.astype(np.float32) @ b.astype(np.float32))


def test_tensors_of_torch_bfloat16(torch: Any) -> None:
    x = torch.randn(300).to(torch.bfloat16)
    want = (x.float() * 1.5).to(torch.bfloat16)
    report = tilec.simulate(scale, x, by=1.5, target="cuda:sm_80")
    assert report.ok, str(report)
    assert torch.equal(x, want)


def test_strided_arrays() -> None:
    whole = np.arange(600, dtype=np.float32)
    a, b, c = whole[:300], whole[300:], np.zeros(601, np.float32)
    report = tilec.simulate(add, a[::-1], b[::3].repeat(3)[:300], c[1::2], target="cuda:sm_90a")
    np.testing.assert_array_equal(c[1::2], a[::-1] + b[::3].repeat(3)[:300])
    assert not c[::2].any() and report.ok, str(report)


class Foreign:
    """An array that speaks DLPack only."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_objects_with_dlpack() -> None:
    a, b, c = vectors(257)
    report = tilec.simulate(add, Foreign(a), Foreign(b), Foreign(c), target="cuda:sm_80")
    assert report.ok, str(report)
    np.testing.assert_array_equal(c, a + b)


def test_only_the_chosen_blocks_run() -> None:
    a, b, c = vectors()
    report = tilec.simulate(add, a, b, c, target="cuda:sm_80", blocks=[1, (3, 0, 0)])
    assert report.blocks == 2 and report.launched == 4 and report.ok
    got = c != 77
    assert got[256:512].all() and got[768:].all() and not got[:256].any() and not got[512:768].any()
    assert "2 of 4 blocks" in str(report)
    c[:] = 77
    assert tilec.simulate(add, a, b, c, target="cuda:sm_80", blocks=1).blocks == 1
    assert (c != 77).sum() == 256


def test_the_grid_of_the_launch() -> None:
    a, _, c = vectors(128)
    report = tilec.simulate(open_grid, a, c, grid=2, target="hip:gfx942")
    assert report.ok, str(report)
    np.testing.assert_array_equal(c, -a)
    with pytest.raises(tilec.TilecError, match="the grid is not given"):
        tilec.simulate(open_grid, a, c)
    with pytest.raises(tilec.TilecError, match="the grid is given twice"):
        tilec.simulate(add, a, a, c, grid=4)
    with pytest.raises(LaunchError, match="has -1 blocks in x"):
        tilec.simulate(open_grid, a, c, grid=-1)


def test_empty_arrays_launch_nothing() -> None:
    a, b, c = vectors(1)
    report = tilec.simulate(add, a[:0], b[:0], c[:0])
    assert report.ok and report.launched == 0 and "0 of 0 blocks" in str(report)


def test_every_schedule_begins_with_the_same_arrays(torch: Any) -> None:
    x = torch.randn(130).to(torch.bfloat16)
    want = (x.float() * 3).to(torch.bfloat16)
    report = tilec.simulate(scale, x, 3.0, target="cuda:sm_80", schedules=3, seed=5)
    assert report.ok and report.blocks == 2 and "3 schedules" in str(report)
    assert torch.equal(x, want)


@tilec.kernel(out=["C"])
def clustered(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128, cluster_dims=(2, 1)) as (bx, by):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
            T.copy(A[by * 64, k * 64], a)
            T.copy(B[k * 64, bx * 64], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


@pytest.mark.turns
@pytest.mark.parametrize(
    ("kernel", "target"), [*((matmul, t) for t in TARGETS), (clustered, "cuda:sm_90a")]
)
def test_without_checks_the_numbers_are_the_same(
    kernel: tilec.Kernel, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = matrices(72, 200, 250)
    want = a.astype(np.float32) @ b.astype(np.float32)
    assert tilec.simulate(kernel, a, b, target=target).ok
    monkeypatch.setattr("tilec.sim.scheduler.Clocks", None)
    monkeypatch.setattr("tilec.sim.regions.Shadow", None)
    monkeypatch.setattr("tilec.sim.regions.GlobalShadow", None)
    report = tilec.simulate(kernel, a, b, target=target, checks=False, schedules=2)
    assert report.ok, str(report)
    np.testing.assert_array_equal(report.outputs["C"], want)


def test_a_variant_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = (np.zeros(70, np.float32) for _ in range(3))
    assert tilec.simulate(add, a, b, c, target="cuda:sm_80").ok
    monkeypatch.setattr("tilec.jit.simulate.records_of", None)
    monkeypatch.setattr("tilec.jit.simulate.variant_records", None)
    a[:] = np.arange(70)
    assert tilec.simulate(add, a, b, c, target="cuda:sm_80").ok
    assert (c == a).all()


def test_prints_are_those_of_the_cpu_target(capfd: pytest.CaptureFixture[str]) -> None:
    a = np.array([5, -7, 11, 13, 17], np.int32)
    speaking(a)
    want = capfd.readouterr().out
    assert want.count("\n") == 4 and "100% of it" in want
    report = tilec.simulate(speaking, a, target="cuda:sm_90a")
    assert sorted(capfd.readouterr().out.splitlines()) == sorted(want.splitlines())
    assert sorted(report.printed) == sorted(want.splitlines())


# --- wrong calls ---


def message(error: type[Exception], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(error) as caught:
        tilec.simulate(*args, **kwargs)
    text = str(caught.value)
    assert len(text.splitlines()) <= 12
    return text


def test_targets_that_cannot_be_simulated() -> None:
    a, b, c = vectors(8)
    text = message(TargetError, add, a, b, c, target="cpu")
    assert "cuda:sm_90a, hip:gfx90a, hip:gfx942, hip:gfx950, hip:gfx1100" in text
    assert "calling it" in text
    assert "did you mean 'cuda:sm_90a'" in message(TargetError, add, a, b, c, target="cuda:sm90a")
    assert "is unknown; did you mean" in message(TargetError, add, a, b, c, target="hip:gfx94")
    for name, meant in (("amd", "hip:gfx942"), ("h100", "cuda:sm_90a"), ("cuda:90", "cuda:sm_90a")):
        text = message(TargetError, add, a, b, c, target=name)
        assert f"did you mean '{meant}'?" in text and "cpu" not in text
    assert "the simulator has cuda" in message(TargetError, add, a, b, c, target="")
    assert "expected one of" in message(TargetError, add, a, b, c, target=90)


def test_arguments_that_do_not_fit() -> None:
    a, b, c = vectors(8)
    text = message(LaunchError, add, a, b.astype(np.float64), c)
    assert "B: expected float32, got float64" in text and "help:" in text
    spec = tilec.spec((8,), "float32")
    assert "A has a shape but no memory" in message(LaunchError, add, spec, b, c)
    assert "missing C" in message(LaunchError, add, a, b)
    c.setflags(write=False)
    assert "C is read-only" in message(LaunchError, add, a, b, c)


def test_things_that_are_no_kernels() -> None:
    assert "@tilec.kernel" in message(LaunchError, lambda a: a, 1)
    assert "simulate(kernel, A, B)" in message(LaunchError, None)
    made = add.compile(*vectors(8), target="cuda:sm_80")
    assert "pass add itself" in message(LaunchError, made, *vectors(8))


@pytest.mark.parametrize(
    ("options", "says", "fix"),
    [
        ({"schedules": 0}, "schedules: expected an int of at least 1, got 0", "schedules=2"),
        ({"schedules": True}, "got True", "schedules=2"),
        ({"steps": "x"}, "steps: expected an int of at least 1, got 'x'", "leave steps out"),
        ({"seed": -1}, "seed: expected an int of at least 0, got -1", "seed="),
        ({"seed": "x"}, "seed: expected an int", "seed="),
        ({"checks": "no"}, "checks: expected a bool, got 'no'", "checks=False"),
        ({"check_outputs": 1}, "check_outputs: expected a bool, got 1", "check_outputs=True"),
        ({"trace": 5}, "trace: expected a text or a list of texts, got 5", "acc[0, :4]"),
        ({"trace": ["A[0]", 3]}, "expected a text or a list of texts", "acc[0, :4]"),
        ({"blocks": []}, "blocks is an empty list", "blocks=4"),
        ({"blocks": "0"}, "expected a number or a list of blocks, got '0'", "blocks=4"),
        ({"blocks": [1.5]}, "1.5 is neither a number nor coordinates", "blocks=4"),
        ({"blocks": [9]}, "9 is not a block of the 1x1x1 blocks", "from 0 to 0"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], says: str, fix: str) -> None:
    text = message(LaunchError, add, *vectors(8), **options)
    assert says in text and fix in text.partition("help:")[2], text


def test_outputs_of_some_blocks_are_not_checked() -> None:
    report = tilec.simulate(
        add, *vectors(1000), target="cuda:sm_80", blocks=[1, 2], check_outputs=True
    )
    assert report.ok and "outputs are not checked" in str(report)


def test_blocks_may_be_an_array() -> None:
    a, b, c = vectors(1000)
    for blocks, count in ((np.array([0, 3]), 2), (np.array([[1, 0]]), 1), (range(1, 4), 3)):
        assert tilec.simulate(add, a, b, c, target="cuda:sm_80", blocks=blocks).blocks == count


@tilec.kernel
def endless(X: T.Tensor((N,), "int32")):
    with T.Kernel(T.ceildiv(N, 4), threads=32) as bx:
        v = T.alloc_var("int32")
        v = X[bx * 4]
        while v < 10:
            v = v * 1
        X[bx * 4 + 1] = v


@pytest.mark.parametrize("target", TARGETS[:2])
def test_a_loop_that_does_not_end_is_named_once(target: str, monkeypatch: Any) -> None:
    x = np.array([11, 0, 0, 0] * 2 + [1, 0, 0, 0] * 3, np.int32)
    report = tilec.simulate(endless, x, target=target, steps=30_000)
    (found,) = report.findings
    assert found.kind == "step limit" and found.times == 1 and found.block == (2, 0, 0)
    assert found.locations[0].source_line().strip() == "while v < 10:"
    assert report.complete and not report.ok and report.blocks == 3
    assert "stopped at a block that does not end" in str(report) and x[5] == 11
    monkeypatch.setattr(launches, "FIRST_LONGEST", 0.5)
    text = message(LaunchError, endless, x[8:], target=target)
    assert "the first of 3 blocks is not through" in text and "while v < 10:" in text
    assert "blocks=1" in text.partition("help:")[2]


def test_reports_that_cannot_be_written(tmp_path: Path) -> None:
    report = tilec.simulate(add, *vectors(8), target="cuda:sm_80")
    (tmp_path / "old.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "old.json")
    for place in (tmp_path, tmp_path / "no" / "x.json", "", tmp_path / "old.json" / "x"):
        with pytest.raises(ReportError, match="cannot be written to") as e:
            report.save(place)
        assert "help:" in str(e.value)
    report.save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert str(Report.load(tmp_path / "old.json")) == str(report)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.json", "old.json"]
    read, write = os.pipe()  # what is no file is written, not replaced
    report.save(f"/dev/fd/{write}")
    os.close(write)
    with os.fdopen(read) as f:
        assert f.read() == (tmp_path / "old.json").read_text()


def test_options_that_do_not_exist_or_fit() -> None:
    a, b, c = vectors(8)
    assert "did you mean 'blocks'" in message(LaunchError, add, a, b, c, block=1)
    assert "schedules: expected" in message(LaunchError, add, a, b, c, schedules=0)
    assert "steps: expected" in message(LaunchError, add, a, b, c, steps=2.5)
    text = message(LaunchError, add, a, b, c, blocks=[1])
    assert "not a block of the 1x1x1 blocks" in text and "0 to 0" in text
    assert "neither a number nor" in message(LaunchError, add, a, b, c, blocks=["x"])
    assert "nothing to run" in message(LaunchError, add, a, b, c, blocks=0)
    assert "expected a number or a list" in message(LaunchError, add, a, b, c, blocks=1.5)


def test_traces_that_do_not_exist() -> None:
    a, b = matrices()
    text = message(LaunchError, matmul, a, b, trace="ac[0]")
    assert "did you mean 'acc'" in text and "A, B, C" in text
    assert "has 2 dimensions, 3 are indexed" in message(LaunchError, matmul, a, b, trace="a[0,0,0]")
    assert "dimension 0, which has 64" in message(LaunchError, matmul, a, b, trace="acc[64]")
    assert "selects 4096 elements" in message(LaunchError, matmul, a, b, trace=["acc"])
    assert "is not a number" in message(LaunchError, matmul, a, b, trace="acc[i, 0]")
    assert "is not a buffer's element" in message(LaunchError, matmul, a, b, trace="acc[0")


def test_elements_are_named_as_in_python() -> None:
    shapes = {"x": (3, 10)}
    assert parse_trace("x[-1, 2:8:3]", shapes) == ("x", ((2, 2), (2, 5)))
    assert parse_trace("x[1]", shapes)[1] == tuple((1, j) for j in range(10))
    assert parse_trace("x[:, -1]", shapes)[1] == ((0, 9), (1, 9), (2, 9))


def test_a_run_that_would_take_too_long_says_how_much_fits(monkeypatch: Any) -> None:
    a, b, c = vectors(2000)
    monkeypatch.setattr(launches, "_FIRST", 0.0)
    monkeypatch.setattr(launches, "LONGEST", 0.0)
    text = message(LaunchError, add, a, b, c)
    assert "8 blocks would take about" in text and "pass blocks=" in text and "fit in one" in text
    assert tilec.simulate(add, a, b, c, blocks=8).ok  # asked for, so it is run


def test_a_first_block_that_takes_too_long_is_given_up(monkeypatch: Any) -> None:
    a, b, c = vectors(2000)
    monkeypatch.setattr(launches, "FIRST_LONGEST", 0.0)
    text = message(LaunchError, add, a, b, c)
    assert "the first of 8 blocks is not through" in text and "blocks=1" in text
    assert tilec.simulate(add, a, b, c, blocks=1).blocks == 1


def test_a_kernel_that_runs_for_ever_is_reported() -> None:
    a, _, c = vectors(32)
    report = tilec.simulate(forever, np.abs(a) + 1, c, target="cuda:sm_80", steps=2000)
    (finding,) = report.findings
    assert finding.kind == "step limit" and not report.ok
    lines = [loc.source_line().strip() for loc in finding.locations]
    assert any(line in ("while x > 0.0:", "x = x + 1.0") for line in lines), lines
    assert "steps=2000" in str(report)


# --- the report ---


def test_interrupting_gives_the_report_of_what_has_run(monkeypatch: Any) -> None:
    a, b, c = vectors()
    run_cluster = launches.LaunchRun.run_cluster

    def interrupted(self: Any, first: Any) -> bool:
        if first == (2, 0, 0):
            raise KeyboardInterrupt
        return run_cluster(self, first)

    monkeypatch.setattr(launches.LaunchRun, "run_cluster", interrupted)
    report = tilec.simulate(add, a, b, c, target="cuda:sm_80")
    assert not report.complete and not report.ok and report.blocks == 2
    assert "interrupted" in str(report) and "2 of 4 blocks" in str(report)
    np.testing.assert_array_equal(c[:512], (a + b)[:512])


def example_report(source: Path) -> Report:
    lines = ["def f(a):", "    a[0] = 1", "    a[1] = a[0] + 2"]
    source.write_text("\n".join(lines) + "\n")
    findings = Findings()
    here = Loc(str(source), 2, 4, 8, Loc(str(source), 1))
    for _ in range(3):
        findings.add(
            "data race",
            "written without order",
            [here, Loc(str(source), 3, 11, 15)],
            buffer="a",
            indices=[(0, np.int64(1)), (0, 2)],
            threads=range(40),
            warps=[0, 1],
            roles=["producer"],
            block=(np.int32(1), 0, 0),
            details=["first line", "second line"],
        )
    change = Change(7, (0, 0, 0), here, (1.5, None))
    return Report(
        "f",
        "cuda:sm_80",
        "plain (stages=2)",
        (2, 1, 1),
        2,
        2,
        0.25,
        findings=tuple(findings),
        counts=Counts(),
        trace=(Trace("a[0, :2]", "a", ((0, 0), (0, 1)), [change], 3),),
        printed=("hello",),
        notes=("a note",),
    )


def test_a_finding_shows_its_lines_and_who(tmp_path: Path) -> None:
    source = tmp_path / "k.py"
    text = str(example_report(source))
    assert "1. data race: written without order (3 times)" in text
    assert f"  {source}:2:5\n    a[0] = 1\n    ^^^^\n    in a macro called at {source}:1:1" in text
    assert f"  and {source}:3:12\n    a[1] = a[0] + 2\n           ^^^^" in text
    about = (
        "a[0, 1], a[0, 2]; threads 0, 1, 2, 3, 4, 5, 6, 7; warps 0, 1 (producer); block (1, 0, 0)"
    )
    assert f"  {about}\n  first line\n  second line" in text
    assert "a note" in text and "1 finding" in text
    assert "values of a[0, :2]:" in text and "and 3 changes more" in text


def test_a_saved_report_prints_the_same_without_its_sources(tmp_path: Path) -> None:
    source, file = tmp_path / "k.py", tmp_path / "x.json"
    report = example_report(source)
    report.keep_sources()
    text = str(report)
    report.save(file)
    source.write_text("something else\n" * 3)
    again = Report.load(file)
    assert str(again) == text
    assert again.findings == report.findings and again.trace == report.trace
    assert not again.ok and again.grid == (2, 1, 1)


def test_a_real_report_survives_a_file(tmp_path: Path) -> None:
    a, b = matrices(64, 64, 64)
    report = tilec.simulate(matmul, a, b, trace=["acc[0, :2]", "C[1, 1]", "a[0, 0]"])
    report.save(tmp_path / "r.json")
    assert str(Report.load(tmp_path / "r.json")) == str(report)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is damaged, or not a report"),
        (b"\xff\xfe\x00", "is damaged, or not a report"),
        (b"[]", "is not a report of tilec.simulate: it has no format"),
        (b"null", "it has no format"),
        (b'{"format": "other"}', "it has the format 'other'"),
        (b'{"format": "tilec report 1"}', "is a damaged report: no 'kernel'"),
    ],
)
def test_files_that_are_no_reports(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(ReportError) as e:
        Report.load(file)
    assert says in str(e.value) and "report.save(path)" in str(e.value)
    with pytest.raises(ReportError, match="cannot be read"):
        Report.load(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grid", 5), ("blocks", "x"), ("findings", [{}]), ("counts", [3]), ("trace", [{}]),
        ("sources", [[1]]), ("seconds", None), ("findings", 4), ("notes", "x"),
    ],
)  # fmt: skip
def test_reports_that_are_damaged(tmp_path: Path, name: str, value: Any) -> None:
    file = tmp_path / "x.json"
    tilec.simulate(add, *vectors(8), target="cuda:sm_80").save(file)
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, name: value}))
    with pytest.raises(ReportError, match="is a damaged report"):
        Report.load(file)


def test_findings_are_merged_and_limited() -> None:
    findings = Findings()
    for line in range(MOST_FINDINGS + 5):
        findings.add(KINDS[0], "m", [Loc("f", line + 1)], buffer="a")
        findings.add(KINDS[0], "m", [Loc("f", line + 1)], buffer="a")
    assert len(findings) == MOST_FINDINGS and findings.dropped == 10
    assert {f.times for f in findings} == {2} and KINDS[0] in findings and KINDS[1] not in findings


def test_progress_says_how_long_it_will_take() -> None:
    with BlocksDone("k", 10) as progress:
        progress.done = 5
        assert "k: 5 of 10 blocks" in progress.line() and "s left" in progress.line()
        progress.done = 0
        assert "left" not in progress.line()


# --- traces ---


@pytest.mark.parametrize("target", TARGETS)
def test_a_trace_follows_a_sum_through_its_steps(target: str) -> None:
    a, b = matrices(64, 64, 192)
    report = tilec.simulate(matmul, a, b, BK=64, target=target, trace=["acc[3, :2]", "C[3, 0]"])
    assert report.ok, str(report)
    acc, c = report.trace
    wide = a.astype(np.float64), b.astype(np.float64)
    partial = [wide[0][3, :k] @ wide[1][:k, :2] for k in (64, 128, 192)]
    seen = [np.array(change.values, float) for change in acc.changes]
    at = -1
    for want in partial:
        at = next(i for i in range(at + 1, len(seen)) if np.array_equal(seen[i], want))
    assert c.changes[-1].values == (partial[-1][0],)
    lines = {change.loc.source_line().strip() for change in acc.changes}
    assert "T.gemm(a, b, acc)" in lines
    assert [change.step for change in acc.changes] == sorted(change.step for change in acc.changes)


def test_each_row_of_a_trace_is_told_when_it_is_complete() -> None:
    a, b = matrices(128, 64, 96)
    told: list[tuple[str, Any]] = []
    report = tilec.simulate(
        matmul,
        a,
        b,
        target="cuda:sm_80",
        trace=["acc[3, :2]", "C[3, 0]"],
        on_change=lambda trace, change: told.append((trace.asked, change)),
    )
    for trace in report.trace:
        assert [change for asked, change in told if asked == trace.asked] == trace.changes
    assert told.index(("C[3, 0]", report.trace[1].changes[0])) > 0


def test_pdb_where_a_value_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """`breakpoint()` in `on_change` stops there: what is typed sees the change."""
    a, b = matrices(64, 64, 96)
    a[3, 40] = np.nan
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("p change.step, change.values\nquit\n"), stdout=out)
    debugger.use_rawinput = False
    monkeypatch.setattr(sys, "breakpointhook", lambda: debugger.set_trace(sys._getframe().f_back))

    def stop(trace: Any, change: Any) -> None:
        if np.isnan(np.float64(change.values[0])):
            breakpoint()
            assert trace

    with pytest.raises(bdb.BdbQuit):
        tilec.simulate(matmul, a, b, target="cuda:sm_90a", trace="acc[3, :2]", on_change=stop)
    assert ", (nan, nan))" in out.getvalue()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_change": print}, "on_change is called for what trace= follows, which is missing"),
        ({"on_change": 3, "trace": "acc[0, 0]"}, "expected a function of a trace and a change"),
    ],
)
def test_on_change_of_nothing(options: dict[str, Any], message: str) -> None:
    a, b = matrices(64, 64, 96)
    with pytest.raises(LaunchError, match=message):
        tilec.simulate(matmul, a, b, **options)


def test_a_trace_of_shared_memory() -> None:
    """Where iterations are joined, they bring what they bring together."""
    a, b = matrices(64, 64, 192)
    for deep in (32, 64):
        report = tilec.simulate(matmul, a, b, BK=deep, target="cuda:sm_90a", trace="a[5, 3]")
        (trace,) = report.trace
        assert [change.values[0] for change in trace.changes] == [a[5, 3], a[5, 67], a[5, 131]]
    assert "T.copy(A[by * BM, k * BK], a)" in str(report)


# --- lanes that part ------------------------------------------------------------------------------


@tilec.kernel
def parting(X: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "int32")):
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        a = T.alloc_local((4,), "int32")
        for i in T.serial(4):
            a[i] = X[tx] * (i + 1)
        if X[tx] % 3 == 0:
            if X[tx] % 2 == 0:
                a[1] = a[1] + 5
            else:
                Y[tx] = 7
        Y[tx] = a[0] + a[1] + a[2] + a[3]


@pytest.mark.parametrize("target", TARGETS)
def test_what_parted_lanes_leave_alone_is_not_joined(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where lanes meet again, only what one of the ways has changed is put together anew: a[1],
    behind the inner condition and behind the outer one. And where they part, they take only what
    they touch before they meet (it were 25 values)."""
    joined, taken = list[Any](), list[Any]()
    join, take = thread_state._join, thread_state._take

    def counted(values: list[Any], *rest: Any) -> Any:
        joined.append(values)
        return join(values, *rest)

    def counted_part(value: Any, mask: Any) -> Any:
        if value is not thread_state._BESIDE:
            taken.append(value)
        return take(value, mask)

    monkeypatch.setattr(thread_state, "_join", counted)
    monkeypatch.setattr(thread_state, "_take", counted_part)
    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    assert tilec.simulate(parting, x, y, target=target).ok
    np.testing.assert_array_equal(y, 10 * x + 5 * (x % 6 == 0))
    assert len(joined) == 2 and len(taken) < 16


def test_outputs_come_in_the_order_of_the_return() -> None:
    @tilec.kernel
    def parts(A: T.Tensor((N,), "float32")):
        low, high = T.empty((N,), "float32"), T.empty((N,), "float32")
        for i in T.Parallel(N):
            low[i] = T.min(A[i], 0.0)
            high[i] = T.max(A[i], 0.0)
        return high, low

    a = np.arange(-3, 4, dtype=np.float32)
    report = tilec.simulate(parts, a, target="cuda:sm_80")
    assert list(report.outputs) == ["high", "low"]
    for made, called in zip(report.outputs.values(), parts(a)):
        np.testing.assert_array_equal(made, called)
