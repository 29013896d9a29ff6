"""Statements: one method per syntax node."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Callable
from typing import Any

from tilec import language as T
from tilec.frontend.assignments import Assignments
from tilec.frontend.branches import ENDED, RETURN
from tilec.frontend.builtins.barriers import group_condition
from tilec.frontend.builtins.table import BUILTINS
from tilec.frontend.context import Frame
from tilec.frontend.for_loops import ForLoops
from tilec.frontend.guards import decided
from tilec.frontend.recovery import Unread, check_known, note_place
from tilec.frontend.values import (
    NOT_RETURNED,
    AttrHeader,
    Closure,
    GroupHeader,
    KernelHeader,
    LoopHeader,
    Scalar,
    Undefined,
    as_syntax,
    is_number,
)
from tilec.ir.caller import note_line
from tilec.ir.errors import CompileError
from tilec.support.syntax import every

_MOST_RETURNED = 16


class Statements(Assignments):
    """Traces statements. The kernel's own level (`T.Kernel`, outputs) is left to a subclass.
    `returned_early`: the line of a `return` of the kernel's, under a condition, that was met."""

    returned_early = 0

    def kernel_block(self, node: ast.With) -> None:
        """A `with T.Kernel(…)`."""
        raise NotImplementedError

    def block(self, statements: list[ast.stmt]) -> None:
        for n, s in enumerate(statements):
            self.statement(s)
            run = self._running()
            if run is False:
                return
            if isinstance(run, Scalar):
                rest = statements[n + 1 :]
                if rest:
                    with self.at(s):
                        self._rest(run, rest)
                return

    def _rest(self, run: Scalar, statements: list[ast.stmt]) -> None:
        """Statements that run where `run` holds, behind a `break`, `continue` or `return`."""
        returned = False

        def trace() -> None:
            nonlocal returned
            if not self.frame.loops:
                self.names[RETURN] = True
            self.block(statements)
            returned = self.names.get(RETURN) is False

        self.branch(run, trace)
        if returned and not self.frame.loops:
            self.names[RETURN] = False  # here, or before

    def _running(self) -> object:
        """Whether the rest of this iteration, or of the function, runs (a `break`, `continue` or
        `return` may have ended it)."""
        loops = self.frame.loops
        return self.names.get(loops[-1].run if loops else RETURN, True)

    def statement(self, node: ast.stmt) -> None:
        """Trace one statement. Raises CompileError for what kernels do not have."""
        kept = self.loc
        self.loc = self.frame.loc(node)
        self.left_out.traced += 1
        scope = self.parallel
        try:
            if node in self.left_out.statements:
                raise Unread
            method = self._statements.get(type(node))
            if method is None:
                self.refuse(node)
            method(self, node)
        except RecursionError:
            hint = "give parts of it names of their own, in lines above"
            raise self.error("this nests too deep to be read", hint, node) from None
        except Unread:
            self.parallel = scope
            self.left_out.forget(node, self.names)
        except CompileError as e:
            note_place(e, node)
            raise
        except Exception as e:
            note_line(e, self.loc)
            raise
        finally:
            self.loc = kept

    # --- control ----------------------------------------------------------------------------------

    def _if(self, node: ast.If) -> None:
        cond = self.condition(node.test)
        if not isinstance(cond, Scalar):
            self.block(node.body if cond else node.orelse)
            return
        with self.at(node.test):
            self.branch(cond, lambda: self.block(node.body), lambda: self.block(node.orelse))

    def _with(self, node: ast.With) -> None:
        item = node.items[0]
        call = item.context_expr
        word = self.expression(call.func) if isinstance(call, ast.Call) else None
        if word is T.attr:
            header = self.expression(call)
            assert isinstance(header, AttrHeader)
            kept = self.reducer, self.asynchronous
            self.reducer = header.reducer or self.reducer
            self.asynchronous = header.asynchronous or self.asynchronous
            self.block(node.body)
            self.reducer, self.asynchronous = kept
            return
        if word is T.If:
            self._if(self._written_out(node))
            return
        if word is not T.ws:
            context = self._python_context(word, call)
            if context is None:
                self.kernel_block(node)
            else:
                self._inside_context(context, node)
            return
        if len(node.items) != 1 or item.optional_vars is not None:
            raise self.error("T.ws stands alone in its with, without as", "write with T.ws(0):")
        header = self.expression(call)
        assert isinstance(header, GroupHeader)
        with self.at(call):
            self.branch(group_condition(self, header), lambda: self.block(node.body))

    def _written_out(self, node: ast.With) -> ast.If:
        """`with T.If(cond):` and the `with T.Then():` and `with T.Else():` in it, as an `if`."""
        header, inside = node.items[0], _behind_first(node)
        call = header.context_expr
        branches: dict[object, list[ast.stmt]] = {}
        for s in inside:
            first = s.items[0].context_expr if isinstance(s, ast.With) else None
            word = self.expression(first.func) if isinstance(first, ast.Call) else None
            if word not in (T.Then, T.Else) or word in branches:
                hint = "write with T.Then(): and with T.Else(): in it, each once; or if"
                raise self.error("T.If holds what is neither T.Then nor T.Else", hint, at=s)
            assert isinstance(s, ast.With)
            branches[word] = _behind_first(s)
        assert isinstance(call, ast.Call)
        if len(call.args) != 1 or call.keywords or header.optional_vars is not None:
            raise self.error("T.If has one condition", "write with T.If(i < n):", at=call)
        body = branches.get(T.Then) or [ast.copy_location(ast.Pass(), node)]
        return ast.copy_location(ast.If(call.args[0], body, branches.get(T.Else, [])), node)

    def _python_context(self, word: object, made: ast.expr) -> object | None:
        """The context manager of Python's that a `with` has, if any: of `nullcontext()`, say."""
        own = isinstance(word, types.FunctionType) and word in BUILTINS
        if own or isinstance(word, T.Macro | T.NotYet | Closure):
            return None
        context = self.expression(made)
        return context if hasattr(type(context), "__enter__") else None

    def _inside_context(self, context: Any, node: ast.With) -> None:
        """The body, between the two ends of a context manager, which runs as a function does."""
        ends = [
            ast.Call(as_syntax(getattr(context, name)), [as_syntax(None)] * count, [])
            for name, count in (("__enter__", 0), ("__exit__", 3))
        ]
        enter, leave = (ast.fix_missing_locations(ast.copy_location(e, node)) for e in ends)
        entered = self.expression(enter)
        if node.items[0].optional_vars is not None:
            self.bind(node.items[0].optional_vars, entered)
        self.block(_behind_first(node))
        self.expression(leave)

    def _break(self, node: ast.Break) -> None:
        if not self.frame.loops:
            raise self.error("T.loop_break stands in no loop", "write it in the loop it ends")
        flags = self.frame.loops[-1]
        if flags.builtin in ("Parallel", "vectorized"):
            hint = "use if around what should not run, or T.serial"
            raise self.error(f"break in T.{flags.builtin}, whose iterations have no order", hint)
        flags.breaks = True
        self.names[flags.run] = self.names[flags.live] = False

    def _continue(self, node: ast.Continue) -> None:
        self.names[self.frame.loops[-1].run] = False

    def _return(self, node: ast.Return) -> None:
        """A `return` before the end: what follows runs only where it has not been reached."""
        self._check_leaving(self.frame, "return", node.value is not None)
        if len(self.frames) == 1 and node.value is not None:
            last = self.frame.source.node.body[-1]
            inside = isinstance(last, ast.With) and last.body[-1] is node
            hint = "write it behind the with, not inside" if inside else "return without a value"
            raise self.error("a kernel returns its tensors in its last statement", hint)
        value = None if node.value is None else self.expression(node.value)
        given = value if isinstance(value, tuple) else () if value is None else (value,)
        values = tuple(map(self.read_value, given))
        count = -1 if values and not isinstance(value, tuple) else len(values)
        if self.frame.returned not in (None, count) or len(values) > _MOST_RETURNED:
            hint = f"return the same number of values everywhere, at most {_MOST_RETURNED}"
            raise self.error(f"another return of {self.frame.source.name} gives more or less", hint)
        self.frame.returned = count
        if len(self.frames) == 1 and self.depth:
            self.returned_early = node.lineno
        self.names.update({f"{RETURN}{n}": v for n, v in enumerate(values)})
        self._leave()

    def end_thread(self, node: ast.AST) -> None:
        for frame in self.frames:
            self._check_leaving(frame, "T.thread_return")
        self.names[ENDED] = False
        self._leave()

    def _check_leaving(self, frame: Frame, what: str, value: bool = False) -> None:
        for flags in frame.loops:
            if flags.builtin in ("Parallel", "vectorized"):
                raise self.error(
                    f"{what} in T.{flags.builtin}, whose iterations have no order",
                    "use if around what should not run; T.reduce_max and its like find whether "
                    "some iteration holds",
                )
            if flags.builtin != "for":
                raise self.error(
                    f"{what} in a loop that runs at run time",
                    "keep the result in a variable, break, and return it behind the loop"
                    if value
                    else "set a variable, break, and return behind the loop where it is set",
                )

    def _leave(self) -> None:
        """What follows in this function does not run."""
        self.names[RETURN] = False
        for flags in self.frame.loops:
            self.names[flags.run] = self.names[flags.live] = False

    def _assert(self, node: ast.Assert) -> None:
        cond = self.condition(node.test)
        if isinstance(cond, Scalar):
            cond = decided(self.tests.get(cond.value), self.indices, cond)
        if cond is True:
            return
        said = "" if node.msg is None else self._message(node.msg)
        if isinstance(cond, Scalar):
            message = "the condition of this assert is only known at run time"
            test = ast.unparse(node.test)
            hint = (
                f"assert is for what is known at compile time, T.device_assert({test}) for the rest"
            )
            raise self.error(message, hint, node.test)
        hint = f"this variant of the kernel needs {ast.unparse(node.test)}"
        raise self.error(f"assertion failed: {said or ast.unparse(node.test)}", hint)

    def _raise(self, node: ast.Raise) -> None:
        """A `raise` that tracing comes to: what its author says is wrong with this variant."""
        hint = "check what is known at compile time; at run time, leave out what cannot be done"
        if self.depth:
            raise self.error("raise under a condition that is only known at run time", hint)
        said = "" if node.exc is None else ast.unparse(node.exc)
        if isinstance(node.exc, ast.Call):
            shown = ", ".join(self._message(a) for a in node.exc.args)
            said = f"{ast.unparse(node.exc.func)}: {shown}"
        raise self.error(said or "raise", "this variant of the kernel is refused by its own code")

    def _message(self, node: ast.expr) -> str:
        """What an assert says; its source, where that is only known at run time."""
        try:
            return str(self.expression(node))
        except CompileError:
            return ast.unparse(node)

    def _expression_statement(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):  # a docstring
            return
        value = self.expression(node.value)
        if isinstance(value, KernelHeader):
            raise self.error("T.Kernel stands in a with", "write with T.Kernel(…) as (bx, by):")
        if isinstance(value, GroupHeader):
            raise self.error("T.ws stands in a with", "write with T.ws(0):")
        if isinstance(value, LoopHeader):
            hint = f"write for i in T.{value.builtin}(…):"
            raise self.error(f"{value.builtin} stands in a for", hint)
        if not isinstance(node.value, ast.Call | ast.Subscript) and is_number(value):
            raise self.error("this value is not used", "assign it, or leave it out")
        if isinstance(node.value, ast.Name | ast.Attribute) and callable(value):
            shown = ast.unparse(node.value)
            raise self.error(f"{shown} is not called here", f"write {shown}(…)")

    def _function(self, node: ast.FunctionDef) -> None:
        """A function written in the kernel: its calls are traced."""
        for decorator in node.decorator_list:
            if self.expression(decorator) is not T.macro:
                hint = "write it outside, or leave the decorator out"
                raise self.error("a decorator inside of a kernel", hint, decorator)
        self.names[node.name] = self.make_closure(node)

    # --- bodies -----------------------------------------------------------------------------------

    def run_body(self) -> object:
        value = self._run_body()
        running = self.names.get(ENDED, True)
        if running is not True and len(self.frames) > 1:  # nor does what follows in its caller
            names, loops = self.frames[-2].names, self.frames[-2].loops
            ended = (RETURN, ENDED, *(n for flags in loops for n in (flags.run, flags.live)))
            for name in ended:
                before = names.get(name, True)
                if running is False or before is True:
                    names[name] = running
                elif isinstance(before, Scalar) and isinstance(running, Scalar):
                    names[name] = self.binary("and", before, running)
        return value

    def _run_body(self) -> object:
        body = self.frame.source.node.body
        last = body[-1]
        if _early_returns(self.frame.source.node):
            self.names[RETURN] = True
            if len(self.frames) > 1:
                return self._run_to_return(body)
        if not isinstance(last, ast.Return):
            self.block(body)
            return None
        self.block(body[:-1])
        if last.value is None:
            return None
        with self.at(last):
            return self.expression(last.value)

    def _run_to_return(self, body: list[ast.stmt]) -> object:
        """Trace the body of a function that returns in several places; the value it gives."""
        self.names.update({f"{RETURN}{n}": NOT_RETURNED for n in range(_MOST_RETURNED)})
        self.block(body)
        count, name = self.frame.returned, self.frame.source.name
        if not count:
            return None
        found = [self.names.get(f"{RETURN}{n}") for n in range(abs(count))]
        check_known(found)
        if self.names[RETURN] is not False:
            where = "in some cases only" if isinstance(self.names[RETURN], Scalar) else "nothing"
            raise self.error(f"{name} returns a value {where}", "end it with a return of its own")
        for v in found:
            if isinstance(v, Undefined):
                message = f"which of its values {name} returns is only known at run time"
                hint = "return numbers, or let a condition known at compile time decide"
                raise self.error(message, hint)
        return found[0] if count < 0 else tuple(found)

    _statements: dict[type[ast.stmt], Callable[[Any, Any], None]] = {
        ast.Assign: Assignments.assign, ast.AugAssign: Assignments.augmented,
        ast.AnnAssign: lambda self, node: self.annotated(node), ast.If: _if,
        ast.For: ForLoops.for_loop, ast.While: ForLoops.while_loop, ast.Break: _break,
        ast.Continue: _continue, ast.Return: _return, ast.Assert: _assert, ast.Raise: _raise,
        ast.With: _with, ast.Expr: _expression_statement, ast.Pass: lambda self, node: None,
        ast.FunctionDef: _function,
    }  # fmt: skip


def _behind_first(node: ast.With) -> list[ast.stmt]:
    """What stands inside of the first item of a `with`: the body, in the items behind it."""
    if len(node.items) == 1:
        return node.body
    return [ast.copy_location(ast.With(node.items[1:], node.body), node)]


@functools.lru_cache(maxsize=1024)
def _early_returns(function: ast.FunctionDef) -> bool:
    """Whether a `return` stands anywhere but at the end."""
    last = function.body[-1]
    return any(n is not last for n in every(ast.Return, function))
