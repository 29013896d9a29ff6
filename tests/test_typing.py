"""What type checkers, editors and `help` know of kernels: `tests/typing/` holds files as users
write them, which mypy in strict mode and pyright find nothing wrong with."""

from __future__ import annotations

import functools
import inspect
import io
import operator
import os
import pydoc
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.builtins.elementwise import Elementwise

FOLDER = Path(__file__).parent / "typing"
ROOT = FOLDER.parent.parent
FILES = sorted(FOLDER.glob("*_file.py"))
CHECKERS = {
    "mypy": (
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--ignore-missing-imports",
        "--no-error-summary",
    ),
    "pyright": ("-m", "pyright"),
}


@functools.cache
def missing(checker: str) -> str:
    """Why a checker cannot be run here; pyright needs node, which it brings from the network."""
    done = subprocess.run(
        [sys.executable, "-m", checker, "--version"], capture_output=True, text=True
    )
    return "" if done.returncode == 0 else done.stderr.strip()[-200:] or "it does not run"


@functools.cache
def said(checker: str, *paths: Path) -> tuple[int, str]:
    """The exit status of a checker, and what it prints of these files."""
    if why := missing(checker):
        pytest.skip(f"{checker}: {why}")
    kept = Path(os.environ["TILEC_CACHE_DIR"]) / "mypy"  # what it knows of tilec, for all files
    known = ROOT / ".mypy_cache"  # by the project's own settings, which are the same
    if known.exists() and not kept.exists():
        shutil.copytree(known, kept)
    environment = os.environ | {"MYPYPATH": str(ROOT), "MYPY_CACHE_DIR": str(kept)}
    command = [sys.executable, *CHECKERS[checker], *map(str, paths)]
    if checker == "pyright":
        command += ["--pythonpath", sys.executable]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=240
    )
    return done.returncode, done.stdout + done.stderr


def test_the_package_says_that_it_has_types() -> None:
    assert (Path(tilec.__file__).parent / "py.typed").exists()
    assert len(FILES) == 2 and all(len(f.read_text().split("\n")) >= 60 for f in FILES)


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_users_file_is_clean(path: Path, checker: str) -> None:
    status, text = said(checker, *FILES)
    assert status == 0 or path.name not in text, text
    assert status == 0 or any(f.name in text for f in FILES), text  # it has come to an end


WRONG = {
    "T.alloc_sharde((64,), 'float32')": "alloc_sharde",
    "tilec.simulat(add)": "simulat",
    "add.compil()": "compil",
    "tilec.simulate(add).okay": "okay",
    "T.gemm(1, 2, 3, trans_A=True)": "trans_A",
    "T.copy(1)": "",
    "tilec.spec((1, 2), 'float32').shap": "shap",
    "add.compile().resources.register": "register",
    "T.exp.no_such_thing": "no_such_thing",
    "T.exp(1.0, 2.0)": "",
    "T.max(1.0)": "",
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_mistakes_are_found(checker: str, tmp_path: Path) -> None:
    lines = [
        "import tilec",
        "import tilec.language as T",
        "",
        "@tilec.kernel",
        "def add() -> None:",
        "    with T.Kernel(1):",
        "        pass",
        *WRONG,
    ]
    path = tmp_path / "wrong.py"
    path.write_text("\n".join(lines) + "\n")
    status, text = said(checker, path)
    assert status != 0
    for number, (_, word) in enumerate(WRONG.items(), 8):
        found = [x for x in text.split("\n") if f"wrong.py:{number}:" in x]
        assert found and any(word in x for x in found), (number, text)


# --- annotations that are types, too --------------------------------------------------------------

X = np.arange(64, dtype=np.float32)


def test_annotated_parameters() -> None:
    @tilec.kernel
    def header(
        A: Annotated[np.ndarray, T.Tensor((64,), "float32")],
        B: Annotated[Any, "where the results go", T.Tensor((64,), "float32")],
        n: Annotated[T.int32, "how much to add"],
        F: Annotated[int, T.constexpr] = 2,
    ):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = A[i] * F + n

    @tilec.kernel
    def body(A, B):
        N = T.const("N")
        A: Annotated[Any, T.Tensor((N,), "float32")]
        B: Annotated[Any, T.Tensor((N,), "float32")]
        with T.Kernel(1, threads=64):
            for i in T.Parallel(N):
                B[i] = A[i] * 3

    got = np.zeros_like(X)
    header(X, got, 5, F=4)
    np.testing.assert_array_equal(got, X * 4 + 5)
    body(X, got)
    np.testing.assert_array_equal(got, X * 3)


def test_annotated_parameters_that_say_nothing() -> None:
    @tilec.kernel
    def kernel(A: Annotated[np.ndarray, "an array"]):
        with T.Kernel(1, threads=64):
            T.clear(A)

    with pytest.raises(tilec.CompileError, match="the annotation of A is the class numpy.ndarray"):
        kernel(X.copy())


# --- what editors and help show -------------------------------------------------------------------


def test_dir_of_the_language_holds_words() -> None:
    words = dir(T)
    assert {"copy", "gemm", "Kernel", "float16", "exp", "__exp", "where", "Tensor"} <= {*words}
    for name in ("Any", "annotations", "enum", "dataclass", "CompileError", "Elementwise", "_Int"):
        assert name not in words and hasattr(T, name)
    for name in words:
        value = getattr(T, name)
        module = getattr(value, "__module__", None) or type(value).__module__
        assert module.split(".")[0] == "tilec", name


@pytest.mark.parametrize(
    "name", ["CompiledKernel", "language.Layout", "testing.Comparison", "bench.Timing"]
)
def test_what_public_classes_have_has_docstrings(name: str) -> None:
    found = operator.attrgetter(name)(tilec)
    said = {n: m.__doc__ for n, m in vars(found).items() if not n.startswith("_")}
    bare = [n for n, m in vars(found).items() if callable(m) or isinstance(m, property)]
    assert not [n for n in bare if n in said and not said[n]]


def test_every_word_has_a_docstring() -> None:
    for name in dir(T):
        value = getattr(T, name)
        assert (value.__doc__ or "").strip(), f"hover and help show it: {name}"
        if inspect.isfunction(value) or isinstance(value, Elementwise):
            parameters = inspect.signature(value).parameters
            assert not {"args", "kwargs"} <= parameters.keys(), f"its own signature: {name}"


def test_help_shows_signatures() -> None:
    for name, shown in (
        ("copy", "copy(src: "),
        ("exp", "T.exp(x, /)"),
        ("max", "T.max(x, y, /, *more)"),
        ("atomic_add", "atomic_add("),
    ):
        out = io.StringIO()
        pydoc.Helper(output=out)(getattr(T, name))
        text = out.getvalue()
        assert shown in text and (getattr(T, name).__doc__ or "").split("\n")[0] in text


def test_names_of_the_package() -> None:
    assert {"kernel", "simulate", "CompileError", "PerformanceWarning", "layout"} <= {*dir(tilec)}
    assert not {"importlib", "Any", "TYPE_CHECKING", "foreign"} & {*dir(tilec)}
    code = "import tilec; print(tilec.layout.make_swizzled_layout.__name__, tilec.sparse.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.split() == ["make_swizzled_layout", "tilec.sparse"]
    with pytest.raises(AttributeError, match="no attribute 'layot'; did you mean 'layout'"):
        tilec.layot  # noqa: B018
