"""How many launches a kernel is: what its body says of T.Kernel, before it is traced."""

from __future__ import annotations

import ast
import contextlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilec import language as T
from tilec.frontend.source import Source, read_source
from tilec.ir.errors import CompileError

if TYPE_CHECKING:
    from tilec.frontend.evaluation import Evaluation


def grid_syncs(body: Sequence[ast.stmt], named: Callable[[ast.expr], object]) -> int:
    """How many statements of a `with T.Kernel` are T.sync_grid(); `named`: what a name means."""
    calls = (s.value for s in body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call))
    count = 0
    for c in calls:
        if isinstance(c.func, ast.Name | ast.Attribute):
            with contextlib.suppress(CompileError):  # reported when the kernel is traced
                count += named(c.func) is T.sync_grid
    return count


class Launches:
    """Counts them, for what reads a kernel's header."""

    source: Source
    drafts: Mapping[str, Any]

    def __init__(self, source: Source, constants: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def beginning(self) -> Evaluation:
        """What is known in front of the body."""
        raise NotImplementedError

    def _named(self, node: ast.expr) -> object:
        """What a name or an attribute stands for; None for what the call gives a value."""
        raise NotImplementedError

    def _calls(self, node: ast.expr, *builtins: Callable[..., Any]) -> bool:
        """Whether `node` is a call of one of `builtins`, under whatever name."""
        raise NotImplementedError

    def launches(self) -> int:
        """How many launches the body is. Loops around T.Kernel, and branches, are followed as far
        as they do not depend on a call's arguments."""
        body = self.source.node.body
        found = self.kernels(body)
        if found and any(isinstance(s, ast.For | ast.If) for s in body):
            known = self.beginning()
            return self.kernels(body, known=known)
        return found

    def kernels(
        self,
        body: Sequence[ast.stmt],
        around: tuple[object, ...] = (),
        known: Evaluation | None = None,
    ) -> int:
        """How many launches statements are: of each `T.Kernel` with extents one, and one more for
        each T.sync_grid in it; with those of the macros and functions that they call, and of two
        branches the one with more. `around`: the functions that are being read; `known`: what is
        known in front of each statement."""
        count = 0
        for s in body:
            called = self._called(s.value) if isinstance(s, ast.Assign) else None
            if known is not None and isinstance(s, ast.Assign) and called is None:
                known.assign(s)
            if isinstance(s, ast.With):
                calls = [i.context_expr for i in s.items if isinstance(i.context_expr, ast.Call)]
                if any(self._calls(c, T.Kernel) and c.args for c in calls):
                    count += 1 + grid_syncs(s.body, self._named)
                else:
                    count += self.kernels(s.body, around)
            elif isinstance(s, ast.If):
                test = None if known is None else known.decided(s.test)
                sides = [side for side, taken in ((s.body, True), (s.orelse, False))
                         if test in (taken, None)]  # fmt: skip
                inside = known if len(sides) == 1 else None
                count += max(self.kernels(side, around, inside) for side in sides)
            elif isinstance(s, ast.For) and known is not None:
                count += sum(self.kernels(s.body, around, known) for _ in known.each(s))
            elif isinstance(s, ast.For | ast.While):
                count += self.kernels(s.body, around)
            elif isinstance(s, ast.Expr | ast.Assign | ast.Return) and isinstance(
                s.value, ast.Call
            ):
                called = self._called(s.value)
                if called is not None and called not in around:
                    reader = type(self)(read_source(called), {})
                    count += reader.kernels(reader.source.node.body, (*around, called))
        return count

    def _called(self, node: ast.expr) -> Callable[..., Any] | None:
        """The macro or the plain function that a statement of the body calls."""
        match node:
            case ast.Call(func=ast.Name(id=name)) if name not in self.drafts:
                found = self.source.lookup(name)[1]
                if isinstance(found, T.Macro):
                    return found.function
                ours = (getattr(found, "__module__", None) or "").split(".", 1)[0] == "tilec"
                if isinstance(found, types.FunctionType) and not ours:
                    return found
        return None
