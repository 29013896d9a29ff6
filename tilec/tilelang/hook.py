"""`import tilelang` means this package once `install` has run."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from tilec.tilelang.absent import PACKAGES, Absent

OURS = __package__ or "tilec.tilelang"
RENAMED = {
    "tilelang.carver.arch": f"{OURS}.arch",
    "tilelang.cuda.intrinsics.sparse_layout": f"{OURS}.sparse",
    "tilelang.utils.sparse": f"{OURS}.sparse",
    "tilelang.language.dtypes": f"{OURS}.dtypes",
    "tilelang.language.fp8": f"{OURS}.dtypes",
    "tilelang.layout.swizzle": f"{OURS}.layout",
    "tilelang.language.tir": f"{OURS}.tirx",
    "tilelang.language.tir.ir": f"{OURS}.tirx",
    "tilelang.language.tir.op": f"{OURS}.tirx",
    "tvm.tirx": f"{OURS}.tirx",
    "tvm.tirx.op": f"{OURS}.tirx",
}

# Modules that have the name of a function beside them, which an import would put in its place.
BESIDE = {"tilelang.jit": f"{OURS}.programs", "tilelang.jit.kernel": f"{OURS}.programs"}


def _name(theirs: str) -> str:
    return RENAMED.get(theirs, OURS + theirs.removeprefix("tilelang"))


def _is_absent(theirs: str) -> bool:
    top, *inner = theirs.split(".")
    return theirs not in RENAMED and (top == "tvm" or (bool(inner) and inner[0] in PACKAGES))


class _Alias(Loader):
    """Gives the module of this package that a name of TileLang's stands for: one object under both
    names, so that classes and state are one, too."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if _is_absent(spec.name):
            return Absent(spec.name)
        module = importlib.import_module(_name(spec.name))
        self.own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if not isinstance(module, Absent):
            module.__spec__ = self.own  # the import system has written the alias's over it


class _Finder(MetaPathFinder):
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.package and not name.startswith(f"{self.package}."):
            return None
        if _is_absent(name):
            return ModuleSpec(name, _Alias(), is_package=True)
        try:
            known = importlib.util.find_spec(_name(name))
        except ModuleNotFoundError:
            known = None
        if known is None:
            message = f"{name} is not part of tilec's spelling of TileLang"
            raise ModuleNotFoundError(message, name=name)
        # TileLang has packages where this has modules.
        return ModuleSpec(name, _Alias(), is_package=True)


_FINDER = _Finder("tilelang")
_TVM = _Finder("tvm")  # asked last: a TVM that is installed is the one that is meant


def install() -> None:
    """Let `import tilelang` find tilec from now on, in this process. Raises ImportError where
    TileLang itself has been imported already."""
    loaded = sys.modules.get("tilelang")
    if loaded is not None and loaded is not sys.modules[OURS]:
        raise ImportError("tilelang is imported already; install tilec's spelling of it before")
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
        sys.meta_path.append(_TVM)
        for theirs, ours in BESIDE.items():
            sys.modules[theirs] = importlib.import_module(ours)
