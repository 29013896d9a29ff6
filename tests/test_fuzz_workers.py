"""The fuzzer's processes: a program that ends one, or has no end, is reported, and the run goes
on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilec import __main__ as command_line
from tilec.fuzz import cli, session
from tilec.fuzz.buffers import Invalid
from tilec.fuzz.generate import generate
from tilec.fuzz.outcome import Outcome
from tilec.fuzz.program import Array, Program
from tilec.fuzz.workers import Worker

KERNEL = (
    '@tilec.kernel\ndef kernel(C: T.Tensor((4,), "int32")):\n'
    "    with T.Kernel(1, threads=32) as bx:\n"
    "        for i in T.Parallel({0}):\n            C[{1}] = i\n"
)
ABORTS = "__import__('os').write(2, b'an assertion') and __import__('os').abort()"
LEAVES = "__import__('os')._exit(3)"
STAYS = "__import__('time').sleep(600)"
SIMULATES = (
    "setattr(__import__('tilec.fuzz.program').fuzz.program.Launch, 'simulate', "
    "lambda *_: __import__('os').abort())"
)


def program(act: str = "0", index: str = "i") -> Program:
    """A program that does as `act` says when it is loaded: in the process that runs it."""
    text = f"@(lambda k: ({act}, k)[1])\n{KERNEL.format(4, index)}"
    return Program(text, {"C": Array((4,), "int32", content="blank")})


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker(60.0)
    yield made
    made.close()


def test_a_process_outlives_what_its_programs_do(worker: Worker) -> None:
    ok = (Outcome("cpu", "ok"),)
    assert worker.run(program(), ("cpu",)) == ok
    (lost,) = worker.run(program(ABORTS), ("cpu",))
    assert (lost.kind, lost.detail, lost.failed) == ("ended", "SIGABRT", True)
    assert "an assertion" in lost.text and "Fatal Python error" in lost.text
    (lost,) = worker.run(program(LEAVES), ("cpu",))
    assert (lost.kind, lost.detail) == ("ended", "exit status 3")
    with pytest.raises(Invalid, match="written where"):
        worker.run(program(index="0"), ("cpu",))
    assert worker.run(program(), ("cpu",)) == ok


def test_the_target_at_work_is_named(worker: Worker) -> None:
    first, second = worker.run(program(SIMULATES), ("cpu", "cuda:sm_80", "hip:gfx942"))
    assert first == Outcome("cpu", "ok")
    assert (second.target, second.kind) == ("cuda:sm_80", "ended")


def test_a_program_without_an_end() -> None:
    worker = Worker(4.0)
    try:
        (lost,) = worker.run(program(STAYS), ("cpu",))
        assert (lost.kind, lost.detail) == ("endless", "not done after 4 s")
        assert worker.run(program(), ("cpu",)) == (Outcome("cpu", "ok"),)
    finally:
        worker.close()


def test_the_command_reports_it_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def planted(seed: int, number: int) -> Program:
        return program(ABORTS) if number == 1 else generate(seed, number)

    monkeypatch.setattr(session, "generate", planted)
    monkeypatch.setattr(cli, "generate", planted)
    given = ["--count", "3", "--seed", "4", "--target", "cpu", "--jobs", "2", "--shrink", "1"]
    assert command_line.main(["fuzz", *given, "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "program 1 of seed 4 failed on cpu: ended SIGABRT" in said
    assert "TILEC_DISABLE_CACHE" not in os.environ, "what runs after it has its cache"
    assert "3 programs, 1 failed" in said and "cpu: 1 ended, 2 ok" in said
    (written,) = tmp_path.glob("fuzz_*.py")
    assert "--seed 4 --program 1" in written.read_text() and "abort()" in written.read_text()
