"""Expressions: one method per syntax node, from `ast` to a value (see `values.py`)."""

from __future__ import annotations

import ast
import enum
import inspect
import numbers
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from tilec import language as T
from tilec.builtins import foreign
from tilec.builtins.lanes import find_vector
from tilec.frontend.containers import Containers
from tilec.frontend.lanes import lanes_at, numbers_of
from tilec.frontend.memory import SliceIndex
from tilec.frontend.operators import Operators
from tilec.frontend.plain_python import at_run_time, is_library, is_named_tuple, is_object
from tilec.frontend.plain_syntax import REFUSED
from tilec.frontend.recovery import check_known
from tilec.frontend.values import (
    Buffer,
    Lanes,
    LoopIndex,
    Method,
    Number,
    Region,
    Scalar,
    Undefined,
    describe,
    is_literal,
    kept,
)
from tilec.ir.errors import CompileError, did_you_mean
from tilec.ir.layout import Fragment, Layout, LayoutRequest
from tilec.ir.types import DType, TypedFloat, TypedInt, find_dtype
from tilec.support.syntax import ASKED, is_array

PYTHON_BUILTINS = frozenset(
    """
    range len min max abs int float bool zip enumerate list tuple sum round any all sorted reversed
    isinstance str repr dict set frozenset getattr hasattr divmod pow callable
    """.split()
)
INSTEAD = {
    "sum": "add up in a loop: for i in T.serial(n): s = s + x[i]",
    "super": "decide outside the kernel",
    "map": "write a list: [f(x) for x in …]",
    "filter": "write a list: [x for x in … if …]",
    "input": "take it as a parameter",
    "open": "a kernel cannot read files",
}
_COMPILE_TIME = (
    type(None), str, DType, enum.Enum, T.Size, Layout, LayoutRequest, Fragment, T.Macro,
    T.VectorDType,
)  # fmt: skip
_WORDS_LIKE = (T.Elementwise, T.NotYet, type, types.FunctionType, types.BuiltinFunctionType)


class Expressions(Containers):
    """Evaluates expressions; `call` of builtins and macros is left to subclasses."""

    def call(self, node: ast.Call) -> object:
        """The value of a call."""
        raise NotImplementedError

    def branch(
        self, cond: Scalar, then: Callable[[], None], orelse: Callable[[], None] | None = None
    ) -> None:
        """Emit a run-time branch."""
        raise NotImplementedError

    def assign_name(self, name: str, value: object, place: ast.expr) -> None:
        """Give `value`, which is written at `place`, to a name."""
        raise NotImplementedError

    def for_loop(self, node: ast.For) -> None:
        """Trace a loop."""
        raise NotImplementedError

    def expression(self, node: ast.expr) -> object:
        """The value of `node`. Raises CompileError for what kernels do not have."""
        kept = self.loc
        self.loc = self.frame.loc(node)
        try:
            method = self._methods.get(type(node))
            if method is None:
                self.refuse(node)
            return method(self, node)
        finally:
            self.loc = kept

    def refuse(self, node: ast.AST) -> NoReturn:
        """Raise the CompileError for syntax that kernels do not have."""
        name, hint = REFUSED.get(type(node), (f"{type(node).__name__} syntax", ""))
        raise self.error(f"{name} is not allowed in a kernel", hint, at=node)

    # --- atoms ------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> object:
        if isinstance(node.value, bytes | complex) or node.value is Ellipsis:
            raise self.error(
                f"{describe(node.value)} has no meaning in a kernel",
                "values known at compile time are numbers, strings, None, dtypes, tuples, lists, "
                "dicts",
            )
        return node.value

    def _name(self, node: ast.Name) -> object:
        name = node.id
        if name in self.names:
            value = self.names[name]
            check_known((value,))
            if isinstance(value, Undefined):
                hint = f"give {name} a value before that"
                if "inside the loop" in value.reason:
                    hint = f"use it in the loop, or give {name} a value before it"
                if "the variable of" in value.reason:
                    hint = "use it inside of the loop, or give the loop's variable another name"
                raise self.error(f"{name} has no value here: {value.reason}", hint)
            return self.size_value(value) if isinstance(value, T.Size) else value
        found, value = self.frame.source.lookup(name)
        if not found:
            if name == self.frames[0].source.name:
                hint = "write a loop: kernels do not recurse"
                raise self.error(f"{name} cannot call itself", hint)
            near = did_you_mean(name, self.visible_names() | PYTHON_BUILTINS)
            hint = foreign.advice(name)
            if not hint and find_dtype(name) is not None:
                hint = f"write T.{name}"
            near = "" if hint else near
            if not hint and not near:
                hint = "assign it above, or take it as a parameter"
            raise self.error(f"the name {name!r} is not defined{near}", hint)
        return self.captured(name, value)

    def read_value(self, value: object) -> object:
        """What `x = value` keeps: an element or a variable is read, anything else stays itself."""
        variable = isinstance(value, Buffer) and value.variable and value.value.name
        if variable or (isinstance(value, Region) and value.is_element):
            return self.number(value, "this value")
        return Lanes(tuple(numbers_of(self, value))) if isinstance(value, Lanes) else value

    def _named(self, node: ast.NamedExpr) -> object:
        """`(name := value)`."""
        self.assign_name(node.target.id, self.expression(node.value), node.value)
        return self.read_value(self._name(node.target))

    def captured(self, name: str, value: object) -> object:
        """A value from outside the kernel, as a compile-time value."""
        if isinstance(value, types.ModuleType):
            return value
        if isinstance(value, T.Size):
            return self.size_value(value)
        if isinstance(value, str) and type(value) is not str:  # text that names a dtype, say
            return foreign_dtype(value) or find_vector(str(value)) or str(value)
        if isinstance(value, (TypedInt, TypedFloat)):
            return self.constant(int(value) if value.dtype.is_int else float(value), value.dtype)
        if is_literal(value) or isinstance(value, _COMPILE_TIME) or _is_public(value):
            return value
        if isinstance(value, tuple | list):
            items: list[Any] = [self.captured(f"{name}[{n}]", v) for n, v in enumerate(value)]
            if is_named_tuple(value):
                return type(value)(*items)
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, set | frozenset):
            return frozenset(self.captured(name, v) for v in value)
        if isinstance(value, range):
            return value
        if isinstance(value, Mapping):
            return {k: self.captured(f"{name}[{k!r}]", v) for k, v in value.items()}
        if isinstance(value, numbers.Real):  # NumPy's
            return int(value) if isinstance(value, numbers.Integral) else float(value)
        dtype = foreign_dtype(value)
        if dtype is not None:
            return dtype
        if callable(value) or is_object(value):
            return value  # judged where it is called, or asked for something
        hint = "numbers, strings, dtypes, tuples, lists and dicts of these can be captured"
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple) and hasattr(value, "dtype"):
            extents = ", ".join(map(str, shape)) + "," * (len(shape) == 1)
            given = str(value.dtype).removeprefix("torch.")
            parameter = name if name.isidentifier() else "x"
            hint = f'pass it as a parameter: {parameter}: T.Tensor(({extents}), "{given}")'
        raise self.error(f"{name} is {describe(value)}, which a kernel cannot use", hint)

    def of_array(self, node: ast.expr, name: str) -> Any:
        """What is known of an array outside of the kernel, `W.shape` or `layer.weight.shape`; None
        if `node` is none."""
        array = self._outside(node) if name in ASKED else None
        return self.captured(name, getattr(array, name)) if is_array(array) else None

    def _outside(self, node: ast.expr) -> object:
        """What a name outside of the kernel is, or an attribute of what it is; None if `node` is
        none."""
        if isinstance(node, ast.Name):
            return None if node.id in self.names else self.frame.source.lookup(node.id)[1]
        if not isinstance(node, ast.Attribute):
            return None
        owner = self._outside(node.value)
        return getattr(owner, node.attr, None) if is_object(owner) else None

    def _attribute(self, node: ast.Attribute) -> object:
        if (found := self.of_array(node.value, node.attr)) is not None:
            return found
        owner = self._owner(node)
        name = node.attr
        known: tuple[str, ...] = ()
        match owner:
            case types.ModuleType():
                return self._module_attribute(owner, name)
            case Buffer():
                return self._buffer_attribute(owner, name)
            case Scalar() | Region(is_element=True):
                if name == "astype":
                    return Method(owner, name)
                if name == "dtype":
                    return owner.dtype if isinstance(owner, Scalar) else owner.buffer.dtype
                known = ("astype", "dtype")
            case type() if issubclass(owner, enum.Enum):
                if name in owner.__members__:
                    return owner[name]
                known = tuple(owner.__members__)
            case DType():
                known = ("name", "bits", "bytes", "is_float", "is_int")
                if name in known:
                    return getattr(owner, name)
            case _ if _has_attributes(owner):
                found, value = self._python_attribute(owner, name)
                if found:
                    return value
                known = tuple(n for n in dir(owner) if not n.startswith("_"))
        hint = foreign.advice(name) or (f"it has: {', '.join(known[:12])}" if known else "")
        if isinstance(getattr(T, name, None), T.Elementwise):
            hint = f"write T.{name}({ast.unparse(node.value)})"
        about = self._about_owner(node)
        error = self.error(
            f"{describe(owner)} has no attribute {name!r} in a kernel{did_you_mean(name, known)}",
            about or hint or self._about_value(owner),
        )
        error.cause = about
        raise error

    def _python_attribute(self, owner: object, name: str) -> tuple[bool, object]:
        """(found, value) of an attribute of what is known at compile time, or of an object that
        holds run-time values, whose properties are functions of these."""
        word = inspect.getattr_static(type(owner), name, None)
        if isinstance(word, property) and isinstance(word.fget, types.FunctionType):
            if at_run_time(owner) and not is_library(word.fget):
                return True, self.trace_function(word.fget, [owner], {})
        try:
            value = kept(getattr(owner, name), name)
        except AttributeError:
            return False, None
        except Exception as e:
            shown = f"{describe(owner)}.{name}: {type(e).__name__}: {e}"
            raise self.error(shown, "a property runs here as Python") from None
        run_time = at_run_time(value) or is_object(value)
        return True, value if run_time or callable(value) else self.captured(name, value)

    def _about_value(self, owner: object) -> str:
        if isinstance(owner, str):
            return 'text is for T.print: T.print(f"… {x}")'
        return "only modules, buffers, numbers and dtypes have attributes in a kernel"

    def _owner(self, node: ast.Attribute) -> object:
        """The value of what stands before the dot."""
        try:
            return self.expression(node.value)
        except CompileError as e:
            hint = self._about_owner(node)
            if not hint:
                raise
            raise self.error(e.message, hint) from None

    def _about_owner(self, node: ast.Attribute) -> str:
        """What to do about an attribute of an object that kernels cannot use, or of a local name
        that hides a module's."""
        if not isinstance(node.value, ast.Name):
            return ""
        name = node.value.id
        outside = self.frame.source.lookup(name)[1]
        if name in self.names:
            hidden = isinstance(outside, types.ModuleType)
            return f"{name} hides {describe(outside)}: give it another name" if hidden else ""
        value = getattr(outside, node.attr, None)
        if is_literal(value) or isinstance(value, str | DType):
            return f"name the value outside of the kernel: {node.attr} = {ast.unparse(node)}"
        near = did_you_mean(node.attr, getattr(outside, "__dict__", ()))
        return f"{name} has no {node.attr!r}{near}" if near else ""

    def _module_attribute(self, module: types.ModuleType, name: str) -> object:
        inside = module.__name__ == "tilec" or module.__name__.startswith("tilec.")
        if not hasattr(module, name):
            known = [n for n in dir(module) if not n.startswith("_")]
            if module is T:
                known += foreign.PLANNED
            hint = foreign.advice(name)
            near = "" if hint else did_you_mean(name, known)
            if not hint and not near:
                hint = "the builtins are listed in the documentation of tilec.language"
            raise self.error(f"{module.__name__} has no attribute {name!r}{near}", hint)
        value = getattr(module, name)
        if inside:
            return self.captured(name, value)
        dtype = foreign_dtype(value)
        return self.captured(name, value) if dtype is None else dtype

    def _buffer_attribute(self, buffer: Buffer, name: str) -> object:
        match name:
            case "shape" | "strides" if buffer.single:
                return ()
            case "shape":
                return buffer.shape
            case "dtype":
                return buffer.dtype
            case "data" if not buffer.variable:  # of T.Tensor(shape, dtype, A.data), a view
                return buffer
            case "strides" if buffer.is_global:
                return buffer.strides
            case "astype" if buffer.variable:
                return Method(buffer, name)
            case "access_ptr" if not buffer.variable:
                return Method(buffer, name)
        known = ("shape", "dtype", "strides") if buffer.is_global else ("shape", "dtype")
        hint = foreign.advice(name)
        near = "" if hint else did_you_mean(name, known)
        raise self.error(
            f"{describe(buffer)} has no attribute {name!r}{near}",
            hint.replace("A.", f"{buffer.name}.") or f"it has: {', '.join(known)}",
        )

    def end_thread(self, node: ast.AST) -> None:
        """What follows in the kernel, whose functions are traced here, does not run."""
        raise NotImplementedError

    def trace_function(
        self, function: Any, args: list[object], kwargs: dict[str, object], macro: bool = False
    ) -> object:
        """A call of a Python function whose body is in the language of kernels."""
        raise NotImplementedError

    def as_python(self, value: object) -> object:
        """`value`; a function written in the kernel as one that Python can call on known values."""
        raise NotImplementedError

    def bind(self, target: ast.expr, value: object) -> None:
        """Give `value` to the name or tuple of names `target`."""
        match target:
            case ast.Name():
                self.names[target.id] = value
            case ast.Tuple() | ast.List():
                one, many = "write one name, without a comma", "write one name, without parentheses"
                if isinstance(value, tuple | list) and len(value) > 1:
                    many = "name each of them: " + ", ".join("xyzijklmn"[: len(value)])
                for t, v in self.unpacked(target, value, one, many):
                    self.bind(t, v)
            case _:
                message = "this cannot be a loop variable"
                raise self.error(message, "write a name, or a tuple of names", target)

    # --- subscripts -------------------------------------------------------------------------------

    def _element_of(self, region: Region, indices: Sequence[object]) -> object:
        """An element of `A[stage, i:i + m, j:j + n]`, by indices into its slices."""
        slices = [d for d, e in enumerate(region.extents) if e is not None]
        known = not region.steps and not region.counts and len(slices) == len(indices)
        if not slices or not known or not all(isinstance(x, int | Scalar) for x in indices):
            hint = f"index once: {region.buffer.name}[i, j]"
            raise self.error(f"{describe(region)} cannot be indexed again", hint)
        offsets: list[Any] = list(region.offsets)
        for d, index in zip(slices, indices):
            extent = region.extents[d]
            assert extent is not None
            if isinstance(index, int) and not -extent <= index < extent:
                said = f"index {index} in a slice of {extent} of {region.buffer.name}"
                raise self.error(said, "write an index inside of the slice")
            if isinstance(index, int) and index < 0 and not isinstance(index, LoopIndex):
                index += extent
            offsets[d] = self.binary("add", offsets[d], index)  # type: ignore[arg-type]
        return self.subscript(region.buffer, offsets)

    def _subscript(self, node: ast.Subscript) -> object:
        owner = self.expression(node.value)
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        match owner:
            case Buffer():
                several = self._several_indices(items)
                indices = several or [self._subscript_item(n) for n in items]
                if any(isinstance(x, Lanes) for x in indices):
                    return lanes_at(self, owner, indices)
                return self.subscript(owner, [x for x in indices if not isinstance(x, Lanes)])
            case Lanes():
                return self.container_item(owner.items, node.slice)
            case Region():
                return self._element_of(owner, [self._subscript_item(n) for n in items])
            case type() if issubclass(owner, T.Tensor):
                key = self.expression(node.slice)
                return self.annotation(owner, key if isinstance(key, tuple) else (key,))
            case tuple() | list() | dict() | range() | str():
                return self.container_item(owner, node.slice)
            case _ if is_object(owner) and hasattr(owner, "__getitem__"):
                return self.container_item(owner, node.slice)
            case _:
                hint = "buffers, tuples, lists and dicts have elements"
                raise self.error(f"{describe(owner)} cannot be indexed", hint, node.value)

    def _several_indices(self, items: list[ast.expr]) -> list[Number | SliceIndex | Lanes]:
        """The indices that a single name stands for, if it is the name of a tuple."""
        if len(items) != 1 or not isinstance(items[0], ast.Name):
            return []
        value = self.names.get(items[0].id)
        with self.at(items[0]):
            found = value if isinstance(value, tuple) else ()
            return [self.index_number(self.number(v, "an index")) for v in found]

    def _subscript_item(self, node: ast.expr) -> Number | SliceIndex | Lanes:
        if isinstance(node, ast.Slice):
            lower = None if node.lower is None else self.number_of(node.lower, "the slice's start")
            upper = None if node.upper is None else self.number_of(node.upper, "the slice's end")
            step = 1 if node.step is None else self.number_of(node.step, "the slice's step")
            if not isinstance(step, int) or step < 1:
                hint = "write a positive int that is known at compile time"
                raise self.error(f"the step of a slice is {describe(step)}", hint, node.step)
            return SliceIndex(lower, upper, int(step))
        if isinstance(node, ast.Constant) and node.value in (None, Ellipsis):
            hint = "write one index or : per dimension"
            raise self.error(f"{ast.unparse(node)} cannot be an index", hint, at=node)
        index = self.expression(node)
        with self.at(node):
            if isinstance(index, Lanes):
                return index
            return self.index_number(self.number(index, "an index"))

    def annotation(self, cls: type[T.Tensor], args: Sequence[Any], **kwargs: Any) -> T.Tensor:
        """A tensor annotation written in a kernel's body."""
        try:
            return cls(*args, **kwargs)
        except CompileError as e:
            raise self.error(e.message, e.hint) from None
        except TypeError as e:
            raise self.error(str(e), f'write T.{cls.__name__}((M, N), "float16")') from None

    _methods: dict[type[ast.AST], Callable[[Any, Any], object]] = {
        ast.Constant: _constant,
        ast.Name: _name,
        ast.NamedExpr: _named,
        ast.Attribute: _attribute,
        ast.Tuple: lambda self, node: tuple(self.elements(node.elts)),
        ast.List: lambda self, node: self._made(list(self.elements(node.elts))),
        ast.Dict: Containers.dict_display,
        ast.Set: Containers.set_display,
        ast.ListComp: Containers.comprehension,
        ast.GeneratorExp: Containers.comprehension,
        ast.SetComp: Containers.set_comprehension,
        ast.DictComp: Containers.dict_comprehension,
        ast.JoinedStr: Containers.f_string,
        ast.Subscript: _subscript,
        ast.BinOp: Operators.binary_operator,
        ast.UnaryOp: Operators.unary_operator,
        ast.Compare: Operators.comparison,
        ast.BoolOp: Operators.boolean_operator,
        ast.IfExp: Operators.conditional,
        ast.Call: lambda self, node: self.call(node),
    }


def _has_attributes(value: object) -> bool:
    """Whether the attributes of `value` are Python's to give."""
    plain = (str, int, float, tuple, list, dict, set, frozenset, range, type)
    return isinstance(value, plain) or is_object(value)


def foreign_dtype(value: object) -> DType | None:
    """The dtype meant by one of torch, NumPy or ml_dtypes (`torch.float16`, `numpy.float32`)."""
    named = isinstance(value, type) or type(value).__name__.lower().endswith("dtype")
    builtin = getattr(value, "__module__", None) == "builtins"
    return find_dtype(value) if named and not builtin else None


def _is_public(value: object) -> bool:
    """Whether `value` is a builtin, or a function or class of tilec."""
    if not isinstance(value, _WORDS_LIKE):
        return False
    module = getattr(value, "__module__", None) or ""
    ours = module == "tilec" or module.startswith("tilec.")
    return ours or isinstance(value, (T.NotYet, T.Elementwise))
