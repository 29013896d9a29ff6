"""The ten rules of messages, each over mistakes that new users make.

1 own classes, short tracebacks; 2 the place, at most 12 lines; 3 both operands with scope, dtype
and shape; 4 one fix, which compiles once applied; 5 did-you-mean; 6 before LLVM; 7 launches name
the argument, what was expected and what came; 8 keywords at launch; 9 Python that kernels do not
have has an alternative; 10 accesses that are dropped are warned of (`test_diagnostics_bounds`).
"""

from __future__ import annotations

import ast
import functools
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import pytest
from diagnostics_help import carets, frames_of_tilec
from mistake_layouts import LAYOUT, UNSUPPORTED
from mistake_more import MORE
from mistake_programs import FRONTEND, PROGRAM, TARGETS, Mistake, compiled, edited, line, load
from test_diagnostics_launch import ARRAYS, add, gridless

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

MISTAKES = (*FRONTEND, *LAYOUT, *UNSUPPORTED, *MORE)


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")


@functools.cache
def error_of(text: str, target: str = "cuda:sm_90a") -> tilec.TilecError:
    with pytest.raises(tilec.TilecError) as caught:
        compiled(text, target)
    return caught.value


@functools.cache
@functools.cache  # of 84 mistakes 54 are mended to the program as it was
def compiles(text: str, targets: tuple[str, ...] = TARGETS) -> None:
    for target in targets:
        assert compiled(text, target).binary


def named(mistakes: tuple[Mistake, ...]) -> Any:
    marked = [pytest.param(m, marks=pytest.mark.torch) if m.imports else m for m in mistakes]
    return pytest.mark.parametrize("mistake", marked, ids=lambda m: m.name)


# --- 1, 2, 6: class, place, time ------------------------------------------------------------------


def test_the_program_without_a_mistake_compiles() -> None:
    compiles(PROGRAM)


@named(MISTAKES)
def test_class_place_and_length(mistake: Mistake) -> None:
    text = mistake.text()
    kernel, file = load(text)
    error = error_of(text)
    assert type(error) is mistake.error
    assert not isinstance(error, tilec.InternalError)
    assert frames_of_tilec(error) == 0, "the user's own lines end the traceback"
    assert traceback.format_exception_only(error)[0].startswith(f"tilec.{type(error).__name__}: ")
    assert error.__cause__ is None and error.__suppress_context__
    shown = str(error)
    assert shown.count("\n") < 12
    assert error.loc is not None
    number, column = error.loc.line, error.loc.col
    written = text.split("\n")[number - 1]
    assert written[column:].startswith(mistake.under)
    assert shown.startswith(f"{error.loc.file}:{number}:{column + 1}: ")
    assert carets(error) == mistake.under
    assert Path(error.loc.file).parent == Path(file).parent
    for part in mistake.says:
        assert part in error.message
    assert mistake.fix in error.hint, shown
    assert kernel.name == "kernel"


@pytest.fixture
def no_llvm(monkeypatch: pytest.MonkeyPatch, assembled_anew: None) -> None:
    def reached(*args: Any, **kwargs: Any) -> None:
        raise MemoryError("LLVM was reached")

    monkeypatch.setattr(llvm, "parse_assembly", reached)


@pytest.mark.parametrize("target", TARGETS)
def test_that_llvm_would_be_seen(target: str, no_llvm: None) -> None:
    # hip is made in a child process, whose exceptions come back as text.
    with pytest.raises((MemoryError, tilec.InternalError), match="LLVM was reached"):
        compiled(PROGRAM, target)


@named(MISTAKES)
def test_no_llvm_before_the_error(mistake: Mistake, no_llvm: None) -> None:
    for target in TARGETS[1:]:
        with pytest.raises(mistake.error):
            compiled(mistake.text(), target)


# --- 3, 4: operands, fixes ------------------------------------------------------------------------

WITH_OPERANDS = tuple(m for m in MISTAKES if re.search(r"\((shared|fragment|global) ", str(m.says)))


def test_there_are_enough_mistakes_about_operands() -> None:
    two = [m for m in WITH_OPERANDS if len(re.findall(r"\((?:shared|fragment)", str(m.says))) > 1]
    assert len(WITH_OPERANDS) >= 12 and len(two) >= 4


@named(WITH_OPERANDS)
def test_operands_have_scope_shape_and_dtype(mistake: Mistake) -> None:
    form = (
        r"\w+ \((shared|fragment|global|local) \([\w, ]+\) (float16|bfloat16|float32|int32|int8)\)"
    )
    message = error_of(mistake.text()).message
    assert re.search(form, message)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@named(MISTAKES)
def test_the_fix_compiles(mistake: Mistake, target: str) -> None:
    error = error_of(mistake.text())
    assert error.hint or "did you mean" in error.message
    assert error.hint.count("\n") == 0, "one fix"
    text = mistake.mended()
    simulated_only = "T.print" in text and target.startswith("hip")
    compiles(text, ("cpu" if simulated_only else target,))


FOLDER = Path(tilec.__file__).parent
SOURCES = (
    *FOLDER.glob("frontend/*.py"),
    *FOLDER.glob("builtins/*.py"),
    *(FOLDER / name for name in ("decorator.py", "kernel.py")),
    *(FOLDER / "runtime" / name for name in ("arguments.py", "tensors.py")),
)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_every_error_of_the_source_has_a_fix(path: Path) -> None:
    """An error that is made with its message only tells nobody what to write."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if name in ("error", "CompileError", "LayoutError", "ResourceError", "LaunchError"):
            has_hint = len(node.args) > (1 if name == "error" else 2)
            written = any(k.arg in ("hint", None) for k in node.keywords)
            assert has_hint or written, f"{path.name}:{node.lineno}: {ast.unparse(node)}"


def smaller(text: str, hint: str) -> str:
    """The program with the number that the help of a ResourceError names."""
    if stages := re.search(r"num_stages=(\d+) fits", hint):
        return re.sub(r"num_stages=\d+", f"num_stages={stages[1]}", text)
    if threads := re.search(r"threads=(\d+)", hint):
        return re.sub(r"threads=\d+", f"threads={threads[1]}", text)
    if tile := re.search(r"tile(?: of|:) (\d+)x(\d+)", hint):
        text = re.sub(r"BM: T.constexpr = \d+", f"BM: T.constexpr = {tile[1]}", text)
        return re.sub(r"BN: T.constexpr = \d+", f"BN: T.constexpr = {tile[2]}", text)
    shape = re.search(r"(\w+) of (\(.*?\)) fits", hint)
    assert shape, hint
    return re.sub(
        rf"{shape[1]} = T.alloc_shared\(\(.*?\)", f"{shape[1]} = T.alloc_shared({shape[2]}", text
    )


def extra(shape: str) -> tuple[str, str]:
    """An edit that adds a shared tile and uses it."""
    made = f'        big = T.alloc_shared({shape}, "float32")\n'
    used = f"{made}        T.clear(big)\n        T.clear(acc)\n"
    kept = "        T.copy(big[0:16, 0:16], C[0, 0])\n        for i, j"
    return used, kept


RESOURCES: dict[str, Callable[[str], str]] = {
    "too many stages": lambda p: edited(p, ("num_stages=2", "num_stages=90")),
    "stages of a larger tile": lambda p: edited(
        edited(p, ("BK: T.constexpr = 32", "BK: T.constexpr = 128")),
        ("num_stages=2", "num_stages=20"),
    ),
    "a large shared tile": lambda p: edited(
        edited(p, ("        T.clear(acc)\n", extra("(512, 256)")[0])),
        ("        for i, j", extra("(512, 256)")[1]),
    ),
    "a long shared tile": lambda p: edited(
        edited(p, ("        T.clear(acc)\n", extra("(16, 8000)")[0])),
        ("        for i, j", extra("(16, 8000)")[1]),
    ),
    "accumulators": lambda p: edited(
        edited(p, ("BM: T.constexpr = 64", "BM: T.constexpr = 512")),
        ("BN: T.constexpr = 64", "BN: T.constexpr = 256"),
    ),
    "few threads": lambda p: edited(
        edited(
            edited(p, ("BM: T.constexpr = 64", "BM: T.constexpr = 256")),
            ("BN: T.constexpr = 64", "BN: T.constexpr = 256"),
        ),
        ("threads=128", "threads=64"),
    ),
    "more threads than a block has": lambda p: edited(p, ("threads=128", "threads=2048")),
}


@pytest.mark.parametrize("target", TARGETS[:3])
def test_local_arrays_that_no_thread_can_hold(target: str) -> None:
    array = (
        'l = T.alloc_local((300000,), "float32")\n'
        "        for q in T.serial(300000):\n            l[q] = scale * q\n"
        "        row[0] = l[bx + 7]"
    )
    text = edited(PROGRAM, line(array))
    error = error_of(text, target)
    assert isinstance(error, tilec.ResourceError)
    assert carets(error) == 'T.alloc_local((300000,), "float32")'
    assert "take 1,200,000 bytes of each thread" in error.message
    assert "l is local (300000,) float32" in error.message
    fits = re.search(r"l of \((\d+),\) fits", error.hint)
    assert fits and compiled(text.replace("300000", fits[1]), target).binary


def test_a_cluster_that_does_not_fit_is_pointed_at() -> None:
    text = edited(PROGRAM, line("T.annotate_schedule(cluster=(4, 4))"))
    error = error_of(text)
    assert "a cluster of 4x4x1 has 16 blocks" in error.message and "cluster=8" in error.hint
    assert carets(error) == "T.annotate_schedule(cluster=(4, 4))"


@pytest.mark.parametrize(
    ("edits", "under"),
    [
        ((("threads=128", "threads=2000"),), "2000"),
        ((("threads=128", "threads=BN + 2000"),), "BN + 2000"),
        ((("threads=128", "threads=(64, 32)"),), "(64, 32)"),
    ],
)
def test_the_threads_are_pointed_at(edits: tuple[tuple[str, str], ...], under: str) -> None:
    text = functools.reduce(edited, edits, PROGRAM)
    for target in ("cuda:sm_80", "hip:gfx942"):
        error = error_of(text, target)
        assert "the most is 1024" in error.message and carets(error) == under


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS[:3])
@pytest.mark.parametrize("case", RESOURCES)
def test_what_fits_is_named_and_fits(case: str, target: str) -> None:
    text = RESOURCES[case](PROGRAM)
    if "stages" in case and target.startswith("hip"):
        assert compiled(text, target).binary, (
            "buffers have one version where copies cannot run ahead"
        )
        return
    error = error_of(text, target)
    assert isinstance(error, tilec.CompileError) and str(error).count("\n") < 12
    assert error.loc is not None and "^" in str(error)
    if "bytes of shared memory" in error.message:
        assert isinstance(error, tilec.ResourceError)
        numbers = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]+", error.message)[:1]]
        listed = [int(row.split(" B")[0].replace(",", "")) for row in error.table]
        assert listed == sorted(listed, reverse=True) and 0 < sum(listed) <= numbers[0] + 1024
        assert re.search(r"B  \w+ shared \([\d, ]+\) float(16|32)", str(error))
    mended = smaller(text, error.hint)
    assert mended != text and compiled(mended, target).binary


# --- 5: did you mean ------------------------------------------------------------------------------

NEAR: list[tuple[Callable[[], Any], str]] = [
    (lambda: T.alloc_sharde, "alloc_shared"),
    (lambda: T.pipelined, "Pipelined"),
    (lambda: tilec.Kernl, "Kernel"),
    (lambda: tilec.kernel(outs=["C"]), "out"),
    (lambda: T.Tensor((4,), "flaot16"), "float16"),
    (lambda: T.Tensor((4,), dtyp="float16"), "dtype"),
    (lambda: tilec.spec((4,), "fp16"), "float16"),
    (lambda: tilec.spec((4,), dtyp="float16"), "dtype"),
    (lambda: add.compile(*ARRAYS, target="cuda:sm90a"), "cuda:sm_90a"),
    (lambda: add.compile(*ARRAYS, target="gpu"), "cuda"),
    (lambda: add.compile(*ARRAYS, thread=64), "threads"),
    (lambda: add(*ARRAYS, 1.0, bn=32), "BN"),
    (lambda: gridless[lambda meta: (T.cdiv(7, meta["BNN"]),)](ARRAYS[0]), "BN"),
]


@pytest.mark.parametrize(("call", "meant"), NEAR, ids=[n for _, n in NEAR])
def test_did_you_mean(call: Callable[[], Any], meant: str) -> None:
    with pytest.raises((tilec.TilecError, tilec.TargetError, AttributeError)) as caught:
        call()
    assert f"did you mean {meant!r}" in str(caught.value)


# --- 9: Python that kernels do not have -----------------------------------------------------------


@named(UNSUPPORTED)
def test_unsupported_python_names_an_alternative(mistake: Mistake) -> None:
    error = error_of(mistake.text())
    assert error.hint and mistake.fix in error.hint
    assert not re.search(r"\b(AST|ast\.|node|NameConstant)\b", str(error)), "words of users"
