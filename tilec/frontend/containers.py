"""Lists, tuples, dicts, sets and text known at compile time: displays, comprehensions, f-strings,
items."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tilec.frontend.arithmetic import known_as_int
from tilec.frontend.operators import Operators
from tilec.frontend.plain_python import at_run_time
from tilec.frontend.values import (
    MOST_CHOSEN,
    Buffer,
    LoopHeader,
    Number,
    Region,
    Scalar,
    describe,
    is_number,
    kept,
)

Container = TypeVar("Container", bound=Any)


class Containers(Operators):
    """Makes and reads Python's containers; `bind` of names is left to a subclass."""

    def bind(self, target: ast.expr, value: object) -> None:
        """Give `value` to the name or tuple of names `target`."""
        raise NotImplementedError

    def _made(self, container: Container) -> Container:
        """A container that code of the current block may change."""
        self.made[id(container)] = container, self.builder
        return container

    def elements(self, nodes: Iterable[ast.expr]) -> Iterable[object]:
        """The values of `nodes`; `*sequence` gives its elements."""
        for n in nodes:
            if isinstance(n, ast.Starred):
                yield from self.sequence(n.value)
            else:
                yield self.expression(n)

    def unpacked(
        self, target: ast.Tuple | ast.List, value: object, one: str, many: str
    ) -> list[tuple[ast.expr, object]]:
        """The names of `target` with the values they get; `*name` gets a list of the rest. `one` is
        what to do about a value that is no sequence, `many` about one of another length."""
        if not isinstance(value, tuple | list):
            raise self.error(f"{describe(value)} cannot be unpacked", one, target)
        names, given = target.elts, list(value)
        starred = [n for n, t in enumerate(names) if isinstance(t, ast.Starred)]
        if len(given) < len(names) - 1 if starred else len(given) != len(names):
            least = "at least " * bool(starred)
            shown = f"{len(given)} value{'s' * (len(given) != 1)}"
            raise self.error(f"{shown} for {least}{len(names) - len(starred)} names", many, target)
        found = [t.value if isinstance(t, ast.Starred) else t for t in names]
        if starred:
            at, behind = starred[0], len(given) - (len(names) - 1 - starred[0])
            given[at:behind] = [self._made(given[at:behind])]
        return list(zip(found, given))

    def sequence(self, node: ast.expr) -> Sequence[object]:
        """The value of `node`, which must be a tuple, list or range known at compile time."""
        value = self.expression(node)
        if isinstance(value, tuple | list | range):
            return value
        hint = "* takes apart what is a tuple or list at compile time"
        raise self.error(f"{describe(value)} is not a tuple or list", hint, node)

    def dict_display(self, node: ast.Dict) -> dict[Any, object]:
        made: dict[Any, object] = {}
        for key, value in zip(node.keys, node.values):
            if key is None:
                other = self.expression(value)
                if not isinstance(other, dict):
                    hint = "** takes apart what is a dict at compile time"
                    raise self.error(f"{describe(other)} is not a dict", hint, value)
                made |= other
            else:
                made[self._key(key)] = self.expression(value)
        return self._made(made)

    def _key(self, node: ast.expr) -> Any:
        """A key of a dict, which must be known at compile time."""
        key = self.expression(node)
        if isinstance(key, Scalar | Region | list | dict | set):
            hint = "use an int, a string, a tuple or a buffer"
            raise self.error(f"{describe(key)} cannot be a key", hint, node)
        return key

    def set_display(self, node: ast.Set) -> set[object]:
        starred = (n for n in node.elts if isinstance(n, ast.Starred))
        plain = (n for n in node.elts if not isinstance(n, ast.Starred))
        return self._made({*map(self._key, plain), *self.elements(starred)})

    def comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> list[object]:
        return self._made(self._items(lambda: self.expression(node.elt), node.generators))

    def set_comprehension(self, node: ast.SetComp) -> set[object]:
        return self._made(set(self._items(lambda: self._key(node.elt), node.generators)))

    def dict_comprehension(self, node: ast.DictComp) -> dict[Any, object]:
        def item() -> object:
            return self._key(node.key), self.expression(node.value)

        return self._made(dict(self._items(item, node.generators)))  # type: ignore[arg-type]

    def _items(
        self, item: Callable[[], object], generators: list[ast.comprehension]
    ) -> list[object]:
        # As in Python, a function of its own: functions that it calls do not see its variables.
        self.frames.append(replace(self.frame, names=dict(self.names), loops=[]))
        try:
            return self._generated(item, generators)
        finally:
            self.frames.pop()

    def _generated(
        self, item: Callable[[], object], generators: list[ast.comprehension]
    ) -> list[object]:
        if not generators:
            return [item()]
        first, rest = generators[0], generators[1:]
        made: list[object] = []
        for value in self.compile_time_items(first.iter):
            self.bind(first.target, value)
            for test in first.ifs:
                cond = self.condition(test)
                if isinstance(cond, Scalar):
                    message = "a comprehension cannot choose its elements at run time"
                    raise self.error(message, "use a for loop with an if", test)
                if not cond:
                    break
            else:
                made += self._generated(item, rest)
        return made

    def f_string(self, node: ast.JoinedStr) -> str:
        """An f-string of what is known at compile time."""
        text = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += str(part.value)
                continue
            assert isinstance(part, ast.FormattedValue)
            value = self.expression(part.value)
            if at_run_time(value):
                message = f"an f-string of {describe(value)}, which is only known at run time"
                hint = 'text of run-time values is for T.print: T.print(f"… {x}")'
                raise self.error(message, hint, part.value)
            convert: dict[int, Callable[[object], str]] = {115: str, 114: repr, 97: ascii}
            value = convert[part.conversion](value) if part.conversion in convert else value
            spec = part.format_spec
            try:
                text += format(
                    value, self.f_string(spec) if isinstance(spec, ast.JoinedStr) else ""
                )
            except (TypeError, ValueError) as e:
                raise self.error(f"{describe(value)}: {e}", "mend the format", part) from None
        return text

    def compile_time_items(self, node: ast.expr) -> Iterable[object]:
        """What a compile-time loop runs over."""
        value = self.expression(node)
        if isinstance(value, tuple | list | range | dict | set | frozenset | str):
            return list(value)
        shown = "a run-time range" if isinstance(value, LoopHeader) else describe(value)
        hint = "use a for loop; comprehensions run over tuples, lists and range(compile-time int)"
        raise self.error(f"a comprehension over {shown}", hint, at=node)

    def _item_at(self, items: Sequence[Number], index: Number, first: int = 0) -> Number:
        """One of the items, which are numbered from `first`, by an index of run time; beyond them
        the nearest."""
        if len(items) == 1:
            return items[0]
        middle = len(items) // 2
        below = self.truth(self.compare("lt", index, first + middle))
        assert isinstance(below, Scalar)
        halves = self._item_at(items[:middle], index, first), items[middle:]
        return self.select(below, halves[0], self._item_at(halves[1], index, first + middle))

    def container_item(self, owner: Any, key_node: ast.expr) -> object:
        if isinstance(key_node, ast.Slice):
            bounds = [
                None if n is None else known_as_int(self.expression(n))
                for n in (key_node.lower, key_node.upper, key_node.step)
            ]
            if isinstance(owner, dict) or any(isinstance(b, Scalar) for b in bounds):
                self.write_out(key_node)
                message = f"this slice of {describe(owner)} is not known at compile time"
                raise self.error(message, "slice a list or tuple, with compile-time ints")
            return owner[slice(*bounds)]
        key = known_as_int(self.expression(key_node))
        if isinstance(key, Scalar | Region) or (isinstance(key, Buffer) and key.variable):
            self.write_out(key_node)
            if isinstance(owner, tuple | list) and 0 < len(owner) <= MOST_CHOSEN:
                if all(is_number(v) or (isinstance(v, Region) and v.is_element) for v in owner):
                    numbers = [self.number(v, "this item") for v in owner]
                    return self._item_at(numbers, self.number(key, "this index"))
            raise self.error(
                f"{describe(owner)} is known at compile time, the index only at run time",
                "loop over it (for x in the_list) or with T.unroll(4), whose index is known, or "
                f"keep the values in a buffer; of up to {MOST_CHOSEN} numbers one can be chosen",
            )
        try:
            return kept(owner[key], f"item_{key}")
        except (IndexError, KeyError, TypeError) as e:
            if isinstance(owner, dict):
                hint = f"its keys are {', '.join(map(str, list(owner)[:8]))}"
            else:
                hint = f"its items are 0 to {len(owner) - 1}"
            shown = f": {e}" if isinstance(e, TypeError) else ""
            raise self.error(f"{describe(owner)} has no item {key!r}{shown}", hint) from None
