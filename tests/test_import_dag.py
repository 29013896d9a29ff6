"""Who may import whom (read off the source of every module), and that imports stand at the top."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "tilec").rglob("*.py"))

# Packages that import nothing of tilec but what is named here and `support.lazy`, which imports
# nothing.
# A module of the package `tilec` itself (tilec/kernel.py, …) may import all of them.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "support": ("ir.errors",),
    "builtins": ("ir",),
    "target": ("ir.errors",),
    "ir": ("target",),
    "frontend": ("target", "ir", "language", "builtins", "support.syntax"),
    "passes": ("target", "ir", "support.ahead"),
    "codegen": ("target", "ir", "support.tools"),
    "sim": ("target", "ir", "support.progress", "support.rich"),
    "tune": ("target", "ir", "passes", "support.rich"),
    "runtime": ("target", "ir.types", "ir.errors", "ir.stored", "support.settings"),
}
OPTIONAL = {"torch", "cuda", "hip"}  # may be absent, so they are imported where they are used


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and all statements in it: expressions hold no import."""
    yield node
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, field, None)
        for child in inner if isinstance(inner, list) else ():
            yield from statements(child)


def imports(node: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of each import below `node`; for `from a import b` both `a` and `a.b`."""
    for child in statements(node):
        if isinstance(child, ast.Import):
            yield from ((child.lineno, alias.name) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: a relative import"
            assert child.module is not None
            if child.module != "tilec":  # `from tilec import language` names a module only
                yield child.lineno, child.module
            yield from ((child.lineno, f"{child.module}.{alias.name}") for alias in child.names)


def package_of(module: str) -> str:
    """`ir` of `tilec.ir.core`."""
    return module.split(".")[1] if module.startswith("tilec.") else ""


def breaches(module: str, tree: ast.AST) -> list[str]:
    package = package_of(module)
    if package not in MAY_IMPORT:
        return []
    allowed = (package, "support.lazy", *MAY_IMPORT[package])
    found = []
    for line, target in imports(tree):
        inside = target.removeprefix("tilec.")
        if target != inside and not any(f"{inside}.".startswith(f"{a}.") for a in allowed):
            # `from tilec.ir import types` names `tilec.ir` too; a part of it is enough
            if not any(a.startswith(f"{inside}.") for a in allowed):
                found.append(f"{module}:{line} imports {target}")
        elif target == "tilec":
            found.append(f"{module}:{line} imports the whole of tilec")
    return found


def nested(tree: ast.AST) -> list[tuple[int, str]]:
    """Imports inside functions, optional packages left out."""
    found = []
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found += [(n, m) for n, m in imports(node) if m.split(".")[0] not in OPTIONAL]
    return found


def test_imports_follow_the_dag() -> None:
    assert [breach for path in MODULES for breach in breaches(name_of(path), parsed(path))] == []


def test_no_imports_inside_functions() -> None:
    assert [(name_of(path), *found) for path in MODULES for found in nested(parsed(path))] == []


def test_ir_modules_have_no_cycle() -> None:
    """Every package is acyclic, module by module (type-checking imports left out)."""
    graph: dict[str, set[str]] = {}
    names = {name_of(p) for p in MODULES}
    for path in MODULES:
        tree = parsed(path)
        top = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
        graph[name_of(path)] = {m for n in top for _, m in imports(n) if m in names}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"import cycle: {' -> '.join((*path, module))}"
        if module not in done:
            for target in sorted(graph[module] - {module}):
                package = target == module.rpartition(".")[0]  # a package imports its modules
                if not package:
                    visit(target, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_the_check_sees_breaches() -> None:
    tree = ast.parse("from tilec.codegen.cpu import x\nimport tilec.ir.core\n")
    assert breaches("tilec.passes.a", tree) == [
        "tilec.passes.a:1 imports tilec.codegen.cpu",
        "tilec.passes.a:1 imports tilec.codegen.cpu.x",
    ]
    assert breaches("tilec.kernel", tree) == []
    assert breaches("tilec.runtime.a", ast.parse("from tilec.ir.types import DType")) == []
    assert breaches("tilec.runtime.a", ast.parse("from tilec.ir import types")) == []
    assert breaches("tilec.runtime.a", ast.parse("from tilec.ir.core import Op")) != []
    assert nested(ast.parse("def f():\n    import re\n    import torch.cuda\n")) == [(2, "re")]


# --- circles ---


def circles() -> list[frozenset[str]]:
    """The strongly connected parts of the imports, those for types included."""
    names = {name_of(p): p for p in MODULES}
    graph = {}
    for module, path in names.items():
        top = parsed(path).body
        typed = [n for n in top if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
        nodes = [n for n in top if n not in typed] + [x for n in typed for x in n.body]
        graph[module] = set()
        for n in nodes:
            if isinstance(n, ast.Import | ast.ImportFrom):
                found = {t for _, t in imports(ast.Module([n], [])) if t in names and t != module}
                # `from tilec.ir import types` is an import of `tilec.ir.types` only.
                whole = {t for t in found if any(o.startswith(f"{t}.") for o in found)}
                graph[module] |= found - whole
    reached: dict[str, set[str]] = {}
    for module in graph:
        seen, stack = set[str](), [module]
        while stack:
            new = graph[stack.pop()] - seen
            seen |= new
            stack.extend(new)
        reached[module] = seen
    own = {m: frozenset(o for o in r if m in reached[o]) for m, r in reached.items()}
    return [*{c for m, c in own.items() if m in reached[m]}]


def test_there_are_no_circles() -> None:
    assert circles() == []
