"""Variants of kernels whose code for GPUs is verified by LLVM, and not assembled.

They are not those that other tests compile: their keys are other ones, and what is chosen by what
compiles well is chosen apart. Importing this puts something in the place of parts of tilec which
looks at what is `wanted`."""

from __future__ import annotations

import dataclasses
import os
import threading
from typing import Any
from unittest import mock

from tilec.codegen.assemble import Assembled, _parse, assemble, check_intrinsics, parted
from tilec.jit import attempts
from tilec.jit.choose import Choices, place_of
from tilec.jit.compiled import CompiledKernel
from tilec.jit.specialise import Asked, SpecialisationKey
from tilec.kernel import Kernel, Planned
from tilec.target import Target


class Wanted:
    """Which compilations are such: of all kernels; of those that only the simulator runs."""

    everything = simulated = False


wanted = Wanted()
_simulating = threading.local()
_compiled, _chosen, _planned = Kernel.variant, Choices.key, Kernel.plan_launch


def folder() -> str:
    return os.path.join(os.environ["TILEC_CACHE_DIR"], "apart")


def _apart(known: bool) -> bool:
    """`known`: whether the test has it from a compilation of its own."""
    return wanted.everything or (hasattr(_simulating, "now") and not known)


def _variant(self: Kernel, key: SpecialisationKey) -> CompiledKernel:
    if _apart(key in self._variants):
        key = dataclasses.replace(key, simulated=True)
    return _compiled(self, key)


def _key(self: Choices, asked: Asked) -> SpecialisationKey:
    if not _apart((asked.key(), place_of(asked)) in self._made):
        return _chosen(self, asked)
    if not hasattr(self, "apart"):
        self.apart = Choices(self._compiled)  # type: ignore[attr-defined]
    return _chosen(self.apart, asked)  # type: ignore[attr-defined]


def _plan_launch(self: Kernel, *args: Any, **kwargs: Any) -> Planned:
    if not wanted.simulated or hasattr(_simulating, "now"):
        return _planned(self, *args, **kwargs)
    _simulating.now = True
    try:
        with mock.patch.dict(os.environ, TILEC_CACHE_DIR=folder()):
            return _planned(self, *args, **kwargs)
    finally:
        del _simulating.now


def _assembled(text: str, target: Target, *more: Any) -> Assembled:
    if target.kind == "cpu" or not _apart(False):
        return assemble(text, target, *more)
    check_intrinsics(text, target)
    _parse(parted(text)[0], None).verify()
    return Assembled(text, target, binary=b"none")


Kernel.variant, Choices.key, Kernel.plan_launch = _variant, _key, _plan_launch
attempts.assemble = _assembled
