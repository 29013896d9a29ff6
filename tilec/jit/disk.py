"""Variants on disk: the key of a variant, and reading and writing it in the disk cache."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilec.jit.compiled import CompiledKernel
from tilec.jit.specialise import SpecialisationKey
from tilec.jit.stages import Dump, Stages
from tilec.runtime.cache import (
    DiskCache,
    cache_root,
    compiler_fingerprint,
    file_identity,
    hash_parts,
)
from tilec.runtime.devices import blocks_at_once
from tilec.support.lazy import Lazy
from tilec.support.tools import find_ptxas

_MOST_CHOICES = 512

llvm = Lazy("llvmlite.binding")


@functools.cache
def _cache(root: Path) -> DiskCache:
    return DiskCache(root)


@functools.cache
def _compiler(root: Path) -> str:
    return compiler_fingerprint(_cache(root))


def _key(key: SpecialisationKey, root: Path) -> str:
    """The hash of everything that decides the code: facts (source and captured values among them),
    tilec's own code, and the tool or machine that the target's code depends on."""
    kind = key.target.split(":")[0]
    tool = ""
    if kind == "cuda":
        tool = file_identity(find_ptxas())
    elif kind == "cpu":
        tool = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    return hash_parts([_compiler(root), key.text(), tool, str(blocks_at_once(key.target))])


def load_variant(key: SpecialisationKey, stages: Callable[[], Stages]) -> CompiledKernel | None:
    """The variant stored in the disk cache; None if there is none, or if its stages are to be
    dumped.

    `stages` compiles it again, for whoever looks at the stages.
    """
    root = cache_root()
    if root is None or Dump.wanted():
        return None
    image = _cache(root).get(_key(key, root))
    return None if image is None else CompiledKernel(image, Stages(make=stages))


def load_choices(key: SpecialisationKey, of: str = "") -> dict[str, Any]:
    """The choices (`tilec.jit.choose`) made under `key` by earlier programs, as JSON values; `of`
    tells other kinds of them apart (measured ones, by device)."""
    root = cache_root()
    if root is None:
        return {}
    found = _cache(root).read_note(hash_parts([_key(key, root), of]) if of else _key(key, root))
    return found if isinstance(found, dict) else {}


def store_choices(key: SpecialisationKey, choices: dict[str, Any], of: str = "") -> None:
    """Put them into the disk cache; the latest, if there are many."""
    root = cache_root()
    if root is not None:
        latest = dict(list(choices.items())[-_MOST_CHOICES:])
        note = hash_parts([_key(key, root), of]) if of else _key(key, root)
        _cache(root).write_note(note, latest)


def store_variant(key: SpecialisationKey, variant: CompiledKernel) -> None:
    """Put a compiled variant into the disk cache."""
    root = cache_root()
    if root is not None:
        _cache(root).put(_key(key, root), variant.image)
