"""The stages of a compiled kernel as text, and writing them to files."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.ir.errors import TilecError, did_you_mean
from tilec.support.lazy import Lazy
from tilec.support.settings import chosen_names

if TYPE_CHECKING:
    from tilec import passes
else:  # loaded where stages are asked for, or a kernel is compiled
    passes = Lazy("tilec.passes")

Text = str | Callable[[], str | None]


class Stages(Mapping[str, str]):
    """An ordered mapping from a stage's name to its text, which is made when it is first read.

    A stage whose text turns out to be None (there is no disassembler) is not in the mapping. Those
    of a kernel that came from the disk cache are what `make` gives at the first look: it compiles
    the kernel again.
    """

    def __init__(
        self, texts: Mapping[str, Text] | None = None, make: Callable[[], Stages] | None = None
    ) -> None:
        self._texts: dict[str, Text | None] = dict(texts or {})
        self._make = make
        self._lock = threading.Lock()

    def _ensure(self) -> None:
        with self._lock:
            if self._make is not None:
                self._texts = self._make()._texts
                self._make = None

    def add(self, name: str, text: Text) -> None:
        self._texts[name] = text

    def _text(self, name: str) -> str | None:
        self._ensure()
        if name not in self._texts:
            near = did_you_mean(str(name), self._texts) or f"; they are {', '.join(self._texts)}"
            raise KeyError(f"there is no stage {name!r}{near}")
        text = self._texts[name]
        if callable(text):
            text = self._texts[name] = text()
        return text

    def __getitem__(self, name: str) -> str:
        text = self._text(name)
        if text is None:
            raise KeyError(name)
        return text

    def __iter__(self) -> Iterator[str]:
        self._ensure()
        # Only the disassembly can be absent; the others are listed without being made.
        for name in self._texts:
            if name != "sass" or self._text(name) is not None:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)


_dump_lock = threading.Lock()
_dumped: dict[Path, int] = {}


def wanted_stages() -> frozenset[str]:
    """What TILEC_DUMP names. Raises TilecError for what is no stage of any target."""
    if not os.environ.get("TILEC_DUMP"):
        return frozenset()
    return chosen_names("TILEC_DUMP", ("tile", *passes.stage_names(), "plan", *_AFTER_PASSES))


_AFTER_PASSES = ("llvm", "llvm-opt", "ptx", "gcn", "asm", "sass")


class Dump:
    """Writes stages as they come: TILEC_DUMP names them ("all", or names with commas between), and
    TILEC_DUMP_DIR the directory for the numbered files; without one they go to stderr.

    The first kernel a program compiles gets the directory itself, each further one a folder in it.
    """

    def __init__(self, kernel: str) -> None:
        self._names = wanted_stages()
        self._kernel, self._count = kernel, 0
        self._folder: Path | None = None
        directory = os.environ.get("TILEC_DUMP_DIR", "")
        if self._names and directory:
            self._folder = _claim(Path(directory), kernel)

    @staticmethod
    def wanted() -> bool:
        """Whether this process writes any stage of any kernel. Raises TilecError where TILEC_DUMP
        names what is no stage."""
        return bool(wanted_stages())

    def wants(self, name: str) -> bool:
        return name in self._names or "all" in self._names

    def stage(self, name: str, text: Callable[[], str]) -> None:
        """The next stage; `text` is called only if it is wanted."""
        number, self._count = self._count, self._count + 1
        if not self.wants(name):
            return
        if self._folder is None:
            print(f"// {self._kernel}: {number:02d}-{name}\n{text()}", file=sys.stderr)
            return
        shown = text()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{number:02d}-{name}.txt").write_text(shown)
        except OSError as e:
            message = f"TILEC_DUMP_DIR is {os.environ.get('TILEC_DUMP_DIR')!r}: {e.strerror or e}"
            hint = "it takes a folder that can be written, or one that can be made"
            raise TilecError(message, hint=hint) from None


def _claim(directory: Path, kernel: str) -> Path:
    with _dump_lock:
        number = _dumped.get(directory, 0)
        _dumped[directory] = number + 1
    if number == 0:
        return directory
    name = re.sub(r"[^\w.-]", "_", kernel)
    return directory / f"{name}-{number}"
