"""Values as text that tells each from every other: in the keys of variants, in memory and on disk.

Values that a kernel can compute with, and containers of them, are told by their content: type and
value, so that 1, 1.0, True and numpy.int64(1) differ, and -0.0 and 0.0. Any other object is told by
which one it is, in this process; the text of such a one costs a compilation in the next process,
where it never matches.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib.util
import numbers
import os
import struct
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tilec.builtins.annotations import Macro, Ref
from tilec.builtins.choices import Auto
from tilec.ir.errors import CompileError
from tilec.ir.lines import keep_lines
from tilec.ir.types import DType, TypedFloat, TypedInt
from tilec.jit.captured import Form, Outside, Reads, held_by, is_plain, outside_of
from tilec.support.lazy import Lazy
from tilec.support.syntax import ASKED, is_array

frontend = Lazy("tilec.frontend.source")

# Hexadecimal: exact for floats, and without Python's limit on the digits of an int.
_ATOMS: dict[type, Callable[[Any], str]] = {
    bool: repr,
    int: hex,
    float: lambda x: struct.pack("<d", x).hex(),
    complex: lambda x: struct.pack("<dd", x.real, x.imag).hex(),
    str: ascii,
    bytes: bytes.hex,
    range: repr,
    type(None): repr,
    type(...): repr,
}
# Types whose equal values are the same constant.
_PLAIN = frozenset({bool, int, str, bytes, type(None), DType, Auto})
_TORCH_NAMES = ("dtype", "device", "layout", "memory_format")
_PROCESS = os.urandom(8).hex()
_MOST_WATCHED = 1 << 16  # bytes of an array, of which each launch looks whether they are the same


def describe(value: Any) -> str:
    """A compile-time value as text that tells it from every other."""
    return Describer().value(value)


def exact(value: Any) -> Any:
    """A key for a compile-time value, which tells it from every other, ints included."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    atom = _ATOMS.get(kind)
    return kind, describe(value) if atom is None else atom(value)


def remember_surroundings(function: Callable[..., Any], frame: types.FrameType) -> None:
    """Note what is lost once the decorator has run: the lines of the file as it is now, and the
    plain values that the function around `function` has.

    Python keeps a name for an inner function only if its body uses it; a factory's value that
    only an annotation names would be lost (always with `from __future__ import annotations`).
    """
    keep_lines(function)
    if frame.f_locals is not frame.f_globals:
        seen = {name: v for name, v in frame.f_locals.items() if _is_compile_time(v)}
        function.__dict__["__tilec_locals__"] = seen


def _is_compile_time(value: Any) -> bool:
    plain = (*_ATOMS, tuple, list, dict, enum.Enum, types.ModuleType, types.FunctionType, DType)
    if isinstance(value, plain):
        return True
    kind = type(value)
    return _is_ours(kind.__module__) or kind.__module__ == "numpy" or "dtype" in kind.__name__


class Describer:
    """Text of values, and in `reads` where they were found. An object that holds others is
    described once, so that recursion ends."""

    def __init__(self) -> None:
        self.reads = Reads()
        self._in_function = False
        self._homes = set[str]()  # the packages of what is compiled
        self._seen: dict[int, tuple[int, Any]] = {}  # which one it is, and the object, kept alive

    def value(self, value: Any) -> str:
        kind = type(value)
        atom = _ATOMS.get(kind)
        if atom is not None:
            return f"{kind.__name__} {atom(value)}"
        match value:
            case DType():
                return f"dtype {value.name}"
            case TypedInt() | TypedFloat():
                plain: int | float = float(value) if value.dtype.is_float else int(value)
                return f"{value.dtype.name} {self.value(plain)}"
            case enum.Enum():
                return f"{_named(kind)}.{value.name} {self.value(value.value)}"
            case types.ModuleType() if not self._is_users(value):
                return f"module {value.__name__}"
            case type() if not self._is_users(value):
                return f"type {_named(value)}"
            case type() if issubclass(value, enum.Enum):
                return f"type {_named(value)}{self._sequence(value)}"
            case types.BuiltinFunctionType() if isinstance(value.__self__, types.ModuleType | None):
                return f"builtin {_named(value)}"
            case numbers.Number() if kind.__module__ in ("fractions", "decimal"):
                return f"{kind.__name__} {value!r}"
        if kind.__module__ == "torch" and kind.__name__ in _TORCH_NAMES:
            return repr(value)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic | numpy.ndarray | numpy.dtype):
            return self._numpy(numpy, value)
        if callable(value) and _top(kind.__module__) == "numpy" and hasattr(value, "__name__"):
            return f"function numpy.{value.__name__}"
        if id(value) in self._seen:
            return f"again {self._seen[id(value)][0]}"
        self._seen[id(value)] = len(self._seen), value
        return self.holder(value)

    def holder(self, value: Any) -> str:
        """Text of an object that may hold others."""
        kind: Any = type(value)
        for base in (int, float, complex, str, bytes):
            if isinstance(value, base):  # of a class of the user's
                return f"{_named(kind)} {_ATOMS[base](value)}"
        match value:
            case Macro():
                self.reads.code(value.function)
                return f"macro {self.source(value.function)}"
            case tuple():
                return f"{_named(kind)}{self._sequence(value)}"
            case list() | collections.deque():
                self.reads.content(value)
                return f"{_named(kind)}{self._sequence(value)}"
            case set() | frozenset():
                self.reads.content(value)
                return f"{_named(kind)}{sorted(map(self.value, value))}"
            case Mapping():
                self.reads.content(value)
                return f"{_named(kind)}{self._sequence(i for kv in value.items() for i in kv)}"
            case types.ModuleType():  # the user's, used otherwise than for an attribute
                self.reads.content(value)
                return f"module {value.__name__}{self._sequence(held_by(value))}"
            case types.FunctionType():
                return self.function(value)
            case types.MethodType():
                return f"method {self.value(value.__func__)} of {self.value(value.__self__)}"
            case functools.partial():
                held = (value.func, value.args, value.keywords)
                return f"partial{self._sequence(held)}"
            case staticmethod() | classmethod():
                return f"{kind.__name__} {self.value(value.__func__)}"
            case property():
                return f"property {self.value(value.fget)}"
            case type():
                return self._class(value)
            case types.CodeType():
                names = (value.co_names, value.co_varnames, value.co_freevars)
                return f"code {value.co_code.hex()} {names}{self._sequence(value.co_consts)}"
        if hasattr(value, "__wrapped__") and (
            kind.__name__ == "_lru_cache_wrapper"
            or any(_is_ours(k.__module__) for k in kind.__mro__)  # kernels: they hold what was made
        ):
            return f"wrapped {self.value(value.__wrapped__)}"
        if dataclasses.is_dataclass(value):
            if not kind.__dataclass_params__.frozen:
                self.reads.content(value)
            return f"{self.value(kind)}{self._sequence(held_by(value))}"
        if kind is types.SimpleNamespace or self._is_users(kind):
            self.reads.content(value)
            return f"{self.value(kind)}{self._sequence(held_by(value))}"
        if _is_ours(kind.__module__):
            return f"{_named(kind)}{self._sequence(held_by(value))}"
        which = f"{_named(kind)} {_PROCESS} {id(value):x}"
        if is_array(value):
            self.reads.content(Form(value))
            return f"{which} {tuple(value.shape)} {value.dtype}"
        if _top(kind.__module__) in ("builtins", "numpy", "torch"):  # kernels do not look into them
            return which
        # Of another library's, which may hold anything: which one it is, and the constants in it.
        self.reads.content(value)
        return which + self._sequence(filter(is_plain, held_by(value)))

    def function(self, function: Any) -> str:
        """Text of a Python function, which a kernel may call: as that of a macro. Of a library's
        functions, and of those without source, it is the code and what its names stand for; of
        the functions that a library's calls only their code."""
        text = f"function {_named(function)}"
        if _is_ours(function.__module__ or ""):
            return text  # covered by the fingerprint of tilec's code
        users = self._is_users(function)
        if users:
            self.reads.code(function)
            with contextlib.suppress(CompileError):
                return f"function {self.source(function, macro=False)}"
        code, inner = function.__code__, self._in_function
        text += f" {self.value(code)}"
        if inner and not users:
            return text
        self._in_function = True
        try:
            names = (*code.co_names, *code.co_freevars)
            return text + self._outside(function, Outside(names, {}, frozenset(names), {}))
        finally:
            self._in_function = inner

    def source(self, function: Any, macro: bool = True) -> str:
        """Text of a function that is traced (a kernel's, a macro's, a plain one): its lines, where
        they stand (that is in the binary's line tables), and what its names stand for here."""
        source = frontend.read_source(function, macro)
        function = source.function
        if _is_ours(function.__module__ or ""):
            return _named(function)
        self._homes.add(_top(function.__module__ or ""))
        place = f"{_named(function)} {source.file}:{source.first_line}"
        names = outside_of(source.node, function)
        annotations = function.__annotations__.values()
        written = [v for v in annotations if v is Ref or (macro and not isinstance(v, str))]
        outside = self._outside(function, names)
        return "\n".join([place, *source.lines, self._sequence(written), outside])

    def _outside(self, function: Any, outside: Outside) -> str:
        """What a function takes from outside, found as the front end finds it: its defaults, the
        values of names, and of a module those attributes that it asks for, if it does no more."""
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        enclosing = function.__dict__.get("__tilec_locals__", {})
        found: dict[str, Any] = {}
        for name, (of, taken) in outside.imports.items():
            module = self._imported(of)
            if module is not None and taken:
                self.reads.name(vars(module), taken, found, name)
            elif module is not None:
                found[name] = module
        for name in outside.names:
            if name in outside.imports:
                continue
            if name in cells:
                self.reads.cell(cells[name], found, name)
            elif name in enclosing:
                found[name] = enclosing[name]
            else:
                self.reads.name(function.__globals__, name, found, name)
        for name, attributes in sorted(outside.attributes.items()):  # packages first
            module = found.get(name)
            if isinstance(module, types.ModuleType) and not _is_ours(module.__name__):
                for attribute in attributes:
                    self.reads.name(vars(module), attribute, found, f"{name}.{attribute}")
        given = (function.__defaults__, function.__kwdefaults__)
        named = {n: m.__name__ for n, m in found.items() if isinstance(m, types.ModuleType)}
        asked = {n: f"module {m}" for n, m in named.items() if n not in outside.whole}
        arrays = [n for n, v in found.items() if is_array(v) and n not in outside.whole]
        known = (n for n in arrays if ASKED.issuperset(outside.attributes.get(n, ())))
        forms = {n: Form(found[n]) for n in known}
        for form in forms.values():
            self.reads.content(form)
        return f"{self._sequence(given)}{self._fields({**found, **asked, **forms})}"

    def _imported(self, name: str) -> types.ModuleType | None:
        """The module that an import inside of a function gives; one of a library only if it is
        loaded, as no more is asked of it than what does not change."""
        if name not in sys.modules:
            with contextlib.suppress(Exception):  # Python will say so, or the function expects it
                spec = importlib.util.find_spec(_top(name))
                if spec is not None and "-packages" not in (spec.origin or ""):
                    importlib.import_module(name)
        return sys.modules.get(name)

    def _class(self, kind: type) -> str:
        """Text of a class of the user's: its bases, its methods, what else it holds."""
        found: dict[str, Any] = {}
        space: Any = vars(kind)
        for name, value in space.items():
            if not name.startswith("__") or isinstance(value, types.FunctionType):
                self.reads.name(space, name, found, name)
        return f"type {_named(kind)}{self._sequence(kind.__bases__)}{self._fields(found)}"

    def _is_users(self, thing: Any) -> bool:
        """Whether a function, class or module is the user's: of no library, or of that of the
        kernel."""
        if isinstance(thing, types.ModuleType):
            return self._is_users_module(thing.__name__)
        return self._is_users_module(thing.__module__ or "")

    def _is_users_module(self, module: str) -> bool:
        top = _top(module)
        if top in self._homes or top == "__main__":
            return True
        if top in sys.stdlib_module_names or _is_ours(module):
            return False
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        return not any(part in file for part in ("site-packages", "dist-packages"))

    def _sequence(self, values: Iterable[Any]) -> str:
        return f"({', '.join(map(self.value, values))})"

    def _fields(self, values: Mapping[str, Any]) -> str:
        return f"({', '.join(f'{name}={self.value(v)}' for name, v in sorted(values.items()))})"

    def _numpy(self, numpy: Any, value: Any) -> str:
        if isinstance(value, numpy.dtype):
            return f"numpy.dtype {value.str} {value}"
        if isinstance(value, numpy.ndarray):
            self.reads.content(value if value.nbytes <= _MOST_WATCHED else Form(value))
        if value.dtype.hasobject:
            return f"{_named(type(value))} {value.shape}{self._sequence(value.flat)}"
        content = hashlib.sha256(value.tobytes()).hexdigest()
        return f"{_named(type(value))} {value.dtype.str} {value.dtype} {value.shape} {content}"


def _named(thing: Any) -> str:
    module = getattr(thing, "__module__", None) or ""
    return f"{module}.{thing.__qualname__}"


def _top(module: str) -> str:
    return module.split(".", 1)[0]


def _is_ours(module: str) -> bool:
    return _top(module) == "tilec"
