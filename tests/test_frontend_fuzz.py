"""Random control flow, traced and interpreted, against the same text run by Python."""

from __future__ import annotations

import linecache
import random
from typing import Any

import numpy as np
import pytest
from frontend_help import run

import tilec.language as T

NAMES = ("a", "b", "c")
_HEAD = """
def kernel(OUT: T.Tensor((8,), "int32"), IN: T.Tensor((8,), "int32"), n: T.int32, m: T.int32):
    with T.Kernel(1) as _:
"""


class Programs:
    """Writes random statements over three int variables; loops end, numbers stay small."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.fresh = 0

    def value(self, depth: int = 2) -> str:
        pick = self.random.random()
        if depth == 0 or pick < 0.35:
            known = [*NAMES, "n", "m", str(self.random.randint(-3, 9))]
            return self.random.choice([*known, f"IN[{self.random.choice(NAMES)} % 8]"])
        x, y = self.value(depth - 1), self.value(depth - 1)
        if pick < 0.75:
            return f"({x} {self.random.choice(['+', '-', '*'])} {y}) % {self.random.randint(2, 50)}"
        if pick < 0.85:
            return f"({x} // {self.random.randint(2, 5)})"
        if pick < 0.92:
            return f"({x} if {self.condition(1)} else {y})"
        return f"{self.random.choice(['min', 'max'])}({x}, {y})"

    def condition(self, depth: int = 2) -> str:
        sign = self.random.choice(["<", "<=", "==", "!=", ">"])
        one = f"{self.value(1)} {sign} {self.value(1)}"
        pick = self.random.random()
        if depth == 0 or pick < 0.6:
            return one
        if pick < 0.8:
            return f"({one}) {self.random.choice(['and', 'or'])} ({self.condition(depth - 1)})"
        return (
            f"not ({one})"
            if pick < 0.9
            else f"{self.value(0)} <= {self.value(0)} < {self.value(0)}"
        )

    def block(self, depth: int, in_loop: bool) -> list[str]:
        lines: list[str] = []
        for _ in range(self.random.randint(1, 3)):
            lines += self.statement(depth, in_loop)
        return lines

    def statement(self, depth: int, in_loop: bool) -> list[str]:
        pick = self.random.random()
        name = self.random.choice(NAMES)
        if depth == 0 or pick < 0.4:
            if in_loop and self.random.random() < 0.15:
                return [
                    f"if {self.condition()}:",
                    f"    {self.random.choice(['break', 'continue'])}",
                ]
            if self.random.random() < 0.3:
                return [f"OUT[{self.value(0)} % 8] = {self.value()}"]
            return [f"{name} {self.random.choice(['=', '=', '+='])} {self.value()} % 100"]
        inner = [f"    {line}" for line in self.block(depth - 1, in_loop or pick >= 0.65)]
        if pick < 0.55:
            other = [f"    {line}" for line in self.block(depth - 1, in_loop)]
            return [f"if {self.condition()}:", *inner, "else:", *other]
        if pick < 0.65:
            return [f"if {self.condition()}:", *inner]
        self.fresh += 1
        index = f"i{self.fresh}"
        if pick < 0.8:
            bounds = self.random.choice(["5", "1, n % 6", "m % 5, -2, -1", "0, 7, 3"])
            return [f"for {index} in range({bounds}):", f"    {name} += {index}", *inner]
        if pick < 0.9:
            items = self.random.choice(["(1, 2)", "[3, n]", "[m, 0, 4]"])
            return [f"for {index} in {items}:", f"    {name} = {name} - {index}", *inner]
        guard = f"{index} < 4 and ({self.condition()})"
        return [f"{index} = 0", f"while {guard}:", f"    {index} += 1", *inner]

    def text(self) -> str:
        starts = [f"{v} = {self.random.choice(['n', '0', '2', 'IN[3]'])}" for v in NAMES]
        ends = [f"OUT[{k}] = {v}" for k, v in enumerate(NAMES)]
        lines = [*starts, *self.block(3, False), *self.block(3, False), *ends]
        return "\n".join(f"        {line}" for line in lines) + "\n"


def in_python(body: str, values: dict[str, Any]) -> np.ndarray:
    out = values["OUT"].copy()
    scope: dict[str, Any] = {"OUT": out, "IN": [int(v) for v in values["IN"]]}
    scope |= {"n": values["n"], "m": values["m"]}
    exec("if 1:\n" + body, scope)
    return out


@pytest.mark.parametrize("seed", range(40))
def test_control_flow_means_what_python_means(seed: int, rng: np.random.Generator) -> None:
    body = Programs(seed).text()
    name = f"<fuzz {seed}>"
    text = _HEAD + body
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"T": T}
    exec(compile(text, name, "exec"), scope)
    values = {n: rng.integers(-5, 20, 8).astype(np.int32) for n in ("OUT", "IN")}
    for n, m in ((0, 7), (13, 4)):
        given = {**values, "n": n, "m": m}
        got = run(scope["kernel"], given)["OUT"]
        np.testing.assert_array_equal(got, in_python(body, given), err_msg=body)
