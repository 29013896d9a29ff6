"""Run-time branches: two blocks traced, and the names that differ after them made results of an
`If`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from tilec.frontend.calls import Calls
from tilec.frontend.context import BlockBuilder
from tilec.frontend.guards import negated
from tilec.frontend.recovery import UNKNOWN, Unknown
from tilec.frontend.values import (
    NOT_RETURNED,
    Buffer,
    Region,
    Scalar,
    Undefined,
    describe,
    is_number,
)
from tilec.ir.ops import If, Yield
from tilec.ir.types import BOOL
from tilec.support.syntax import assigned_names, name_nodes, names_in

_MISSING = Undefined("")
RETURN = ".return"  # hidden name: whether no `return` was met; with a number, what one gave
ENDED = ".ended"  # the same of T.thread_return
_UNSAID = {RETURN: True, ENDED: True}


def same_value(a: object, b: object) -> bool:
    """Whether two values of a name are one and the same (compile-time ones: of one type, and
    equal)."""
    if a is b:
        return True
    if isinstance(a, Scalar | Buffer | Region) or isinstance(b, Scalar | Buffer | Region):
        return False
    if isinstance(a, tuple | list) and type(a) is type(b):
        assert isinstance(b, tuple | list)
        return len(a) == len(b) and all(same_value(x, y) for x, y in zip(a, b))
    return type(a) is type(b) and a == b


def _of_no_account(value: object, other: object, ended: bool) -> object:
    """`value`, or some number like `other` where it does not count: nothing was returned yet, or
    the code that has no value `ended` there."""
    lost = ended and isinstance(value, Undefined) and not isinstance(value, Unknown)
    if (value is not NOT_RETURNED and not lost) or not is_number(other):
        return value
    is_bool = other.dtype is BOOL if isinstance(other, Scalar) else isinstance(other, bool)
    return False if is_bool else 0


class Branches(Calls):
    """Joins what two branches leave behind."""

    def branch(
        self, cond: Scalar, then: Callable[[], None], orelse: Callable[[], None] | None = None
    ) -> None:
        """Emit an `If`. Names that differ between the branches become its results; a name that one
        branch alone defines has no value afterwards."""
        place, test = self.loc, self.tests.get(cond.value)
        with self.inside(conditional=True, guard=test) as on_true:
            then()
        with self.inside(conditional=True, guard=negated(test)) as on_false:
            if orelse is not None:
                orelse()
        with self.at(place):
            self.join(cond, on_true, on_false)

    def join(self, cond: Scalar, on_true: BlockBuilder, on_false: BlockBuilder) -> None:
        names_true, names_false = on_true.names, on_false.names
        merged: list[str] = []
        pairs: list[tuple[Scalar, Scalar]] = []
        joined: dict[str, object] = {}
        ends = self._has_ended(names_true), self._has_ended(names_false, cond)
        for name in dict.fromkeys((*names_true, *names_false)):
            unsaid = _UNSAID.get(name, _MISSING)
            a, b = names_true.get(name, unsaid), names_false.get(name, unsaid)
            own = name.isidentifier()
            a, b = _of_no_account(a, b, own and ends[0]), _of_no_account(b, a, own and ends[1])
            if same_value(a, b):
                joined[name] = a
            elif isinstance(a, Unknown) or isinstance(b, Unknown):
                joined[name] = UNKNOWN
            elif self.options.tilelang and isinstance(a, Buffer) and is_number(b):
                joined[name] = a  # which the other branch has given another meaning
            elif self.options.tilelang and isinstance(b, Buffer) and is_number(a):
                joined[name] = b
            elif is_number(a) and is_number(b):
                merged.append(name)
                pairs.append(self.unify_in(on_true, on_false, a, b))
            else:
                joined[name] = Undefined(self._reason(a, b))
        for builder, side in ((on_true, 0), (on_false, 1)):
            builder.emit(Yield, tuple(p[side].value for p in pairs), loc=self.loc)
        types = tuple(p[0].value.type for p in pairs)
        made = self.emit(If, cond.value, on_true.block(), on_false.block(), types)
        for name, result in zip(merged, made.results):
            result.name = name if name.isidentifier() else ""
            joined[name] = self.scalar(result)
        self.frame.names = joined

    def _has_ended(self, names: dict[str, object], run: Scalar | None = None) -> bool:
        """Whether a `return`, `break` or `continue` stands at the end of a branch; or it is what
        stays undone where `run` does not hold, as one was met before."""
        loops = self.frame.loops
        running = names.get(loops[-1].run if loops else RETURN, True)
        met = run is not None and isinstance(running, Scalar) and running.value is run.value
        return running is False or met

    def _reason(self, a: object, b: object) -> str:
        where = f"the condition on line {self.loc.line}"
        if isinstance(b, Undefined):
            return f"it is assigned only where {where} holds"
        if isinstance(a, Undefined):
            return f"it is assigned only where {where} does not hold"
        return f"it is {describe(a)} where {where} holds and {describe(b)} where not"


# --- variables of each iteration ---
#
# Variables that every iteration of a loop has for itself, though they were made before it.
#
#     v = T.alloc_var("int32")
#     for i in T.Parallel(n):
#         v = i * 2          # written before it is read
#         A[i] = v
#
# Iterations of T.Parallel run in any order, so what one leaves in `v` no other may read, and which
# value is left behind the loop is not known. Neither matters where each loop that reads `v` has
# written it before: `v` is then a name that the author uses again, and each iteration gets a
# variable of its own.


def private_names(function: ast.FunctionDef | ast.AsyncFunctionDef, loop: ast.For) -> list[str]:
    """The names that the body of `loop` gives a value to and that are read in `function` only
    where the iteration at hand has written them; sorted."""
    names = [n for n in assigned_names(loop.body) if writes_first(loop.body, n)]
    return sorted(n for n in names if not any(_read_elsewhere(function.body, n)))


def writes_first(body: list[ast.stmt], name: str) -> bool:
    """Whether the first statement of `body` that names `name` assigns it a value that is computed
    without it; or is a condition on which the only statements stand that name it, where that
    holds."""
    for n, s in enumerate(body):
        if name in names_in(s):
            if isinstance(s, ast.If) and name not in names_in(s.test, *s.orelse, *body[n + 1 :]):
                return writes_first(s.body, name)
            plain = isinstance(s, ast.Assign) and len(s.targets) == 1
            target = s.targets[0] if isinstance(s, ast.Assign) and plain else None
            alone = sum(n.id == name for n in name_nodes(s)) == 1
            return isinstance(target, ast.Name) and target.id == name and alone
    return False


def _read_elsewhere(statements: list[ast.stmt], name: str) -> Iterator[ast.AST]:
    """What reads `name`, loops left out that write it first."""
    pending: list[ast.AST] = list(statements)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.For) and writes_first(node.body, name):
            pending += [node.target, node.iter, *node.orelse]
            continue
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            yield node
        pending += ast.iter_child_nodes(node)
