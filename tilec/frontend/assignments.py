"""Assignments: to a name, to an element, to several of them, and what changes in place."""

from __future__ import annotations

import ast
import contextlib
import functools
import operator
import types
from typing import Any

from tilec import language as T
from tilec.frontend.body import names_of_list
from tilec.frontend.builtins.reducers import KINDS, combines
from tilec.frontend.builtins.table import BUILTINS
from tilec.frontend.builtins.tile import new_variable
from tilec.frontend.for_loops import ForLoops
from tilec.frontend.lanes import elements_of, lanewise
from tilec.frontend.operators import BINARY, CONTAINERS
from tilec.frontend.plain_python import at_run_time, is_object
from tilec.frontend.values import (
    Buffer,
    EmptyTensor,
    KernelHeader,
    Lanes,
    LoopHeader,
    Method,
    Number,
    Region,
    Scalar,
    describe,
    is_new_variable,
)
from tilec.ir.errors import CompileError
from tilec.ir.types import DType, find_dtype


class Assignments(ForLoops):
    """Traces assignments. What makes an output is left to a subclass."""

    def declare_output(self, name: str, empty: EmptyTensor) -> Buffer:
        """The tensor that `name = T.empty(…)` makes."""
        raise NotImplementedError

    def is_above_grid(self) -> bool:
        """Whether it is traced what the grid may follow from."""
        raise NotImplementedError

    def annotated(self, node: ast.AnnAssign) -> None:
        """`x: T.float32 = 1`, a variable of that dtype, or, above T.Kernel, where nothing runs, a
        name for the number; `n: int = 1`, a name for what is known."""
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
        if init is not None and self.is_above_grid():
            self.names[node.target.id] = self.convert(init, dtype)
            return
        variable = new_variable(self, dtype, init)
        variable.value.name = node.target.id
        self.names[node.target.id] = variable

    def assign(self, node: ast.Assign) -> None:
        if self.parallel is not None and self._contributes(node):
            return
        value = self.expression(node.value)
        unpacked = len(node.targets) == 1 and isinstance(node.targets[0], ast.Tuple | ast.List)
        if unpacked and isinstance(value, tuple | list):  # read before anything is assigned
            value = tuple(map(self.read_value, value))
        if value is None and isinstance(node.value, ast.Call):
            self._check_value(node.value)
        for target in node.targets:
            self._assign_to(target, value, node.value)

    def _contributes(self, node: ast.Assign) -> bool:
        """Whether it is `acc[i] = acc[i] + x`, or another such fold, of a reducer in T.Parallel, or
        of a fragment that takes what its iterations give; it is done then."""
        target = node.targets[0]
        if not isinstance(target, ast.Subscript) or len(node.targets) > 1:
            return False
        kind, operands = self._combination(node.value)
        values = [a for a in operands if not _are_same(a, target)]
        if len(operands) != 2 or len(values) != 1:
            return False
        if self.parallel is not None:
            self.parallel.updates[self.loc] = node
        if not self.reducers and node not in self.left_out.added_up:
            return False
        element = self.expression(target)
        if not isinstance(element, Region) or not element.is_element:
            return False
        given = functools.partial(self.number_of, values[0], "this value")
        return combines(self, node, target, element, kind, given)

    def _combination(self, node: ast.expr) -> tuple[str, list[ast.expr]]:
        """The kind and the operands of `a + b`, `a | b` or `T.max(a, b)`; no operands otherwise."""
        if isinstance(node, ast.BinOp):
            kind = BINARY.get(type(node.op), "")
            return (kind, [node.left, node.right]) if kind in KINDS.values() else ("", [])
        if isinstance(node, ast.Call):
            word = self.expression(node.func)
            kind = "max" if word is T.max else "min" if word is T.min else ""
            return (kind, node.args) if kind else ("", [])
        return "", []

    def _check_value(self, call: ast.Call) -> None:
        """Refuse a name for what a word of T or a macro gives, which is nothing; None that Python
        computes is a value."""
        word = self.expression(call.func)
        shown = ast.unparse(call.func)
        hint = f"write {ast.unparse(call)} in a line of its own: it changes its operands"
        if isinstance(word, T.Macro):
            hint = f"end {shown} with a return, or call it in a line of its own"
        elif not isinstance(word, Method | types.FunctionType):
            return
        elif isinstance(word, types.FunctionType) and word not in BUILTINS:
            return
        if not self.options.tilelang or word not in (T.view, T.reshape):
            raise self.error(f"{shown} gives no value", hint, at=call)

    def _assign_to(self, target: ast.expr, value: object, place: ast.expr) -> None:
        """Give `value`, which is written at `place`, to a name, an element or several of them."""
        held = None if is_new_variable(value) else self._held_variable(target)
        if held is not None:
            self._store_variable(held, value, place)
            return
        match target:
            case ast.Name():
                self.assign_name(target.id, value, place)
            case ast.Subscript():
                self._store(target, value, place)
            case ast.Attribute():
                self._set_attribute(target, value)
            case ast.Tuple() | ast.List():
                one = "write one name, or a value for each: a, b = x, y"
                for t, v in self.unpacked(target, value, one, "write as many names as values"):
                    self._assign_to(t, v, place)
            case _:
                hint = "assign to a name or an element: x = …, A[i, j] = …"
                raise self.error("this cannot be assigned to in a kernel", hint, target)

    def assign_name(self, name: str, value: object, place: ast.expr) -> None:
        old = self.names.get(name)
        renamed = isinstance(old, Buffer) and old.is_global and value is not old
        if renamed and len(self.frames) == 1 and not self.options.tilelang:
            assert isinstance(old, Buffer)
            dims = ", ".join("ijklmn"[: old.type.rank])
            raise self.error(
                f"this does not write to {describe(old)}: it gives its name to {describe(value)}",
                f"{name}[{dims}] = … writes an element, T.copy(tile, {name}[{dims}]) a tile",
            )
        if name in self.frame.references and isinstance(old, Region):
            self.store(old, self._stored(old.buffer, value, place))
            return
        if isinstance(value, EmptyTensor):
            self.names[name] = self.declare_output(name, value)
            return
        if isinstance(value, list | tuple) and value:
            names = names_of_list(name, len(value))
            outputs = [(n, v) for n, v in zip(names, value) if isinstance(v, EmptyTensor)]
            if len(outputs) == len(value):
                made = [self.declare_output(n, v) for n, v in outputs]
                value = made if isinstance(value, list) else tuple(made)
        if isinstance(value, LoopHeader | KernelHeader):
            loop = isinstance(value, LoopHeader)
            raise self.error(
                f"{describe(value)} cannot be given a name",
                "write it in the for itself" if loop else f"write with T.Kernel(…) as {name}:",
                place,
            )
        if isinstance(value, T.Tensor):
            hint = (
                f'write {name} = T.alloc_shared((m, n), "float16") for a tile, {name} = '
                "T.empty(shape, dtype) above T.Kernel for an output"
            )
            raise self.error("T.Tensor says what a parameter is; it makes no tensor", hint, place)
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
        value = self.read_value(value)
        self.names[name] = value
        if isinstance(value, Buffer | Scalar) and not value.value.name:
            value.value.name = name

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
                hint = "name elements, A[T.Ramp(i, 1, 4)] = …, or a vector of T.alloc_var"
                raise self.error("a vector of numbers cannot be assigned to", hint, place)

    def _store_variable(self, variable: Buffer, value: object, place: ast.expr) -> None:
        if self.parallel is not None and variable not in self.parallel.variables:
            raise self.error(
                f"{variable.name} is changed by every iteration of T.Parallel, in any order",
                "use T.serial, a fragment with an element for each iteration, or write it in the "
                "loop before anything reads it",
            )
        number = self._stored(variable, value, place)
        self.store(self.first_element(variable), number)

    def _stored(self, buffer: Buffer, value: object, place: ast.expr) -> Number:
        """A value, written at `place`, as a number that the buffer can hold."""
        with self.at(place):
            number = self.number(value, "this value")
            if not isinstance(number, Scalar):
                try:
                    self.fitting(number, buffer.dtype)
                except CompileError as e:
                    hint = f"write one that it holds, or give {buffer.name} another dtype"
                    raise self.error(f"{e.message}: it goes to {describe(buffer)}", hint) from None
        return number

    def _container(self, node: ast.Subscript) -> list[object] | dict[Any, object] | None:
        """The list or dict that `node` is an item of, where it may be changed."""
        if isinstance(self._root(node), list | tuple | dict) or is_object(self._root(node)):
            if isinstance(found := self.expression(node.value), list | dict):
                self.check_changeable(found, ast.unparse(node))
                return found
        return None

    def _root(self, node: ast.expr) -> object:
        """What the name at the beginning of an item, or of an attribute, stands for."""
        while isinstance(node, ast.Subscript | ast.Attribute):
            node = node.value
        return self.names.get(node.id) if isinstance(node, ast.Name) else None

    def _set_item(self, items: Any, node: ast.Subscript, value: object) -> None:
        """`items[key] = value` of a list or dict known at compile time."""
        key = self.expression(node.slice)
        if at_run_time(key) and not isinstance(key, Buffer):
            hint = "keep the values in a buffer: T.alloc_local, T.alloc_shared"
            raise self.error(f"an index of this {type(items).__name__} is {describe(key)}", hint)
        try:
            items[key] = self.read_value(value)
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
            setattr(owner, node.attr, self.read_value(value))
        except Exception as e:
            hint = "its class does not allow that: make another object"
            raise self.error(f"{ast.unparse(node)}: {e}", hint, node) from None

    def _held_variable(self, target: ast.expr) -> Buffer | None:
        """The variable of `T.alloc_var` that an item of a list, tuple or dict is, or an attribute
        of an object: it is written, the item stays."""
        found = self._root(target)
        held = isinstance(found, list | tuple | dict) or is_object(found)
        if not held or not isinstance(target, ast.Subscript | ast.Attribute):
            return None
        with contextlib.suppress(CompileError):  # a new key
            item = self.expression(target)
            return item if isinstance(item, Buffer) and item.variable else None
        return None

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
            message = f"{describe(element)} is known at compile time and cannot be assigned to"
            hint = "keep what changes in a buffer: T.alloc_shared, T.alloc_fragment, T.alloc_local"
            raise self.error(message, hint, target)
        if not element.is_element:
            message = f"{describe(element)} cannot be assigned to as a whole"
            hint = "copy a tile with T.copy(src, dst), set it with T.fill(dst, value)"
            raise self.error(message, hint, at=target)
        self.store(element, self._stored(element.buffer, value, place))

    def _changed_lanes(self, kind: str, lanes: Lanes, by: ast.expr) -> Lanes:
        return lanewise(self, lambda x, y: self.binary(kind, x, y), lanes, self.expression(by))

    def augmented(self, node: ast.AugAssign) -> None:
        kind = BINARY.get(type(node.op))
        if kind is None:
            raise self.error("@= is not an operator on tiles", "use T.gemm(A, B, C)")
        if isinstance(node.target, ast.Name):
            load = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
            old = self.expression(load)
            changed: object
            if isinstance(old, CONTAINERS):
                value = self.expression(node.value)
                changed = self.of_containers(kind, old, value)
                if isinstance(old, list | dict | set) and self.is_changeable(old):
                    changed = getattr(operator, f"i{kind}")(old, value)  # by its other names, too
            elif isinstance(old, Lanes):
                changed = self._changed_lanes(kind, old, node.value)
            else:
                before = self.number(old, "this operand", node.target)
                changed = self.binary(kind, before, self.number_of(node.value, "this operand"))
            self.assign_name(node.target.id, changed, node.value)
            return
        element = self.expression(node.target)
        if isinstance(element, Lanes):
            self._store_lanes(element, self._changed_lanes(kind, element, node.value), node.value)
            return
        held = isinstance(element, Buffer) and element.variable  # by a list or an object
        items = None
        if isinstance(node.target, ast.Subscript) and not held:
            items = self._container(node.target)
        kept = items is not None or isinstance(node.target, ast.Attribute)
        if not isinstance(element, Region) or kept:
            before = self.number(element, "this operand", node.target)
            changed = self.binary(kind, before, self.number_of(node.value, "this operand"))
            self._assign_to(node.target, changed, node.value)
            return
        if not element.is_element:
            message = f"{describe(element)} cannot be changed in place"
            raise self.error(message, "index one element", at=node.target)
        now = self.number_of(node.value, "this operand")
        if not combines(self, node, node.target, element, kind, lambda: now):
            self.store(element, self.binary(kind, self.load(element), now))


def _is_fresh(value: object) -> bool:
    """Whether it is a vector of variables that has no name yet."""
    if not isinstance(value, Lanes) or not value.variable:
        return False
    return not any(isinstance(x, Buffer) and x.value.name for x in value.items)


def _are_same(one: ast.expr, element: ast.Subscript) -> bool:
    """Whether an expression, however deep, is this element."""
    return isinstance(one, ast.Subscript) and ast.unparse(one) == ast.unparse(element)
