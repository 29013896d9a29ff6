"""The cases of the benchmark, small: right on the CPU, and measured as a whole on a GPU."""

from __future__ import annotations

import ast
import os
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bench_fakes import SMALL, session  # noqa: E402

from benchmarks import operators, peers, products  # noqa: E402
from benchmarks.case import Case  # noqa: E402
from benchmarks.check import checker  # noqa: E402
from benchmarks.gpu import CudaTimer, device_facts, l2_bytes  # noqa: E402
from benchmarks.operators import (  # noqa: E402
    attention,
    backward,
    batched,
    decoding,
    fused,
    grouped,
    memory,
    mla,
    sinks,
    sparse_attention,
)
from benchmarks.store import ResultFile  # noqa: E402

SMALL_TABLES = {"offsets", "mask", "runs", "run_count", "singles", "single_count"}  # of int32


def tiny_cases() -> dict[str, Case]:
    return {
        "attention": attention.case(attention.Attention(2, 4, 2, 70, 64, True), 0),
        "attention, full": attention.case(attention.Attention(1, 2, 2, 130, 96, False), 0),
        **{
            f"backward{', causal' if causal else ''}": backward.case(
                backward.Backward(90, causal, batch=1, heads=2, dim=64)
            )
            for causal in (False, True)
        },
        "decoding": decoding.case(decoding.Decoding(2, 150, heads=8, groups=2, dim=64)),
        "mla": mla.case(mla.Mla(2, 128, heads=4, dim=64, rope=32)),
        "mla, split": mla.case(mla.Mla(1, 300, heads=4, dim=64, rope=32)),
        "mla, paged": mla.case(mla.Mla(2, 128, True, heads=4, dim=64, rope=32)),
        "sinks": sinks.case(sinks.Sinks(100, 0, heads=4, groups=2)),
        "sinks, window": sinks.case(sinks.Sinks(200, 70, heads=4, groups=2)),
        "sparse blocks": sparse_attention.case(sparse_attention.Sparse(200, 64, 2, kept=0.3)),
        "vertical-slash": sparse_attention.case(
            sparse_attention.Sparse(300, 64, 2, verticals=60, slashes=33)
        ),
        "batched": batched.case(3, 40, 33, 24, 0),
        "grouped": grouped.case(5, 150, 40, 33, 0),
        "many groups": grouped.case(20, 90, 17, 33, 0),
        **{e.name: fused.case(e, 33, 40, 24, 0) for e in fused.EPILOGUES},
        **{
            f.name: memory.case(f, shape, "float16")
            for f, shape in (
                *((f, (13, 300)) for f in (memory.ADD, memory.GATE, memory.SUM, memory.TRANSPOSE)),
                (memory.TOTAL, (5000,)),
                (memory.REDUCED, (13, 4096)),
                (memory.LAYER_NORM, (13, 304)),
            )
        },
        "odd layer norm": memory.case(memory.LAYER_NORM, (13, 301), "float16"),
        "int8": products.product_case("test", products.Product(33, 40, 64, "NT", "int8")),
        "fp8": products.product_case("test", products.Product(33, 48, 64, "NT", "float8_e4m3")),
    }


@pytest.mark.parametrize("name", tiny_cases())
def test_every_form_is_right_on_the_cpu(name, monkeypatch) -> None:
    """tilec's kernel and torch's calls against the float64 reference, which is made apart."""
    monkeypatch.setenv("TILEC_TARGET", "cpu")
    for by in (products, memory):
        monkeypatch.setattr(by, "module_of", lambda peer: None)
    monkeypatch.setattr(peers, "module_of", lambda peer, subject="gemm": None)
    case = tiny_cases()[name]
    tensors = case.make("cpu")
    error_of = checker(case, tensors)
    for c in case.candidates():
        if c.yardstick or (name, c.name) == ("fp8", peers.CUBLAS) or c.name == peers.CUDNN:
            continue  # of the latter two torch has them on GPUs only
        config = c.configs[-(zlib.crc32(name.encode()) % 2)]  # the first or the last
        error = error_of(c.bind(tensors, config))
        assert error <= case.tolerance, (c.name, config)
        assert c.name != "tilec" or c.identity(config).startswith("cpu ")
    total = sum(t.numel() * t.element_size() for k, t in tensors.items() if k not in SMALL_TABLES)
    assert case.bytes == total


@pytest.mark.skipif("TILELANG_SOURCE" not in os.environ, reason="TILELANG_SOURCE is not set")
@pytest.mark.parametrize("operator", ["decoding", "mla", "sinks", "sparse_attention"])
def test_tilelangs_programs_take_what_they_are_given(operator, monkeypatch) -> None:
    source, asked = Path(os.environ["TILELANG_SOURCE"]) / "examples", []

    class Examples:
        @staticmethod
        def compiled(path, function, *args, **settings):
            asked.append(path)
            body = ast.parse((source / f"{path}.py").read_text()).body
            found = next(n for n in body if isinstance(n, ast.FunctionDef) and n.name == function)
            names = [a.arg for a in found.args.args]
            assert len(args) <= len(names) and set(settings) <= set(names[len(args) :])
            assert {*names[len(args) : len(names) - len(found.args.defaults)]} <= set(settings)

    monkeypatch.setattr(peers, "module_of", lambda peer, subject="gemm": Examples)
    for case in operators.cases(operator):
        for c in case.candidates():
            for config in c.configs if c.name == peers.TILELANG else ():
                c.prepare(config)
    assert asked


def test_uneven_groups_are_uneven_and_complete() -> None:
    for groups in (8, 64):
        ends = grouped.uneven(groups, 4096)
        sizes = [b - a for a, b in zip(ends, ends[1:])]
        assert ends[0] == 0 and ends[-1] == 4096 and len(sizes) == groups
        assert min(sizes) >= 0 and max(sizes) > 1.5 * 4096 / groups
        assert (0 in sizes) == (groups == 64)


@pytest.mark.gpu
@pytest.mark.parametrize("name", tiny_cases())
def test_a_whole_run_on_the_gpu(name, tmp_path) -> None:
    """Every form by CUDA events and graphs, with every peer that is there."""
    s = session(
        tmp_path, timer=CudaTimer(), device="cuda", machine=device_facts(), cache=l2_bytes(),
        effort=replace(SMALL, seconds=0.01, settle=0.001),
    )  # fmt: skip
    case = tiny_cases()[name]
    row = s.measure(case)
    mine = row["candidates"]["tilec"]
    assert "failed" not in mine, mine["failed"]
    assert 0 < mine["hot"]["median"] < 1 and 0 < mine["steady"]["median"] < 1
    assert row["signature"]["tilec"].startswith("cuda:")
    results = ResultFile("none", tmp_path)
    results.put(row)
    assert not s.needs(case, results)
