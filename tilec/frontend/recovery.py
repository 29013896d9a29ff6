"""Several mistakes of one kernel, told at once.

A statement that cannot be compiled says nothing about the next one, as long as that does not use
what the first was to make. So a kernel with a mistake is traced again without the statement; the
names that it gives a value to are `Unknown`, and a statement that reads one is left out too, in
silence, as what it would say follows from the first mistake. Tracing again, rather than going on
in the middle, leaves nothing half done: the next error is one that the rest of the kernel has.

What decides where control goes is never left out: then nobody knows what runs behind it.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterable
from typing import TypeVar

from tilec.frontend.values import Undefined
from tilec.ir.errors import CompileError
from tilec.support.syntax import every

MOST_ERRORS = 8
MOST_STATEMENTS = 20_000
"""Statements traced in search of further errors, all tries together: about a second."""

_DECIDES = ast.With | ast.Return | ast.Break | ast.Continue | ast.Assert | ast.Raise

_F = TypeVar("_F")


class Unknown(Undefined):
    """What a statement that was left out would have made."""


class Unread(BaseException):
    """An unknown value is needed. No error, and nothing that `except Exception` is meant for."""


class Uncertain(BaseException):
    """What would have to be left out decides where control goes."""


class Again(BaseException):
    """The kernel is to be traced once more: `LeftOut` knows more of it now."""


Form = tuple[ast.With, dict[str, object]]
"""The kernel with a grid that a loop over whole tensors becomes, and what names of its own stand
for."""
Forms = dict[ast.For, Form]


class LeftOut:
    """What earlier traces of a kernel have found: the statements that this one leaves out, the
    loops that are written out in it, for they look something up by their index, the statements
    that add up what the iterations of a T.Parallel give one element, and along which dimensions a
    loop, by its extents, is done `in_tiles` as it gives more than threads hold; what asks for tiles
    that are `in_bytes`, once that is known: they may hold the bytes of elements that are narrower
    in memory; and the `forms` of loops over whole tensors. `traced` counts the statements of
    all."""

    def __init__(self) -> None:
        self.statements: set[ast.stmt] = set()
        self.written_out: set[ast.For] = set()
        self.added_up: set[ast.stmt] = set()
        self.in_tiles: dict[ast.expr, tuple[int, ...]] = {}
        self.in_bytes: frozenset[ast.expr] | None = None
        self.forms: Forms = {}
        self.traced = 0

    def forget(self, node: ast.stmt, names: dict[str, object]) -> None:
        """Let what `node` makes be unknown. Raises Uncertain where it cannot be left out."""
        if _decides(node):
            raise Uncertain
        for n in ast.walk(node):
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
                names[n.id] = UNKNOWN
            elif isinstance(n, ast.FunctionDef):
                names[n.name] = UNKNOWN
            elif isinstance(n, ast.Attribute | ast.Subscript) and isinstance(n.ctx, ast.Store):
                root = _root(n)
                if isinstance(names.get(root), list | dict):  # an item of what is known now
                    names[root] = UNKNOWN


UNKNOWN = Unknown("the statement that gives it a value has a mistake")


def check_known(values: Iterable[object]) -> None:
    """Raises Unread where one of `values` is unknown."""
    if any(isinstance(v, Unknown) for v in values):
        raise Unread


def note_place(error: CompileError, node: ast.stmt) -> None:
    """Keep with an error the innermost statement that it leaves."""
    error.__dict__.setdefault("statement", node)


def trace_with_recovery(trace: Callable[[LeftOut], _F], forms: Forms) -> _F:
    """What `trace` gives; `forms` are those that are known, to which it adds. Raises the
    CompileError that it raises, with `others`: those that it raises without the statements of the
    errors before."""
    left_out = LeftOut()
    left_out.forms.update(forms)

    def attempt() -> _F:
        while True:
            with contextlib.suppress(Again):
                return trace(left_out)

    try:
        made = attempt()
        forms.update(left_out.forms)
        return made
    except CompileError as e:
        found = {e.cause or e.message: e}
        last = first = e
    while len(found) < MOST_ERRORS and _leave_out(last, left_out):
        try:
            attempt()
            break
        except (Unread, Uncertain, RecursionError):
            break
        except CompileError as e:
            if (e.message, e.loc) == (last.message, last.loc):
                break  # its statement was made while it was traced, as that of a tile's loop
            found.setdefault(e.cause or e.message, e)  # the same again is the same mistake
            last = e
    first.others = tuple(e.with_traceback(None) for e in found.values() if e is not first)
    raise first


def _leave_out(error: CompileError, left_out: LeftOut) -> bool:
    """Whether the kernel can be traced without the statement of `error`, which then is."""
    node = error.__dict__.pop("statement", None)
    nothing_new = node is None or node in left_out.statements
    if nothing_new or _decides(node) or left_out.traced > MOST_STATEMENTS:
        return False
    left_out.statements.add(node)
    return True


def _decides(node: ast.stmt) -> bool:
    return any(every(_DECIDES, node))


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
