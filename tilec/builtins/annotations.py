"""What stands around a kernel's body: sizes, annotations of parameters, macros.

These names are used as `T.dynamic`, `T.Tensor`, … : `tilec.language` has them all.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from tilec.builtins import foreign
from tilec.ir.caller import caller_loc, for_users
from tilec.ir.errors import CompileError, did_you_mean, shown
from tilec.ir.lines import keep_lines
from tilec.ir.types import DTYPES, DType, find_dtype

__all__ = [
    "Buffer", "FragmentBuffer", "LocalBuffer", "Macro", "Ref", "SharedBuffer", "Size",
    "StridedTensor", "Tensor", "const", "constexpr", "dtype", "dynamic", "macro", "symbolic",
]  # fmt: skip


def dtype_of(name: object, hint: str = f"known: {', '.join(DTYPES)}") -> DType:
    """The dtype that `name` means. Raises CompileError."""
    found = find_dtype(name)
    if found is None:
        meant = foreign.meant_dtype(name)
        near = f"; did you mean {meant!r}?" if meant else did_you_mean(shown(name), DTYPES)
        raise CompileError(f"unknown dtype {shown(name)}{near}", caller_loc(), hint)
    return found


def only_inside(builtin: str) -> NoReturn:
    """Raise the CompileError of a builtin that is called outside a kernel."""
    hint = "call it in the body of a function under @tilec.kernel or @tilec.macro"
    raise CompileError(f"T.{builtin} means something only inside a kernel", caller_loc(), hint)


def check_function(function: object, builtin: str) -> None:
    """Raise CompileError, placed at the call, where `@tilec.<builtin>` stands above anything but a
    `def`."""
    if isinstance(function, types.FunctionType):
        return
    hint = f"write @tilec.{builtin} above a def"
    match function:
        case type():
            what = f"the class {function.__qualname__}"
            hint = f"write @tilec.{builtin} above a def, outside of the class"
        case types.MethodType():
            what = f"the method {function.__qualname__}"
            hint = "define it outside of the class, and take what it needs as parameters"
        case staticmethod() | classmethod():
            what = f"a {type(function).__name__}"
            hint = f"write @tilec.{builtin} below @{type(function).__name__}, next to the def"
        case functools.partial():
            what = "a functools.partial"
            hint = "give the arguments at the call, or define it in a function that has them"
        case Macro():
            what = f"the macro {function.__name__}"
            hint = "keep one of the two decorators"
        case _:
            what = shown(function)
    raise CompileError(f"tilec.{builtin} was given {what}, no function", caller_loc(), hint)


# --- sizes ----------------------------------------------------------------------------------------


def _operators(op: str, sign: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The methods of `size sign other` and of `other sign size`."""

    @for_users
    def ours(self: Size, other: object) -> Any:
        return self._with(op, sign, other)

    @for_users
    def theirs(self: Size, other: object) -> Any:
        return self._with(op, sign, other, swapped=True)

    return ours, theirs


@dataclass(frozen=True, slots=True)
class Size:
    """An extent that arguments give: a name, or `op` of other sizes and ints (`op` as in the IR).

    `fixed` names (from `T.const`) are compile-time ints in each variant of the kernel, others
    (`T.dynamic`) are run-time parameters. Kernels are told apart by the names only.
    """

    text: str
    op: str = ""
    args: tuple[Size | int, ...] = ()
    fixed: bool = False

    def _with(self, op: str, sign: str, other: object, swapped: bool = False) -> Any:
        long = isinstance(other, int) and abs(other) >= 2**63
        if long or op == "div" or not isinstance(other, Size | int) or isinstance(other, bool):
            message = f"the size {self.text} {sign} {shown(other)}"
            hint = "sizes are reckoned with ints and other sizes by + - * // %"
            raise CompileError(f"{message}: that is no extent", caller_loc(), hint)
        a, b = (other, self) if swapped else (self, other)
        left, right = (x.text if isinstance(x, Size) else str(x) for x in (a, b))
        text = f"{op}({left}, {right})" if sign == "," else f"({left} {sign} {right})"
        return Size(text, op, (a, b))

    def bounded_by(self, kind: str, other: object) -> Any:
        """The larger ("max") or the smaller ("min") of the two."""
        return self._with(kind, ",", other)

    __add__, __radd__ = _operators("add", "+")
    __sub__, __rsub__ = _operators("sub", "-")
    __mul__, __rmul__ = _operators("mul", "*")
    __floordiv__, __rfloordiv__ = _operators("floordiv", "//")
    __mod__ = _operators("mod", "%")[0]
    __truediv__, __rtruediv__ = _operators("div", "/")

    @for_users
    def _unknown(self, other: object = None) -> NoReturn:
        message = f"the size {self.text} has no value before the kernel is called"
        hint = "compare it inside of the kernel, or use a Python int"
        raise CompileError(message, caller_loc(), hint)

    __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __bool__ = __int__ = __index__ = __float__ = _unknown

    def __str__(self) -> str:
        return self.text


def _sizes(names: str, dtype: object, fixed: bool) -> Size | tuple[Size, ...]:
    text = names.replace(",", " , ").split() if isinstance(names, str) else ()
    parts = [n for n in text if n != ","] if text else [names]
    builtin = "const" if fixed else "dynamic"
    if dtype is not None and find_dtype(dtype) is None:  # "T.dynamic('M', 'N')"
        hint = f'names stand in one string: T.{builtin}("M, N")'
        raise CompileError(f"the dtype of a size is {shown(dtype)}", caller_loc(), hint)
    for part in parts:
        if not isinstance(part, str) or not (part.isidentifier() and part.isascii()):
            hint = f'write T.{builtin}("M, N")'
            raise CompileError(f"{shown(part)} is no name for a size", caller_loc(), hint)
    made = tuple(Size(p, fixed=fixed) for p in parts)
    return made[0] if len(made) == 1 else made


@for_users
def dynamic(names: str, dtype: object = None) -> Any:
    """Run-time sizes: `T.dynamic("M")` is one, `T.dynamic("M, N")` a tuple.

    A size gets its value from the extents (or strides) of the tensor arguments that name it. An
    integer `dtype`, which TileLang asks for, changes nothing.
    """
    return _sizes(names, dtype, fixed=False)


symbolic = dynamic


@for_users
def const(names: str, dtype: object = None) -> Any:
    """Compile-time sizes bound from the arguments: `M, N = T.const("M, N")` in an eager kernel."""
    return _sizes(names, dtype, fixed=True)


# --- annotations of parameters --------------------------------------------------------------------


class Subscripted(type):
    """Classes of annotations: subscripted as called, their errors placed at the call."""

    @for_users
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        hint = f'write T.{cls.__name__}((M, N), "float16")'
        if issubclass(cls, StridedTensor):
            hint = f'write T.{cls.__name__}((M, N), (N, 1), "float16")'
        taken = [*inspect.signature(vars(cls)["__init__"]).parameters][1:]
        for name in kwargs:
            if name not in taken:
                near = did_you_mean(name, taken)
                message = f"T.{cls.__name__} has no keyword {name!r}{near}"
                raise CompileError(message, caller_loc(), f"it has: {', '.join(taken)}")
        try:
            return super().__call__(*args, **kwargs)
        except TypeError as e:
            raise CompileError(f"T.{cls.__name__}: {e}", caller_loc(), hint) from None

    @for_users
    def __getitem__(cls, args: Any) -> Any:
        if isinstance(args, tuple) and all(isinstance(e, int | Size) for e in args):
            return cls(args)  # T.Tensor[128, 128]: a shape without parentheses
        return cls(*args) if isinstance(args, tuple) else cls(args)


class Tensor(metaclass=Subscripted):
    """A tensor in global memory: `A: T.Tensor((M, K), "float16")`, also `T.Tensor[(M, K),
    "float16"]`.

    Extents are ints (compile-time) or sizes of `T.dynamic`/`T.const`. Any strides are accepted.
    Raises CompileError for an extent or dtype that is neither.
    """

    def __init__(self, shape: Any, dtype: object = "float32", strides: Any = None) -> None:
        self.shape = _extents("extent", shape)
        if isinstance(dtype, Size | int):
            message = f"the dtype of T.Tensor is {_text(dtype)}: the shape is one tuple"
            hint = f'write T.Tensor(({", ".join(map(_text, (*self.shape, dtype)))}), "float16")'
            raise CompileError(message, caller_loc(), hint)
        self.dtype = dtype_of(dtype)
        self.strides = None if strides is None else _extents("stride", strides)
        if self.strides is not None and len(self.strides) != len(self.shape):
            message = f"{len(self.shape)} extents but {len(self.strides)} strides"
            raise CompileError(message, caller_loc(), "write one stride for each extent")


class StridedTensor(Tensor):
    """A tensor whose strides (in elements) are written out: `T.StridedTensor((M, N), (ld, 1),
    dtype)`."""

    def __init__(self, shape: Any, strides: Any, dtype: object = "float32") -> None:
        super().__init__(shape, dtype, strides)


Buffer = Tensor
SharedBuffer = FragmentBuffer = LocalBuffer = Tensor  # of a macro's parameters: for readers


if TYPE_CHECKING:
    constexpr = Any  # 128 is one, and so is a string: what a kernel does with it decides
    Ref = Any
else:

    class constexpr:
        """Marks a compile-time parameter: `BM: T.constexpr = 128`."""

    class Ref:
        """Marks a parameter of a macro through which it writes: `def bump(x: T.Ref): x = x + 1`.

        The argument is an element, `bump(A[i])`, or a variable of `T.alloc_var`.
        """


def _text(extent: object) -> str:
    return extent.text if isinstance(extent, Size) else shown(extent)


def _extents(what: str, shape: Any) -> tuple[int | Size, ...]:
    if isinstance(shape, str):
        hint = 'write T.Tensor((M, N), "float16"): the shape first, a tuple of ints and sizes'
        message = f"the {what}s of a tensor are the string {shown(shape)}"
        raise CompileError(message, caller_loc(), hint)
    entries = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    for e in entries:
        whole = isinstance(e, int) and not isinstance(e, bool)
        if whole and not 0 <= e < 2**63:
            hint = 'write T.dynamic("M") for a size that is known at run time'
            wrong = "negative" if e < 0 else "beyond 64 bits"
            raise CompileError(f"the {what} {shown(e)} of a tensor is {wrong}", caller_loc(), hint)
        if not whole and not isinstance(e, Size):
            several = isinstance(e, tuple) and all(isinstance(part, Size | int) for part in e)
            text = f"({', '.join(map(str, e))})" if several else shown(e)
            message = f"the {what} {text} of a tensor is neither an int nor a size"
            raise CompileError(message, caller_loc(), _instead_of(e))
    return entries


def _instead_of(extent: object) -> str:
    """What to write for an extent that is none."""
    match extent:
        case tuple():
            return 'take it apart where it is made: M, N = T.dynamic("M, N")'
        case str() if extent.isdigit():
            return f"write {extent} without quotes"
        case float() if extent.is_integer():
            return f"write {int(extent)}, or // instead of / where it is computed"
        case _:
            return 'sizes are made by T.dynamic("M") or T.const("M")'


class dtype:
    """`T.dtype("float16")`: the dtype of that name, also of one of torch's or NumPy's; a parameter
    `dtype: T.dtype` is a compile-time one. Raises CompileError for what names none."""

    def __new__(cls, name: object) -> DType:  # type: ignore[misc]
        return dtype_of(name)


# --- macros ---------------------------------------------------------------------------------------


class Macro:
    """A function that kernels inline where they call it; see `macro`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __get__(self, owner: object, cls: type | None = None) -> Any:
        return self if owner is None else types.MethodType(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        message = f"the macro {self.__name__} means something only inside a kernel"
        hint = f"call it in a kernel, or put @tilec.kernel above def {self.__name__}"
        raise CompileError(message, caller_loc(), hint)


@for_users
def macro(function: Callable[..., Any]) -> Macro:
    """Make `function` usable inside kernels: each call is inlined.

    Its body is kernel code. Arguments are passed as they are: buffers and regions by reference,
    numbers by value, anything known at compile time stays so. It may end in `return value`. Raises
    CompileError for anything but a `def`.
    """
    check_function(function, "macro")
    keep_lines(function)
    return Macro(function)
