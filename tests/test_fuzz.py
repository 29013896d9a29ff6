"""The fuzzer: programs of a fixed seed and of this version's own on all targets, and that it finds,
shrinks and writes down faults that are planted."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilec import __main__ as command_line
from tilec import passes
from tilec.fuzz import gpu, outcome, session
from tilec.fuzz.buffers import Invalid, Place
from tilec.fuzz.cli import test_text as text_of_test
from tilec.fuzz.generate import generate
from tilec.fuzz.meaning import Words
from tilec.fuzz.numbers import Number, Unclear, arithmetic, settle
from tilec.fuzz.outcome import Outcome, Wants, differing
from tilec.fuzz.prepared import run as run_meaning
from tilec.fuzz.program import PLAIN, VIEWS, Array, Launch, Made, Program
from tilec.ir.core import Func, Op
from tilec.ir.errors import CompileError
from tilec.ir.ops import Barrier, Binary
from tilec.ir.types import BFLOAT16, FLOAT8_E4M3, FLOAT16, FLOAT32, INT8, INT32
from tilec.runtime.cache import compiler_fingerprint
from tilec.target import Target


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled with a planted fault stays here."""
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")


# --- the runs -------------------------------------------------------------------------------------


def check_seed(seed: int, count: int) -> int:
    """Up to `count` programs, on a busy machine as many as 15 seconds take; returns how many every
    target refused."""
    refused = 0
    end = time.monotonic() + 15
    for number in range(count):
        if time.monotonic() > end:
            break
        result = session.try_program(seed, number, outcome.targets())
        said = f"python -m tilec fuzz --seed {seed} --program {number}"
        shown = [f"{o.target} {o.kind}: {o.text}" for o in result.failures]
        assert not shown, "\n".join([said, *shown])
        if result.refused:
            refused += 1
            print(f"{said}: refused by every target")
    return refused


def test_a_fixed_seed() -> None:
    assert check_seed(2024, 5) == 0


def test_a_seed_of_this_version() -> None:
    """Other programs for each version of the compiler, the same ones wherever it is tested."""
    check_seed(int(compiler_fingerprint(None)[:7], 16), 5)


def test_many_programs_on_the_cpu() -> None:
    tally = session.Tally()
    for result in session.results(11, iter(range(25)), ("cpu",), 0):
        tally.add(result)
    assert tally.programs >= 24 and not tally.failures, tally.summary()
    assert tally.refused <= 1 and len(tally.words) > 15, tally.summary()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.torch
def test_arrays_by_way_of_torch() -> None:
    """What a GPU is given: strides, float8 and what lies beside an array are kept."""
    for number in range(12):
        program = generate(21, number)
        kernel = program.load()
        wants = Wants(kernel, program.arguments, program.launch)
        made = program.make()
        arrays = {n: a for n, a in made.items() if isinstance(a, Made)}
        before = {n: a.outside() for n, a in arrays.items()}
        try:
            (back,) = gpu.launch(kernel, made, program.launch, "cpu")
        except CompileError:  # the CPU has no single threads
            assert "thread_binding" in program.source
            continue
        results = {n: a.view for n, a in arrays.items()} | dict(zip(wants.returned, back))
        for name, want in wants.of(False).items():
            assert differing(results[name], want) == "", name
        assert all(a.outside() == before[n] for n, a in arrays.items())


@pytest.mark.covering(2)
@pytest.mark.parametrize("view", sorted(set(VIEWS) - {"far"}))
@pytest.mark.parametrize("dtype", ["float8_e4m3", "bool", "uint64"])
@pytest.mark.parametrize("most", [gpu.MOST_COPIED, 0])
@pytest.mark.torch
def test_an_array_by_way_of_torch(
    view: str, dtype: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every view is written whole, and nothing beside it: negative strides, too, which torch does
    not have, and arrays whose memory is too large to be copied."""
    monkeypatch.setattr(gpu, "MOST_COPIED", most)
    shape = (7, 5)
    parameters = f'A: T.Tensor({shape}, "{dtype}"), C: T.Tensor({shape}, "{dtype}")'
    source = (
        f"@tilec.kernel\ndef kernel({parameters}):\n    with T.Kernel(1, threads=64) as bx:\n"
        f'        S = T.alloc_shared({shape}, "{dtype}")\n'
        "        T.copy(A[bx, bx], S)\n        T.copy(S, C[bx, bx])\n"
    )
    out = "transposed" if view == "broadcast" else view
    arguments = {"A": Array(shape, dtype, view, "real", 3), "C": Array(shape, dtype, out, "blank")}
    made = Program(source, arguments).make()
    a, c = made["A"], made["C"]
    assert isinstance(a, Made) and isinstance(c, Made)
    before = c.outside()
    program = Program(source, arguments)
    gpu.launch(program.load(), made, Launch(), "cpu")
    bits = f"u{a.view.itemsize}"
    assert np.array_equal(a.view.copy().view(bits), c.view.copy().view(bits))
    assert c.outside() == before


@dataclass(frozen=True)
class Flaky(Launch):
    """Launches of which the last leaves another number, in an argument or in what it makes."""

    returned: bool = False
    calls: list[int] = field(default_factory=list)

    def call(self, kernel: Any, given: Any) -> list[Any]:
        import torch

        self.calls.append(len(self.calls))
        late = float(len(self.calls) == 3)
        given[0].add_(0 if self.returned else late)  # onto what it was before each run
        return [torch.full((3,), late if self.returned else 0.0)]


@pytest.mark.torch
@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("runs", [2, 3])
def test_runs_that_differ(runs: int, returned: bool) -> None:
    how, made = Flaky(returned=returned), {"C": Array((4,)).make()}
    if returned:
        back = gpu.launch(generate(21, 0).load(), made, how, "cpu", runs)
        assert [float(one[0].sum()) for one in back] == [0.0, 0.0, 3.0][:runs]
    elif runs == 2:
        gpu.launch(generate(21, 0).load(), made, how, "cpu", runs)
    else:
        with pytest.raises(gpu.Differs, match="C: run 3 of 3 has left other bits than the first"):
            gpu.launch(generate(21, 0).load(), made, how, "cpu", runs)
    assert len(how.calls) == runs


# --- the generator --------------------------------------------------------------------------------


def test_schedules_are_forced_and_trips_are_told_by_the_call() -> None:
    programs = [generate(7, n) for n in range(400)]
    told = [p for p in programs if "trips" in p.words]
    numbers = {a for p in told for n, a in p.arguments.items() if n.startswith("n")}
    assert {0, 1, 2} <= numbers
    forced = [p for p in programs if "forced_schedule" in p.words]
    assert all("T.annotate_schedule(specialise=True" in p.source for p in forced)
    for word in ("persistent", "stages", "store"):
        assert any(f"{word}=" in p.source for p in forced), word


def test_tiles_in_loops_exchanges_and_few_elements_are_written() -> None:
    programs = [generate(7, n) for n in range(300)]
    inside = [p for p in programs if "made_in_loop" in p.words]
    assert len({m for p in inside for m in re.findall(r"for .*(T.serial|range|Pipelined)\(.*:\n"
               r" +\w+ = T.alloc_", p.source)}) > 1  # fmt: skip
    walks = [p.source.partition("T.Persistent") for p in programs if "persistent" in p.words]
    assert {"T.alloc_" in before for before, _, _ in walks} == {False, True}
    told = [p for p in programs if "thread_exchange" in p.words]
    turns = "".join(p.source for p in told)
    assert len(told) > 20 and re.search(r"for t\d+ in (range|T.serial)\(n\d+\):", turns)
    extents = {e for p in programs for a in p.arguments.values() if isinstance(a, Array)
               for e in a.shape}  # fmt: skip
    assert {0, 1} <= extents and "few_elements" in {w for p in programs for w in p.words}


def test_one_tile_in_several_roles_is_written() -> None:
    text = "".join(generate(3, number).source for number in range(100))
    assert len(re.findall(r"T\.gemm\((\w+), \1, ", text)) > 5
    assert re.search(r"T\.gemm\((\w+), \w+, \1\b", text)
    assert len(re.findall(r"(f\d+)\[.*\].*\b\1\[", text)) > 20


def test_programs_are_the_same_in_every_process() -> None:
    script = (
        "from tilec.fuzz.generate import generate\n"
        "print([generate(3, n).digest for n in range(20)])"
    )
    root = Path(__file__).parent.parent
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert ast.literal_eval(done.stdout) == [generate(3, n).digest for n in range(20)]
    assert len({generate(3, n).digest for n in range(20)}) == 20


@pytest.mark.parametrize("view", VIEWS[:-1])
@pytest.mark.parametrize("shape", [(5, 7), (1, 1), (0, 4), (3,), (2, 3, 4)])
def test_views_hold_what_they_say(view: str, shape: tuple[int, ...]) -> None:
    made = Array(shape, "float8_e4m3", view, "real", 3).make()
    assert made.view.shape == shape and made.view.dtype == ml_dtypes.float8_e4m3fn
    before = made.outside()
    if view != "broadcast":
        first = Array(shape, "float8_e4m3", "plain", "real", 3).make().view
        assert made.view.tobytes() == first.tobytes()
        made.view[...] = 1
    assert made.outside() == before
    made.base.view(np.uint8)[-1] ^= 1
    assert made.outside() != before or made.outside() == b""


# --- numbers and meanings -------------------------------------------------------------------------


def test_exact_numbers_stay_exact_and_others_have_a_bound() -> None:
    a = Number([1.0, 3.0, float(np.float32(0.1))], FLOAT32).to(FLOAT16)
    assert a.exact()
    total = arithmetic("add", a, 1.0)
    assert list(total.errors() > 0) == [False, False, True]
    want = np.float16(0.1) + np.float16(1.0)
    assert abs(total.value[2] - float(want)) <= total.errors()[2] < 2e-3
    assert Number(300, INT32).to(INT8).value == 44
    assert Number([-1e9, 1e9], FLOAT32).to(INT8).value.tolist() == [-128, 127]
    assert Number(1000.0, FLOAT32).to(FLOAT8_E4M3).value == 448
    assert Number(1000.0, FLOAT32).to(FLOAT8_E4M3, fnuz=True).value == 240
    assert Number(1.00390625, FLOAT32).to(BFLOAT16).value == 1.0  # a tie, to even
    assert np.isinf(settle(np.float64(1e6), np.float64(0), FLOAT16).error)
    with pytest.raises(Unclear):
        bool(Number(1.0, FLOAT32, 0.5) < 1.25)
    assert Number(1.0, FLOAT32, 0.1) < 1.25


@pytest.mark.parametrize("values", [np.float32, np.float64])
def test_errors_bound_sums_in_any_order(values: type, rng: np.random.Generator) -> None:
    x = rng.standard_normal(500).astype(np.float32)
    total = Number(0.0, FLOAT32)
    for v in x:
        total = total + Number(float(v), FLOAT32)
    for _ in range(10):
        rng.shuffle(x)
        other = np.float32(0)
        for v in x:
            other += v
        assert abs(float(other) - float(total.value)) <= total.error


def test_what_threads_exchange_is_in_the_order_of_statements() -> None:
    """Each has written before one reads in the next statement; in one statement it is no order."""
    body = (
        "tx = T.get_thread_binding()\nS = T.alloc_shared((64,), 'int32')\nS[tx] = tx\n"
        "v = S[63 - tx]\nS[tx] = (S[(tx + 1) % 64] if tx < 99 else 0) + v\n"
        "if tx < 8:\n    C[bx * 8 + tx] = S[tx]"
    )
    program = _program(body, C=Array((16,), "int32"))
    made = Wants(program.load(), program.arguments).of(False)["C"]
    assert np.array_equal(made.value, np.tile(np.arange(1, 9) + 63 - np.arange(8), 2))
    parted = _program(body.replace("C[bx * 8 + tx] = S[tx]", "S[tx] = S[tx + 1]"), C=Array((16,)))
    with pytest.raises(Invalid, match="touches"):
        Wants(parted.load(), parted.arguments)


def test_remainders_by_zero_are_zero() -> None:
    words = Words(Place(), PLAIN)
    for word in (words.floormod, words.truncmod, words.floordiv, words.truncdiv):
        made = word(Number([-7, 0, 7], INT32), Number([0, 0, 0], INT32))
        assert made.value.tolist() == [0, 0, 0] and made.exact()
    assert words.truncmod(Number([-7, 7], INT32), 4).value.tolist() == [-3, 3]


def _program(body: str, **arguments: Array) -> Program:
    parameters = ", ".join(f'{n}: T.Tensor({a.shape}, "{a.dtype}")' for n, a in arguments.items())
    lines = "".join(f"        {line}\n" for line in body.strip().split("\n"))
    head = f"@tilec.kernel\ndef kernel({parameters}):\n    with T.Kernel(2, threads=64) as bx:\n"
    return Program(head + lines, arguments)


SHARED = "S = T.alloc_shared((4,), 'int32')\n"
FILLED = SHARED + "T.fill(S, 1)\n"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("for i in T.Parallel(4):\n    C[0] = i", "written where"),
        ("C[0] = 1", "written where"),
        (SHARED + "for i in T.Parallel(4):\n    C[bx * 4 + i] = S[i]", "before it is written"),
        (FILLED + "for i in T.Parallel(4):\n    S[i] = S[(i + 1) % 4]", "touches"),
        (FILLED + "x = S[5]", "outside"),
        ("while bx < 5:\n    pass", "end"),
    ],
)  # fmt: skip
def test_programs_without_a_meaning(body: str, why: str) -> None:
    program = _program(body, C=Array((8,), "int32"))
    with pytest.raises(Invalid, match=why):
        Wants(program.load(), program.arguments)


def test_a_meaning_is_that_of_the_source() -> None:
    body = (
        "S = T.alloc_shared((3, 4), 'float32')\nT.copy(A[bx * 3, 1], S)\nS[0, 0] += 2.0\n"
        "for i, j in T.Parallel(3, 4):\n    if i == 1:\n        S[i, j] = T.cast(j, 'float32')\n"
        "T.copy(S, C[bx * 3, 0])"
    )
    a = np.arange(20, dtype=np.float32).reshape(5, 4)
    program = _program(body, A=Array((5, 4)), C=Array((6, 4)))
    kernel = program.load()
    got = run_meaning(kernel.function, {"A": a, "C": np.zeros((6, 4), np.float32)})
    want = np.zeros((6, 4))
    want[:5, :3] = a[:, 1:]
    want[[0, 3], 0] += 2
    want[[1, 4]] = np.arange(4)
    assert np.array_equal(got["C"].value, want) and got["C"].exact()


def test_differences_are_named() -> None:
    want = Number(np.zeros((2, 3)), FLOAT32)
    got = np.zeros((2, 3), np.float32)
    assert differing(got, want) == ""
    got[1, 2] = 5
    assert "element [1, 2] is 5.0 and must be 0.0" in differing(got, want)
    assert differing(got, Number(want.value, FLOAT32, 2.0)) == ""


# --- planted faults -------------------------------------------------------------------------------


def wrong_maximum(func: Func, target: Target) -> Func:
    """A pass that takes the smaller of two floats for the larger."""

    def visit(o: Op) -> Op | None:
        if isinstance(o, Binary) and o.kind == "max" and o.lhs.dtype.is_float:
            return replace(o, kind="min")
        return None

    return func.rewrite(Op, visit)


def no_barriers(func: Func, target: Target) -> Func:
    """A pass that loses every barrier."""
    return func.rewrite(Barrier, lambda o: [])


def lines(program: Program) -> int:
    return len(program.source.strip().splitlines())


def first_failure(seed: int, target: str) -> tuple[Program, Outcome, int]:
    for number in range(60):
        result = session.try_program(seed, number, (target,))
        if result.failures:
            return generate(seed, number), result.failures[0], number
    raise AssertionError("the planted fault was not found")


def test_a_miscompiled_operation_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "NORMALISE", (*passes.NORMALISE, (wrong_maximum, "TILE")))
    program, failure, number = first_failure(2, "cpu")
    assert failure.kind == "numbers"
    smaller = session.shrunk(program, failure, 60)
    assert lines(smaller) <= min(8, lines(program) - 1), smaller.source
    assert "T.max" in smaller.source
    monkeypatch.undo()
    assert not outcome.run_program(smaller, ("cpu",))[0].failed


def test_a_lost_barrier_is_found_and_shrunk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(passes, "EXPAND", (*passes.EXPAND, (no_barriers, "LOWERED")))
    program, failure, number = first_failure(6, "cuda:sm_80")
    smaller = session.shrunk(program, failure, 5)
    assert lines(smaller) < lines(program)
    path = tmp_path / "fuzz_it.py"
    path.write_text(text_of_test(smaller, failure, 6, number))
    scope: dict[str, object] = {"__name__": "fuzz_it"}
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), scope)
    test = scope["test_kernel"]
    assert callable(test)
    with pytest.raises(AssertionError, match=failure.kind):
        test()
    monkeypatch.undo()


# --- the command ----------------------------------------------------------------------------------


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = ["fuzz", "--count", "3", "--seed", "4", "--target", "cpu", "--out", str(tmp_path)]
    assert command_line.main(given) == 0
    said = capsys.readouterr().out
    assert "seed 4" in said and "3 programs, 0 failed" in said and "cpu: 3 ok" in said


def test_failures_give_status_1_and_a_test_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(passes, "NORMALISE", (*passes.NORMALISE, (wrong_maximum, "TILE")))
    _, _, number = first_failure(3, "cpu")
    given = [
        "--seed",
        "3",
        "--program",
        str(number),
        "--target",
        "cpu",
        "--shrink",
        "3",
        "--jobs",
        "0",
    ]
    assert command_line.main(["fuzz", *given, "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "numbers" in said and "shrunk to" in said
    (written,) = tmp_path.glob("fuzz_*.py")
    assert f"--seed 3 --program {number}" in written.read_text()


def test_interrupting_gives_the_summary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def interrupted(*args: object) -> session.Result:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return session.Result(1, 0, (Outcome("cpu", "ok"),))

    monkeypatch.setattr(session, "try_program", interrupted)
    assert command_line.main(["fuzz", "--seed", "1", "--target", "cpu", "--jobs", "0"]) == 0
    assert "1 programs, 0 failed" in capsys.readouterr().out


def test_unknown_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["fuz"]) == 2
    assert "did you mean 'fuzz'?" in capsys.readouterr().err
    assert command_line.main(["--help"]) == 0
