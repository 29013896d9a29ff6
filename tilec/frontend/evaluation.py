"""What stands in a kernel's header as text, and in front of the annotations in its body, read with
the evaluator of kernel bodies; sizes stay names."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tilec import language as T
from tilec.frontend.calls import Calls
from tilec.frontend.context import Frame
from tilec.frontend.source import Source
from tilec.frontend.values import Scalar, Undefined
from tilec.ir.errors import CompileError
from tilec.support.syntax import names_in


class Evaluation(Calls):
    """Evaluates outside of a kernel, or, given the names of `parameters`, in its body; `constants`
    are the values of some."""

    def __init__(
        self, source: Source, parameters: Iterable[str] = (), constants: Mapping[str, Any] = {}
    ) -> None:
        super().__init__(Frame(source))
        nothing = Undefined("it is a parameter, whose value comes with the call")
        self.names.update({name: constants.get(name, nothing) for name in parameters})

    def size_value(self, size: T.Size) -> int | Scalar | T.Size:
        return size

    def assign(self, s: ast.Assign) -> None:
        """Names that annotations below may use; one that needs run-time values stays unknown."""
        try:
            value = self.expression(s.value)
            for target in s.targets:
                self.bind(target, value)
        except CompileError:
            for name in names_in(*s.targets):
                self.names[name] = Undefined("it is not known before the call")

    def decided(self, test: ast.expr) -> bool | None:
        """Whether a condition holds, None where that is not known before the call."""
        try:
            found = self.condition(test)
        except CompileError:
            return None
        return found if isinstance(found, bool) else None

    def each(self, loop: ast.For) -> Iterator[object]:
        """The items of a loop of which they are known, each when its name stands for it; of another
        loop one that is not."""
        try:
            found = self.expression(loop.iter)
        except CompileError:
            found = None
        items = found if isinstance(found, range | tuple | list) else [Undefined("it counts")]
        for item in items:
            self.bind(loop.target, item)
            yield item

    def lacks_values(self, node: ast.expr) -> bool:
        """Whether `node` names something that has no value yet."""
        return any(isinstance(self.names.get(name), Undefined) for name in names_in(node))

    def extents_of(self, name: str, node: ast.expr) -> object:
        """Extents as they are written; those that the call alone knows are sizes of their own."""
        if not isinstance(node, ast.Tuple | ast.List):
            if not self.lacks_values(node):
                return self.expression(node)
            return (T.dynamic(f"{name}__0"),)
        return tuple(
            T.dynamic(f"{name}__{d}") if self.lacks_values(e) else self.expression(e)
            for d, e in enumerate(node.elts)
        )

    def annotation_at(self, place: ast.expr, tree: ast.expr) -> object:
        """What an annotation written at `place` as `tree` means."""
        if isinstance(tree, ast.Name) and tree.id in ("int", "float", "bool"):
            return {"int": int, "float": float, "bool": bool}[tree.id]
        with self.at(place):
            return self.expression(tree)
