"""Products in roles (`split_roles`): what becomes of a loop, the numbers, what is refused, and that
each part of the order between the groups is needed."""

from __future__ import annotations

import importlib
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import role_programs as programs

import tilec
import tilec.language as T
from tilec import passes
from tilec.ir.core import Block, Func, Op, walk
from tilec.ir.effects import written_tensors
from tilec.ir.errors import ResourceError
from tilec.ir.ops import (
    Load,
    MbarrierArrive,
    MbarrierExpectTx,
    MbarrierWait,
    ProxyFence,
    Scope,
    WgmmaWait,
)
from tilec.jit.build import trace_variant
from tilec.jit.simulate import simulate_changed
from tilec.passes.utils.late_scalars import load_in_scopes
from tilec.sim.launch import Wishes
from tilec.target import find_target

HOPPER = "cuda:sm_90a"
M, N = T.dynamic("M, N")
pytestmark = pytest.mark.filterwarnings("ignore::tilec.PerformanceWarning")
LATENT = programs.latent()


def arrays_of(make: Any, *sizes: int) -> dict[str, np.ndarray]:
    return make(np.random.default_rng(sum(sizes)), *sizes)


def error_of(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> float:
    return max(
        float(np.linalg.norm(got[n].astype(np.float64) - w) / (np.linalg.norm(w) or 1))
        for n, w in want.items()
    )


# --- what comes of a loop ---


@pytest.fixture(scope="module")
def split() -> str:
    arrays = arrays_of(programs.latent_arrays, 64, 300)
    compiled = LATENT.compile(*arrays.values(), target=HOPPER)
    assert compiled.plan.name == "plain, products in roles"
    assert compiled.plan.threads == 384
    return str(compiled.stages["split_roles"])


def groups(text: str) -> dict[str, str]:
    """The text of each group, by its name."""
    parts = re.split(r"^  scope (\w+), .*$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def test_products_are_on_either_side(split: str) -> None:
    found = groups(split)
    assert list(found) == ["first", "last_0", "last_1"]
    gemms = {name: re.findall(r"gemm (.*)", t) for name, t in found.items()}
    products = {
        n: [re.findall(r"%([a-z]\w*?(?:_\d)?)\b", g) for g in gs] for n, gs in gemms.items()
    }
    products = {
        n: [[v for v in g if v[0] != "c" and "slot" not in v] for g in gs]
        for n, gs in products.items()
    }
    # Each takes its own columns of the values; P is in the place of the keys' last columns.
    assert products["last_0"] == [["k_rope", "kv_0", "o"]]
    assert products["last_1"] == [["k_rope", "kv_1", "o_1"]]
    assert {p[1] for p in products["first"]} == {"kv_0", "kv_1", "k_rope"}
    assert {p[2] for p in products["first"]} == {"s"}
    assert "parallel" in found["first"] and "exp" not in found["last_0"] + found["last_1"]


def test_q_is_in_registers(split: str) -> None:
    assert not re.search(r"%q\w* = alloc shared", split)
    assert re.search(r"%q_0 = alloc fragment<64x32xf16>", split)


def test_groups_behind_the_cut_bring_the_tiles(split: str) -> None:
    found = groups(split)
    brought = {n: set(re.findall(r"tma_copy %(\w+)\[.*?%(\w+)\[", t)) for n, t in found.items()}
    assert brought == {
        # What goes on to registers, through the last stage of tiles alike.
        "first": {("Q", "kv_0"), ("Q", "kv_1"), ("Q_rope", "k_rope")},
        "last_0": {("KV", "kv_0"), ("K_rope", "k_rope")},
        "last_1": {("KV", "kv_1")},
    }


def test_q_comes_through_the_last_stage(split: str) -> None:
    found = groups(split)
    assert re.search(r"copy %kv_0\[[^]]*\], \(1, 64, 32\), %q_0\[", found["first"])
    for name in ("last_0", "last_1"):  # it waits there before it fills that stage
        wait, fill = (found[name].index(x) for x in ("mbarrier_wait %taken", "tma_copy"))
        assert wait < fill


@pytest.fixture(scope="module")
def decoding() -> str:
    """Of a table of pages, as many as `lengths` says."""
    with pytest.MonkeyPatch.context() as m:
        m.syspath_prepend("examples/attention")
        example = importlib.import_module("mla_decode")
    specs = example.specs(64, 4096, 64, 1, "float16")
    made = example.mla(page=64, kind="float16").compile(*specs, BM=64, BN=64, target=HOPPER)
    assert made.plan.name == "plain, products in roles" and made.resources.spilled_bytes == 0
    return str(made.stages["split_roles"])


def test_q_is_asked_for_before_the_number_of_keys(decoding: str) -> None:
    """Which takes memory's time, and the place of the first keys that time again."""
    assert " load " not in decoding[: decoding.index("  scope first,")]
    found = groups(decoding)
    asked = [found["first"].index(x) for x in ("tma_copy %Q[", "tma_copy %Q_pe[")]
    assert max(asked) < found["first"].index("load %lengths[") < found["first"].index("wait %came")
    for name in ("last_0", "last_1"):
        assert found[name].count("load %lengths[") == 1
        assert found[name].index("load %lengths[") < found[name].index("load %Table[")


def test_the_next_page_is_looked_up_while_products_run(decoding: str) -> None:
    for name in ("last_0", "last_1"):
        text = groups(decoding)[name]
        steady = text[text.index("mbarrier_wait %ready") :]
        begin, product = text.rindex("load %Table["), steady.index("gemm ")
        assert text.count("load %Table[") == 2 and "load %Table[" not in steady
        assert begin < text.index("mbarrier_wait %ready") and product < steady.index("tma_copy %KV")


@tilec.kernel
def two_scopes(
    counts: T.Tensor((8,), "int32"), A: T.Tensor((N,), "int32"), B: T.Tensor((N,), "int32")
):
    with T.Kernel(1, threads=256):
        n, m = counts[0], counts[1]
        with T.ws(0):
            for i in T.Parallel(128):
                if i < n:
                    B[i] = A[i]
        with T.ws(1):
            for i in T.Parallel(128):
                if i < m:
                    B[i + n] = A[i] + 1


def test_keys_leave_the_cache_first(decoding: str) -> None:
    """They are read once, by two groups; Q is what an earlier kernel wrote."""
    brought = re.findall(r"tma_copy %(\w+)\[.*", decoding)
    first = re.findall(r"tma_copy %(\w+)\[.*cache=evict_first", decoding)
    assert {*first} == {"KV", "K_pe"} and len(first) == 6
    assert sum(x.startswith("Q") for x in brought) == len(brought) - len(first)


def test_scopes_load_for_themselves() -> None:
    """Whatever they do: behind what they begin with that waits for nothing, each what it needs."""
    args = [tilec.spec((n,), kind) for n, kind in ((8, "int32"), (999, "int32"), (999, "int32"))]
    func = trace_variant(two_scopes.signature, two_scopes.key_of(args, HOPPER, {}))
    func = passes.apply(passes.NORMALISE, func, find_target(HOPPER), None)
    before, after = func.body, load_in_scopes(func.body, written_tensors(func.body))

    def loads(block: Block) -> list[str]:
        return [o.source.name for o in block.ops if isinstance(o, Load)]

    assert (loads(before), loads(after)) == (["counts", "counts"], [])
    scopes = [[loads(o.body) for o in b.ops if isinstance(o, Scope)] for b in (before, after)]
    assert scopes == [[[], []], [["counts"], ["counts", "counts"]]]
    assert load_in_scopes(before, {p.value for p in func.params}) is before  # what is written stays


def test_weights_leave_as_matrices() -> None:
    arrays = arrays_of(programs.latent_arrays, 64, 300)
    assert "stmatrix" in LATENT.compile(*arrays.values(), target=HOPPER).stages["ptx"]


def test_results_leave_by_tma_where_a_tile_is_like_them() -> None:
    arrays = arrays_of(programs.perceptron_arrays, 64, 320)
    made = programs.perceptron.compile(*arrays.values(), target=HOPPER)
    found = groups(str(made.stages["split_roles"]))
    for part in (0, 1):
        text = found[f"last_{part}"]
        assert re.search(rf"copy %w2_{part}\[.*%Y\[.*engine=tma_store", text), text
    assert "global.shared::cta" in made.stages["ptx"]
    # Of float32 no tile is.
    latent = LATENT.compile(*arrays_of(programs.latent_arrays, 64, 300).values(), target=HOPPER)
    assert "tma_store" not in str(latent.stages["split_roles"])


def test_factors_of_one_are_skipped() -> None:
    """A thread behind the cut asks whether one of its two rows is scaled at all."""
    arrays = arrays_of(programs.latent_arrays, 64, 300)
    made = LATENT.compile(*arrays.values(), target=HOPPER)
    found = groups(str(made.stages["lower_parallel"]))
    asked = (
        r"const 1\.0, f32\n(?:.*(?:const 0|const 1|reg_read|compare\.ne).*\n)+.*binary\.or.*\n *if "
    )
    counts = {name: len(re.findall(asked, text)) for name, text in found.items()}
    assert counts == {"first": 0, "last_0": 1, "last_1": 1}


def test_registers_go_to_the_first_group(split: str) -> None:
    counts = [int(n) for n in re.findall(r"set_registers (\d+)", split)]
    assert counts == [240, 64, 64] and sum(counts) * 128 <= 65536


def test_without_a_wish_others_are_as_they_were() -> None:
    """The wish is what splits a loop that is split by default nowhere."""
    arrays = arrays_of(programs.latent_arrays, 64, 300)
    plain = programs.latent(wish=False).compile(*arrays.values(), target=HOPPER)
    if not plain.plan.roles:
        assert str(plain.stages["split_roles"]).count("scope") == 0


# --- numbers ---


@pytest.mark.covering(1)
@pytest.mark.parametrize("keys", [1, 64, 65, 128, 190, 700])
@pytest.mark.parametrize("rows", [1, 64, 100])
def test_attention(keys: int, rows: int) -> None:
    arrays = arrays_of(programs.latent_arrays, rows, keys)
    report = tilec.simulate(LATENT, *arrays.values(), target=HOPPER, schedules=2)
    assert report.ok, report
    assert error_of(arrays, programs.attended(arrays)) < 2e-3


@pytest.mark.parametrize("shape", [(128, 128, 64), (256, 64, 64), (128, 64, 32)], ids=str)
def test_other_tiles(shape: tuple[int, int, int]) -> None:
    width, rope, keys = shape
    arrays = arrays_of(programs.latent_arrays, 64, 200, width, rope)
    kernel = programs.latent(width, rope, keys=keys)
    report = tilec.simulate(kernel, *arrays.values(), target=HOPPER)
    assert report.ok, report
    assert error_of(arrays, programs.attended(arrays)) < 2e-3


@pytest.mark.covering(1)
@pytest.mark.parametrize("slices", [0, 1, 2, 3, 4, 5, 16])
@pytest.mark.parametrize("rows", [64, 70])
def test_perceptron(slices: int, rows: int) -> None:
    arrays = arrays_of(programs.perceptron_arrays, rows, 1000, slices)
    report = tilec.simulate(programs.perceptron, *arrays.values(), target=HOPPER, schedules=2)
    assert report.ok, report
    assert error_of(arrays, programs.perceived(arrays)) < 2e-3


# --- what ptxas says ---


@pytest.mark.parametrize("number", [0, 1])
def test_latent_attention_of_the_examples(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is chosen for 128 heads of 512 columns, and that nothing spills."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "examples" / "attention"))
    kernel, specs, meta = importlib.import_module("mla_decode").SPECS[number]
    with warnings.catch_warnings():
        warnings.simplefilter("error", tilec.CompileWarning)
        made = kernel.compile(*specs, target=HOPPER, **meta)
    assert made.plan.name == "plain, products in roles"
    assert made.resources.spilled_bytes in (0, None)
    counts = re.findall(r"setmaxnreg\.(\w+)\.sync\.aligned\.u32 (\d+)", made.stages["ptx"])
    assert counts == [("inc", "184"), ("dec", "160"), ("dec", "160")]
    if made.resources.registers is not None:
        assert made.resources.registers == 168  # at launch, of 384 threads


# --- what is refused ---


def refused(kernel: Any, *arrays: Any, target: str = HOPPER, **meta: Any) -> tuple[str, str]:
    """The message, and the source's line that it names."""
    with pytest.raises(ResourceError) as told:
        kernel.compile(*arrays, target=target, **meta)
    loc = told.value.loc
    assert loc is not None and told.value.hint
    return told.value.message, Path(loc.file).read_text().split("\n")[loc.line - 1].strip()


WISH = "T.annotate_schedule(roles=True"


def test_refused_without_warpgroups() -> None:
    arrays = arrays_of(programs.latent_arrays, 64, 64)
    message, line = refused(LATENT, *arrays.values(), target="cuda:sm_80")
    assert "cuda:sm_80 has no warpgroups" in message and line.startswith(WISH)


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((512, 64, 64, 128), "shared memory has room for 1"),
        ((1024, 64, 64, 64), "its first group needs .* registers of a thread"),
        ((128, 64, 128, 256), "its first group needs .* registers of a thread"),
    ],
    ids=str,
)
def test_refused_where_it_does_not_fit(shape: tuple[int, int, int, int], why: str) -> None:
    width, rope, rows, keys = shape
    arrays = arrays_of(programs.latent_arrays, 64, 64, width, rope)
    message, line = refused(programs.latent(width, rope, rows, keys), *arrays.values())
    assert re.search(why, message) and line.startswith(WISH), message


@tilec.kernel
def products(
    A: T.Tensor((M, 128), "float16"),
    B: T.Tensor((N, 128), "float16"),
    C: T.Tensor((M, 128), "float16"),
    how: T.constexpr,
):
    """A chain of products, and what makes it none that can be split."""
    with T.Kernel(T.ceildiv(M, 64), threads=128 if how == "threads" else None) as bx:
        if how == "specialise":
            T.annotate_schedule(roles=True, specialise=True)
        else:
            T.annotate_schedule(roles=True)
        x, b = T.alloc_shared((64, 128), "float16"), T.alloc_shared((64, 128), "float16")
        s, p = T.alloc_fragment((64, 64), "float32"), T.alloc_shared((64, 64), "float16")
        y, z = T.alloc_fragment((64, 128), "float32"), T.alloc_fragment((64, 128), "float32")
        T.clear(y)
        T.clear(s)
        T.copy(A[bx * 64, 0], x)
        for n in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
            T.copy(B[n * 64, 0], b)
            if how == "one product":
                T.gemm(x, b, s, transpose_B=True)
            else:
                T.gemm(x, b, s, transpose_B=True, clear_accum=True)
                T.copy(s, p)
                if how == "changed":  # numbers were those of b as it had come
                    for i, j in T.Parallel(64, 128):
                        if n * 64 + i >= 200:
                            b[i, j] = 0
                if how == "another B":
                    T.gemm(p, x, y)
                else:
                    T.gemm(p, b, y)
            if how == "cumulated":
                T.cumsum(y, dim=1)
            if how == "written":
                T.copy(C[bx * 64, 0], z)
                T.copy(y, C[bx * 64, 0])
        if how == "two loops":
            for n in T.Pipelined(2, num_stages=2):
                T.copy(B[n * 64, 0], b)
                T.gemm(x, b, s, transpose_B=True)
        T.copy(y, C[bx * 64, 0])


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("threads", "the roles are 384 threads, and threads=128"),
        ("specialise", "the groups behind the cut bring the tiles"),
        ("one product", "no product of its loop takes from shared memory what threads made"),
        ("two loops", "it is not one T.Pipelined that stands at the top"),
        ("another B", "x is not made anew in each iteration"),
        ("changed", "the other group changes b"),
        ("cumulated", "it cannot be done for a part of the columns"),
        ("written", "the kernel writes C, which it reads in the loop"),
    ],
)
def test_refused_programs(how: str, why: str) -> None:
    arrays = [tilec.spec(s, "float16") for s in ((64, 128), (256, 128), (64, 128))]
    message, line = refused(products, *arrays, how=how)
    assert why in message, message
    assert line.startswith(WISH)


@tilec.kernel
def branches(
    A: T.Tensor((M, 128), "float16"),
    B: T.Tensor((N, 128), "float16"),
    C: T.Tensor((M, 128), "float32"),
):
    """A chain of products; what it adds up is halved, and more is added, on conditions."""
    with T.Kernel(T.ceildiv(M, 64)) as bx:
        T.annotate_schedule(roles=True)
        x, b = T.alloc_shared((64, 128), "float16"), T.alloc_shared((64, 128), "float16")
        s, p = T.alloc_fragment((64, 64), "float32"), T.alloc_shared((64, 64), "float16")
        y = T.alloc_fragment((64, 128), "float32")
        T.clear(y)
        T.copy(A[bx * 64, 0], x)
        for n in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
            T.copy(B[n * 64, 0], b)
            T.gemm(x, b, s, transpose_B=True, clear_accum=True)
            T.copy(s, p)
            if n > 0:
                for i, j in T.Parallel(64, 128):
                    y[i, j] *= 0.5
            T.gemm(p, b, y)
        if bx % 2 == 0:
            for i, j in T.Parallel(64, 128):
                y[i, j] += j
        else:
            for i, j in T.Parallel(64, 128):
                y[i, j] -= i
        T.copy(y, C[bx * 64, 0])


@pytest.mark.parametrize(("m", "n"), [(100, 150), (64, 64), (1, 1)])
def test_branches_of_what_columns_are_shared_out(m: int, n: int, rng: np.random.Generator) -> None:
    """Each group takes the branches for its own columns."""
    a, b = (rng.integers(-2, 3, (e, 128)).astype(np.float16) for e in (m, n))
    c, want = np.zeros((m, 128), np.float32), np.zeros((m, 128))
    report = tilec.simulate(branches, a, b, c, target=HOPPER)
    assert report.ok, report
    for k in range(0, n, 64):
        tile = b[k : k + 64].astype(float)
        want = want / 2 + (a.astype(float) @ tile.T).astype(np.float16) @ tile
    rows = np.arange(m)[:, None]
    want += np.where(rows // 64 % 2 == 0, np.arange(128), -(rows % 64))
    np.testing.assert_array_equal(c, want)


# --- mutants ---

ORDER = (MbarrierWait, MbarrierArrive, MbarrierExpectTx, ProxyFence, WgmmaWait)
# What is not needed for the result: the group, the op, the barrier.
EXPLAINED = {
    # When the last products begin is a question of time only.
    ("last_0", "mbarrier_wait", "scored"),
    ("last_1", "mbarrier_wait", "scored"),
    # It brings its own columns only, and a product of a warpgroup is one to the simulator.
    ("last_1", "mbarrier_wait", "free"),
}


def left_out(number: int) -> tuple[tuple[str, str, str], bool, int]:
    """What is left out of attention's LOWERED form (by its number), whether that is found, and how
    many there are."""
    arrays = arrays_of(programs.latent_arrays, 64, 640)  # longer than there are stages
    told: list[tuple[tuple[str, str, str], int]] = []

    def change(func: Func) -> Func:
        scopes = [o for o in func.body.ops if isinstance(o, Scope)]
        found = [(s.name, o) for s in scopes for o in walk(s.body) if isinstance(o, ORDER)]
        name, gone = found[number]
        barrier = gone.operands[0].name if gone.operands else ""
        told.append(((name, gone.opname, barrier), len(found)))
        return func.rewrite(Op, lambda o: [] if o is gone else None)

    report = simulate_changed(
        change, LATENT, *arrays.values(), target=HOPPER, wishes=Wishes(steps=30_000)
    )
    return *told[0][:1], not report.ok, told[0][1]


def test_all_that_orders_groups_is_needed(request: pytest.FixtureRequest) -> None:
    """Usually every other one: there are two groups of each kind, and several of most."""
    what, found, count = left_out(0)
    step = 1 if request.config.getoption("--every-cell") else 2
    seen = {what: found} | {w: f for w, f, _ in map(left_out, range(step, count, step))}
    assert count >= 25
    assert {what for what, found in seen.items() if not found} == EXPLAINED & seen.keys()
