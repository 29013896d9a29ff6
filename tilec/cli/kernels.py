"""The kernel that `FILE.py`, `FILE.py:name` or `FILE.py:factory("float16")` means.

The file is imported as a module, of its package if it has one, with its own folder on the path, so
that what stands behind `if __name__ == "__main__"` does not run.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilec.cli.options import UsageError
from tilec.ir.errors import TilecError, did_you_mean
from tilec.ir.loc import Loc
from tilec.kernel import Kernel, kernel_in

_PLACE = re.compile(r"(?P<file>.*?\.py)(?::(?P<name>.*))?", re.DOTALL)


def find_kernel(place: str) -> Kernel:
    """The kernel at `place`. Raises UsageError, and CompileError from the kernel's decorator."""
    parts = _PLACE.fullmatch(place)
    if parts is None:
        hint = "write FILE.py, or FILE.py:kernel of several"
        raise UsageError(f"{place!r} is not a Python file", hint=hint)
    path = Path(parts["file"])
    if not path.is_file():
        others = [f.name for f in path.parent.glob("*.py")] if path.parent.is_dir() else []
        near = did_you_mean(path.name, others)
        raise UsageError(f"there is no file {parts['file']!r}{near}")
    names = vars(load_file(path))
    kernels = _kernels(names)
    if parts["name"] is None:
        return _only(path, kernels, names)
    return _named(path, parts["name"].strip(), kernels, names)


def load_file(path: Path) -> types.ModuleType:
    """The file as a module. Raises UsageError, placed at the file's line, for whatever goes wrong
    while it is loaded."""
    path = path.resolve()
    root, package = path.parent, ""  # `from .other import …` is of the package
    while (root / "__init__.py").is_file() and root.name.isidentifier():
        root, package = root.parent, f"{root.name}.{package}"
    name = f"{package}_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # its name ends in .py
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    sys.path[:0] = [str(path.parent), *([str(root)] if package else [])]
    arguments, sys.argv = sys.argv, [str(path)]
    try:
        spec.loader.exec_module(module)
    except TilecError:
        raise
    except SystemExit as e:
        message = f"{path.name} ends the program while it is loaded"
        hint = 'put what is to run as a program behind `if __name__ == "__main__":`'
        raise UsageError(message, _place_in(path, e), hint) from e
    except Exception as e:
        message = f"{path.name} cannot be loaded: {type(e).__name__}: {e}"
        raise UsageError(message, _place_in(path, e)) from e
    finally:
        sys.argv = arguments
    return module


def _place_in(path: Path, e: BaseException) -> Loc | None:
    """The last line of the file that the exception came through."""
    if isinstance(e, SyntaxError) and e.filename == str(path) and e.lineno:
        return Loc(str(path), e.lineno, max((e.offset or 1) - 1, 0))
    frames = traceback.extract_tb(e.__traceback__)
    for frame in reversed(frames):
        if frame.filename == str(path) and frame.lineno:
            return Loc(str(path), frame.lineno, frame.colno or 0, frame.end_colno or 0)
    return None


def _kernels(names: Mapping[str, Any]) -> dict[str, Kernel]:
    """The module's kernels, each under its first name."""
    found: dict[str, Kernel] = {}
    for name, value in names.items():
        kernel = kernel_in(value)
        if isinstance(kernel, Kernel) and not any(kernel is k for k in found.values()):
            found[name] = kernel
    return found


def _only(path: Path, kernels: Mapping[str, Kernel], names: Mapping[str, Any]) -> Kernel:
    """The kernel of a file where none is named: the only one that it defines itself."""
    own = [k for k in kernels.values() if k.function.__module__ == names["__name__"]]
    found = own or list(kernels.values())
    if len(found) == 1:
        return found[0]
    if found:
        hint = f"name one: {path}:{next(iter(kernels))}"
        raise UsageError(f"{path} has {len(found)} kernels: {', '.join(kernels)}", hint=hint)
    makers = _makers(names)
    raise UsageError(
        f"{path} defines no kernel",
        hint=f"if a function makes it, call that: '{path}:{makers[0]}(\"float16\")'"
        if makers
        else "decorate a function with @tilec.kernel",
    )


def _makers(names: Mapping[str, Any]) -> list[str]:
    """Functions of the module that may give a kernel."""
    return [
        name
        for name, value in names.items()
        if isinstance(value, types.FunctionType) and value.__module__ == names["__name__"]
    ]


def _named(
    path: Path, text: str, kernels: Mapping[str, Kernel], names: Mapping[str, Any]
) -> Kernel:
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        node = ast.Constant(None)
    match node:
        case ast.Name(id=name):
            return _kernel(path, name, _value(path, name, kernels, names))
        case ast.Call(func=ast.Name(id=name)):
            maker = _value(path, name, kernels, names)
            return _made(path, text, node, maker)
    hint = f"write {path}:kernel, or '{path}:factory(\"float16\")'"
    raise UsageError(f"{text!r} names no kernel of {path}", hint=hint)


def _value(
    path: Path, name: str, kernels: Mapping[str, Kernel], names: Mapping[str, Any]
) -> object:
    if name in names:
        return names[name]
    own = {n: k for n, k in names.items() if isinstance(k, Kernel)}
    near = did_you_mean(name, [*own, *_makers(names)])
    hint = f"its kernels are {', '.join(kernels)}" if kernels else "it defines no kernel"
    raise UsageError(f"{path} has no kernel {name!r}{near}", hint=hint)


def _kernel(path: Path, name: str, value: object) -> Kernel:
    kernel = kernel_in(value)
    if isinstance(kernel, Kernel):
        return kernel
    hint = "name a function that is decorated with @tilec.kernel"
    if isinstance(value, types.FunctionType):
        hint = f"if it makes kernels, call it: '{path}:{name}(…)'; else decorate it"
    raise UsageError(f"{name} of {path} is a {type(value).__name__}, not a kernel", hint=hint)


def _made(path: Path, text: str, call: ast.Call, maker: object) -> Kernel:
    """What a factory gives."""
    try:
        args = [ast.literal_eval(a) for a in call.args]
        keywords = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg is not None}
    except ValueError:
        raise UsageError(
            f"{text!r} has arguments that are no numbers or strings",
            hint='write dtypes as strings: "float16"',
        ) from None
    if isinstance(maker, Kernel) or not callable(maker):
        name = text.partition("(")[0]
        what = "kernel" if isinstance(maker, Kernel) else type(maker).__name__
        message = f"{name} of {path} is a {what}, not a function that makes a kernel"
        raise UsageError(message, hint=f"write {path}:{name}, and its constants with --set")
    try:
        made = maker(*args, **keywords)
    except TilecError:
        raise
    except Exception as e:
        message = f"{text} failed: {type(e).__name__}: {e}"
        raise UsageError(message, _place_in(path.resolve(), e)) from e
    return _kernel(path, text, made)
