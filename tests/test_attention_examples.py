"""The kernels of examples/attention: right on the CPU and on a GPU, clean in the simulator, at real
sizes compiled without spills or serialised products."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from simulated import simulated, tiles_near

import tilec
from tilec.codegen.ptxas import run_ptxas
from tilec.support.tools import find_ptxas
from tilec.target import find_target

pytestmark = pytest.mark.filterwarnings("error::tilec.PerformanceWarning")

TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
NAMES = (
    "attention_sink", "block_sparse", "flash_decoding", "gqa_fwd", "mha_bwd", "mha_fwd",
    "mla_decode", "paged_decode", "varlen_fwd", "vertical_slash",
)  # fmt: skip
LARGER: dict[str, Any] = {  # cases for a GPU
    "attention_sink": [((2, 1000, 1000, 16, 2), 128), ((1, 300, 1500, 8, 8), 0)],
    "block_sparse": [((2, 1000, 4), True, 0.3), ((1, 777, 2), False, 0.1)],
    "flash_decoding": [([5000, 1, 0, 8192], 64, 8, 8), ([333], 32, 32, 5)],
    "gqa_fwd": [((2, 1000, 1300, 16, 4), False), ((1, 2048, 2048, 8, 1), True)],
    "mha_bwd": [((2, 700, 900, 3), True), ((1, 1024, 1024, 4), False)],
    "mha_fwd": [
        ((2, 1000, 1500, 4), {}),
        ((1, 2048, 2048, 8), {"causal": True}),
        ((1, 900, 2000, 2), {"causal": True, "window": 300, "cap": 10.0, "biased": True}),
        ((3, 5, 0, 2), {}),
    ],
    "mla_decode": [([3000, 0, 64], 128, 4, 64), ([8192, 1], 16, 16, 0)],
    "paged_decode": [([3000, 0, 64], 32, 4, 4, 64), ([8000], 64, 8, 7, 16)],
    "varlen_fwd": [([700, 0, 1, 333], [900, 50, 1, 0], False), ([1000, 64], [1000, 200], True)],
    "vertical_slash": [(1000, [0, 3, 70, 500, 999], [0, 90, 400]), (513, [], [0])],
}

EDGES: dict[str, Any] = {  # no keys, one key, one query, rows that see nothing, ends of blocks
    "attention_sink": [((1, 40, 0, 2, 1), 0), ((1, 1, 70, 7, 1), 0), ((1, 1, 1, 2, 1), 1)],
    "block_sparse": [((1, 1, 1), True, 1.0), ((1, 65, 1), False, 0.0), ((1, 129, 1), True, 0.9)],
    "flash_decoding": [([0], 2, 1, 1), ([1, 33, 500], 7, 1, 4)],
    "gqa_fwd": [((1, 40, 0, 14, 2), True), ((2, 1, 33, 7, 1), True), ((1, 70, 3, 7, 1), True)],
    "mha_bwd": [((1, 40, 0, 1), True), ((1, 1, 70, 1), True), ((1, 70, 3, 1), True)],
    "mha_fwd": [
        ((1, 40, 0, 1), {"causal": True}),
        ((2, 1, 33, 1), {"causal": True}),
        ((1, 70, 20, 1), {"causal": True, "window": 5, "biased": True}),
    ],
    "mla_decode": [([0, 0], 20, 2, 32), ([65, 1, 0], 16, 1, 64)],
    "paged_decode": [([0], 2, 1, 1, 16), ([0, 70, 1], 14, 2, 3, 32)],
    "varlen_fwd": [([0], [0], False), ([70, 0], [0, 5], True), ([1, 64], [1, 64], True)],
    "vertical_slash": [(1, [0], [0]), (70, [], []), (130, [129], [129])],
}

EMPTY: dict[str, Any] = {  # no queries, no keys, no batch
    "attention_sink": [((1, 0, 40, 2, 1), 0), ((0, 40, 40, 2, 1), 0), ((1, 0, 0, 2, 1), 1)],
    "block_sparse": [((1, 0, 1), True, 1.0), ((0, 65, 1), True, 1.0)],
    "flash_decoding": [([], 2, 1, 1), ([], 2, 1, 3), ([0], 2, 1, 3)],
    "gqa_fwd": [((1, 0, 40, 4, 2), False), ((0, 40, 40, 4, 2), True), ((1, 0, 0, 4, 2), True)],
    "mha_bwd": [((1, 0, 40, 1), True), ((1, 40, 0, 1), False), ((0, 40, 40, 1), True)],
    "mha_fwd": [((1, 0, 40, 1), {}), ((0, 40, 40, 1), {"causal": True}), ((1, 0, 0, 1), {})],
    "mla_decode": [([], 20, 2, 32), ([], 20, 1, 0), ([0], 20, 2, 0)],
    "paged_decode": [([], 2, 1, 1, 16), ([0], 2, 1, 2, 16)],
    "varlen_fwd": [([], [], False), ([0, 0], [5, 0], False), ([0], [7], True)],
    "vertical_slash": [(0, [], []), (0, [], [0])],
}


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("example_support"), "ON_GPU", False)


def run(name: str, capsys: pytest.CaptureFixture[str], *cases: Any) -> None:
    importlib.import_module(name).main(*cases)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 and printed[0].startswith(f"{name} on ")


@pytest.mark.covering(1)
@pytest.mark.parametrize("near", [0, 32, 64])
@pytest.mark.parametrize("name", NAMES)
def test_on_the_cpu(name: str, near: int, cpu: None, capsys: pytest.CaptureFixture[str]) -> None:
    with tiles_near(near):
        run(name, capsys)


@pytest.mark.parametrize("name", NAMES)
def test_edges(name: str, cpu: None, capsys: pytest.CaptureFixture[str]) -> None:
    with tiles_near(32):
        run(name, capsys, EDGES[name])
        run(name, capsys, EMPTY[name])


@pytest.mark.covering(1)
@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_edges_simulated(name: str, first: int, cpu: None) -> None:
    """In tiles of 64, the least for wgmma. Usually every other edge, and what is empty goes this
    way once: `test_edges` has all of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tilec.PerformanceWarning)  # few queries suit no TMA
        with tiles_near(64), simulated("cuda:sm_90a") as reports:
            importlib.import_module(name).main(EDGES[name][first::2])
            importlib.import_module(name).main(EMPTY[name][:1])
    assert reports and all(report.ok for report in reports), reports


@pytest.mark.parametrize("dims", [(7, 5), (72, 100), (16, 256)])
def test_any_head_dimension(
    dims: tuple[int, int], cpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    importlib.import_module("mha_fwd").main([((1, 33, 50, 1), {"causal": True})], dims)


@pytest.mark.torch
def test_the_transformer_learns(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("has a test of its own")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # its tensors are small, and the kernels have threads of their own
    try:
        run("transformer", capsys)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.covering(1)
@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_simulated(name: str, target: str, cpu: None) -> None:
    """Ragged sizes, empty sequences, rows that see nothing: no finding, and the right numbers. In
    the tiles that are chosen for TMA and wgmma, in small ones elsewhere."""
    near = 0 if target == "cuda:sm_90a" else 32
    with tiles_near(near), simulated(target) as reports:
        importlib.import_module(name).main()
    assert reports and all(report.ok for report in reports), reports


def many_parts(dim: int, splits: int) -> None:
    """Parts of two sequences, some of no keys; all of one row."""
    support, example = (importlib.import_module(n) for n in ("attention_support", "flash_decoding"))
    parts, rng = support.random((2, splits, 3, dim), "float32", 5), np.random.default_rng(6)
    sums = rng.normal(0, 9, (2, splits, 3)).astype(np.float32)
    sums[rng.random(sums.shape) < 0.3] = sums[0, :, 1] = -np.inf
    o, lse = support.empty((2, 3, dim), "float16"), support.empty((2, 3), "float32")
    example.combine(dim, splits=splits)(parts, sums, o, lse)
    weights = np.exp2(sums.astype(np.float64))
    total = weights.sum(1)
    want = (weights[..., None] * support.float64(parts)).sum(1)
    np.divide(want, total[..., None], out=want, where=total[..., None] > 0)
    support.check_rows(f"{splits} parts", o.reshape(6, dim), want.reshape(6, dim))
    with np.errstate(divide="ignore"):
        support.check_lse(f"{splits} parts", lse.reshape(-1), np.log(total).reshape(-1))


MANY = [(128, 9), (96, 33), (512, 40)]  # head dimension, parts: columns of one block and of two


@pytest.mark.parametrize("dim, splits", MANY)
def test_many_parts(dim: int, splits: int, cpu: None) -> None:
    many_parts(dim, splits)


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("target", TARGETS)
def test_many_parts_simulated(target: str, cpu: None) -> None:
    with simulated(target) as reports:
        for case in MANY:
            many_parts(*case)
    assert len(reports) == len(MANY) and all(report.ok for report in reports), reports


@pytest.mark.usefixtures("unassembled")
def test_a_page_that_is_none_is_found(cpu: None) -> None:
    support, example = (importlib.import_module(n) for n in ("attention_support", "paged_decode"))
    q = support.random((1, 2, 64), "float16")
    k = support.random((3, 32, 1, 64), "float16")
    pages, lengths = np.array([[2, 7]], np.int32), np.array([50], np.int32)
    parts, sums = support.empty((1, 1, 2, 64), "float32"), support.empty((1, 1, 2), "float32")
    report = tilec.simulate(
        example.paged(64, 32), q, k, k, pages, lengths, parts, sums, target="cuda:sm_80"
    )
    assert any("the table names a page" in f.message for f in report.findings), report


@pytest.mark.turns
@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("target", TARGETS)
def test_a_head_dimension_that_fits_nowhere(target: str) -> None:
    """What is over is told, and up to which dimension heads fit: that does, the next does not."""
    example = importlib.import_module("mha_fwd")

    def compiled(dim: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tilec.PerformanceWarning)  # what just fits is slow
            example.mha(dim, dim).compile(*example.specs(dim, dim), target=target)

    with pytest.raises(tilec.ResourceError, match="bytes of shared memory a block") as told:
        compiled(1024)
    assert "k shared" in str(told.value) and "help: " in str(told.value)
    assert "k = T.alloc_shared((BN, dim)" in str(told.value)
    found = re.search(
        r"help: or up to (\d+) in place of 1024, as wide as q, k, v, o are$", str(told.value)
    )
    assert found, told.value
    compiled(int(found[1]))
    with pytest.raises(tilec.ResourceError, match="in place of"):
        compiled(int(found[1]) + 16)


def kernels() -> Iterator[Any]:
    """All for sm_90a; of each module the first for every target, the others for one in turn."""
    for name in NAMES:
        for number, (kernel, specs, meta) in enumerate(importlib.import_module(name).SPECS):
            for target in (
                TARGETS if number == 0 else dict.fromkeys((TARGETS[0], TARGETS[number % 3]))
            ):
                named = f"{name}-{number}-{target}"
                yield pytest.param(kernel, specs, meta, target, (name, number // 3), id=named)


@pytest.mark.covering(1, axes=("case", "target"))
@pytest.mark.parametrize(("kernel", "specs", "meta", "target", "case"), list(kernels()))
def test_compiles_cleanly(
    kernel: Any, specs: list[Any], meta: dict[str, Any], target: str, case: tuple[str, int]
) -> None:
    """No spills and no serialised products; sm_80 may spill some words where nothing else fits.
    Usually one of three neighbours, which differ in a head dimension, for one target."""
    with warnings.catch_warnings():
        if target.startswith("hip"):  # tiles of some head dimensions do not divide among threads
            warnings.simplefilter("ignore", tilec.CompileWarning)
        else:
            warnings.simplefilter("error", tilec.CompileWarning)
        compiled = kernel.compile(*specs, target=target, **meta)
    assert compiled.binary
    if target.startswith("hip"):
        assert compiled.resources.spilled_bytes == 0
        return
    ptxas = find_ptxas()
    if ptxas is None:
        return
    advisories = run_ptxas(ptxas, compiled.asm, find_target(target).arch).advisories
    if target == "cuda:sm_90a":
        assert compiled.resources.spilled_bytes == 0 and advisories == ()
    else:
        assert compiled.resources.spilled_bytes <= 80
        assert all("spilled" in a for a in advisories), advisories


def test_runs_of_keys_overlap_where_threads_gather_others() -> None:
    """Three blocks a multiprocessor, and in each the products of one run of keys beside what
    threads compute with another's; in front of the single keys, these are waited for."""
    example = importlib.import_module("vertical_slash")
    made = example.vertical_slash(64).compile(*example.specs(64, 8192), target="cuda:sm_90a")
    assert made.plan.overlap and made.plan.residents == 3 == made.resources.blocks_per_sm
    assert not made.plan.persistent  # where some products overlap that lost 3 %
    table = str(made.stages["plan"])
    assert table.count("  stage  line  statement") == 2, table  # of three loops
    # Only the second one begins its scores with a mask.
    tile = str(made.stages["tile"])
    assert tile.count("clear=true") == 1 and tile.count("for.pipelined") == 2, tile


# --- on a GPU -----------------------------------------------------------------------------------


@pytest.fixture
def gpu() -> Any:
    if not importlib.import_module("example_support").ON_GPU:
        pytest.skip("needs torch with CUDA")
    return importlib.import_module("torch")


@pytest.mark.gpu
@pytest.mark.parametrize("larger", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_on_gpu(name: str, larger: bool, gpu: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(name, capsys, *([LARGER[name]] if larger else []))


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
def test_forward_and_backward_of_every_head_dimension_on_gpu(dim: int, gpu: Any) -> None:
    importlib.import_module("mha_fwd").main([((1, 300, 300, 2), {"causal": True})], (dim, dim))
    importlib.import_module("mha_bwd").main([((1, 200, 300, 2), True)], dim)
    importlib.import_module("flash_decoding").main([([1000, 3], 8, 2, 3)], dim)


@pytest.mark.gpu
def test_the_transformer_learns_on_gpu(gpu: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run("transformer", capsys)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_runs_agree_bit_for_bit_on_gpu(causal: bool, gpu: Any) -> None:
    """Forward, and backward in its deterministic form."""
    forward, backward = (importlib.import_module(n) for n in ("mha_fwd", "mha_bwd"))
    q, k, v, do = (gpu.randn(2, 900, 4, 128, device="cuda").half() for _ in range(4))
    seen: dict[str, Any] = {}
    for _ in range(10):
        o, lse = gpu.empty_like(q), gpu.empty(2, 4, 900, device="cuda")
        forward.mha(128, 128, causal)(q, k, v, q.new_empty(1), o, lse)
        dq, dk, dv = (gpu.empty_like(x) for x in (q, k, v))
        given = gpu.empty_like(lse), gpu.empty_like(lse), lse.new_empty(1, 1, 1, 1)
        backward.backward(q, k, v, o, do, lse, causal, True, dq, dk, dv, *given)
        for name, got in (("o", o), ("lse", lse), ("dq", dq), ("dk", dk), ("dv", dv)):
            assert gpu.equal(seen.setdefault(name, got), got), name
