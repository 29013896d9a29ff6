"""Several mistakes of one kernel are told at once; what follows from one is not."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from diagnostics_help import frames_of_tilec
from mistake_layouts import LAYOUT
from mistake_more import MORE
from mistake_programs import FRONTEND, Mistake, compiled
from test_language_errors import HEADER, compile_text  # noqa: F401 (a kernel of many parameters)

import tilec
from tilec.frontend import recovery

pytestmark = pytest.mark.usefixtures("unassembled")

_names = itertools.count()
Errors = Callable[[str], list[tilec.CompileError]]


@pytest.fixture
def errors_of(tmp_path: Path) -> Errors:
    """What `kernel` in a text says when it is compiled: all of its errors, the first first."""

    def errors(body: str) -> list[tilec.CompileError]:
        path = tmp_path / f"several{next(_names)}.py"
        text = BEGIN + "".join(f"        {line}\n" for line in body.strip("\n").split("\n"))
        path.write_text(text)
        space: dict[str, object] = {"__name__": path.stem}
        exec(compile(text, str(path), "exec"), space)
        kernel = space["kernel"]
        assert isinstance(kernel, tilec.Kernel)
        with pytest.raises(tilec.CompileError) as caught:
            kernel.compile(*[tilec.spec((64,), "float32")] * 2, 3, target="cpu")
        assert frames_of_tilec(caught.value) == 0
        return [caught.value, *caught.value.others]

    return errors


BEGIN = """\
import tilec
import tilec.language as T

@T.macro
def twice(x):
    y = x * undefined_in_macro
    return y + x

@tilec.kernel
def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), n: T.int32):
    with T.Kernel(1, threads=64) as bx:
"""
FIRST = BEGIN.count("\n")


def lines_and_messages(errors: list[tilec.CompileError]) -> list[tuple[int, str]]:
    return [(e.loc.line - FIRST, e.message.split(";")[0]) for e in errors if e.loc]


def test_independent_mistakes_are_told_together(errors_of: Errors) -> None:
    errors = errors_of(
        """
S = T.alloc_sharde((64,), "float32")
x = 1.0
for i in T.serial(4):
    x = x + qqqq
T.copy(A[0:32], B[0:16])
import os
"""
    )
    assert lines_and_messages(errors) == [
        (1, "tilec.language has no attribute 'alloc_sharde'"),
        (4, "the name 'qqqq' is not defined"),
        (5, errors[2].message),
        (6, "import is not allowed in a kernel"),
    ]
    assert "their extents differ" in errors[2].message
    text = str(errors[0])
    assert text == "\n\n".join([tilec.TilecError.__str__(e) for e in errors])
    assert text.startswith(str(errors[0].loc)), "the first is what it would be alone"
    again = pickle.loads(pickle.dumps(errors[0]))
    assert str(again) == text and again.others[0].message == errors[1].message


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        # What uses the result of a mistake, directly or through other names, a branch, a loop.
        ("S = T.alloc_shard((64,))\nT.copy(A, S)\nq = S[0] + 1\nB[0] = q", [1]),
        ("x = first\nif n > 3:\n    x = 2.0\nB[0] = x", [1]),
        ("x = 1.0\nif n > 3:\n    x = first\nB[0] = x", [3]),
        ("x = 1.0\nfor i in T.serial(n):\n    x = x + first\nB[0] = x", [3]),
        ("x = 1.0\nwhile n > x:\n    x = x * first\nB[0] = x", [3]),
        ("x = first\nfor i in T.serial(n):\n    x = x + 1\n    B[i] = x", [1]),
        ("xs = [1, 2]\nxs[0] = first\nB[0] = xs[0]\nB[1] = len(xs)", [2]),
        ("for i in T.Parallel(64):\n    y = A[i] + first\n    B[i] = y", [2]),
        ("x = 1.0\nfor i in T.Parallel(64):\n    x = A[i] + first\nT.copy(A, B)", [3]),
        ("def f(z):\n    return z + first\nB[0] = f(1.0)", [2, 3]),
        # The same mistake in several places, or as often as it is traced.
        ("B[0] = first\nB[1] = first\nB[2] = first + 1", [1]),
        ("for k in T.unroll(4):\n    B[k] = first", [2]),
        ("B[0] = twice(A[0])\nB[1] = twice(A[1])", [-5]),
        ("T = 3\nT.copy(A, B)\nT.clear(B)", [2]),
        # Nobody knows what runs behind these.
        ("assert bx is None, 'no'\nB[0] = first", [1]),
        ("if first > 3:\n    return\nB[0] = second", [1]),
        ("with T.ws(first):\n    B[0] = second\nB[1] = third", [1]),
        ("x = first\nif x > 3:\n    return\nB[0] = second", [1]),
    ],
)
def test_what_follows_from_a_mistake_is_not_told(
    errors_of: Errors, body: str, lines: list[int]
) -> None:
    found = [line for line, _ in lines_and_messages(errors_of(body))]
    assert found[:1] == lines[:1] and set(found) <= set(lines), errors_of(body)


def test_a_macro_and_its_kernel(errors_of: Errors) -> None:
    errors = errors_of("B[0] = twice(A[0])\nB[1] = qqqq")
    assert [e.message for e in errors] == [
        "the name 'undefined_in_macro' is not defined",
        "the name 'qqqq' is not defined",
    ]
    assert errors[0].loc and errors[0].loc.caller and "in a macro called at" in str(errors[0])


def test_at_most_so_many(errors_of: Errors) -> None:
    errors = errors_of("\n".join(f"B[{n}] = qqqq{n}" for n in range(20)))
    assert len(errors) == recovery.MOST_ERRORS
    assert errors[-1].message == f"the name 'qqqq{recovery.MOST_ERRORS - 1}' is not defined"


def test_long_programs_are_not_traced_for_ever(
    errors_of: Errors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "MOST_STATEMENTS", 10)
    text = "".join(f"x{n} = {n}\n" for n in range(12))
    assert len(errors_of(f"{text}B[0] = first\nB[1] = second")) == 1


def test_a_mistake_in_what_a_trace_makes(
    errors_of: Errors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loops that a T.Parallel with a run-time extent becomes are made anew in each trace."""
    tried = []
    left_out = recovery._leave_out
    monkeypatch.setattr(recovery, "_leave_out", lambda *a: tried.append(a) or left_out(*a))
    (error,) = errors_of("for i, j in T.Parallel(n, T):\n    B[i] = A[i]")
    assert error.message.startswith("an extent of T.Parallel is the module")
    assert len(tried) == 1


SEVERAL = {"run-time tile", "gemm into integers"}  # mistakes that several lines would have to mend
SINGLE = [m for m in (*FRONTEND, *LAYOUT, *MORE) if not m.imports and m.name not in SEVERAL]


@pytest.mark.parametrize("mistake", SINGLE, ids=lambda m: m.name)
def test_one_mistake_is_one_error(mistake: Mistake) -> None:
    with pytest.raises(tilec.TilecError) as caught:
        compiled(mistake.text(), "cuda:sm_90a")
    assert not getattr(caught.value, "others", ())


def test_everything_a_user_catches_still_catches(errors_of: Errors) -> None:
    error = errors_of("B[0] = qqqq\nB[1] = zzzz")[0]
    assert isinstance(error, tilec.TilecError)
    assert error.message == "the name 'qqqq' is not defined", "its own alone"
    assert error.others[0].message == "the name 'zzzz' is not defined"
