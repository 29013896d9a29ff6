"""Every kernel of every example compiles for every GPU target, without spills or serialised
instructions, and takes the shared memory and registers that it is predicted to take."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from test_examples import EXAMPLES

import tilec
from tilec.codegen.ptxas import run_ptxas
from tilec.fuzz.waits import unfinished_at_barriers
from tilec.ir.parser import parse_func
from tilec.passes.check_registers import fragment_registers
from tilec.support.tools import find_ptxas
from tilec.target import find_target

pytestmark = pytest.mark.filterwarnings("error::tilec.PerformanceWarning")

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


def kernels() -> Iterator[Any]:
    """Each kernel for all targets with one set of arguments, with further ones for one target after
    the other."""
    seen = set()
    for name in EXAMPLES:
        for number, (kernel, specs, meta) in enumerate(importlib.import_module(name).SPECS):
            targets = (TARGETS[number % 3],) if kernel in seen else TARGETS
            seen.add(kernel)
            for target in targets:
                yield pytest.param(kernel, specs, meta, target, id=f"{name}-{number}-{target}")


@pytest.mark.covering(1, axes=("specs", "target"))
@pytest.mark.parametrize(("kernel", "specs", "meta", "target"), list(kernels()))
def test_compiles_cleanly(kernel: Any, specs: list[Any], meta: dict[str, Any], target: str) -> None:
    """Usually each set of arguments for one target."""
    compiled: tilec.CompiledKernel = kernel.compile(*specs, target=target, **meta)
    resources, ptxas = compiled.resources, find_ptxas()
    assert compiled.binary and resources.threads >= 32
    for first in kernel.recommend(*specs, target=target, topk=1, **meta)[:1]:
        laid_out = parse_func(compiled.stages["infer_layouts"])
        assert first.plan in (None, compiled.plan), "the assembler finds no fault with it"
        assert first.estimate.shared_bytes == resources.shared_bytes
        assert first.estimate.registers == fragment_registers(laid_out)
    if target.startswith("hip") or ptxas is not None:
        assert resources.registers is not None and resources.registers > 0
        assert resources.spilled_bytes == 0
    if target.startswith("hip"):
        assert not list(unfinished_at_barriers(compiled.asm))
    if target.startswith("cuda") and ptxas is not None:
        assert run_ptxas(ptxas, compiled.asm, find_target(target).arch).advisories == ()
