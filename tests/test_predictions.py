"""What a kernel is predicted to take is what it takes: shared memory, registers of fragments, the
stages of its buffers, on three targets."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from form_help import tile_func
from place_programs import PLACES, Place

import tilec
from benchmarks import kernels
from tilec import passes
from tilec.ir.core import Func, walk
from tilec.ir.errors import CompileError
from tilec.ir.ops import Alloc
from tilec.passes.utils.plans import with_plan
from tilec.target import Target, find_target
from tilec.tune import fit
from tilec.tune.footprint import footprint
from tilec.tune.plans import plans


def specs(dtype: str, *shapes: tuple[int, ...], last: str = "") -> list[Any]:
    dtypes = [dtype] * (len(shapes) - 1) + [last or dtype]
    return [tilec.spec(s, d) for s, d in zip(shapes, dtypes)]


TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
TILE = {"BM": 64, "BN": 128, "BK": 64}
LARGE = (4096, 4096)
# (kernel, arguments): one of each form that is measured.
MEASURED = {
    "product": (kernels.product("float16"), specs("float16", LARGE, LARGE, LARGE)),
    "odd rows": (kernels.product("float16"), specs("float16", (543, 999), (999, 77), (543, 77))),
    "few tiles": (
        kernels.product("bfloat16", False, True),
        specs("bfloat16", (128, 16384), (128, 16384), (128, 128)),
    ),
    "tf32, held operands": (kernels.product("float32"), specs("float32", LARGE, LARGE, LARGE)),
    "int8": (
        kernels.product("int8", False, True),
        specs("int8", (256, 4096), LARGE, (256, 4096), last="int32"),
    ),
    "bias": (kernels.linear("float16", "relu"), specs("float16", LARGE, LARGE, (4096,), LARGE)),
    "two products": (kernels.swiglu("float16"), specs("float16", LARGE, LARGE, LARGE, LARGE)),
    "sums": (kernels.added("float32"), specs("float32", LARGE, LARGE, LARGE)),
    "row sums": (kernels.summed("float16"), specs("float16", LARGE, (4096,), last="float32")),
}


ATTENTION = (
    "attention_sink", "block_sparse", "flash_decoding", "gqa_fwd", "mha_bwd", "mha_fwd",
    "mla_decode", "paged_decode", "varlen_fwd", "vertical_slash",
)  # fmt: skip
NO_ROOM = [("paged_decode", "hip:gfx942"), ("vertical_slash", "hip:gfx942")]  # 64 KiB shared


def check(kernel: Any, arrays: list[Any], meta: dict[str, int], name: str) -> bool:
    """Compare the configuration that is recommended with what the passes make of it; False if there
    is none."""
    found = kernel.recommend(*arrays, target=name, topk=1, **meta)
    if not found:
        return False
    asked = kernel.described(arrays, name, dict(meta))
    asked.call.constants.update(found[0].constants)
    func = kernel.choices.traced(asked.signature, asked.key())
    kept: dict[str, Func] = {}
    plan = found[0].plan
    ranked = (plan,) if plan else ()
    fit.first_fit(func, find_target(name), kept.__setitem__, ranked, only_ranked=bool(ranked))
    fragments = [
        o.type
        for o in walk(kept["infer_layouts"].body)
        if isinstance(o, Alloc) and o.type.space == "fragment"
    ]
    registers = sum(-(-t.layout.size("reg") * t.dtype.bits // 32) for t in fragments if t.layout)
    estimate = found[0].estimate
    assert estimate.registers == registers
    assert estimate.shared_bytes == kept["plan_shared"].attrs["shared_bytes"]
    return True


@pytest.mark.parametrize("target", TARGETS)
def test_measured_kernels_take_what_is_predicted(target: str) -> None:
    for name, (kernel, arrays) in MEASURED.items():
        assert check(kernel, arrays, {} if name.endswith("sums") else TILE, target)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_takes_what_is_predicted(name: str, target: str) -> None:
    """The first and the last kernel of each example that the target has room for."""
    specs = importlib.import_module(name).SPECS
    for kernel, arrays, meta in (specs[0], specs[-1]):
        assert check(kernel, arrays, dict(meta), target) or (name, target) in NO_ROOM


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", [find_target(n) for n in TARGETS], ids=str)
@pytest.mark.parametrize("place", PLACES, ids=lambda p: p.name)
def test_buffers_have_the_versions_that_are_predicted(place: Place, target: Target) -> None:
    """Copies anywhere: in two loops onto one buffer, under a condition, before a loop."""
    func = tile_func(place.kernel, place.arrays((2, 1), 3)[0])
    for one, _ in passes.NORMALISE:
        func = one(func, target)
    space = footprint(func, target)
    compared = 0
    for plan in plans(func, target):
        made = with_plan(func, plan)
        try:
            for one, _ in passes.DECIDE:
                made = one(made, target)
                if one is passes.plan_pipeline:
                    break
        except CompileError:
            continue
        types = [o.type for o in walk(made.body) if isinstance(o, Alloc)]
        compiled = sum(t.stage_bytes * t.stages for t in types if t.space == "shared")
        ahead = space.planned(plan, plan.stages, target)
        assert ahead.total + sum(space.sizes.values()) - ahead.one == compiled, plan.describe()
        compared += 1
    assert compared
