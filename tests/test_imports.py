"""Imports form a DAG: target <- ir <- {frontend, passes, codegen}, which never import one
another."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = {
    ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p
    for p in sorted((ROOT / "tilec").rglob("*.py"))
}

ALLOWED = {
    "tilec.target": (),
    "tilec.lazy": (),
    "tilec.ir": ("tilec.ir", "tilec.target"),
    "tilec.frontend": ("tilec.frontend", "tilec.ir", "tilec.target", "tilec.language"),
    "tilec.passes": ("tilec.passes", "tilec.ir", "tilec.target"),
    "tilec.codegen": ("tilec.codegen", "tilec.ir", "tilec.target"),
    "tilec.runtime": (
        "tilec.runtime",
        "tilec.target",
        "tilec.lazy",
        "tilec.ir.types",
        "tilec.ir.errors",
    ),
}
OPTIONAL = ("torch", "cuda", "hip", "rocm")


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """(module, line, whether it stands in a function) for every import; type-checking blocks are
    left out."""

    def visit(node: ast.AST, inside: bool) -> Iterator[tuple[str, int, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from ((a.name, child.lineno, inside) for a in child.names)
            elif isinstance(child, ast.ImportFrom):
                module = child.module or ""
                for a in child.names:
                    full = f"{module}.{a.name}"
                    yield (full if full in MODULES else module), child.lineno, inside
            else:
                yield from visit(child, inside or isinstance(child, ast.FunctionDef | ast.Lambda))

    yield from visit(ast.parse(path.read_text()), False)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_is_below_it(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for name, path in MODULES.items()
        if within(name, package)
        for module, line, _ in imports(path)
        if within(module, "tilec") and not any(within(module, a) for a in ALLOWED[package])
    ]
    assert not found, "\n".join(found)


def test_the_packages_exist() -> None:
    for package in ALLOWED:
        assert any(within(name, package) for name in MODULES), package


def test_imports_stand_at_the_top() -> None:
    """Only optional packages are imported where they are used."""
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {module} in a function"
        for path in MODULES.values()
        for module, line, inside in imports(path)
        if inside and module.split(".")[0] not in OPTIONAL
    ]
    assert not found, "\n".join(found)


def test_no_module_imports_itself_through_others() -> None:
    graph = {name: {m for m, _, _ in imports(p) if m in MODULES} for name, p in MODULES.items()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for below in sorted(graph[name]):
                visit(below, (*path, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())


def test_importing_tilec_loads_neither_torch_nor_a_driver_nor_llvm() -> None:
    script = "import sys, tilec, tilec.language; print(*sorted(sys.modules))"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    loaded = {m.split(".")[0] for m in done.stdout.split()}
    assert loaded.isdisjoint({"torch", "cuda", "hip", "llvmlite"})
