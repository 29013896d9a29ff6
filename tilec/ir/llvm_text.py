"""A line of LLVM text being read: names, types, and values with their types.

Constants that are addresses are read as the name of their symbol and a distance ("@smem+64"). LLVM
language reference: https://llvm.org/docs/LangRef.html
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from tilec.ir.llvm import FLAGS, Val, int_val

Item = TypeVar("Item")

NAME = r'(?:"[^"]*"|[-\w$.]+)'

_WORD = re.compile(r"[\w.]+")
_SPACE = re.compile(r" addrspace\((\d+)\)")
_NUMBER = re.compile(r"-?\d+\.\d+e[-+]\d+|-?[\w.]+")
_INTEGER = re.compile(r"-?\d+$")
_ATTRIBUTE = re.compile(r"align \d+|(?!addrspace)\w+\([^()]*\)")
_TYPE = re.compile(r"i\d+|half|bfloat|float|double|ptr|void")

_FAST = ("fast", "nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc")
_ATTRIBUTES = ("noundef", "nonnull", "signext", "zeroext", "readonly")
_ENDS = {"<": ">", "[": "]", "{": "}"}


def bare(name: str) -> str:
    return name[1:-1] if name.startswith('"') else name


def struct_types(type: str) -> list[str]:
    """The types of a struct's or array's members."""
    if type.startswith("["):
        count, kind = array_of(type)
        return [kind] * count
    text = LlvmText(type[1:-1].strip())
    return text.several(text.type)


def array_of(type: str) -> tuple[int, str]:
    """How many elements an array's or vector's type has, and their type."""
    count, _, kind = type[1:-1].partition(" x ")
    return int(count), kind


class LlvmText:
    """A line being read."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text, self.at = text, at

    def rest(self) -> str:
        """What has not been read."""
        return self.text[self.at :]

    def blank(self) -> None:
        """Go on to what is no blank."""
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1

    def peek(self, word: str) -> bool:
        self.blank()
        return self.text.startswith(word, self.at)

    def take(self, sign: str) -> bool:
        """Whether the sign comes next; it is read then."""
        if self.peek(sign):
            self.at += len(sign)
            return True
        return False

    def expect(self, sign: str) -> None:
        assert self.take(sign), (sign, self.rest())

    def after(self, sign: str) -> LlvmText:
        self.expect(sign)
        return self

    def several(self, read: Callable[[], Item]) -> list[Item]:
        """What `read` reads, as often as commas follow."""
        found = [read()]
        while self.take(","):
            found.append(read())
        return found

    def skip(self, word: str) -> bool:
        """Whether the word comes next; it is read then."""
        self.blank()
        found = _WORD.match(self.text, self.at)
        if found is None or found[0] != word:
            return False
        self.at = found.end()
        return True

    def word(self) -> str:
        self.blank()
        found = _WORD.match(self.text, self.at)
        assert found is not None, self.rest()
        self.at = found.end()
        return found[0]

    def flags(self) -> str:
        """The words that make a result poison, those of fast arithmetic left out."""
        kept = list[str]()
        while True:
            self.blank()
            found = _WORD.match(self.text, self.at)
            if found is None or found[0] not in FLAGS and found[0] not in _FAST:
                return " ".join(kept)
            self.at = found.end()
            if found[0] in FLAGS:
                kept.append(found[0])

    def string(self) -> str:
        """A quoted text, as LLVM spells it."""
        self.expect('"')
        end = self.text.index('"', self.at)
        found = self.text[self.at : end]
        self.at = end + 1
        return found

    def bare_name(self) -> str:
        if self.peek('"'):
            return self.string()
        found = re.compile(NAME).match(self.text, self.at)
        assert found is not None, self.rest()
        self.at = found.end()
        return found[0]

    def name(self) -> str:
        self.expect("%")
        return "%" + self.bare_name()

    def label(self) -> str:
        assert self.skip("label")
        return self.name()[1:]

    def until_name(self) -> str:
        """What stands before the next local name."""
        end = self.text.index("%", self.at)
        found = self.text[self.at : end].strip()
        self.at = end
        return found

    def alignment(self) -> int:
        found = re.findall(r", align (\d+)", self.rest())
        return int(found[-1]) if found else 1

    # --- types ---

    def type(self) -> str:
        if self.take("<"):
            return f"<{self._sequence()}>"
        if self.take("["):
            return f"[{self._sequence(']')}]"
        if self.take("{"):
            members = self.several(self.type)
            self.expect("}")
            return "{ " + ", ".join(members) + " }"
        kind = self.word()
        assert _TYPE.fullmatch(kind), kind
        space = _SPACE.match(self.text, self.at) if kind == "ptr" else None
        if space:
            self.at = space.end()
            kind += space[0]
        return kind

    def _sequence(self, end: str = ">") -> str:
        count = self.word()
        self.expect("x")
        kind = self.type()
        self.expect(end)
        return f"{count} x {kind}"

    def result_type(self) -> str:
        """The type of a call's result, behind its attributes."""
        self._attributes()
        return self.type()

    def _attributes(self) -> None:
        while True:
            if any(self.skip(word) for word in _ATTRIBUTES):
                continue
            self.blank()
            found = _ATTRIBUTE.match(self.text, self.at)
            if found is None:
                return
            self.at = found.end()

    # --- values ---

    def arguments(self) -> tuple[Val, ...]:
        self.expect("(")
        found = list[Val]()
        while not self.take(")"):
            type = self.type()
            self._attributes()
            found.append(self.operand(type))
            self.take(",")
        return tuple(found)

    def value(self) -> Val:
        """A type and a value of it."""
        return self.operand(self.type())

    def operand(self, type: str) -> Val:
        """A value of a type that is known."""
        if self.peek("%"):
            return Val(type, self.name())
        if self.take("@"):
            return Val(type, "@" + self.bare_name())
        for sign, end in _ENDS.items():
            if self.take(sign):
                parts = self.several(self.value)
                self.expect(end)
                return Val(type, f"<{', '.join(map(str, parts))}>")
        if self.skip("splat"):
            self.expect("(")
            part = str(self.value())
            self.expect(")")
            return Val(type, f"<{', '.join([part] * int(type[1:].split(' x ')[0]))}>")
        self.blank()
        number = _NUMBER.match(self.text, self.at)
        assert number is not None, self.rest()
        if self.text.startswith((" (", " nuw", " nsw", " inbounds"), number.end()):
            base, distance = self._constant()
            if not base:
                return int_val(distance, type if type.startswith("i") else "i64")
            return Val(type, f"{base}+{distance}" if distance else base)
        self.at = number.end()
        word = number[0]
        if type.startswith("i") and _INTEGER.match(word):
            return Val(type, word, int(word))
        return Val(type, word, {"true": 1, "false": 0}.get(word))

    def _constant(self) -> tuple[str, int]:
        """A constant expression over an address: its symbol and the distance from there."""
        word = self.word()
        while self.skip("inbounds") or self.skip("nuw") or self.skip("nusw") or self.skip("nsw"):
            pass
        self.expect("(")
        if word == "getelementptr":
            kind = self.type()
            self.expect(",")
            base, distance = self._part()
            while self.take(","):
                distance += self._part()[1] * size_of(kind)
                kind = array_of(kind)[1] if kind.startswith("[") else kind
        elif word in ("ptrtoint", "inttoptr", "addrspacecast", "trunc", "zext", "bitcast"):
            base, distance = self._part()
            self.expect("to")
            self.type()
        else:
            assert word in ("add", "sub"), word
            base, distance = self._part()
            self.expect(",")
            other, more = self._part()
            assert not (base and other) and (word == "add" or not other)
            base, distance = base or other, distance + (more if word == "add" else -more)
        self.expect(")")
        return base, distance

    def _part(self) -> tuple[str, int]:
        found = self.value()
        if found.literal is not None:
            return "", found.literal
        assert found.ref.startswith("@"), found
        base, _, distance = found.ref.partition("+")
        return base, int(distance or 0)


BYTES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "bfloat": 2, "float": 4,
         "double": 8}  # fmt: skip


def size_of(type: str) -> int:
    """Bytes of a value of an LLVM type in memory."""
    if type[0] in "[<":
        count, kind = array_of(type)
        return count * size_of(kind)
    return 8 if type.startswith("ptr") else BYTES[type]
