"""Sums that loops scale anew as the largest value grows, as folds that tiles can do.

    m, l = -T.infinity("float32"), 0.0          m, l = -T.infinity("float32"), 0.0
    for j in range(N):                          for j in range(N):
        new = T.max(m, X[i, j])                     m = T.max(m, X[i, j])
        l = (l * T.exp(m - new)        ->       for j in range(N):
             + T.exp(X[i, j] - new))                l += T.exp(X[i, j] - m)
        m = new

All terms have the factor `exp(-new)`, and the sum begins with 0: so it is that of terms with the
last `m`. While elements are no more than an `m` of -infinity the loop on the left makes a nan,
which stays; that on the right does where all of them are. What else a loop adds up, on conditions
or not (`if j == Y[i]: own += X[i, j]`), is added up beside the largest value.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import replace

from tilec import language as T
from tilec.frontend.whole_loops.folds import given_by
from tilec.frontend.whole_loops.nests import Named, Nest, Put, changed_by, is_zero
from tilec.frontend.whole_loops.rows import FOLDS, needed_by
from tilec.ir.types import DType
from tilec.support.syntax import copied, names_in, parsed, stored_names

_EXPONENTIALS = (T.exp, T.exp2)


def in_two_loops(nest: Nest) -> Nest:
    """The nest with each such loop as two, of which the second adds up."""
    body: list[ast.stmt] = []
    for at, s in enumerate(nest.body):
        made = None
        if isinstance(s, ast.For) and not s.orelse:
            rescaled = _Rescaled(s, nest.named)
            made = rescaled.loops(nest.body[:at], nest.body[at + 1 :]) if rescaled.found else None
        body += made or [s]
    return replace(nest, body=tuple(body)) if len(body) > len(nest.body) else nest


class _Rescaled:
    """One loop. `old` and `new`: the names of the largest value before an element and with it;
    `most`: which of them is the variable. `scales`: names of `exp(old - new)`; `terms`: of what has
    the factor `exp(-new)`; `others`: what it folds that has nothing to do with these."""

    def __init__(self, loop: ast.For, named: Named) -> None:
        self.loop, self.named = loop, named
        self.scales, self.terms, self.scaled, self.sums = (set[str]() for _ in range(4))
        self.exponents, self.others = set[str](), set[str]()
        self.free = list[ast.expr]()
        self.first, self.second = list[ast.stmt](), list[ast.stmt]()
        self.found = self._largest()

    def _largest(self) -> bool:
        """Finds `new = T.max(most, value)` and, behind all that reads it, `most = new`; or
        `old = most` and, behind it, `most = T.max(most, value)`."""
        for at, s in enumerate(self.loop.body):
            match s:
                case ast.Assign([ast.Name(new)], ast.Call(func, [a, b], [])) if self._is_max(func):
                    for kept, value in ((a, b), (b, a)):
                        for k, copied in enumerate(self.loop.body):
                            old, given = given_by(copied)
                            if not (isinstance(given, ast.Name) and given.id == new):
                                continue
                            last = k > at and old not in names_in(*self.loop.body[k + 1 :])
                            names = {old} if last else {old, new}
                            if isinstance(kept, ast.Name) and kept.id in names and (last or k < at):
                                self.old, self.new, self.most = old, new, old if last else new
                                self.word, self.value = ast.unparse(func), value
                                self.fold, self.copied = s, copied
                                return True
        return False

    def loops(
        self, before: Sequence[ast.stmt], behind: Sequence[ast.stmt]
    ) -> list[ast.stmt] | None:
        for s in self.loop.body:
            if s is self.fold:
                text = f"{self.most} = {self.word}({self.most}, {ast.unparse(self.value)})"
                self.first += parsed(text, s)
            elif s is not self.copied and not self._reads(s):
                return None
        made, stored = {*stored_names(*self.loop.body)}, stored_names(*before)
        zero = {name for name, v in map(given_by, before) if v is not None and self._is_zero(v)}
        zero = {name for name in zero if stored.count(name) == 1}
        kept = {self.most, *self.sums, *self.others}
        left = (made - kept) & {name for s in behind for name in needed_by(s)}
        ours = self.sums and self.scaled <= self.sums and len(self.exponents) == 1
        free = all(map(self._is_free, [self.value, *self.free]))
        if not ours or not self.sums <= zero or left or not free:
            return None
        put = Put({self.new: self.most})
        loops: list[ast.stmt] = []
        for body in (self.first, [put.visit(copied(s)) for s in self.second]):
            loop = copy.copy(self.loop)
            loop.body = body
            loops.append(loop)
        return loops

    def _reads(self, s: ast.stmt) -> bool:
        """Takes a statement apart; whether it is a name's, or part of a sum."""
        begun = self.fold in [*self.loop.body[: self.loop.body.index(s)]]
        match s:
            case ast.AugAssign(ast.Name(name), ast.Mult(), value) if begun and self._scales(value):
                self.scaled.add(name)
                return name not in self.sums
            case ast.AugAssign(ast.Name(name), ast.Add(), value) if name in self.scaled:
                return self._adds(s, name, value)
            case ast.Assign([ast.Name(name)], ast.BinOp(a, ast.Add(), b)):
                for own, value in ((a, b), (b, a)):
                    match own:
                        case ast.BinOp(x, ast.Mult(), y):
                            for total, scale in ((x, y), (y, x)):
                                same = isinstance(total, ast.Name) and total.id == name
                                if begun and same and self._scales(scale):
                                    return self._adds(s, name, value)
        if self._folds_others(s):
            self.first.append(s)
            return True
        name, given = given_by(s)
        if given is None or name in {self.old, self.new}:
            return False
        if self._is_free(given):
            self.first.append(s)
            self.second.append(s)
        elif begun and self._scales(given):
            self.scales.add(name)
        elif begun and self._is_term(given):
            self.terms.add(name)
            self.second.append(s)
        else:
            return False
        return True

    def _folds_others(self, s: ast.stmt) -> bool:
        """Whether a statement folds, on conditions or not, what is the same whatever the largest
        value is."""
        if isinstance(s, ast.If):
            return self._is_free(s.test) and not s.orelse and all(map(self._folds_others, s.body))
        name, _, value = changed_by(s) or ("", None, None)
        known = {self.old, self.new, *self.scales, *self.terms, *self.scaled, *self.sums}
        if value is None or name in known or not self._is_free(value):
            return False
        if stored_names(*self.loop.body).count(name) > 1:
            return False  # it begins anew with each element
        self.others.add(name)
        return True

    def _adds(self, s: ast.stmt, name: str, value: ast.expr) -> bool:
        if name in self.sums or not self._is_term(value):
            return False
        self.sums.add(name)
        self.second += parsed(f"{name} += {ast.unparse(value)}", s)
        return True

    def _is_free(self, value: ast.expr) -> bool:
        """Whether it is the same whatever the largest value is."""
        ours = {self.old, self.new, *self.scales, *self.terms, *self.scaled, *self.sums}
        free = (ours | self.others).isdisjoint(names_in(value))
        self.free += [value] * free  # what comes behind is seen at the end
        return free

    def _scales(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Name) and value.id in self.scales:
            return True
        left = self._exponent(value)
        return isinstance(left, ast.Name) and left.id == self.old

    def _is_term(self, value: ast.expr) -> bool:
        """Whether it has the factor once."""
        match value:
            case ast.Name(name):
                return name in self.terms
            case ast.BinOp(a, ast.Mult(), b):
                pairs = (a, b), (b, a)
                return any(self._is_term(x) and self._is_free(y) for x, y in pairs)
            case ast.BinOp(a, ast.Div(), b):
                return self._is_term(a) and self._is_free(b)
        left = self._exponent(value)
        return left is not None and self._is_free(left)

    def _exponent(self, value: ast.expr) -> ast.expr | None:
        """Of `exp(x - new)`, or with the difference times a factor, x; all have one form."""
        match value:
            case ast.Call(func, [given], []) if self.named(func) in _EXPONENTIALS:
                pass
            case _:
                return None
        sides = [(given, "")]
        if isinstance(given, ast.BinOp) and isinstance(given.op, ast.Mult):
            sides = [(given.left, ast.unparse(given.right)), (given.right, ast.unparse(given.left))]
        for difference, factor in sides:
            match difference:
                case ast.BinOp(left, ast.Sub(), ast.Name(right)) if right == self.new:
                    if names_in(ast.parse(factor)).isdisjoint(stored_names(self.loop)):
                        self.exponents.add(f"{ast.unparse(func)} {factor}")
                        return left
        return None

    def _is_max(self, func: ast.expr) -> bool:
        return FOLDS.get(self.named(func)) == "max"

    def _is_zero(self, value: ast.expr) -> bool:
        match value:
            case ast.Call(func, [number], []):
                word = self.named(func)
                return (word is float or isinstance(word, DType)) and is_zero(number)
        return is_zero(value)
