"""The syntax tree of a kernel, changed into one that Python runs on the words of `meaning`.

`with T.Kernel(…)` becomes a loop over blocks, and so does a body that asks for T.program_id. A
subscript given to a word on tiles becomes a region. T.Parallel becomes one of two loops of `Words`:
done at once, with arrays for its indices and masks for its branches, where that can be, else
iteration by iteration. Statements of thread-level code are done for all threads at once.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping

from tilec.fuzz.buffers import Invalid
from tilec.ir.types import find_dtype

TILE_WORDS = ("copy", "fill", "clear", "gemm")
THREAD_WORDS = ("get_thread_binding", "thread_binding", "alloc_local")
AXES = ("program_id", "get_block_binding", "num_programs")


def changed(function: ast.FunctionDef) -> ast.FunctionDef:
    """A kernel or a macro as Python runs it, a copy; see the module's opening."""
    function = copy.deepcopy(function)
    function.decorator_list = []
    function.args.defaults, function.args.kw_defaults = [], []
    for a in (*function.args.args, *function.args.kwonlyargs):
        a.annotation = None
    function.body = [s for s in function.body if not _of_sizes(s)]
    if not any(isinstance(s, ast.With) for s in function.body) and _calls(function, *AXES):
        outside = [s for s in function.body if isinstance(s, ast.Return) or _calls(s, "empty")]
        body = [s for s in function.body if s not in outside]
        grid = ast.For(ast.Name("_", ast.Store()), _call("Kernel"), body, [])
        ends = [s for s in outside if isinstance(s, ast.Return)]
        function.body = [*(s for s in outside if s not in ends), grid, *ends]
    made = _Changed().visit(_Threads().visit(copy.deepcopy(function)))
    assert isinstance(made, ast.FunctionDef)
    return made


def shapes_within(function: ast.FunctionDef) -> Mapping[str, ast.Call]:
    """`A: T.Tensor(…)` of a body, by name."""
    return {
        s.target.id: s.annotation
        for s in function.body
        if isinstance(s, ast.AnnAssign)
        and isinstance(s.target, ast.Name)
        and isinstance(s.annotation, ast.Call)
    }


def returned_names(function: ast.FunctionDef) -> tuple[str, ...]:
    """The names in the `return` at a kernel's end."""
    last = function.body[-1]
    return tuple(
        n.id for n in ast.walk(last) if isinstance(last, ast.Return) and isinstance(n, ast.Name)
    )


def _of_sizes(node: ast.stmt) -> bool:
    """`M, N = T.const("M, N")` or `A: T.Tensor(…)`: known before the body runs."""
    const = isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    return isinstance(node, ast.AnnAssign) or (const and _is(node.value, "const"))  # type: ignore


class _Threads(ast.NodeTransformer):
    """Statements that name a thread's index or its own array, put under `with T.each_thread():`."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.AST]:
        if _calls(node.value, *THREAD_WORDS):
            self.names |= {t.id for t in node.targets if isinstance(t, ast.Name)}
            return node
        if not self._names_one(node):
            return node
        if not isinstance(node.targets[0], ast.Subscript):
            self.names |= {n.id for n in ast.walk(node.targets[0]) if isinstance(n, ast.Name)}
            return self._wrapped(node)
        # all have read before one writes
        held = ast.Assign([ast.Name("_value", ast.Store())], node.value)
        node.value = ast.Name("_value", ast.Load())
        self.names.add("_value")
        return [self._wrapped(s) for s in (held, node)]

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        return self._wrapped(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return self._wrapped(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        return self._wrapped(node) if self._names_one(node.test) else self.generic_visit(node)

    def _names_one(self, node: ast.AST) -> bool:
        return any(isinstance(n, ast.Name) and n.id in self.names for n in ast.walk(node))

    def _wrapped(self, node: ast.stmt) -> ast.AST:
        if not self._names_one(node):
            return node
        if isinstance(node, ast.If) and any(_plain(n) for n in ast.walk(node)):
            raise Invalid("a variable that only some threads change")
        masked = _Masked().visit(node)
        body = masked if isinstance(masked, list) else [masked]
        return ast.With([ast.withitem(_call("each_thread"))], body)


class _Changed(ast.NodeTransformer):
    """Everything else of the module's opening."""

    def visit_With(self, node: ast.With) -> ast.AST:
        self.generic_visit(node)
        (item,) = node.items
        if isinstance(item.context_expr, ast.Call) and _is(
            item.context_expr, "when", "each_thread"
        ):
            return node
        target = item.optional_vars or ast.Name("_", ast.Store())
        return ast.For(target, item.context_expr, node.body, [])

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        condition = ast.Lambda(ast.arguments([], [], None, [], [], None, []), node.test)
        # the condition reads the variables of the function, which a lambda in it sees
        return ast.For(ast.Name("_", ast.Store()), _call("turns", condition), node.body, [])

    def visit_For(self, node: ast.For) -> ast.AST:
        match node.iter:
            case ast.Call(func=ast.Attribute(attr="Parallel") as word):
                word.attr = "every" if _at_once(node) else "each"
                if word.attr == "every":
                    _Masked().generic_visit(node)
            case ast.Call(func=ast.Name(id="range")):
                node.iter.func = _word("serial")
        self.generic_visit(node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Call) and _is(node.value, "empty"):
            (target,) = node.targets
            assert isinstance(target, ast.Name)
            node.value.args.insert(0, ast.Constant(target.id))
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        return _call("both" if isinstance(node.op, ast.And) else "either", *node.values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return _call("opposite", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        pairs: list[ast.expr] = [
            ast.Compare(a, [op], [b]) for a, op, b in zip(sides, node.ops, sides[1:])
        ]
        return pairs[0] if len(pairs) == 1 else _call("both", *pairs)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if _is(node, *TILE_WORDS):
            node.args = [_as_region(a) for a in node.args]
        if isinstance(node.func, ast.Attribute) and find_dtype(node.func.attr) and node.args:
            return _call("cast", node.args[0], node.func)
        if _is(node, "Persistent"):
            for keyword in node.keywords:
                keyword.arg = "index_" if keyword.arg == "index" else keyword.arg
        return node


class _Masked(ast.NodeTransformer):
    """`if` of all iterations at once."""

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        self.generic_visit(node)
        name = f"_taken{node.lineno}"
        made: list[ast.stmt] = [ast.Assign([ast.Name(name, ast.Store())], node.test)]
        for body, holds in ((node.body, True), (node.orelse, False)):
            if body:
                taken = _call("when", ast.Name(name, ast.Load()), ast.Constant(holds))
                made.append(ast.With([ast.withitem(taken)], body))
        return made

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return _call("if_then_else", node.test, node.body, node.orelse)


def _at_once(loop: ast.For) -> bool:
    """Whether the iterations of a T.Parallel can be done at once: none goes a way of its own but
    by an `if` that changes no variable."""
    own = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    for node in (n for s in loop.body for n in ast.walk(s)):
        match node:
            case ast.While() | ast.Break() | ast.Continue():
                return False
            case ast.For():
                if any(isinstance(n, ast.Name) and n.id in own for n in ast.walk(node.iter)):
                    return False
            case ast.If():
                if any(_plain(n) for n in ast.walk(node)):
                    return False
    return True


def _plain(node: ast.AST) -> bool:
    """Whether a name, no element, is assigned."""
    if not isinstance(node, ast.Assign | ast.AugAssign):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(t, ast.Name) for t in targets)


def _is(node: ast.expr, *words: str) -> bool:
    """Whether one of these words is called."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in words
    )


def _calls(node: ast.AST, *words: str) -> bool:
    """Whether one of these words is called somewhere in it."""
    return any(isinstance(n, ast.expr) and _is(n, *words) for n in ast.walk(node))


def _word(name: str) -> ast.expr:
    return ast.Attribute(ast.Name("T", ast.Load()), name, ast.Load())


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(_word(name), list(arguments), [])


def _as_region(node: ast.expr) -> ast.expr:
    if not isinstance(node, ast.Subscript):
        return node
    entries = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    index = ast.Tuple([_slice_call(e) for e in entries], ast.Load())
    region = ast.Name("_region_of", ast.Load())
    return ast.Call(region, [node.value, index], [])


def _slice_call(node: ast.expr) -> ast.expr:
    if not isinstance(node, ast.Slice):
        return node
    ends: list[ast.expr] = [e or ast.Constant(None) for e in (node.lower, node.upper)]
    return ast.Call(ast.Name("slice", ast.Load()), ends, [])
