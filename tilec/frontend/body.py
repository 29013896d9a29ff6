"""What a kernel's body says before it is traced: what names in it stand for, the tensors that it
makes, the sizes that its loops follow, how many launches it is."""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilec import language as T
from tilec.frontend.source import Source, read_source
from tilec.ir.errors import CompileError
from tilec.support.lazy import Lazy
from tilec.support.syntax import every, name_nodes, names_in, nodes, stored_names

if TYPE_CHECKING:
    from tilec.frontend import evaluation
    from tilec.frontend.evaluation import Evaluation
    from tilec.frontend.whole_loops import dtypes, nests, order, places, products
    from tilec.frontend.whole_loops.nests import Tells
else:
    evaluation = Lazy("tilec.frontend.evaluation")
    dtypes = Lazy("tilec.frontend.whole_loops.dtypes")
    nests = Lazy("tilec.frontend.whole_loops.nests")
    order = Lazy("tilec.frontend.whole_loops.order")
    places = Lazy("tilec.frontend.whole_loops.places")
    products = Lazy("tilec.frontend.whole_loops.products")


def names_of_list(name: str, count: int) -> tuple[str, ...]:
    """The names of the tensors that a list is made with."""
    return tuple(f"{name}_{n}" for n in range(count))


def grid_syncs(body: Sequence[ast.stmt], named: Callable[[ast.expr], object]) -> int:
    """How many statements of a `with T.Kernel` are T.sync_grid(); `named`: what a name means."""
    calls = (s.value for s in body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call))
    count = 0
    for c in calls:
        if isinstance(c.func, ast.Name | ast.Attribute):
            with contextlib.suppress(CompileError):  # reported when the kernel is traced
                count += named(c.func) is T.sync_grid
    return count


class BodyReader:
    """Reads it. `drafts`: the parameters by name; `constants`: the values of some; `lists`: what
    has a name in the lists that the body makes, by these lists' names. It is not evaluated where
    names of the module are all that is asked."""

    def __init__(self, source: Source, constants: Mapping[str, Any]) -> None:
        self.source, self.constants = source, constants
        self.drafts: Mapping[str, Any] = {}
        self.lists: dict[str, tuple[str, ...]] = {}

    @functools.cached_property
    def evaluation(self) -> Evaluation:
        """What is known in the body, as far as it has been read."""
        return self.beginning()

    def beginning(self) -> Evaluation:
        """What is known in front of the body."""
        made: Evaluation = evaluation.Evaluation(self.source, self.drafts, self.constants)
        return made

    def calls(self, node: ast.expr, *builtins: Callable[..., Any]) -> bool:
        """Whether `node` is a call of one of `builtins`, under whatever name."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            return False
        try:
            return self.named(node.func) in builtins
        except CompileError:
            return False  # reported when the kernel is traced

    def named(self, node: ast.expr) -> object:
        """What a name or an attribute stands for; None for what the call gives a value."""
        if "evaluation" not in vars(self):  # there are no names but the parameters
            match node:
                case ast.Name(id=name):
                    return None if name in self.drafts else self.source.lookup(name)[1]
                case ast.Attribute(value=ast.Name() | ast.Attribute() as value, attr=attr):
                    owner = self.named(value)
                    if owner is None or isinstance(owner, types.ModuleType):
                        return getattr(owner, attr, None)
        return self.evaluation.expression(node)

    def meaning(self, node: ast.expr) -> object:
        """What a name or an attribute stands for, None where that is not known yet."""
        try:
            return self.named(node) if isinstance(node, ast.Name | ast.Attribute) else None
        except CompileError:
            return None

    def made(self, s: ast.stmt) -> list[str]:
        """The tensors that a statement makes: `a = T.empty(…)`, `a, b = T.empty(…), T.empty(…)`;
        a list of them, `a = [T.empty(…) for _ in range(2)]`, a_0 and a_1."""
        if not isinstance(s, ast.Assign):
            return []
        pairs, made = [(t, s.value) for t in s.targets], list[str]()
        for target, value in pairs:  # which grows
            items = self._items(value)
            if isinstance(target, ast.Tuple | ast.List):
                pairs += zip(target.elts, items)
            elif isinstance(target, ast.Name) and self._is_made(value):
                made.append(target.id)
            elif isinstance(target, ast.Name) and items and all(map(self._is_made, items)):
                self.lists[target.id] = names_of_list(target.id, len(items))
                made += self.lists[target.id]
            elif isinstance(target, ast.Name) and items:
                named = (item.id for item in items if isinstance(item, ast.Name))
                self.lists[target.id] = tuple(named)
        return made

    def _is_made(self, node: ast.expr) -> bool:
        return self.calls(node, T.empty, T.alloc_global)

    def _items(self, node: ast.expr) -> list[ast.expr]:
        """What stands in a list or tuple; of a comprehension only that which makes tensors."""
        body = self.source.node.body
        match node:
            case ast.Tuple() | ast.List():
                return node.elts
            case ast.ListComp(elt=made, generators=[ast.comprehension(iter=over, ifs=[])]):
                if self._is_made(made):
                    known = self.beginning()
                    for s in itertools.takewhile(lambda s: over not in nodes(s), body):
                        if isinstance(s, ast.Assign):
                            known.assign(s)
                    with contextlib.suppress(CompileError):  # reported when the kernel is traced
                        return [made] * len(known.sequence(over))
        return []

    def loops(self) -> list[nests.Nest]:
        """The loops of a kernel of mathematics only; none of a kernel that is something else."""
        body = self.source.node.body
        if not any(isinstance(s, ast.For) for s in body):
            return []
        return nests.whole_loops(body, self.meaning)

    def tiles(self, nest: nests.Nest) -> dict[str, str]:
        """Names for the tile sizes of such a loop, none for what is no product."""
        names = () if self._product(nest) is None else ("BM", "BN", "BK")
        used = self.source.used_names()
        return {size: nests.fresh_name(size, used) for size in names}

    def _product(self, nest: nests.Nest) -> products.Product | None:
        """What it is where all conditions of operands, which may depend on constants, have one
        side, and so those of statements that name nothing of the iterations'."""
        own = {*nest.indices, *stored_names(*nest.body)}

        def of_side(side: bool) -> products.Product | None:
            def decided(test: ast.expr) -> bool | None:
                fixed = own.isdisjoint(names_in(test)) and not nests.elements_of(ast.Expr(test))
                return side if fixed else None

            used = self.source.used_names()
            for single in order.in_ways(replace(nest, decided=decided), used):
                typed = dtypes.with_dtypes(replace(single, decided=lambda test: side))
                if (product := products.find_product(typed, str)) is not None:
                    return product
            return None

        found = of_side(True)
        if found is None and any(every(ast.IfExp | ast.If, *nest.body)):
            found = of_side(False)
        return found

    def telling(self, whole: nests.Nest) -> dict[str, Tells]:
        """The sizes that a whole loop's form follows, and what they count."""
        told: dict[str, Tells] = {}
        nest = places.as_folds(whole, str) or whole
        product = self._product(whole)
        several = () if product is None else product.several
        longest = (e for i, e in zip(whole.indices, whole.extents) if i in several)
        found = nests.telling(nest)
        if product is not None:
            found["few"] = ()
        for what, extents in (("loops", tuple(longest)), *found.items()):
            for n in name_nodes(*extents):
                if isinstance(size := self.meaning(n), T.Size):
                    told[size.text] = what
        return told

    def telling_tiles(self) -> dict[str, Tells]:
        """The sizes that are extents of T.Parallel, or parts of such."""
        told: dict[str, Tells] = {}
        for call in every(ast.Call, self.source.node):
            if call.args and self.meaning(call.func) is T.Parallel:
                sizes = (self.meaning(n) for n in name_nodes(*call.args))
                told |= {size.text: "tiles" for size in sizes if isinstance(size, T.Size)}
        return told

    # --- launches ---------------------------------------------------------------------------------

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
                if any(self.calls(c, T.Kernel) and c.args for c in calls):
                    count += 1 + grid_syncs(s.body, self.named)
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
                lambda_ = getattr(found, "__name__", None) == "<lambda>"  # without statements
                if isinstance(found, types.FunctionType) and not ours and not lambda_:
                    return found
        return None
