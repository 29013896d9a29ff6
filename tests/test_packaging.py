"""What is installed: metadata, bounds, the files that a wheel and an sdist hold. That they can be
built and run in a clean environment is shown by `.ci/packages`, which `.ci/run` calls."""

from __future__ import annotations

import importlib.util
import re
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import tilec

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=;\[ ]", r)[0] for r in requirements}


def test_metadata() -> None:
    project = PROJECT["project"]
    assert project["dynamic"] == ["version"] and re.fullmatch(r"\d+\.\d+\.\d+", tilec.__version__)
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "tilec.__version__"}
    assert project["license"] == "Apache-2.0" and (ROOT / "LICENSE").exists()
    assert "Typing :: Typed" in project["classifiers"]
    assert not [c for c in project["classifiers"] if c.startswith("License ::")], "PEP 639"
    assert project["requires-python"] == ">=3.11"
    assert "Programming Language :: Python :: 3.11" in project["classifiers"]


def test_every_requirement_has_bounds() -> None:
    free = {"hip-python"}  # no AMD GPU has been tried
    for extra, requirements in {"": PROJECT["project"]["dependencies"], **EXTRAS}.items():
        for r in requirements:
            bounded = ">=" in r and "<" in r
            assert bounded or names([r]) <= free, (extra, r)


def test_cuda_brings_the_driver_and_the_assembler() -> None:
    assert {"cuda-bindings", "nvidia-cuda-nvcc"} <= names(EXTRAS["cuda"])
    tools = {"ruff", "mypy", "pyright", "pre-commit", "pre-commit-hooks", "build"}
    assert tools <= names(EXTRAS["dev"])
    assert {"pytest", "hypothesis", "mpmath"} <= names(EXTRAS["test"])


def test_pre_commit_runs_what_the_checks_run() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    for hook in ("ruff check", "ruff format", "mypy", "check-yaml", "end-of-file-fixer"):
        assert hook in text
    for line in text.split("\n"):
        assert "\t" not in line


def test_manifest_names_what_is_there() -> None:
    for line in (ROOT / "MANIFEST.in").read_text().split("\n"):
        if line.startswith("graft "):
            assert (ROOT / line.split()[1]).is_dir(), line


# --- what .ci/packages looks for ------------------------------------------------------------------


@pytest.fixture
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check", ROOT / ".ci" / "check_packages.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


METADATA = (
    "Metadata-Version: 2.4\nName: tilec\nVersion: 0.1.0\nSummary: a compiler\n"
    "License-Expression: Apache-2.0\nLicense-File: LICENSE\nRequires-Python: >=3.11\n"
    + "".join(f"Provides-Extra: {x}\n" for x in ("cuda", "hip", "torch", "test", "dev"))
)


def made_wheel(folder: Path, files: list[str], metadata: str = METADATA) -> Path:
    path = folder / "tilec-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as z:
        for name in files:
            z.writestr(name, "")
        z.writestr("tilec-0.1.0.dist-info/METADATA", metadata)
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name in ("tilec/__init__.py", "tilec/py.typed", "tilec/page.css", "tests/test_a.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    return root


@pytest.mark.parametrize(
    ("files", "metadata", "wrong"),
    [
        (["__init__.py", "py.typed", "page.css"], METADATA, []),
        (["__init__.py", "py.typed"], METADATA, ["the wheel lacks tilec/page.css"]),
        (
            ["__init__.py", "page.css"],
            METADATA,
            ["the wheel lacks tilec/py.typed", "the wheel says nothing of its types: py.typed"],
        ),
        (
            ["__init__.py", "py.typed", "page.css", "old.py"],
            METADATA,
            ["the wheel has tilec/old.py"],
        ),
        (
            ["__init__.py", "py.typed", "page.css"],
            METADATA.replace("Requires-Python: >=3.11\n", "").replace("Provides-Extra: cuda\n", ""),
            ["the wheel's metadata has no Requires-Python", "no extra cuda"],
        ),
    ],
)
def test_wheels(
    check: ModuleType, tree: Path, files: list[str], metadata: str, wrong: list[str]
) -> None:
    wheel = made_wheel(tree.parent, [f"tilec/{f}" for f in files], metadata)
    assert check.wheel_misses(tree, wheel) == wrong


def test_sdists(check: ModuleType, tree: Path, tmp_path: Path) -> None:
    path = tmp_path / "tilec-0.1.0.tar.gz"
    for left_out, wrong in ((None, []), ("test_a.py", ["the sdist lacks tests/test_a.py"])):
        with tarfile.open(path, "w:gz") as t:
            for p in sorted(tree.rglob("*")):
                if p.is_file() and p.name != left_out:
                    t.add(p, f"tilec-0.1.0/{p.relative_to(tree)}")
        assert check.sdist_misses(tree, path) == wrong
