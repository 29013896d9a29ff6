"""What a loop over whole tensors is."""

from __future__ import annotations

import ast
import copy
import functools
import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tilec import language as T
from tilec.frontend.values import Indices, LoopIndex, as_syntax
from tilec.frontend.whole_loops.counting import COUNTING, counted_from
from tilec.ir.types import FLOAT32, INT32, DType
from tilec.support.syntax import (
    assigned_names,
    copied,
    every,
    name_nodes,
    names_in,
    placed,
    stored_names,
)

Named = Callable[[ast.expr], object]
DtypeOf = Callable[[ast.expr], DType | None]
Decided = Callable[[ast.expr], bool | None]
Fresh = Callable[[str], str]
Tells = Literal["loops", "columns", "rows", "tiles", "few"]

MOST_COPIES = 128
"""Statements of loops that are written out, at most."""

_COUNTS = (T.ceildiv, T.cdiv, T.floordiv, T.max, T.min, max, min, abs)
_TENSORS = (T.Tensor, T.StridedTensor, T.make_tensor, T.empty, T.alloc_global)
_PREAMBLE = (*_TENSORS, T.const, T.ceildiv, T.max, T.min, T.assume)


@dataclass(frozen=True)
class Nest:
    """Perfectly nested T.Parallel loops: indices, extents, the innermost body. And what is known of
    syntax in it: what is `named`, what a dtype as it is written means, whether a condition is
    `decided` before the kernel runs, about how large an extent is (0: larger than all known
    lengths) and what divides it, what it is if that is `known`, and what it does not exceed (its
    `limit`, 0 where nobody knows). `lanes` may share an iteration, `together` blocks run at once;
    indices have the dtype `index`."""

    indices: tuple[str, ...]
    extents: tuple[ast.expr, ...]
    body: tuple[ast.stmt, ...]
    named: Named
    dtype_of: DtypeOf = lambda written: FLOAT32
    decided: Decided = lambda test: None
    about: Callable[[ast.expr], tuple[int, int]] = lambda extent: (0, 1)
    known: Callable[[ast.expr], int | None] = lambda extent: None
    limit: Callable[[ast.expr], int] = lambda extent: 0
    lanes: int = 1
    together: int = 0
    index: DType = INT32

    def length(self, extent: ast.expr) -> int:
        """About how large an extent is."""
        return self.about(extent)[0]


# --- what a loop is -------------------------------------------------------------------------------


def nest_of(node: ast.stmt, named: Named) -> Nest | None:
    """The T.Parallel loops that begin with `node`; None for anything else."""
    if not isinstance(node, ast.For) or node.orelse or not isinstance(node.iter, ast.Call):
        return None
    if named(node.iter.func) is not T.Parallel or node.iter.keywords:
        return None
    targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
    names = tuple(t.id for t in targets if isinstance(t, ast.Name))
    if len(names) != len(targets) or len(names) != len(node.iter.args):
        return None
    inner = nest_of(node.body[0], named) if len(node.body) == 1 else None
    found = Nest(names, tuple(node.iter.args), _without_grids(node.body, named), named)
    if inner is None or names_in(*inner.extents) & {*names}:
        return replace(found, body=_with_places(_with_known_extents(found)))
    return replace(found, indices=names + inner.indices, extents=found.extents + inner.extents,
                   body=inner.body)  # fmt: skip


def _without_grids(body: list[ast.stmt], named: Named) -> tuple[ast.stmt, ...]:
    """A body with loops over T.grid as loops in one another."""

    class Apart(ast.NodeTransformer):
        def visit_For(self, node: ast.For) -> ast.For:
            self.generic_visit(node)
            match node:
                case ast.For(
                    ast.Tuple(names), ast.Call(ast.Attribute(module, "grid") as word, extents, [])
                ) if named(word) is T.grid and len(names) == len(extents):
                    serial = ast.copy_location(ast.Attribute(module, "serial", ast.Load()), word)
                    inside = node.body
                    for target, extent in reversed([*zip(names, extents)]):
                        count = ast.copy_location(ast.Call(serial, [extent], []), node.iter)
                        loop = ast.copy_location(ast.For(target, count, inside, []), node)
                        inside = [loop]
                    return loop
            return node

    loops = (s.iter for s in every(ast.For, *body))
    if not any(isinstance(c, ast.Call) and _word(c, named) is T.grid for c in loops):
        return tuple(body)
    return tuple(Apart().visit(copied(s)) for s in body)


def _with_known_extents(nest: Nest) -> tuple[ast.stmt, ...]:
    """The body with what the extents of its loops stand for in place of names that are numbers, the
    same in all iterations: `n = C // groups`, `for c in range(n)`."""
    own = {*nest.indices, *assigned_names(nest.body)}

    def is_known(value: ast.expr) -> bool:
        counts = all(nest.named(c.func) in _COUNTS for c in every(ast.Call, value))
        return counts and own.isdisjoint(names_in(value)) and not elements_of(ast.Expr(value))

    return with_ends(nest, is_known)


def _with_places(body: tuple[ast.stmt, ...]) -> tuple[ast.stmt, ...]:
    """The body with arithmetic on indices and sizes in place of the names that loops inside give
    it, where elements have these in their places: `ch = g * n + c`, `X[b, ch, t]`."""
    places = {n.id for e in elements_of(*body) for i in indices_of(e) for n in name_nodes(i)}
    given = dict[str, list[list[ast.stmt]]]()  # what follows each assignment in its loop
    for loop in every(ast.For, *body):
        for at, s in enumerate(loop.body):
            match s:
                case ast.Assign([ast.Name(name)], value) if name in places and _is_sum(value):
                    behind = loop.body[at + 1 :]
                    if {name, *names_in(value)}.isdisjoint(stored_names(*behind)):
                        given.setdefault(name, []).append(behind)
    all_read, stored = [n.id for n in name_nodes(*body)], stored_names(*body)
    found = set[str]()
    for name, every_behind in given.items():
        read = sum(n.id == name for behind in every_behind for n in name_nodes(*behind))
        if len(every_behind) == stored.count(name) and read + len(every_behind) == all_read.count(
            name
        ):
            found.add(name)

    class InPlace(ast.NodeTransformer):
        def visit_For(self, node: ast.For) -> ast.For:
            made, same = list[ast.stmt](), dict[str, ast.expr]()
            for s in node.body:
                s = Put(same).visit(s)
                match s:
                    case ast.Assign([ast.Name(name)], value) if name in found:
                        same[name] = value
                    case _:
                        made.append(self.visit(s))
            node.body = made
            return node

    return tuple(InPlace().visit(copy.deepcopy(s)) for s in body) if found else body


def _is_sum(value: ast.expr) -> bool:
    """Whether it is arithmetic on names and ints alone."""
    parts = ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop | ast.Name | ast.expr_context
    return all(
        isinstance(n, parts) or (isinstance(n, ast.Constant) and isinstance(n.value, int))
        for n in ast.walk(value)
    )


def with_ends(nest: Nest, is_known: Callable[[ast.expr], bool]) -> tuple[ast.stmt, ...]:
    """The body with what is known in place of names for it in the extents of its loops."""
    named = any(isinstance(s, ast.Assign) for s in nest.body)
    stored, same = stored_names(*nest.body) if named else [], dict[str, ast.expr]()
    for s in nest.body:
        match s:
            case ast.Assign([ast.Name(name)], value) if stored.count(name) == 1:
                value = Put(same).visit(copied(value))
                if is_known(value):
                    same[name] = value
    ends = (n.iter for n in every(ast.For, *nest.body))
    if not same or not any(names_in(e) & same.keys() for e in ends):
        return nest.body
    made = tuple(map(copied, nest.body))
    for n in every(ast.For, *made):
        n.iter = Put(same).visit(n.iter)
    return made


class Put(ast.NodeTransformer):
    """Puts expressions, or what a text says, in the place of others, by their texts."""

    def __init__(self, given: Mapping[str, ast.expr | str]) -> None:
        self.given, self.kinds = given, {*map(_kind_of, given)}

    def visit(self, node: ast.AST) -> Any:
        found = self.given.get(ast.unparse(node)) if type(node) in self.kinds else None
        if found is None:
            return super().visit(node)
        if isinstance(found, str):
            made = placed(ast.parse(found, mode="eval").body, node)
        else:
            made = ast.copy_location(copied(found), node)
        if isinstance(made, ast.Name | ast.Subscript):
            made.ctx = getattr(node, "ctx", made.ctx)
        return made


@functools.lru_cache(maxsize=1024)
def _kind_of(text: str) -> type[ast.expr]:
    return type(ast.parse(text, mode="eval").body)


def counted(iterated: ast.expr, named: Named) -> ast.expr | None:
    """The extent of a loop that counts from 0 by 1."""
    match iterated:
        case ast.Call(f, [extent] | [ast.Constant(0), extent], []) if named(f) in COUNTING:
            return extent
    return None


def chain_of(loop: ast.For) -> list[ast.For]:
    """Loops with nothing between them."""
    found = [loop]
    while len(found[-1].body) == 1 and isinstance(inner := found[-1].body[0], ast.For):
        found.append(inner)
    return found


def index_of(loop: ast.For) -> str:
    """The name that a loop counts by; "" where it is none."""
    return loop.target.id if isinstance(loop.target, ast.Name) else ""


def counts_of(loops: Sequence[ast.For], named: Named) -> tuple[tuple[str, ast.expr], ...] | None:
    """The indices and the extents of loops that all count from 0 by 1; None for any other."""
    found = []
    for s in loops:
        extent = counted(s.iter, named)
        if extent is None or s.orelse or not index_of(s):
            return None
        found.append((index_of(s), extent))
    return tuple(found)


def declared(nest: Nest) -> dict[str, ast.expr]:
    """The variables of a nest's body that are written with a dtype, with these."""
    return {
        s.target.id: s.annotation
        for s in nest.body
        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
    }


def changed_by(s: ast.stmt) -> tuple[str, ast.operator, ast.expr] | None:
    """The variable that `name op= value`, `name = name op value` or, the other way around,
    `name = value op name` changes, the operator, and the other operand."""
    match s:
        case ast.AugAssign(ast.Name(name), op, value):
            return name, op, value
        case ast.Assign([ast.Name(name)], ast.BinOp(a, op, b)):
            found = other_operand(name, a, b)
            return None if found is None else (name, op, found)
    return None


def other_operand(name: str, a: ast.expr, b: ast.expr) -> ast.expr | None:
    """Of two operands the one that is not the variable; None where neither is."""
    if ast.unparse(a) == name:
        return b
    return a if ast.unparse(b) == name else None


def is_alone(nest: Nest, tensor: str) -> bool:
    """Whether a tensor stands in one place of a nest."""
    return sum(n.id == tensor for n in name_nodes(*nest.body)) == 1


def elements_of(*statements: ast.stmt) -> list[ast.Subscript]:
    return [n for n in every(ast.Subscript, *statements) if isinstance(n.value, ast.Name)]


def indices_of(element: ast.Subscript) -> list[ast.expr]:
    return element.slice.elts if isinstance(element.slice, ast.Tuple) else [element.slice]


def tensor_of(element: ast.Subscript) -> str:
    assert isinstance(element.value, ast.Name)
    return element.value.id


def stored_tensors(*statements: ast.stmt) -> set[str]:
    """The tensors that statements write elements of."""
    return {tensor_of(e) for e in elements_of(*statements) if isinstance(e.ctx, ast.Store)}


def telling(nest: Nest) -> dict[Tells, tuple[ast.expr, ...]]:
    """The extents that the form of a nest follows: those of loops inside, and the iterations'
    where they are in one another; that of the last index, where elements have it last; whether
    there are few iterations; and, of other nests, those of rows that may be shorter than a
    tile."""
    within = [*every(ast.For, *nest.body)]
    iters = [s.iter for s in within]
    inner = [counted(x, nest.named) or (counted_from(x, nest.named) or [None])[0] for x in iters]
    inner += nest.extents * any(s not in nest.body for s in within)
    rows = nest.extents[-1:] if len(nest.extents) < 3 else nest.extents[-2:]
    searched = any(every(ast.While, *nest.body))
    if not searched and all(e is None or isinstance(e, ast.Constant) for e in inner):
        return {"rows": rows}
    elements = every(ast.Subscript, *nest.body)
    last = [n.slice.elts[-1] for n in elements if isinstance(n.slice, ast.Tuple) and n.slice.elts]
    columns = any(isinstance(n, ast.Name) and n.id == nest.indices[-1] for n in last)
    loops = tuple(e for e in inner if e is not None)
    return {"few": nest.extents, "loops": loops, "columns": nest.extents[-1:] if columns else ()}


def unravelled(indices: Sequence[str], extents: Sequence[str], number: str) -> str:
    """Statements that take indices out of their row-major number."""
    made, number = [], f"({number})" if len(indices) > 1 else number
    for k in reversed(range(len(indices))):
        made.append(f"{indices[k]} = {number}" + f" % {extents[k]}" * (k > 0))
        number = f"({number} // {extents[k]})"
    return "; ".join(made) or "pass"


def no_less(extent: ast.expr, language: str) -> ast.expr:
    """An extent that counts none where it is below 0: two of these, multiplied, would count some.
    `language` stands for `tilec.language`."""
    if not any(every(ast.Sub | ast.USub, extent)):
        return extent
    made = ast.parse(f"{language}.max({ast.unparse(extent)}, 0)", mode="eval").body
    return placed(made, extent)


def is_elementwise(nest: Nest, variables: bool = False) -> bool:
    """Whether a body is assignments alone, which T.Parallel takes over tiles; `variables`: or
    makes variables of a dtype, and has loops over numbers that are written down."""
    allocations = (T.alloc_local, T.alloc_var, T.alloc_fragment, T.alloc_shared)
    for n in every(ast.For | ast.While | ast.AnnAssign, *nest.body):
        if not (variables and (isinstance(n, ast.AnnAssign) or _numbers(n) is not None)):
            return False
    return not any(nest.named(c.func) in allocations for c in every(ast.Call, *nest.body))


def written_out(nest: Nest, most: int = MOST_COPIES) -> Nest | None:
    """The nest with loops of few iterations, whose numbers are known, over these numbers as they
    are written down, of `most` statements; None where others are left, or what T.Parallel does not
    take."""
    own = {*nest.indices, *assigned_names(nest.body)}

    class Straight(ast.NodeTransformer):
        def visit_For(self, node: ast.For) -> ast.For:
            self.generic_visit(node)
            match node.iter:
                case ast.Call(func, [_, *_] as args, []) if nest.named(func) in COUNTING:
                    bounds = [n for n in map(known, args) if n is not None]
                    if len(bounds) == len(args) < 4 and 0 not in bounds[2:]:
                        numbers = Indices(map(LoopIndex, range(*bounds)[: MOST_COPIES + 1]))
                        node.iter = placed(as_syntax(numbers), node.iter)
            return node

    def known(extent: ast.expr) -> int | None:
        return nest.known(extent) if own.isdisjoint(names_in(extent)) else None

    body = tuple(Straight().visit(copied(s)) for s in nest.body)
    found = replace(nest, body=body)
    few = sum(map(_copies, body)) <= most
    return found if few and is_elementwise(found, variables=True) else None


def goes_along_rows(nest: Nest) -> bool:
    """Whether an iteration goes with a loop inside along a row of its own."""
    ours, inner = {*nest.indices}, {*map(index_of, every(ast.For, *nest.body))}
    for e in elements_of(*nest.body):
        *rows, last = (names_in(i) for i in indices_of(e))
        if last & inner and not last & ours and any(names & ours for names in rows):
            return True
    return False


def _copies(s: ast.AST) -> int:
    """How many statements a statement is, with loops over what is written down."""
    inside = sum(_copies(x) for x in ast.iter_child_nodes(s) if isinstance(x, ast.stmt))
    numbers = _numbers(s)
    return inside + 1 if numbers is None else numbers * inside


def _numbers(s: ast.AST) -> int | None:
    """How many numbers a loop goes over that are written down."""
    match s:
        case ast.For(iter=ast.Tuple(numbers)):
            return len(numbers)
        case ast.For(iter=ast.Constant(Indices() as indices)):
            return len(indices)
        case _:
            return None


def is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in (0, 0.0) and node.value is not False


def whole_loops(body: Sequence[ast.stmt], named: Named) -> list[Nest]:
    """The loops of a kernel that is mathematics only, each a launch: the last of its statements but
    for a return is one; between them stand no other loop and no tile word, inside no word of a
    grid. None of any other kernel."""
    rest = body[:-1] if isinstance(body[-1], ast.Return) else body
    found = {s: nest for s in rest if (nest := nest_of(s, named)) is not None}
    if not rest or rest[-1] not in found:
        return []
    plain = ast.Assign | ast.AnnAssign | ast.Expr | ast.Assert | ast.Pass | ast.Import
    functions = [s for s in rest if isinstance(s, ast.FunctionDef)]  # that loops call
    others = [s for s in rest if s not in found and s not in functions]
    calls, inside = every(ast.Call, *others), every(ast.Call, *found, *functions)
    if not all(isinstance(s, plain) for s in others):
        return []
    if any(_word(c, named) not in _PREAMBLE for c in calls):
        return []
    if any(_word(c, named) in (T.program_id, T.get_thread_binding) for c in inside):
        return []
    return [*found.values()]


def _word(call: ast.Call, named: Named) -> object:
    """The builtin that is called; T.const for what is none."""
    found = named(call.func)
    ours = str(getattr(found, "__module__", "")).startswith("tilec.")
    return found if ours and callable(found) else T.const


def as_one_loop(body: Sequence[ast.stmt]) -> tuple[ast.stmt, ...]:
    """Loops over the same numbers as one, where none reads what one before it adds up."""
    loops = [s for s in body if isinstance(s, ast.For)]
    if len({f"{ast.unparse(s.target)} in {ast.unparse(s.iter)}" for s in loops}) != 1:
        return tuple(body)
    at, end = body.index(loops[0]), body.index(loops[-1])
    inside, between, changed = list[ast.stmt](), list[ast.stmt](), set[str]()
    for s in body[at : end + 1]:
        if changed & names_in(s) or any(x.orelse for x in loops):
            return tuple(body)
        if not isinstance(s, ast.For):
            between.append(s)
            if {*stored_names(s)} & names_in(*inside):
                return tuple(body)
            continue
        known = {*map(ast.unparse, inside)}  # names that each loop makes anew
        more = [x for x in s.body if isinstance(x, ast.AugAssign) or ast.unparse(x) not in known]
        inside += more
        changed |= {n for x in more if (found := changed_by(x)) for n in found[:1]}
    loop = copy.copy(loops[0])
    loop.body = inside
    return (*body[:at], *between, loop, *body[end + 1 :])


def called(func: ast.expr, named: Named) -> object:
    """What is called, which may be a word that `as_syntax` has put there."""
    return func.value if isinstance(func, ast.Constant) else named(func)


def cast_of(node: ast.expr, named: Named) -> tuple[ast.expr, ast.expr] | None:
    """What is cast, and to which dtype; None of what is no cast to one that is written."""
    match node:
        case ast.Call(ast.Attribute(value, "astype"), [dtype], []):
            return value, dtype
        case ast.Call(func, [dtype, value], []) if called(func, named) is T.Cast:
            return value, dtype
        case ast.Call(func, [value, dtype], []) if called(func, named) is T.cast:
            return value, dtype
        case ast.Call(dtype, [value], []) if isinstance(called(dtype, named), DType):
            return value, dtype
    return None


def with_factors_cast(s: ast.stmt, tensors: Container[str], dtype: str) -> str | None:
    """The text of a statement with factors of `dtype` in its products of two elements of `tensors`;
    None if there are none."""
    found = copied(s)
    products = [
        n
        for n in every(ast.BinOp, found)
        if isinstance(n.op, ast.Mult) and all(_is_element(x, tensors) for x in (n.left, n.right))
    ]
    for n in products:
        n.left, n.right = (
            ast.Call(ast.Name("T.cast"), [x, ast.Constant(dtype)], []) for x in (n.left, n.right)
        )
    return ast.unparse(found) if products else None


def _is_element(e: ast.expr, tensors: Container[str]) -> bool:
    return isinstance(e, ast.Subscript) and isinstance(e.value, ast.Name) and e.value.id in tensors


def fresh_name(base: str, used: set[str]) -> str:
    """`base`, or with a number behind it what is not used."""
    numbered = (f"{base}{k}" for k in itertools.count())
    return next(n for n in itertools.chain((base,), numbered) if n not in used)
