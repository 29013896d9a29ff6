"""Every NVIDIA row with random operands against NumPy: on a GPU, and here as the thread interpreter
and the assembler see it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gpu_launch import image_of, launch
from instruction_programs import PROGRAMS, WGMMA_PROGRAMS, Program
from thread_interp import run_threads

from tilec.target import find_target

SM90 = find_target("cuda:sm_90a")
NAMES = sorted(PROGRAMS)
# TMA rows run on a GPU inside whole kernels: `test_tma_of_every_rank` and the products of test_gpu.
ON_GPU = [n for n in NAMES if not n.startswith("tma")]
# test_rows assembles the others' instructions one by one.
SOME_WGMMA = ("wgmma.f16.f16.f32.k.mn", "wgmma.i8.u8.i32.r.k", "wgmma.tf32.tf32.f32.r.k")


def asked() -> Iterator[Any]:
    """Each with its dtypes, and where its operands of so many bits lie."""
    for name in NAMES:
        if name in WGMMA_PROGRAMS:
            dtypes, *places = WGMMA_PROGRAMS[name]
            yield pytest.param(name, str(dtypes), (dtypes[0].bits, *places), id=name)
        else:
            yield pytest.param(name, name, name, id=name)


def program(name: str) -> Program:
    return PROGRAMS[name](np.random.default_rng(zlib.crc32(name.encode())))


def check(p: Program) -> None:
    for key, want in p.want.items():
        got = p.arrays[key].reshape(want.shape)
        if p.tolerance == 0:
            np.testing.assert_array_equal(got, want, err_msg=key)
        else:
            mine, theirs = got.astype(np.float64), want.astype(np.float64)
            error = np.linalg.norm(mine - theirs) / np.linalg.norm(theirs)
            assert error <= p.tolerance, f"{key}: {error}"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPU)
def test_on_the_gpu(name: str) -> None:
    p = program(name)
    launch(p.func, SM90, p.arrays)
    check(p)


@pytest.mark.covering(1, axes=("dtypes", "places"))
@pytest.mark.parametrize("name, dtypes, places", list(asked()))
def test_as_interpreted(name: str, dtypes: str, places: object) -> None:
    p = program(name)
    run_threads(p.func, SM90, p.arrays)
    check(p)


@pytest.mark.parametrize("name", [n for n in NAMES if "wgmma" not in n or n in SOME_WGMMA])
def test_assembles(name: str) -> None:
    """To a cubin without spills, where ptxas is found."""
    image = image_of(program(name).func, SM90)
    assert image.resources.spilled_bytes in (0, None)
