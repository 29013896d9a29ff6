"""Statements: one method per syntax node."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

from tilec import language as T
from tilec.frontend.branches import NOT_RETURNED
from tilec.frontend.builtins_barriers import group_condition
from tilec.frontend.builtins_reducers import contribute, takes
from tilec.frontend.builtins_tile import new_variable
from tilec.frontend.for_loops import ForLoops
from tilec.frontend.guards import decided
from tilec.frontend.lanes import elements_of, lanewise, numbers_of
from tilec.frontend.operators import BINARY, CONTAINERS
from tilec.frontend.plain_python import at_run_time, is_object
from tilec.frontend.values import (
    AttrHeader,
    Buffer,
    EmptyTensor,
    GroupHeader,
    KernelHeader,
    Lanes,
    LoopHeader,
    Number,
    Region,
    Scalar,
    Undefined,
    describe,
    is_number,
)
from tilec.ir.errors import CompileError
from tilec.ir.types import DType, find_dtype

# Statements that kernels do not have: what they are called, and what to write instead.
_REFUSED: dict[type[ast.stmt], tuple[str, str]] = {
    ast.Try: ("try", "a kernel raises no exceptions; use if"),
    ast.TryStar: ("try", "a kernel raises no exceptions; use if"),
    ast.AsyncFunctionDef: ("async def", "write def"),
    ast.ClassDef: ("a class inside a kernel", "write it outside"),
    ast.Import: ("import", "import outside the kernel"),
    ast.ImportFrom: ("import", "import outside the kernel"),
    ast.Global: ("global", "pass values as parameters; results go to tensors"),
    ast.Nonlocal: ("nonlocal", "pass values as parameters; results go to tensors"),
    ast.Delete: ("del", "leave it out: a buffer is free after its last use"),
    ast.AsyncFor: ("async for", "use for"),
    ast.AsyncWith: ("async with", "use with"),
    ast.Match: ("match", "use if and elif"),
}


_RETURN = ".return"  # hidden name: whether no `return` was met; with a number, what one gave
_MOST_RETURNED = 16


class Statements(ForLoops):
    """Traces statements. The kernel's own level (`T.Kernel`, outputs) is left to a subclass."""

    def kernel_block(self, node: ast.With) -> None:
        """A `with T.Kernel(…)`."""
        raise NotImplementedError

    def declare_output(self, name: str, empty: EmptyTensor) -> Buffer:
        """The tensor that `name = T.empty(…)` makes."""
        raise NotImplementedError

    def annotated(self, node: ast.AnnAssign) -> None:
        """`x: T.float32 = 1`, a variable of that dtype; `n: int = 1`, a name for what is known."""
        known = self.expression(node.annotation)
        plain = known in (int, float, bool, str, T.constexpr)
        dtype = find_dtype(known) if isinstance(known, str | DType) else None
        if not isinstance(node.target, ast.Name) or not (plain or dtype):
            raise self.error(
                f"the annotation of {ast.unparse(node.target)} is {describe(known)}",
                "a local name is annotated with a dtype: x: T.float32 = 0; a tensor parameter "
                "where it stands in the def, or at the top of the body",
                node.annotation,
            )
        if dtype is None:
            if node.value is not None:
                self._assign_to(node.target, self.expression(node.value), node.value)
            return
        init = None if node.value is None else self.number_of(node.value, "this value")
        variable = new_variable(self, dtype, init)
        variable.value.name = node.target.id
        self.names[node.target.id] = variable

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
                self.names[_RETURN] = True
            self.block(statements)
            returned = self.names.get(_RETURN) is False

        self.branch(run, trace)
        if returned and not self.frame.loops:
            self.names[_RETURN] = False  # here, or before

    def _running(self) -> object:
        """Whether the rest of this iteration, or of the function, runs (a `break`, `continue` or
        `return` may have ended it)."""
        loops = self.frame.loops
        return self.names.get(loops[-1].run if loops else _RETURN, True)

    def statement(self, node: ast.stmt) -> None:
        """Trace one statement. Raises CompileError for what kernels do not have."""
        kept = self.loc
        self.loc = self.frame.loc(node)
        try:
            method = self._statements.get(type(node))
            if method is None:
                name, hint = _REFUSED.get(type(node), (f"{type(node).__name__} syntax", ""))
                raise self.error(f"{name} is not allowed in a kernel", hint)
            method(self, node)
        except RecursionError:
            hint = "give parts of it names of their own, in lines above"
            raise self.error("this nests too deep to be read", hint, node) from None
        finally:
            self.loc = kept

    # --- assignments ------------------------------------------------------------------------------

    def _assign(self, node: ast.Assign) -> None:
        if self.reducers and self._contributes(node):
            return
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Tuple | ast.List):
            value = self._unpackable(node.value)
        else:
            value = self.expression(node.value)
        if value is None and isinstance(node.value, ast.Call):
            raise self._no_result(node.value)
        for target in node.targets:
            self._assign_to(target, value, node.value)

    def _contributes(self, node: ast.Assign) -> bool:
        """Whether it is `acc[i] = T.max(acc[i], x)` of a reducer in T.Parallel; it is done then."""
        target, call = node.targets[0], node.value
        if self.parallel is None or not isinstance(call, ast.Call) or len(call.args) != 2:
            return False
        word = self.expression(call.func)
        kind = "max" if word is T.max else "min" if word is T.min else ""
        values = [a for a in call.args if ast.unparse(a) != ast.unparse(target)]
        if not kind or len(values) != 1 or not isinstance(target, ast.Subscript):
            return False
        element = self.expression(target)
        if not takes(self, element, kind):
            return False
        assert isinstance(element, Region)
        with self.at(target):
            contribute(self, element, self.number_of(values[0], "this value"))
        return True

    def _no_result(self, call: ast.Call) -> CompileError:
        """What to say of a name for what a call gives, where it gives nothing."""
        shown = ast.unparse(call.func)
        hint = f"write {ast.unparse(call)} in a line of its own: it changes its operands"
        if isinstance(self.expression(call.func), T.Macro):
            hint = f"end {shown} with a return, or call it in a line of its own"
        return self.error(f"{shown} gives no value", hint, at=call)

    def _unpackable(self, node: ast.expr) -> object:
        """The right side of `a, b = …`, read before anything is assigned."""
        value = self.expression(node)
        if not isinstance(value, tuple | list):
            return value
        return tuple(self._read(v) for v in value)

    def _assign_to(self, target: ast.expr, value: object, place: ast.expr) -> None:
        """Give `value`, which is written at `place`, to a name, an element or several of them."""
        match target:
            case ast.Name():
                self._assign_name(target.id, value, place)
            case ast.Subscript():
                self._store(target, value, place)
            case ast.Attribute():
                self._set_attribute(target, value)
            case ast.Tuple() | ast.List():
                starred = [t for t in target.elts if isinstance(t, ast.Starred)]
                if starred:
                    raise self.error(
                        "* in an assignment is not allowed in a kernel",
                        "name each value, or take it by its index: x[0]",
                        starred[0],
                    )
                if not isinstance(value, tuple | list):
                    hint = "write one name, or a value for each: a, b = x, y"
                    raise self.error(f"{describe(value)} cannot be unpacked", hint, target)
                if len(value) != len(target.elts):
                    hint = "write as many names as values"
                    message = f"{len(value)} values for {len(target.elts)} names"
                    raise self.error(message, hint, target)
                for t, v in zip(target.elts, value):
                    self._assign_to(t, v, place)
            case _:
                raise self.error(
                    "this cannot be assigned to in a kernel",
                    "assign to a name or an element: x = …, A[i, j] = …",
                    target,
                )

    def _assign_name(self, name: str, value: object, place: ast.expr) -> None:
        old = self.names.get(name)
        if isinstance(old, Buffer) and old.is_global and value is not old and len(self.frames) == 1:
            dims = ", ".join("ijklmn"[: old.type.rank])
            hint = f"{name}[{dims}] = … writes an element, T.copy(tile, {name}[{dims}]) a tile"
            raise self.error(
                f"this does not write to {describe(old)}: it gives its name to {describe(value)}",
                hint,
            )
        if name in self.frame.references and isinstance(old, Region):
            self.store(old, self._stored(old.buffer, value, place))
            return
        if isinstance(value, EmptyTensor):
            self.names[name] = self.declare_output(name, value)
            return
        if isinstance(value, LoopHeader | KernelHeader):
            loop = isinstance(value, LoopHeader)
            raise self.error(
                f"{describe(value)} cannot be given a name",
                "write it in the for itself" if loop else f"write with T.Kernel(…) as {name}:",
                place,
            )
        if isinstance(value, T.Tensor):
            raise self.error(
                "T.Tensor says what a parameter is; it makes no tensor",
                f'write {name} = T.alloc_shared((m, n), "float16") for a tile, '
                f"{name} = T.empty(shape, dtype) above T.Kernel for an output",
                place,
            )
        fresh = isinstance(value, Buffer) and not value.value.name
        if isinstance(old, Buffer) and old.variable and not fresh:
            self._store_variable(old, value, place)
            return
        if isinstance(old, Lanes) and old.variable and not _is_fresh(value):
            self._store_lanes(old, value, place)
            return
        if isinstance(value, Lanes) and _is_fresh(value):
            for n, x in enumerate(value.items):
                assert isinstance(x, Buffer)
                x.value.name = f"{name}_{n}"
            self.names[name] = value
            return
        value = self._read(value)
        self.names[name] = value
        if isinstance(value, Buffer | Scalar) and not value.value.name:
            value.value.name = name

    def _read(self, value: object) -> object:
        """What `x = value` keeps: an element or a variable is read, anything else stays itself."""
        variable = isinstance(value, Buffer) and value.variable and value.value.name
        if variable or (isinstance(value, Region) and value.is_element):
            return self.number(value, "this value")
        return Lanes(tuple(numbers_of(self, value))) if isinstance(value, Lanes) else value

    def _store_lanes(self, lanes: Lanes, value: object, place: ast.expr) -> None:
        """Write each lane of a vector, all of which are read before."""
        with self.at(place):
            numbers = lanewise(self, lambda x, _: x, value, Lanes((0,) * len(lanes.items)))
        for x, number in zip(lanes.items, numbers.items):
            if isinstance(x, Buffer):
                self._store_variable(x, number, place)
            elif isinstance(x, Region):
                self.store(x, self._stored(x.buffer, number, place))
            else:
                raise self.error(
                    "a vector of numbers cannot be assigned to",
                    "name elements, A[T.Ramp(i, 1, 4)] = …, or a vector of T.alloc_var",
                    place,
                )

    def _store_variable(self, variable: Buffer, value: object, place: ast.expr) -> None:
        if self.parallel is not None and variable not in self.parallel.variables:
            raise self.error(
                f"{variable.name} is changed by every iteration of T.Parallel, in any order",
                "use T.serial, or a fragment with an element for each iteration",
            )
        number = self._stored(variable, value, place)
        self.store(self.whole_element(variable), number)

    def _stored(self, buffer: Buffer, value: object, place: ast.expr) -> Number:
        """A value, written at `place`, as a number that the buffer can hold."""
        with self.at(place):
            number = self.number(value, "this value")
            if not isinstance(number, Scalar):
                try:
                    self.constant(number, buffer.type.dtype)
                except CompileError as e:
                    hint = f"write one that it holds, or give {buffer.name} another dtype"
                    raise self.error(f"{e.message}: it goes to {describe(buffer)}", hint) from None
        return number

    def _container(self, node: ast.Subscript) -> list[object] | dict[Any, object] | None:
        """The list or dict that `node` is an item of, where it may be changed."""
        if isinstance(node.value, ast.Name) and isinstance(
            found := self.names.get(node.value.id), list | dict
        ):
            self.check_changeable(found, ast.unparse(node))
            return found
        return None

    def _set_item(self, items: Any, node: ast.Subscript, value: object) -> None:
        """`items[key] = value` of a list or dict known at compile time."""
        key = self.expression(node.slice)
        if at_run_time(key) and not isinstance(key, Buffer):
            hint = "keep the values in a buffer: T.alloc_local, T.alloc_shared"
            raise self.error(f"an index of this {type(items).__name__} is {describe(key)}", hint)
        try:
            items[key] = self._read(value)
        except (IndexError, TypeError) as e:
            hint = f"its items are 0 to {len(items) - 1}" if isinstance(items, list) else ""
            raise self.error(f"{ast.unparse(node)}: {e}", hint, node) from None

    def _set_attribute(self, node: ast.Attribute, value: object) -> None:
        """`state.x = value` of an object made in this block."""
        owner = self.expression(node.value)
        if not is_object(owner):
            hint = "assign to a name or an element: x = …, A[i, j] = …"
            raise self.error("this cannot be assigned to in a kernel", hint, node)
        self.check_changeable(owner, ast.unparse(node))
        try:
            setattr(owner, node.attr, self._read(value))
        except Exception as e:
            hint = "its class does not allow that: make another object"
            raise self.error(f"{ast.unparse(node)}: {e}", hint, node) from None

    def _store(self, target: ast.Subscript, value: object, place: ast.expr) -> None:
        items = self._container(target)
        if items is not None:
            self._set_item(items, target, value)
            return
        element = self.expression(target)
        if isinstance(element, Region) and not element.is_element and isinstance(value, Lanes):
            with self.at(target):
                element = Lanes(tuple(elements_of(self, element, len(value.items))))
        if isinstance(element, Lanes):
            self._store_lanes(element, value, place)
            return
        if not isinstance(element, Region):
            raise self.error(
                f"{describe(element)} is known at compile time and cannot be assigned to",
                "keep what changes in a buffer: T.alloc_shared, T.alloc_fragment, T.alloc_local",
                target,
            )
        if not element.is_element:
            raise self.error(
                f"{describe(element)} cannot be assigned to as a whole",
                "copy a tile with T.copy(src, dst), set it with T.fill(dst, value)",
                at=target,
            )
        self.store(element, self._stored(element.buffer, value, place))

    def _changed_lanes(self, kind: str, lanes: Lanes, by: ast.expr) -> Lanes:
        return lanewise(self, lambda x, y: self.binary(kind, x, y), lanes, self.expression(by))

    def _augmented(self, node: ast.AugAssign) -> None:
        kind = BINARY.get(type(node.op))
        if kind is None:
            raise self.error("@= is not an operator on tiles", "use T.gemm(A, B, C)")
        if isinstance(node.target, ast.Name):
            load = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
            old = self.expression(load)
            changed: object
            if isinstance(old, CONTAINERS):
                changed = self.of_containers(kind, old, self.expression(node.value))
            elif isinstance(old, Lanes):
                changed = self._changed_lanes(kind, old, node.value)
            else:
                with self.at(node.target):
                    before = self.number(old, "this operand")
                changed = self.binary(kind, before, self.number_of(node.value, "this operand"))
            self._assign_name(node.target.id, changed, node.value)
            return
        element = self.expression(node.target)
        if isinstance(element, Lanes):
            self._store_lanes(element, self._changed_lanes(kind, element, node.value), node.value)
            return
        items = self._container(node.target) if isinstance(node.target, ast.Subscript) else None
        if not isinstance(element, Region) or (items is not None and not element.is_element):
            with self.at(node.target):
                before = self.number(element, "this operand")
            changed = self.binary(kind, before, self.number_of(node.value, "this operand"))
            self._assign_to(node.target, changed, node.value)
            return
        if not element.is_element:
            raise self.error(
                f"{describe(element)} cannot be changed in place",
                "index one element",
                at=node.target,
            )
        now = self.number_of(node.value, "this operand")
        if takes(self, element, kind):
            with self.at(node.target):
                contribute(self, element, now)
            return
        self.store(element, self.binary(kind, self.load(element), now))

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
            kept, self.reducer = self.reducer, header.reducer or self.reducer
            self.block(node.body)
            self.reducer = kept
            return
        if word is not T.ws:
            self.kernel_block(node)
            return
        if len(node.items) != 1 or item.optional_vars is not None:
            raise self.error("T.ws stands alone in its with, without as", "write with T.ws(0):")
        header = self.expression(call)
        assert isinstance(header, GroupHeader)
        with self.at(call):
            self.branch(group_condition(self, header), lambda: self.block(node.body))

    def _break(self, node: ast.Break) -> None:
        flags = self.frame.loops[-1]
        if flags.builtin in ("Parallel", "vectorized"):
            raise self.error(
                f"break in T.{flags.builtin}, whose iterations have no order",
                "use if around what should not run, or T.serial",
            )
        flags.breaks = True
        self.names[flags.run] = self.names[flags.live] = False

    def _continue(self, node: ast.Continue) -> None:
        self.names[self.frame.loops[-1].run] = False

    def _return(self, node: ast.Return) -> None:
        """A `return` before the end: what follows runs only where it has not been reached."""
        for flags in self.frame.loops:
            if flags.builtin != "for":
                raise self.error(
                    "return in a loop that runs at run time",
                    "keep the result in a variable, break, and return it behind the loop",
                )
        if len(self.frames) == 1 and node.value is not None:
            last = self.frame.source.node.body[-1]
            inside = isinstance(last, ast.With) and last.body[-1] is node
            hint = "write it behind the with, not inside" if inside else "return without a value"
            raise self.error("a kernel returns its tensors in its last statement", hint)
        value = None if node.value is None else self.expression(node.value)
        given = value if isinstance(value, tuple) else () if value is None else (value,)
        values = tuple(map(self._read, given))
        count = -1 if values and not isinstance(value, tuple) else len(values)
        if self.frame.returned not in (None, count) or len(values) > _MOST_RETURNED:
            hint = f"return the same number of values everywhere, at most {_MOST_RETURNED}"
            raise self.error(f"another return of {self.frame.source.name} gives more or less", hint)
        self.frame.returned = count
        self.names.update({f"{_RETURN}{n}": v for n, v in enumerate(values)})
        self.names[_RETURN] = False
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
            raise self.error(
                "the condition of this assert is only known at run time",
                "assert checks what is known at compile time; leave out what is not",
                node.test,
            )
        raise self.error(
            f"assertion failed: {said or ast.unparse(node.test)}",
            f"this variant of the kernel needs {ast.unparse(node.test)}",
        )

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
            raise self.error(
                f"{value.builtin} stands in a for", f"write for i in T.{value.builtin}(…):"
            )
        if not isinstance(node.value, ast.Call) and (is_number(value) or isinstance(value, Region)):
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

    def _pass(self, node: ast.Pass) -> None:
        pass

    # --- bodies -----------------------------------------------------------------------------------

    def run_body(self) -> object:
        body = self.frame.source.node.body
        last = body[-1]
        if _early_returns(self.frame.source.node):
            self.names[_RETURN] = True
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
        self.names.update({f"{_RETURN}{n}": NOT_RETURNED for n in range(_MOST_RETURNED)})
        self.block(body)
        count, name = self.frame.returned, self.frame.source.name
        if not count:
            return None
        found = [self.names.get(f"{_RETURN}{n}") for n in range(abs(count))]
        if self.names[_RETURN] is not False:
            where = "in some cases only" if isinstance(self.names[_RETURN], Scalar) else "nothing"
            hint = "end it with a return of its own"
            raise self.error(f"{name} returns a value {where}", hint)
        for v in found:
            if isinstance(v, Undefined):
                raise self.error(
                    f"which of its values {name} returns is only known at run time",
                    "return numbers, or let a condition known at compile time decide",
                )
        return found[0] if count < 0 else tuple(found)

    _statements: dict[type[ast.stmt], Callable[[Any, Any], None]] = {
        ast.Assign: _assign,
        ast.AugAssign: _augmented,
        ast.AnnAssign: lambda self, node: self.annotated(node),
        ast.If: _if,
        ast.For: ForLoops.for_loop,
        ast.While: ForLoops.while_loop,
        ast.Break: _break,
        ast.Continue: _continue,
        ast.Return: _return,
        ast.Assert: _assert,
        ast.Raise: _raise,
        ast.With: _with,
        ast.Expr: _expression_statement,
        ast.Pass: _pass,
        ast.FunctionDef: _function,
    }


@functools.lru_cache(maxsize=1024)
def _early_returns(function: ast.FunctionDef) -> bool:
    """Whether a `return` stands anywhere but at the end."""
    last = function.body[-1]
    return any(isinstance(n, ast.Return) and n is not last for n in ast.walk(function))


def _is_fresh(value: object) -> bool:
    """Whether it is a vector of variables that has no name yet."""
    if not isinstance(value, Lanes) or not value.variable:
        return False
    return not any(isinstance(x, Buffer) and x.value.name for x in value.items)
