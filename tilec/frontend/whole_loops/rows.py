"""Whole loops each iteration of which goes along the rows of tensors, as softmax and norms do.

    for i in T.Parallel(M):                     if iteration < M:  # a warp's
        total: T.float32 = 0                        total: T.float32 = 0
        for j in range(N):                          part: T.float32 = 0
            total += X[i, j]                        for step in T.serial(T.ceildiv(N - lane, 32)):
        for j in range(N):                 ->           part += X[i, step * 32 + lane]
            Y[i, j] = X[i, j] / total               total = total + T.warp_reduce_sum(part)
        S[i] = total                                for step in …: Y[i, step * 32 + lane] = …
                                                    if lane == 0: S[i] = total

One thread for each iteration would read a sector of memory for each element. A loop inside must be
sums, largest and smallest values, or assignments of elements that its index names; what is written
may be read at the place alone where it was written.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tilec import language as T
from tilec.builtins import formulas, maths
from tilec.frontend.python_numbers import word_for
from tilec.frontend.whole_loops import nests
from tilec.frontend.whole_loops.terms import sign_of
from tilec.ir.types import DType
from tilec.support.syntax import assigned_names, name_nodes, names_in, parsed

_PURE: set[object] = {getattr(T, name) for name in (*maths.__all__, *formulas.__all__)}
_PURE |= {T.cast, T.Cast, T.if_then_else, T.where, T.clamp, max, min}
FOLDS: dict[object, str] = {T.max: "max", max: "max", T.min: "min", min: "min"}


class Reset(NamedTuple):
    """`if test: name = start`."""

    name: str
    test: ast.expr
    start: ast.expr


@dataclass
class Rows:
    """One iteration as lanes of a warp do it together. `language` and `lane`: what stands for
    `tilec.language`, and for the lane; `fresh` makes names that are not used."""

    nest: nests.Nest
    language: str = ""
    lane: str = ""
    fresh: nests.Fresh = str
    sums: dict[str, ast.expr] = field(default_factory=dict)  # variables and their dtypes
    outside: set[str] = field(default_factory=set)  # what is assigned out of loops

    @property
    def own(self) -> set[str]:
        """What the iterations name themselves."""
        return {*self.nest.indices, *assigned_names(self.nest.body)}

    def body(self) -> list[ast.stmt] | None:
        """None where they cannot, where loops are short, and where threads with iterations of their
        own read neighbours."""
        if not self._is_ours():
            return None
        made: list[ast.stmt] = []
        for at, s in enumerate(self.nest.body):
            match s:
                case ast.AnnAssign(ast.Name(name), dtype, ast.expr() as value):
                    self.sums[name] = dtype
                case ast.Assign([ast.Name(name)], value):
                    pass
                case ast.Assign([ast.Subscript(ast.Name())], value):
                    if not self._is_pure(value):
                        return None
                    made += parsed(f"if {self.lane} == 0: {ast.unparse(s)}", s)
                    continue
                case ast.For():
                    loop = self._loop(s, self.nest.body[at + 1 :])
                    if loop is None:
                        return None
                    made += loop
                    continue
                case _:
                    return None
            if not self._is_pure(value):
                return None
            self.outside.add(name)
            made.append(s)
        return made

    def _is_ours(self) -> bool:
        """Whether rows are gone along, and what is written is read where it was written alone."""
        inner = {nests.index_of(s) for s in self.nest.body if isinstance(s, ast.For)}
        elements = nests.elements_of(*self.nest.body)
        last = [nests.indices_of(n)[-1] for n in elements]
        ends = {name for name in inner for n in last if sign_of(n, name, inner)}
        own = self.nest.indices[-1]
        matrices = [nests.indices_of(e) for e in elements if len(nests.indices_of(e)) > 1]
        columns = [last for *rows, last in matrices if own not in names_in(*rows)]
        if not ends or own in names_in(*columns):
            return False
        places: dict[str, set[str]] = {}
        by_all, by_one = set[str](), set[str]()  # lanes
        for n in elements:
            places.setdefault(nests.tensor_of(n), set()).add(ast.unparse(n))
            if isinstance(n.ctx, ast.Store):
                (by_all if inner & names_in(n) else by_one).add(nests.tensor_of(n))
        read = {nests.tensor_of(n) for n in elements if isinstance(n.ctx, ast.Load)}
        return all(len(places[name]) == 1 for name in by_all) and not by_one & read

    def _read(self, chain: Sequence[ast.For], behind: Sequence[ast.stmt]) -> dict[str, str] | None:
        """The variables that loops in one another fold into, and how; None where they do anything
        else than fold and assign, or leave a value to those `behind` them."""
        targets = [nests.index_of(s) for s in chain]
        if not all(targets) or any(s.orelse for s in chain):
            return None
        own, loop = {*targets}, chain[-1]
        folds: dict[str, str] = {}
        places, begun = set[str](), set[str]()
        for s in loop.body:
            if (reset := self._reset(s)) is not None:
                begun.add(reset.name)
                continue
            if picked := self._picked(s, chain):
                if not folds.keys().isdisjoint(picked):
                    return None
                folds |= dict.fromkeys(picked, "pick")
                places.add(picked[1])
                continue
            if (fold := self._fold(s)) is not None:
                name, word, value = fold
                if name in folds or not self._is_pure(value):
                    return None
                folds[name] = word
                continue
            match s:
                case ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
                    own.add(name)
                case ast.Assign([ast.Name(name)], value):
                    own.add(name)
                case ast.Assign([ast.Subscript(ast.Name()) as place], value):
                    if not all(_tells(place, name, own) for name in targets):
                        return None
                case ast.Expr(ast.Call(args=[_, value])) if self._is_atomic(s):
                    pass
                case _:
                    return None
            if not self._is_pure(value):
                return None
        used = [n.id for n in name_nodes(*loop.body)]
        others = {name for s in behind for name in needed_by(s)} | self.outside
        once = {name: self._added(loop, name) + (name in places) for name in folds}
        running = self._running(chain)
        apart = folds.keys() - running
        folded = all(used.count(name) == 2 - once[name] for name in apart)
        return None if not folded or own & others or begun - running else folds

    def _loop(self, loop: ast.For, behind: Sequence[ast.stmt]) -> list[ast.stmt] | None:
        extent = nests.counted(loop.iter, self.nest.named)
        if extent is None or self._read([loop], behind) is None:
            return None
        known = None if self.own & names_in(extent) else self.nest.known(extent)
        if known is not None and known < self.nest.lanes // 2:
            return None
        inside, before, after = list[ast.stmt](), list[str](), list[str]()
        for s in loop.body:
            fold = self._fold(s)
            if fold is None:
                inside.append(s)
                continue
            name, word, value = fold
            if word == "sum":
                part = self.fresh("part")
                before.append(f"{part}: {ast.unparse(self.sums[name])} = 0")
                inside += parsed(f"{part} += {ast.unparse(value)}", s)
                after.append(f"{name} = {name} + {self.language}.warp_reduce_sum({part})")
            else:
                inside.append(s)
                after.append(f"{name} = {self.language}.warp_reduce_{word}({name})")
        step = self.fresh("step")
        lines = [
            *before,
            f"for {step} in {self.language}.serial({self.language}.ceildiv("
            f"({ast.unparse(extent)}) - {self.lane}, {self.nest.lanes})):\n"
            f"    {nests.index_of(loop)} = {step} * {self.nest.lanes} + {self.lane}",
            *after,
        ]
        made = parsed("\n".join(lines), loop)
        shared = next(s for s in made if isinstance(s, ast.For))
        shared.body += inside
        return made

    def _added(self, loop: ast.For, name: str) -> int:
        """1 where the loop's sum is written `name += …`, which names it once."""
        return sum(
            isinstance(s, ast.AugAssign) and ast.unparse(s.target) == name for s in ast.walk(loop)
        )

    def _picked(self, s: ast.stmt, chain: Sequence[ast.For]) -> tuple[str, ...]:
        """The variables that a statement leaves the largest or smallest element in, and its place;
        none, which lanes of a warp do not look for together."""
        return ()

    def _running(self, chain: Sequence[ast.For]) -> set[str]:
        """The variables that are read between the folds into them, too: of a warp's lanes none."""
        return set()

    def _reset(self, s: ast.stmt) -> Reset | None:
        """The variable that a statement lets begin anew: of a warp's lanes none."""
        return None

    def _is_atomic(self, s: ast.stmt) -> bool:
        """Whether a statement adds to an element, in any order: not where lanes of a warp come
        together behind each loop."""
        return False

    def _fold(self, s: ast.stmt) -> tuple[str, str, ast.expr] | None:
        """The variable that a statement adds to or takes the largest or smallest of, which of
        them, and with what."""
        match s:
            case ast.Assign([ast.Name(name)], ast.Call(func, [a, b], [])):
                word, value = self._folding_word(func), nests.other_operand(name, a, b)
            case _:
                name, op, value = nests.changed_by(s) or ("", None, None)
                word = "sum" if isinstance(op, ast.Add) else None
        found = word is not None and value is not None and name in self.sums
        return (name, word, value) if found else None  # type: ignore[return-value]

    def _folding_word(self, func: ast.expr) -> str | None:
        ours = ast.unparse(func).removeprefix(f"{self.language}.")  # as `in_order` writes it
        return ours if ours in FOLDS.values() else FOLDS.get(self.nest.named(func))

    def _is_pure(self, value: ast.expr) -> bool:
        return is_pure(value, self.nest.named, self.language)


def is_pure(value: ast.expr, named: nests.Named, language: str = "") -> bool:
    """Whether it is arithmetic on elements alone; what calls words of `language` is this module's
    own."""
    for n in ast.walk(value):
        if isinstance(n, ast.Lambda | ast.NamedExpr | ast.Starred | ast.comprehension):
            return False
        if not isinstance(n, ast.Call):
            continue
        if language and ast.unparse(n.func).startswith(f"{language}."):
            continue
        found = named(n.func)
        cast = isinstance(n.func, ast.Attribute) and n.func.attr == "astype"
        known = isinstance(found, DType) or word_for(found) or any(found is w for w in _PURE)
        if not (cast or known):
            return False
    return True


def _tells(place: ast.Subscript, name: str, changed: set[str]) -> bool:
    """Whether iterations of a loop that differ in `name` alone have different places."""
    return any(sign_of(index, name, changed) for index in nests.indices_of(place))


def needed_by(s: ast.stmt) -> set[str]:
    """The names that a statement has from those before it: of a loop, those that its iterations do
    not begin by setting."""
    if not isinstance(s, ast.For):
        return names_in(s)
    found, made = names_in(s.iter), names_in(s.target)
    for inner in s.body:
        if isinstance(inner, ast.For):
            found |= needed_by(inner) - made
            continue
        targets = inner.targets if isinstance(inner, ast.Assign) else []
        own = {t.id for t in targets if isinstance(t, ast.Name)}
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            own = {inner.target.id}
        value = inner.value if isinstance(inner, ast.Assign | ast.AnnAssign) else None
        read = names_in(inner) if not own else set[str]()
        read |= set() if value is None else names_in(value)
        found |= read - made
        made |= own
    return found
