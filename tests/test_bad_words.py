"""Mistakes with reductions, packed dtypes, counts of barriers, shuffles, externs, atomics and
barriers: at least ten of each kind, what is said of each, where, and what to write instead."""

from __future__ import annotations

import itertools
import linecache
import re
import warnings
from typing import Any

import numpy as np
import pytest
from bad_words import KINDS, ODD_TENSORS, Kind

import tilec
import tilec.language as T
from tilec.ir.errors import CompileError, CompileWarning

pytestmark = pytest.mark.usefixtures("unassembled")

_files = itertools.count()


def kernel_of(text: str) -> tuple[Any, str, int]:
    """The kernel of a text that Python can show, its file, and the marked line."""
    file = f"<bad word {next(_files)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"T": T, "tilec": tilec, "M": T.dynamic("M")}
    exec(compile(text, file, "exec"), scope)
    (line,) = (n for n, x in enumerate(text.splitlines(), 1) if x.rstrip().endswith("#!"))
    return scope["kernel"], file, line


def check(
    error: object, file: str, line: int, part: str, hint: str, kind: Kind | None = None
) -> None:
    first = kind.first_line if kind else 0
    part, hint = (re.sub(r"@(\d)", lambda m: str(first + int(m[1]) - 1), x) for x in (part, hint))
    shown = str(error)
    assert f"{file}:{line}:" in shown.split("\n")[0], shown
    assert shown.count("\n") < 12 and "^" in shown, shown
    message, _, help = shown.partition("\n  help: ")
    assert part in message and hint in help, shown


CASES = [(k, c) for k, kind in KINDS.items() for c in kind.cases]
WARNED = [(k, c) for k, kind in KINDS.items() for c in kind.warned]


def test_ten_of_each_kind() -> None:
    kinds = {k: len(kind.cases) for k, kind in KINDS.items() if k != "clusters"}
    assert len(kinds) == 7 and min(kinds.values()) >= 10


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_error(kind: str, case: str) -> None:
    body, part, hint = KINDS[kind].cases[case]
    kernel, file, line = kernel_of(KINDS[kind].text(body))
    with pytest.raises(CompileError) as caught:
        kernel.compile(*KINDS[kind].specs(), target="cuda:sm_90a")
    assert caught.value.loc is not None
    check(caught.value, file, line, part, hint, KINDS[kind])


@pytest.mark.parametrize(("kind", "case"), WARNED)
def test_warning(kind: str, case: str) -> None:
    body, part, hint = KINDS[kind].warned[case]
    kernel, file, line = kernel_of(KINDS[kind].text(body))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        kernel.compile(*KINDS[kind].specs(), target="cuda:sm_90a")
    found = [w.message for w in seen if isinstance(w.message, CompileWarning)]
    assert len(found) == 1
    check(found[0], file, line, part, hint, KINDS[kind])


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942", "cpu"])
@pytest.mark.parametrize("kind", ["reduction", "divergence", "atomics"])
def test_other_targets_say_the_same(kind: str, target: str) -> None:
    for body, part, hint in list(KINDS[kind].cases.values())[::4]:
        if "under a condition that holds for" in part:
            continue  # whole warps: how many threads that is differs
        kernel, file, line = kernel_of(KINDS[kind].text(body))
        with pytest.raises(CompileError) as caught:
            kernel.compile(*KINDS[kind].specs(), target=target)
        check(caught.value, file, line, part, hint, KINDS[kind])


@pytest.mark.parametrize("case", ODD_TENSORS)
def test_tensors_of_odd_extents(case: str) -> None:
    given, above, part = ODD_TENSORS[case]
    marked = "" if above and "make_tensor" not in above else "  #!"
    text = f"\n@tilec.kernel\ndef kernel({given}):{marked}\n"
    text += f"    {above}{'' if marked else '  #!'}\n" if above else ""
    text += "    with T.Kernel(1, threads=32):\n        T.sync_threads()\n"
    kernel, file, line = kernel_of(text)
    argument = np.zeros((64, 32), np.int8) if "X:" not in given else np.zeros(4, np.int8)
    with pytest.raises(CompileError) as caught:
        kernel.compile(argument, target="cuda:sm_90a")
    check(caught.value, file, line, part, "write an even extent")


def test_a_spec_of_odd_rows() -> None:
    with pytest.raises(CompileError, match=r"int4 with the shape \(4, 3\): a byte holds two"):
        tilec.spec((4, 3), "int4")


def test_arrays_of_packed_elements() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((4, 8), "int4"), C: T.Tensor((4,), "int8")):
        with T.Kernel(1, threads=32):
            C[0] = A[0, 0]

    out = np.zeros(4, np.int8)
    for array, text in (
        (np.zeros((4, 8), np.int8), "dimension 1: expected 4, got 8"),
        (np.zeros((4, 3), np.int8), "dimension 1: expected 4, got 3"),
        (np.zeros((4, 4), np.int32), "expected int4, got int32"),
    ):
        with pytest.raises(tilec.LaunchError, match=text):
            kernel(array, out)
