"""Elements that the loops inside of a whole loop fold into, as variables that tiles can hold.

    Y[i] = 0                                    y: Y.dtype = 0
    for j in range(N):                          for j in range(N):
        Y[i] += X[i, j]                             y += X[i, j]
                                       ->       Y[i] = y
    for j in range(N):                          part: float32 = 0
        T.atomic_add(S[0], X[i, j])             for j in range(N):
                                                    part += X[i, j]
                                                T.atomic_add(S[0], part)

Such an element is at one place for all of a loop, and the only one of its tensor that the nest
names. Atomic operations promise no order, and their floats below float32 are added up in float32.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from tilec import language as T
from tilec.frontend.whole_loops.nests import (
    Fresh,
    Nest,
    Put,
    elements_of,
    index_of,
    indices_of,
    is_alone,
    tensor_of,
)
from tilec.ir.types import FLOAT32, DType
from tilec.support.syntax import assigned_names, copied, every, headed, name_nodes, names_in, parsed

_ATOMICS: tuple[tuple[object, str], ...] = (
    (T.atomic_add, "sum"), (T.atomic_max, "max"), (T.atomic_min, "min"),
)  # fmt: skip


def neutral_of(word: str, dtype: DType | None, language: str) -> str | None:
    """What changes no fold of a kind, its identity; None where no number is that."""
    if word in ("sum", "prod", "bitor", "bitxor"):
        return "1" if word == "prod" else "0"
    if word == "bitand":
        return None if dtype is None else f"{language}.cast(-1, {dtype.name!r})"
    if dtype is None or (dtype.is_float and dtype.bits < 16):
        return None
    if dtype.is_float:
        return f"{'-' * (word == 'max')}{language}.infinity({dtype.name!r})"
    end = "min" if word == "max" else "max"
    return f"{language}.{end}_value({dtype.name!r})"


def in_variables(nest: Nest, language: str, fresh: Fresh) -> Nest:
    """The nest with variables for the elements that its loops fold into."""
    places = _Places(nest, language, fresh)
    body: list[ast.stmt] = []
    for s in nest.body:
        body += places.of_loop(s) if isinstance(s, ast.For) else [s]
    made = replace(nest, body=tuple(body))
    while (place := _begun(made)) is not None:
        made = _as_variable(made, place, fresh)
    return made


class _Places(ast.NodeTransformer):
    """Gives the folds into elements in one loop variables; what begins and ends these stands in
    `before` and `behind`."""

    def __init__(self, nest: Nest, language: str, fresh: Fresh) -> None:
        self.nest, self.language, self.fresh = nest, language, fresh
        self.before, self.behind = list[ast.stmt](), list[ast.stmt]()
        self.changed = set[str]()
        self.tested = False

    def of_loop(self, loop: ast.For) -> list[ast.stmt]:
        self.before, self.behind, self.tested = [], [], False
        self.changed = assigned_names([loop])
        made = self.visit(copied(loop))
        return [*self.before, made, *self.behind]

    def visit_If(self, node: ast.If) -> ast.AST:
        outer, self.tested = self.tested, True
        made = self.generic_visit(node)
        self.tested = outer
        return made

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        match node.value:
            case ast.Call(func, [ast.Subscript() as place, v], []):
                called = self.nest.named(func)
                word = next((w for a, w in _ATOMICS if called is a), None)
                if word is not None and self._is_one(place):
                    return self._folded(node, place, word, v, ast.unparse(func))
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if isinstance(node.op, ast.Add) and isinstance(node.target, ast.Subscript):
            if self._is_one(node.target) and _is_each_ones(node.target, self.nest):
                return self._folded(node, node.target, "sum", node.value, "")
        return node

    def _is_one(self, place: ast.Subscript) -> bool:
        """Whether it is an element that a loop does not change, the only one of its tensor."""
        if not isinstance(place.value, ast.Name) or names_in(place) & self.changed:
            return False
        plain = all(isinstance(i, ast.Name | ast.Constant) for i in indices_of(place))
        if self.tested and not plain:
            return False
        return is_alone(self.nest, tensor_of(place))

    def _folded(
        self, s: ast.stmt, place: ast.Subscript, word: str, value: ast.expr, atomic: str
    ) -> ast.stmt:
        """The fold of a variable that a statement becomes."""
        dtype = self.nest.dtype_of(ast.parse(f"{tensor_of(place)}.dtype", mode="eval").body)
        if atomic and dtype is not None and dtype.is_float and dtype.bits < 32:
            dtype = FLOAT32
        start = neutral_of(word, dtype, self.language)
        if dtype is None or start is None:
            return s
        name, where = self.fresh("part"), ast.unparse(place)
        self.before += parsed(f"{name}: {dtype.name!r} = {start}", s)
        ends = f"{atomic}({where}, {name})" if atomic else f"{where} = {where} + {name}"
        self.behind += parsed(ends, s)
        text = f"{name} += {ast.unparse(value)}"
        if word != "sum":
            text = f"{name} = {self.language}.{word}({name}, {ast.unparse(value)})"
        return parsed(text, s)[0]


def _is_each_ones(place: ast.Subscript, nest: Nest) -> bool:
    """Whether iterations that differ have different places."""
    plain = {i.id for i in indices_of(place) if isinstance(i, ast.Name)}
    many = (
        name
        for name, extent in zip(nest.indices, nest.extents)
        if not (isinstance(extent, ast.Constant) and extent.value == 1)
    )
    return plain >= {*many}


def _begun(nest: Nest) -> ast.Subscript | None:
    """An element that a statement sets, and a loop behind it changes."""
    for at, s in enumerate(nest.body):
        match s:
            case ast.Assign([ast.Subscript(ast.Name()) as place], value):
                same = [e for e in elements_of(*nest.body) if tensor_of(e) == tensor_of(place)]
                loops = [x for x in nest.body[at + 1 :] if isinstance(x, ast.For)]
                inner = {*map(index_of, every(ast.For, *loops))}
                whole = sum(n.id == tensor_of(place) for n in name_nodes(*nest.body)) == len(same)
                text = ast.unparse(place)
                first = all(tensor_of(e) != tensor_of(place) for e in elements_of(*nest.body[:at]))
                changed = any(
                    isinstance(e.ctx, ast.Store) and ast.unparse(e) == text
                    for e in elements_of(*loops)
                )
                if not (whole and first and changed and _is_each_ones(place, nest)):
                    continue
                if tensor_of(place) in names_in(value) or names_in(place) & inner:
                    continue
                if all(ast.unparse(e) == text for e in same):
                    return place
    return None


def _as_variable(nest: Nest, place: ast.Subscript, fresh: Fresh) -> Nest:
    """The nest with a variable for an element, which gets it at the end."""
    name, text = fresh(tensor_of(place).lower()), ast.unparse(place)
    renamed = Put({text: name})
    body: list[ast.stmt] = []
    for s in nest.body:
        made = renamed.visit(copied(s))
        if isinstance(s, ast.Assign) and s.targets[0] is place:  # the first, which loads nothing
            made = parsed(f"{name}: {tensor_of(place)}.dtype = {ast.unparse(s.value)}", s)[0]
        body.append(made)
    return replace(nest, body=(*body, *parsed(f"{text} = {name}", nest.body[-1])))


def as_folds(nest: Nest, fresh: Fresh) -> Nest | None:
    """A body of atomic operations on elements that some of the iterations' indices name, all of
    them alike, as loops along the others: `for i, j in T.Parallel(M, N): T.atomic_add(S[i], …)`;
    None for any other."""
    kept: list[set[str]] = []

    def read(s: ast.stmt) -> bool:
        match s:
            case ast.If(_, body, orelse):
                return all(map(read, [*body, *orelse]))
            case ast.Assign([ast.Name()], _) | ast.Pass():
                return True
            case ast.Expr(ast.Call(func, [ast.Subscript() as place, _], [])):
                called = nest.named(func)
                plain = all(isinstance(i, ast.Name | ast.Constant) for i in indices_of(place))
                kept.append({*nest.indices} & names_in(place.slice))
                return plain and any(called is a for a, _ in _ATOMICS)
        return False

    if not all(map(read, nest.body)) or not kept or any(names != kept[0] for names in kept):
        return None
    pairs = list(zip(nest.indices, nest.extents))
    inner = [(name, extent) for name, extent in pairs if name not in kept[0]]
    outer = [(name, extent) for name, extent in pairs if name in kept[0]]
    if not inner:
        return None
    body = [copied(s) for s in nest.body]
    for name, extent in reversed(inner):
        body = [headed(f"for {name} in range({ast.unparse(extent)}):", body, nest.body[0])]
    outer = outer or [(fresh("zero"), ast.Constant(1))]
    indices, extents = (tuple(x) for x in zip(*outer))
    return replace(nest, indices=indices, extents=extents, body=tuple(body))
