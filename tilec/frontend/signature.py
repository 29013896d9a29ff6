"""What a kernel takes, read once per decorated function, as far as that needs no values."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilec import foreign
from tilec import language as T
from tilec.frontend import (  # noqa: F401 (they fill the table of words)
    words_header,
    words_schedule,
    words_tile,
)
from tilec.frontend.calls import Calls
from tilec.frontend.context import Frame
from tilec.frontend.source import Source, read_source
from tilec.frontend.values import Scalar, Undefined, describe
from tilec.ir.errors import CompileError, did_you_mean
from tilec.ir.loc import Loc
from tilec.ir.types import BOOL, FLOAT32, INT32, DType, find_dtype

REQUIRED = inspect.Parameter.empty
_PYTHON_SCALARS: dict[Any, DType] = {int: INT32, float: FLOAT32, bool: BOOL}

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
    body has no `T.Kernel` with extents, so that a call must give the grid.
    """

    source: Source
    parameters: tuple[Parameter, ...]
    sizes: Mapping[str, bool]
    allocated: tuple[str, ...]
    returns: tuple[str, ...]
    threads: int | None = None
    pending: bool = False
    out: tuple[str, ...] = ()
    grid_from_launch: bool = False

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def loc(self) -> Loc:
        return self.source.header_loc()

    def parameter(self, name: str) -> Parameter:
        return next(p for p in self.parameters if p.name == name)


def read_signature(
    pyfunc: Callable[..., Any], out: Sequence[str] = (), threads: int | None = None
) -> Signature:
    """The signature of the kernel written as `pyfunc`.

    `out` names parameters that the call allocates and returns, `threads` is what the decorator
    says. Raises CompileError for a parameter without a usable annotation, an unknown name in `out`,
    and where the source cannot be read.
    """
    return _read(read_source(pyfunc), tuple(out), threads, {})


def bind_constants(signature: Signature, constants: Mapping[str, Any]) -> Signature:
    """`signature` with annotations that need constexpr values read too; `constants` are those
    values, as far as they are not the defaults."""
    if not signature.pending:
        return signature
    defaults = {p.name: p.default for p in signature.parameters if p.default is not REQUIRED}
    return _read(signature.source, signature.out, signature.threads, {**defaults, **constants})


def _read(
    source: Source, out: tuple[str, ...], threads: int | None, constants: Mapping[str, Any]
) -> Signature:
    reader = _Reader(source, constants)
    parameters = reader.parameters()
    names = [p.name for p in parameters]
    for name, loc in ((source.name, source.header_loc()), *((p.name, p.loc) for p in parameters)):
        if not name.isascii():
            raise CompileError(
                f"the name {name} has letters beyond ASCII, which assemblers do not take",
                loc,
                "write it in ASCII; names inside the kernel may have any letters",
            )
    for name in out:
        if name not in names:
            near = did_you_mean(name, names)
            raise CompileError(
                f"out names {name!r}, which is no parameter of {source.name}{near}",
                source.decorator_loc("out"),
                f"its tensors are {', '.join(p.name for p in parameters if p.kind == 'tensor')}",
            )
        if parameters[names.index(name)].kind != "tensor":
            raise CompileError(
                f"out names {name!r}, which is not a tensor",
                source.decorator_loc("out"),
                f"annotate it: {name}: T.Tensor((M, N), dtype), or leave it out of out",
            )
    marked = tuple(replace(p, is_output=p.name in out) for p in parameters)
    returns = reader.returned() or out
    return Signature(
        source,
        marked,
        dict(reader.found_sizes),
        tuple(reader.allocated),
        returns,
        threads,
        reader.pending,
        out,
        not reader.has_grid(),
    )


@dataclass
class _Draft:
    """A parameter whose annotation may still come from the body."""

    name: str
    loc: Loc
    default: Any
    annotation: object = field(default=REQUIRED)


class _Reader(Calls):
    """Reads annotations with the evaluator of kernel bodies; sizes stay names."""

    def __init__(self, source: Source, constants: Mapping[str, Any]) -> None:
        super().__init__(Frame(source))
        self.source = source
        self.found_sizes: dict[str, bool] = {}
        self.allocated: list[str] = []
        self.pending = False
        self.constants = constants
        self.drafts: dict[str, _Draft] = {}

    def size_value(self, size: T.Size) -> int | Scalar | T.Size:
        return size

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
                raise self.error(
                    f"a kernel cannot take {star}{refused.arg}", "name each parameter", at=refused
                )
        plain = inspect.signature(self.source.function).parameters
        annotations = self.source.function.__annotations__
        for arg in (*node.posonlyargs, *node.args, *node.kwonlyargs):
            written = annotations.get(arg.arg, REQUIRED)
            place = self.source.loc(arg)
            for _ in range(2):  # an annotation in quotes, kept as text, is text twice over
                if isinstance(written, str) and arg.annotation is not None:
                    written = self._text_annotation(written, arg.annotation)
            self.drafts[arg.arg] = _Draft(arg.arg, place, plain[arg.arg].default, written)
        for draft in self.drafts.values():
            known = draft.name in self.constants
            self.names[draft.name] = (
                self.constants[draft.name]
                if known
                else Undefined("it is a parameter, whose value comes with the call")
            )

    def _text_annotation(self, text: str, node: ast.expr) -> object:
        """An annotation kept as text (`from __future__ import annotations`)."""
        if find_dtype(text) is not None:
            return find_dtype(text)
        tree = ast.parse(text, mode="eval").body
        for n in ast.walk(tree):
            ast.copy_location(n, node)
        with self.at(node):
            try:
                return self._python_scalar_or(tree)
            except CompileError as e:
                raise self.error(
                    e.message,
                    "annotations are text here (from __future__ import annotations), which hides "
                    "names of a surrounding function; leave that import out",
                ) from None

    def _python_scalar_or(self, tree: ast.expr) -> object:
        if isinstance(tree, ast.Name) and tree.id in ("int", "float", "bool"):
            return {"int": int, "float": float, "bool": bool}[tree.id]
        return self.expression(tree)

    # --- body -------------------------------------------------------------------------------------

    def _read_body(self) -> None:
        body = self.source.node.body
        annotated = [n for n, s in enumerate(body) if self._annotates(s)]
        last = annotated[-1] if annotated else -1
        for n, s in enumerate(body):
            if isinstance(s, ast.AnnAssign) and self._annotates(s):
                assert isinstance(s.target, ast.Name)
                self._read_annotation(self.drafts[s.target.id], s)
            elif isinstance(s, ast.Assign) and n < last:
                self._try_assignment(s)
            if isinstance(s, ast.Assign) and self._calls(s.value, T.empty):
                self.allocated += [t.id for t in s.targets if isinstance(t, ast.Name)]

    def _annotates(self, s: ast.stmt) -> bool:
        return (
            isinstance(s, ast.AnnAssign)
            and isinstance(s.target, ast.Name)
            and s.target.id in self.drafts
        )

    def _calls(self, node: ast.expr, word: Callable[..., Any]) -> bool:
        """Whether `node` is a call of `word`, under whatever name."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            return False
        try:
            return self.expression(node.func) is word
        except CompileError:
            return False  # reported when the kernel is traced

    def _try_assignment(self, s: ast.Assign) -> None:
        """Names that annotations below may use; one that needs run-time values stays unknown."""
        try:
            value = self.expression(s.value)
            for target in s.targets:
                self.bind(target, value)
        except CompileError:
            for target in s.targets:
                for n in ast.walk(target):
                    if isinstance(n, ast.Name):
                        self.names[n.id] = Undefined("it is not known before the call")

    def _read_annotation(self, draft: _Draft, s: ast.AnnAssign) -> None:
        if draft.annotation is not REQUIRED:
            hint = "leave one of the annotations out"
            raise self.error(f"{draft.name} is annotated twice", hint, s.annotation)
        if s.value is not None:
            message = f"the parameter {draft.name} cannot be given a value here"
            raise self.error(message, "write its default behind the name in the def", s.value)
        unknown = {
            n.id
            for n in ast.walk(s.annotation)
            if isinstance(n, ast.Name) and isinstance(self.names.get(n.id), Undefined)
        }
        if unknown:
            callee = s.annotation
            if isinstance(callee, ast.Call):
                callee = callee.func
            elif isinstance(callee, ast.Subscript):
                callee = callee.value
            draft.annotation = self.expression(callee)
            self.pending = True
            return
        with self.at(s.annotation):
            draft.annotation = self._python_scalar_or(s.annotation)

    def has_grid(self) -> bool:
        """Whether the body has a `T.Kernel` with extents."""
        items = (n.context_expr for n in ast.walk(self.source.node) if isinstance(n, ast.withitem))
        return any(self._calls(c, T.Kernel) and c.args for c in items if isinstance(c, ast.Call))

    # --- results ----------------------------------------------------------------------------------

    def _finish(self, d: _Draft) -> Parameter:
        a = d.annotation
        if a is T.constexpr:
            return Parameter(d.name, "constexpr", d.loc, d.default)
        if a in _PYTHON_SCALARS if isinstance(a, type) else False:
            return Parameter(d.name, "scalar", d.loc, d.default, _PYTHON_SCALARS[a])
        if isinstance(a, type) and issubclass(a, T.Tensor):
            return Parameter(d.name, "tensor", d.loc, d.default)
        if isinstance(a, T.Tensor):
            shape = tuple(self._dimension(e) for e in a.shape)
            strides = None if a.strides is None else tuple(self._dimension(e) for e in a.strides)
            return Parameter(d.name, "tensor", d.loc, d.default, a.dtype, shape, strides)
        if isinstance(a, T.NotYet):
            hint = foreign.MEANWHILE.get(a.name, foreign.LATER)
            raise self.error(f"T.{a.name} is not supported yet", hint, d.loc)
        dtype = None if a is REQUIRED or isinstance(a, type) else find_dtype(a)
        if dtype is not None:
            return Parameter(d.name, "scalar", d.loc, d.default, dtype)
        hint = (
            f"write {d.name}: T.Tensor((M, N), dtype), {d.name}: T.int32 or {d.name}: T.constexpr"
        )
        if a is REQUIRED and d.name == "self":
            hint = "define the kernel outside of the class, and take what it needs as parameters"
        if a is REQUIRED:
            raise self.error(f"the parameter {d.name} has no annotation", hint, at=d.loc)
        raise self.error(f"the annotation of {d.name} is {describe(a)}", hint, at=d.loc)

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
        """Names in the kernel's `return`, which must be tensors."""
        last = self.source.node.body[-1]
        if not isinstance(last, ast.Return) or last.value is None:
            return ()
        parts = last.value.elts if isinstance(last.value, ast.Tuple | ast.List) else [last.value]
        tensors = {n for n, d in self.drafts.items() if isinstance(d.annotation, T.Tensor | type)}
        names = []
        for p in parts:
            if not isinstance(p, ast.Name) or p.id not in {*tensors, *self.allocated}:
                raise self.error(
                    f"a kernel returns tensors, not {ast.unparse(p)}",
                    "return what T.empty made, or a tensor parameter",
                    at=p,
                )
            names.append(p.id)
        return tuple(names)
