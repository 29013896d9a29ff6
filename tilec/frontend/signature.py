"""What a kernel takes, read once per decorated function, as far as that needs no values.

Annotations that Python has evaluated are read here; others need the evaluator of kernel bodies
(`evaluation`), which is loaded for them alone: a program whose kernels come from the disk cache
waits for little else.
"""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tilec import language as T
from tilec.builtins import foreign
from tilec.frontend.body import BodyReader
from tilec.frontend.source import Source, read_source, said_at, said_of
from tilec.ir.errors import CompileError, did_you_mean
from tilec.ir.loc import Loc
from tilec.ir.options import PLAIN, Options
from tilec.ir.types import BOOL, FLOAT32, INT32, ON_CHIP, DType, find_dtype
from tilec.support.lazy import Lazy
from tilec.support.syntax import names_in, placed

if TYPE_CHECKING:
    from tilec.frontend import evaluation, values
    from tilec.frontend.whole_loops.nests import Tells
else:
    evaluation = Lazy("tilec.frontend.evaluation")
    values = Lazy("tilec.frontend.values")

REQUIRED = inspect.Parameter.empty
_PYTHON_SCALARS: dict[Any, DType] = {int: INT32, float: FLOAT32, bool: BOOL}

_UNIONS = (typing.Union, types.UnionType)  # Optional[float]: whatever a call gives, as it is

Dimension = int | str | None


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel as its author wrote it.

    `kind`: "tensor", "scalar" or "constexpr". `shape` and `strides` entries are ints, names of
    sizes, or arithmetic on them as text ("(M // 2)"); they are None where they are taken from the
    argument, as is `dtype`. `default` is REQUIRED where there is none. `is_output`: named in
    `out=`, so that the call allocates it.
    """

    name: str
    kind: str
    loc: Loc
    default: Any = REQUIRED
    dtype: DType | None = None
    shape: tuple[Dimension, ...] | None = None
    strides: tuple[Dimension, ...] | None = None
    is_output: bool = False


@dataclass(frozen=True)
class Signature:
    """A kernel before any specialisation.

    `parameters` in the order of the call. `sizes`: each size that shapes name, and whether it is
    fixed (`T.const`: to be a compile-time int of each variant). `allocated`: tensors made by
    `T.empty` in the body. `returns`: names of the tensors the call returns, in order. `pending`:
    some annotation needs the constexpr values; `bind_constants` reads it. `grid_from_launch`: the
    body has no `T.Kernel` with extents, so that a call must give the grid. `tiles`: of a kernel of
    mathematics only (`whole_loops`), the names of the parameters that its tiles take; `telling`:
    the sizes that its form follows, or the tiles of a T.Parallel, and what they count. `kernels`:
    how many launches the body is (T.Kernel, T.sync_grid, loops over whole tensors); of its parts
    (`Parts` in `tilec.jit`) the first gives what T.empty makes to the others. `options`: what its
    decorator says. `lost`: sizes that only tensors name that are None: they are 0. `given_back`:
    `returns` as the body has it, of any part. `idle`: of the tiles' parameters those that other
    parts alone take.
    """

    source: Source
    parameters: tuple[Parameter, ...]
    sizes: Mapping[str, bool]
    allocated: tuple[str, ...]
    returns: tuple[str, ...]
    options: Options
    pending: bool = False
    grid_from_launch: bool = False
    tiles: Mapping[str, str] | None = None
    kernels: int = 1
    lost: tuple[str, ...] = ()
    telling: Mapping[str, Tells] = field(default_factory=dict)
    given_back: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def loc(self) -> Loc:
        return self.source.header_loc()

    def parameter(self, name: str) -> Parameter:
        return next(p for p in self.parameters if p.name == name)


def read_signature(pyfunc: Callable[..., Any], options: Options = PLAIN) -> Signature:
    """The signature of the kernel written as `pyfunc`, whose decorator says `options`.

    Raises CompileError for a parameter without a usable annotation, an
    unknown name in `out`, and where the source cannot be read.
    """
    return _read(read_source(pyfunc), options, {})


def bind_constants(signature: Signature, constants: Mapping[str, Any]) -> Signature:
    """`signature` with annotations that need constexpr values read too; `constants` are those
    values, as far as they are not the defaults. A tensor that is left out (`optional_tensors`) is
    there the constant None."""
    left_out = optional_tensors(signature) & constants.keys()
    if signature.pending:
        defaults = {p.name: p.default for p in signature.parameters if p.default is not REQUIRED}
        values = {**defaults, **constants}
        signature = _read(signature.source, signature.options, values)
    if not left_out:
        return signature
    shapes = {p.name: _names_of(p) for p in signature.parameters}
    given = set().union(*(names for n, names in shapes.items() if n not in left_out))
    lost = set().union(*(shapes[n] for n in left_out)) - given
    found = (
        Parameter(p.name, "constexpr", p.loc, None) if p.name in left_out else p
        for p in signature.parameters
    )
    return replace(signature, parameters=tuple(found), lost=tuple(sorted(lost)))


def _names_of(p: Parameter) -> set[str]:
    """Those of sizes in its shape and strides."""
    texts = (e for e in (*(p.shape or ()), *(p.strides or ())) if isinstance(e, str))
    return set().union(*(names_in(ast.parse(text, mode="eval")) for text in texts))


def optional_tensors(signature: Signature) -> set[str]:
    """The tensors that may be None: `W: T.Tensor((N,), dtype) = None`, which a call may leave out,
    or any one."""
    tensors = (p for p in signature.parameters if p.kind == "tensor" and not p.is_output)
    return {p.name for p in tensors if p.default is None or signature.options.tilelang}


def _read(source: Source, options: Options, constants: Mapping[str, Any]) -> Signature:
    out, part = options.out, options.part
    reader = _Reader(source, constants)
    parameters = reader.parameters()
    names = [p.name for p in parameters]
    for name, loc in ((source.name, source.header_loc()), *((p.name, p.loc) for p in parameters)):
        if not name.isascii():
            message = f"the name {name} has letters beyond ASCII, which assemblers do not take"
            hint = "write it in ASCII; names inside the kernel may have any letters"
            raise CompileError(message, loc, hint)
    for name in out:
        if name not in names:
            near = did_you_mean(name, names)
            message = f"out names {name!r}, which is no parameter of {source.name}{near}"
            hint = f"its tensors are {', '.join(p.name for p in parameters if p.kind == 'tensor')}"
            raise CompileError(message, source.decorator_loc("out"), hint)
        if out.count(name) > 1:
            message, hint = f"out names {name!r} twice", "leave one out: a call returns each once"
            raise CompileError(message, source.decorator_loc("out"), hint)
        if parameters[names.index(name)].kind != "tensor":
            message = f"out names {name!r}, which is not a tensor"
            hint = f"annotate it: {name}: T.Tensor((M, N), dtype), or leave it out of out"
            raise CompileError(message, source.decorator_loc("out"), hint)
    marked = tuple(replace(p, is_output=p.name in out) for p in parameters)
    given_back = reader.returned()
    returns = given_back or out
    kernels = reader.launches()
    loops = [] if kernels else reader.loops()
    whole = loops[part or 0 : len(loops) if part is None else part + 1]  # those that it is
    every = [reader.tiles(nest) for nest in loops]
    taken = {name: None for tiles in every for name in tiles.values()}
    tiles = {k: v for nest in whole for k, v in every[loops.index(nest)].items()}
    if part is not None:
        returns = (*out, *reader.allocated) if part == 0 else ()
    if part:
        header = source.header_loc()
        marked += tuple(Parameter(name, "tensor", header) for name in reader.allocated)
    marked += tuple(Parameter(n, "constexpr", source.header_loc(), T.auto) for n in taken)
    return Signature(
        source,
        marked,
        dict(reader.found_sizes),
        tuple(reader.allocated),
        returns,
        options,
        reader.pending,
        not kernels and not loops,
        tiles if loops else None,
        max(1, kernels, len(loops)),
        telling=reader.telling(whole[0]) if whole else reader.telling_tiles(),
        given_back=given_back,
        idle=tuple(n for n in taken if n not in tiles.values()),
    )


@dataclass
class _Draft:
    """A parameter whose annotation may still come from the body."""

    name: str
    loc: Loc
    default: Any
    annotation: object = field(default=REQUIRED)
    pointer: bool = False


class _Reader(BodyReader):
    """Reads a kernel's header, and what its body says of the parameters and results."""

    def __init__(self, source: Source, constants: Mapping[str, Any]) -> None:
        super().__init__(source, constants)
        self.found_sizes: dict[str, bool] = {}
        self.allocated: list[str] = []
        self.pending = False
        self.drafts: dict[str, _Draft] = {}

    def error(self, message: str, hint: str, at: ast.AST | Loc) -> CompileError:
        return CompileError(message, at if isinstance(at, Loc) else self.source.loc(at), hint)

    def parameters(self) -> list[Parameter]:
        """Parameters with the annotations of the header, then those of the body."""
        self._read_header()
        self._read_body()
        return [self._finish(d) for d in self.drafts.values()]

    # --- header -----------------------------------------------------------------------------------

    def _read_header(self) -> None:
        node = self.source.node.args
        for refused, star in ((node.vararg, "*"), (node.kwarg, "**")):
            if refused is not None:
                hint = "name each parameter"
                raise self.error(f"a kernel cannot take {star}{refused.arg}", hint, at=refused)
        plain = inspect.signature(self.source.function).parameters
        annotations = self.source.function.__annotations__
        for arg in (*node.posonlyargs, *node.args, *node.kwonlyargs):
            written = annotations.get(arg.arg, REQUIRED)
            place = self.source.loc(arg)
            written = said_of(written)
            for _ in range(2):  # an annotation in quotes, kept as text, is text twice over
                if type(written) is str and arg.annotation is not None:
                    written = self._text_annotation(written, arg.annotation)
            written = T.constexpr if written is str else written  # nothing else can be text
            self.drafts[arg.arg] = _Draft(arg.arg, place, plain[arg.arg].default, written)

    def _text_annotation(self, text: str, node: ast.expr) -> object:
        """An annotation kept as text (`from __future__ import annotations`)."""
        if find_dtype(text) is not None:
            return find_dtype(text)
        tree = placed(said_at(ast.parse(text, mode="eval").body), node)
        try:
            return evaluation.Evaluation(self.source).annotation_at(node, tree)
        except CompileError as e:
            hint = (
                "annotations are text here (from __future__ import annotations), which hides "
                "names of a surrounding function; leave that import out"
            )
            raise self.error(e.message, hint, node) from None

    # --- body -------------------------------------------------------------------------------------

    def _read_body(self) -> None:
        body = self.source.node.body
        annotated = [n for n, s in enumerate(body) if self._annotates(s) or self._points(s)]
        last = annotated[-1] if annotated else -1
        for n, s in enumerate(body):
            if isinstance(s, ast.AnnAssign) and self._annotates(s):
                assert isinstance(s.target, ast.Name)
                self._read_annotation(self.drafts[s.target.id], s)
            elif (call := self._points(s)) is not None:
                self._read_pointer(call)
            elif isinstance(s, ast.Assign) and n < last:
                self.evaluation.assign(s)
            elif isinstance(s, ast.AnnAssign) and s.value is not None and n < last:
                # dtype: str = "float16"
                self.evaluation.assign(ast.copy_location(ast.Assign([s.target], s.value), s))
            self.allocated += self.made(s)

    def _annotates(self, s: ast.stmt) -> bool:
        return (
            isinstance(s, ast.AnnAssign)
            and isinstance(s.target, ast.Name)
            and s.target.id in self.drafts
        )

    def _points(self, s: ast.stmt) -> ast.Call | None:
        """The call of T.make_tensor by which a statement says what a parameter points to."""
        if isinstance(s, ast.Assign) and self.calls(s.value, T.make_tensor):
            assert isinstance(s.value, ast.Call)
            first = next(iter(s.value.args), None) or next(
                (k.value for k in s.value.keywords if k.arg == "ptr"), None
            )
            if isinstance(first, ast.Name) and first.id in self.drafts:
                return s.value
        return None

    def _read_pointer(self, call: ast.Call) -> None:
        """The tensor that a parameter annotated T.ptr points to."""
        given = dict(zip(("ptr", "shape", "dtype", "strides"), call.args))
        given.update({k.arg: k.value for k in call.keywords if k.arg is not None})
        pointer, shape = given["ptr"], given.get("shape")
        assert isinstance(pointer, ast.Name)
        draft = self.drafts[pointer.id]
        if isinstance(draft.annotation, T.Tensor | type) and draft.pointer:
            hint = "view it in another shape: T.view(A, shape)"
            raise self.error(f"{draft.name} has another shape already", hint, call)
        if draft.annotation is not T.ptr or shape is None:
            return  # reported when the kernel is traced
        draft.pointer = True
        constexprs = {n for n, d in self.drafts.items() if d.annotation in (T.constexpr, T.dtype)}
        open_ = {n for n in constexprs if n not in self.constants}
        if names_in(call) & open_:
            draft.annotation, self.pending = T.Tensor, True
            return
        with self.evaluation.at(call):
            named = given.get("dtype")
            dtype = "float32" if named is None else self.evaluation.expression(named)
            extents_of, strides = self.evaluation.extents_of, given.get("strides")
            extents = extents_of(draft.name, shape)
            steps = None if strides is None else extents_of(f"{draft.name}_step", strides)
            draft.annotation = self.evaluation.annotation(T.Tensor, [extents, dtype, steps])

    def _read_annotation(self, draft: _Draft, s: ast.AnnAssign) -> None:
        if draft.annotation is not REQUIRED:
            hint = "leave one of the annotations out"
            raise self.error(f"{draft.name} is annotated twice", hint, s.annotation)
        if s.value is not None:
            message = f"the parameter {draft.name} cannot be given a value here"
            raise self.error(message, "write its default behind the name in the def", s.value)
        written = said_at(s.annotation)
        if self.evaluation.lacks_values(written):
            callee = written
            if isinstance(callee, ast.Call):
                callee = callee.func
            elif isinstance(callee, ast.Subscript):
                callee = callee.value
            draft.annotation = self.evaluation.expression(callee)
            self.pending = True
            return
        draft.annotation = self.evaluation.annotation_at(written, written)

    # --- results ----------------------------------------------------------------------------------

    def _finish(self, d: _Draft) -> Parameter:
        a = d.annotation
        if a is T.constexpr or a is T.dtype or typing.get_origin(a) in _UNIONS:
            return Parameter(d.name, "constexpr", d.loc, d.default)
        if a in _PYTHON_SCALARS if isinstance(a, type) else False:
            return Parameter(d.name, "scalar", d.loc, d.default, _PYTHON_SCALARS[a])
        if isinstance(a, type) and issubclass(a, T.Tensor):
            return Parameter(d.name, "tensor", d.loc, d.default)
        if isinstance(a, T.Tensor):
            shape = tuple(self._dimension(e) for e in self._stored(d, a))
            strides = None
            if a.strides is not None:
                apart = a.strides
                if a.dtype.bits < 8:  # of the bytes, whose own are as far apart as elements
                    apart = (*(s // 2 for s in apart[:-1]), apart[-1])
                strides = tuple(self._dimension(s) for s in apart)
            return Parameter(d.name, "tensor", d.loc, d.default, a.dtype, shape, strides)
        if a is T.ptr:
            hint = (
                f"write A = T.make_tensor({d.name}, (M, N), dtype) above T.Kernel, or {d.name}: "
                "T.Tensor((M, N), dtype)"
            )
            raise self.error(f"nothing says what {d.name} points to", hint, d.loc)
        if isinstance(a, T.NotYet):
            hint = foreign.LATER
            raise self.error(f"T.{a.name} is not supported yet", hint, d.loc)
        dtype = None if a is REQUIRED or isinstance(a, type) else find_dtype(a)
        if dtype is not None and dtype in ON_CHIP:
            own = ON_CHIP[dtype].name
            message = f"{d.name} is {dtype.name}, which elements of tensors are and numbers not"
            raise self.error(message, f"write {d.name}: T.{own}, which has all of them", d.loc)
        if dtype is not None:
            return Parameter(d.name, "scalar", d.loc, d.default, dtype)
        hint = (
            f"write {d.name}: T.Tensor((M, N), dtype), {d.name}: T.int32 or {d.name}: T.constexpr"
        )
        if a is REQUIRED and d.name == "self":
            hint = "define the kernel outside of the class, and take what it needs as parameters"
        if a is REQUIRED:
            raise self.error(f"the parameter {d.name} has no annotation", hint, at=d.loc)
        raise self.error(f"the annotation of {d.name} is {values.describe(a)}", hint, at=d.loc)

    def _stored(self, d: _Draft, a: T.Tensor) -> tuple[int | T.Size, ...]:
        """The extents of an argument's array: a byte holds two elements of four bits."""
        if a.dtype.bits >= 8 or not a.shape:
            return tuple(a.shape)
        *outer, last = a.shape
        if isinstance(last, int) and last % 2:
            message = (
                f"the last extent of {d.name} is {last}: elements of {a.dtype.name} come in "
                "pairs, a byte each"
            )
            raise self.error(message, "write an even extent", d.loc)
        return (*outer, last // 2)

    def _dimension(self, extent: int | T.Size) -> Dimension:
        if isinstance(extent, int):
            return extent
        self._note_sizes(extent)
        return extent.text

    def _note_sizes(self, size: T.Size) -> None:
        if not size.op:
            self.found_sizes[size.text] = self.found_sizes.get(size.text, False) or size.fixed
        for part in size.args:
            if isinstance(part, T.Size):
                self._note_sizes(part)

    def returned(self) -> tuple[str, ...]:
        """Names in the kernel's `return`, or in that of a macro that it returns the results of,
        which must be tensors."""
        last = self.source.node.body[-1]
        if not isinstance(last, ast.Return) or last.value is None:
            return ()
        called = self._called(last.value) if isinstance(last.value, ast.Call) else None
        if called is not None:
            macro = _Reader(read_source(called), {})
            for s in macro.source.node.body:
                macro.allocated += macro.made(s)
            self.allocated += macro.allocated
            return macro.returned()
        tensors = {n for n, d in self.drafts.items() if isinstance(d.annotation, T.Tensor | type)}
        tensors.update(self.allocated)
        names: list[str] = []
        for p in self._parts(last.value):
            made = p.value if isinstance(p, ast.Starred) else p
            name = made.id if isinstance(made, ast.Name) else ""
            held = (name,) if made is p else self.lists.get(name, ())
            if not held or not tensors.issuperset(held):
                hint = "return what T.empty made, or a tensor parameter"
                raise self.error(f"a kernel returns tensors, not {ast.unparse(p)}", hint, at=p)
            names += held
        return tuple(names)

    def _parts(self, returned: ast.expr) -> list[ast.expr]:
        """What a return gives one after the other; all of a list is `*name`."""
        match returned:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return parts
            case ast.Call(func=ast.Name(id="tuple" | "list"), args=[whole], keywords=[]):
                pass
            case ast.Name(id=name) if name in self.lists:
                whole = returned
            case _:
                return [returned]
        return [ast.copy_location(ast.Starred(whole, ast.Load()), returned)]
