"""What a name can stand for while a kernel is traced.

Known at compile time are plain Python values: numbers, strings, None, dtypes, tuples, lists, dicts,
enum members, layouts, modules, the builtins of the language, macros. The classes here stand for
what is only known at run time, and for what the front end keeps about it."""

from __future__ import annotations

import ast
import enum
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeGuard

from tilec import language as T
from tilec.frontend.source import Source
from tilec.ir.affine import Affine
from tilec.ir.builder import Builder
from tilec.ir.core import Op, Value, squeeze
from tilec.ir.errors import CompileError
from tilec.ir.loc import Loc
from tilec.ir.types import BufferType, DType

Literal = bool | int | float


@dataclass(frozen=True, eq=False, slots=True)
class Scalar:
    """A run-time number. `affine` is what is known of a signed integer, None for other dtypes."""

    value: Value
    affine: Affine | None = None

    @property
    def dtype(self) -> DType:
        return self.value.dtype


Number = Literal | Scalar
OPEN = -1  # the extent of a slice that is only known at run time
MOST_CHOSEN = 16
"""Numbers of which one can be chosen by an index of run time: with one select less."""


@dataclass(frozen=True, eq=False, slots=True)
class Buffer:
    """A tensor parameter or an on-chip buffer; `shape` and `strides` have ints and run-time sizes.

    `variable`: made by `T.alloc_var`, so that its bare name means its one element. `packed`: its
    elements are of this dtype, narrower in memory (`narrow`); of a tensor, `stored` are the extents
    of its bytes. `single`: a tensor without dimensions, which has one of one element here; its bare
    name, read, means that.
    """

    value: Value
    shape: tuple[int | Scalar, ...]
    loc: Loc
    strides: tuple[int | Scalar, ...] = ()
    variable: bool = False
    packed: DType | None = None
    stored: tuple[int | Scalar, ...] | None = None
    single: bool = False

    @property
    def type(self) -> BufferType:
        return self.value.buffer

    @property
    def dtype(self) -> DType:
        return self.packed or self.type.dtype

    @property
    def name(self) -> str:
        return self.value.name or "<unnamed>"

    @property
    def is_global(self) -> bool:
        return self.type.space == "global"


@dataclass(frozen=True, eq=False, slots=True)
class Region:
    """Part of a buffer: an offset per dimension, and an extent where it was given (None: an index,
    which as a tile's start takes the other side's extent; OPEN: it is only known at run time, and
    stands in `counts` by its dimension). `steps`: by their dimensions, those other than 1. `named`:
    the block in which the author has named an element, and the last op in front of that."""

    buffer: Buffer
    offsets: tuple[int | Scalar, ...]
    extents: tuple[int | None, ...]
    loc: Loc
    counts: Mapping[int, Number] = field(default_factory=dict)
    steps: Mapping[int, int] = field(default_factory=dict)
    named: tuple[Builder, Op | None] | None = None

    @property
    def is_element(self) -> bool:
        """Whether every dimension has an index: `A[i, j]`."""
        return all(e is None for e in self.extents)


@dataclass(frozen=True, eq=False, slots=True)
class Tile:
    """A region with every extent known: what a tile op takes, but for one with `steps`."""

    buffer: Buffer
    offsets: tuple[int | Scalar, ...]
    extents: tuple[int, ...]
    steps: Mapping[int, int] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents without ones."""
        return squeeze(self.extents)


@dataclass(frozen=True, eq=False, slots=True)
class Address:
    """The address of an element, for builtins that take places in memory. `access`: "r", "w" or
    "rw", and `extent`: how many elements from there on, where that is said."""

    element: Region
    access: str = "rw"
    extent: Number | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Lanes:
    """A short vector: numbers, elements or variables (Regions and Buffers that are read when their
    number is asked for). `variable`: made by `T.alloc_var`, a variable for each lane."""

    items: tuple[Number | Region | Buffer, ...]
    variable: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Method:
    """A method of a run-time value that has not been called yet, e.g. `x.astype`."""

    owner: object
    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Closure:
    """A lambda or a function written inside of a kernel: its text, and the names of the function
    around it, which it sees as they are when it is called."""

    source: Source
    names: Callable[[], Mapping[str, object]]
    signature: inspect.Signature

    @property
    def name(self) -> str:
        return self.source.name

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Nothing calls it as Python; with this functools.partial takes it."""
        message = f"{self.name} is traced where a kernel calls it"
        raise CompileError(message, self.source.header_loc(), "call it in the kernel")


@dataclass(frozen=True, slots=True)
class Undefined:
    """A name that has no value here although code above gives it one; `reason` says why."""

    reason: str


NOT_RETURNED = Undefined("no return has given it yet")
"""The value of a function, or of a `:=`, where control flow has not come to it; of no account."""


class LoopIndex(int):
    """The index of a loop that counts at run time, in the copy of its body that is traced for it.
    It is known, so that Python's tables take it; beside a number of run time it is one too, of the
    dtype of indices, and below zero it counts from no end. What is computed from it is another."""


def _of_indices(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def computed(*numbers: object) -> object:
        found = plain(*numbers)
        return LoopIndex(found) if type(found) is int else found

    return computed


for _name in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    for _side in ("", "r"):
        setattr(LoopIndex, f"__{_side}{_name}__", _of_indices(f"__{_side}{_name}__"))
for _name in ("neg", "pos", "abs", "invert", "pow"):
    setattr(LoopIndex, f"__{_name}__", _of_indices(f"__{_name}__"))


class Indices(tuple[LoopIndex, ...]):
    """The indices of a loop that counts at run time, of whose body a copy is traced for each."""


@dataclass(frozen=True, slots=True)
class LoopHeader:
    """A call of a loop builtin (`range(n)`, `T.Pipelined(…)`): `builtin` and its arguments by name,
    and where those stand that have a place of their own. `of_python`: it says nothing of when
    iterations may begin."""

    builtin: str
    arguments: Mapping[str, object]
    loc: Loc
    places: Mapping[str, Loc] = field(default_factory=dict)
    of_python: bool = False

    def place(self, name: str) -> Loc:
        """Where an argument stands; the call, if that is not known."""
        return self.places.get(name, self.loc)

    def counted(self, d: int, count: object = None) -> LoopHeader:
        """A loop that counts to one of the extents, or to a `count` that follows from it."""
        given: Any = self.arguments["extents"]
        bounds = {"start": 0, "stop": given[d] if count is None else count, "step": 1}
        return LoopHeader("serial", bounds, self.loc, {"stop": self.place(f"extents[{d}]")})


@dataclass(frozen=True, slots=True)
class KernelHeader:
    """A call of `T.Kernel`, and where it says how many threads; `block`: along each dimension."""

    grid: tuple[int | Scalar, ...]
    threads: int | None
    loc: Loc
    cluster: tuple[int, int, int] | None = None
    threads_loc: Loc | None = None
    block: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupHeader:
    """A call of `T.ws`: the first of the threads, and how many."""

    first: int
    threads: int
    loc: Loc


@dataclass(frozen=True, slots=True)
class Reducer:
    """A call of `T.comm_reducer`."""

    combine: object  # a function of two values
    identity: Number


@dataclass(frozen=True, slots=True)
class AttrHeader:
    """A call of `T.attr`, and the reducer that it names; `asynchronous`: an async_scope."""

    reducer: Reducer | None
    asynchronous: bool


@dataclass(frozen=True, slots=True)
class EmptyTensor:
    """A call of `T.empty` that has not been given a name yet."""

    shape: tuple[int | Scalar, ...]
    dtype: DType
    loc: Loc


def as_syntax(value: object) -> ast.expr:
    """A value in the place of an expression."""
    return ast.Constant(value)  # type: ignore[arg-type]


def is_literal(value: object) -> TypeGuard[Literal]:
    """Whether `value` is a Python number known at compile time."""
    return isinstance(value, (int, float)) and not isinstance(value, enum.Enum)


def is_new_variable(value: object) -> TypeGuard[Buffer]:
    """Whether `value` is what a T.alloc_var makes that has no name yet."""
    return isinstance(value, Buffer) and value.variable and not value.value.name


def kept(value: object, name: str) -> object:
    """What a container or an object has as `name`: a variable is its own from now on."""
    if is_new_variable(value):
        value.value.name = name
    return value


def is_number(value: object) -> TypeGuard[Number]:
    return isinstance(value, Scalar) or is_literal(value)


def describe_type(buffer: Buffer) -> str:
    """As in a message: "shared (128, 64) float16"."""
    t, shape = buffer.type, [*map(str, buffer.type.shape)]
    if buffer.stored is not None and buffer.dtype.bits < 8:
        shape[-1] = str(2 * n) if isinstance(n := t.shape[-1], int) else f"2 * {n}"
    return f"{t.space} ({', '.join(shape)}{',' * (t.rank == 1)}) {buffer.dtype.name}"


def describe(value: object) -> str:
    """What `value` is, as a message says it."""
    match value:
        case Scalar():
            return f"a run-time {value.dtype.name}"
        case Buffer(variable=True):
            return f"the variable {value.name} ({value.dtype.name})"
        case Buffer() if value.type.space == "barrier":
            return f"{value.name} (barrier)"
        case Region() if value.buffer.type.space == "barrier":
            return f"a barrier of {value.buffer.name}"
        case Buffer():
            return f"{value.name} ({describe_type(value)})"
        case Region(is_element=True):
            return f"an element of {value.buffer.name} ({describe_type(value.buffer)})"
        case Region():
            return f"a region of {value.buffer.name} ({describe_type(value.buffer)})"
        case Lanes():
            return f"a vector of {len(value.items)} lanes"
        case Closure():
            return f"the function {value.name}" if value.name != "lambda" else "a lambda"
        case Address():
            return f"the address of {describe(value.element)}"
        case Method():
            return f"the method {value.name}"
        case LoopHeader():
            return f"a loop ({value.builtin})"
        case KernelHeader():
            return "T.Kernel(…)"
        case GroupHeader():
            return "T.ws(…)"
        case bool() | int() | float() | str() | None:
            return f"the {type(value).__name__} {value!r}" if value is not None else "None"
        case DType():
            return f"the dtype {value.name}"
        case T.Size():
            return f"the size {value}"
        case T.Elementwise() | T.NotYet():
            return f"the builtin T.{value.name}"
        case T.Macro():
            return f"the macro {value.__name__}"
        case type():
            return f"the class {value.__module__}.{value.__qualname__}"
        case types.ModuleType():
            return f"the module {value.__name__}"
        case types.FunctionType():
            return f"the function {value.__name__}"
        case Mapping() | Sequence():
            return f"a {type(value).__name__} of {len(value)}"
        case _ if hasattr(value, "__wrapped__") and hasattr(value, "compile"):
            return f"the kernel {type(value).__name__}"
        case _:
            name = type(value).__name__
            return f"{'an' if name[:1].lower() in 'aeio' or name == 'ndarray' else 'a'} {name}"
