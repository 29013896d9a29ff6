"""`tilec.autotune`: what is tried, what is taken, what is kept; the processes that compile."""

from __future__ import annotations

import concurrent.futures
import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.autotuning import Processes, Tuned, Tuning, tuned, workers
from tilec.autotuning.candidates import Problem, candidates
from tilec.autotuning.compiling import compile_job, make_job
from tilec.autotuning.options import Options
from tilec.autotuning.search import measure
from tilec.autotuning.trials import Trials, _copy
from tilec.cli.kernels import find_kernel
from tilec.ir.schedule import Plan
from tilec.support.settings import processors

K, M, N = T.dynamic("K, M, N")


def scaling() -> Any:
    """A kernel of a function, which cannot be pickled."""

    @tilec.kernel
    def scale(
        X: T.Tensor((M, N), "float32"),
        Y: T.Tensor((M, N), "float32"),
        by: T.float32,
        BN: T.constexpr = 64,
        fault: T.constexpr = 0,
    ):
        with T.Kernel(T.ceildiv(N, BN), M, threads=32) as (bx, row):
            for j in T.Parallel(BN):
                Y[row, bx * BN + j] = X[row, bx * BN + j] * by + fault

    return scale


@tilec.kernel
def add_to(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"), BN: T.constexpr = 64):
    with T.Kernel(T.ceildiv(N, BN), threads=32) as b:
        for j in T.Parallel(BN):
            Y[b * BN + j] += X[b * BN + j]


@tilec.kernel(out=["Y"])
def doubled(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"), BN: T.constexpr = 64):
    with T.Kernel(T.ceildiv(N, BN), threads=32) as b:
        for j in T.Parallel(BN):
            Y[b * BN + j] = X[b * BN + j] * 2


@tilec.kernel
def on_grid(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"), BN: T.constexpr = 32):
    i = T.get_block_binding() * BN + T.get_thread_binding()
    if i < N:
        Y[i] = X[i] + 1


def product() -> Any:
    @tilec.kernel
    def product(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
        BM: T.constexpr = T.auto(64, 128),
        BN: T.constexpr = T.auto(64, 128),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM)) as (bx, by):
            a = T.alloc_shared((BM, 64), "float16")
            b = T.alloc_shared((64, BN), "float16")
            c = T.alloc_fragment((BM, BN), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 64)):
                T.copy(A[by * BM, k * 64], a)
                T.copy(B[k * 64, bx * BN], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * BM, bx * BN])

    return product


@pytest.fixture
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))
    return tmp_path


def arrays(*shape: int) -> tuple[Any, Any]:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return x, np.zeros_like(x)


SIZES = [{"BN": n} for n in (32, 64, 128)]

# --- what is found --------------------------------------------------------------------------------


def test_the_first_call_measures(threads: Executor, own_cache: Path) -> None:
    kernel = tilec.autotune(scaling(), configs=SIZES, executor=threads)
    assert isinstance(kernel, Tuned) and kernel.__name__ == "scale"
    for shape in ((5, 100), (5, 100), (7, 100)):
        x, y = arrays(*shape)
        kernel(x, y, 3.0)
        assert np.array_equal(y, x * 3)
    assert len(kernel.results) == 2, "one for each shape"
    found = kernel.results[0]
    assert sorted(t.config["BN"] for t in found.trials) == [32, 64, 128]
    times = [float(t.timing) for t in found.trials if t.timing is not None]
    assert times == sorted(times) and len(times) == 3
    assert found.config == found.trials[0].config and found.milliseconds == times[0]
    assert "scale on cpu: " in str(found) and "(3 tried in " in str(found)


def test_as_a_function_of_arguments(threads: Executor, own_cache: Path) -> None:
    x, y = arrays(3, 70)
    found = tilec.autotune(scaling(), x, y, by=2.0, configs=SIZES, executor=threads)
    assert isinstance(found, Tuning) and found.config["BN"] in (32, 64, 128)
    assert not y.any(), "nothing was called"


def test_as_a_decorator(threads: Executor, own_cache: Path) -> None:
    given = []

    def configs(arguments: Any) -> Any:
        given.append(sorted(arguments))
        return SIZES[:2]

    @tilec.autotune(configs=configs, executor=threads)
    @tilec.kernel
    def copy(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"), BN: T.constexpr = 8):
        with T.Kernel(T.ceildiv(N, BN), threads=32) as b:
            for j in T.Parallel(BN):
                Y[b * BN + j] = X[b * BN + j]

    x, y = arrays(100)
    copy(x, Y=y)
    assert np.array_equal(x, y) and given == [["X", "Y"]]
    assert {t.config["BN"] for t in copy.results[0].trials} == {32, 64}
    copy(x, y, BN=16)  # what is given is not tuned
    assert copy.results[-1].config == {}


def test_what_is_predicted_is_tried(threads: Executor, own_cache: Path) -> None:
    a, b = (np.random.default_rng(n).standard_normal((70, 70)).astype(np.float16) for n in (1, 2))
    c = np.zeros_like(a)
    kernel = tilec.autotune(product(), executor=threads, topk=3)
    kernel(a, b, c)
    assert len(kernel.results[0].trials) == 3
    assert all(t.predicted < 1 for t in kernel.results[0].trials), "seconds"
    want = a.astype(np.float64) @ b.astype(np.float64)
    tilec.testing.assert_close(c, want, rtol=1e-2, atol=1e-2)


def test_arrays_are_written_by_the_call_alone(threads: Executor, own_cache: Path) -> None:
    x, y = arrays(100)
    kernel = tilec.autotune(add_to, configs=SIZES, executor=threads)
    kernel(x, y)
    assert np.array_equal(y, x)
    kernel.tune(x, y)
    kernel(x, y)
    assert np.array_equal(y, 2 * x)


def test_results_that_are_returned(threads: Executor, own_cache: Path) -> None:
    x, _ = arrays(100)
    kernel = tilec.autotune(doubled, configs=SIZES, executor=threads, reference=lambda x: 2 * x)
    assert np.array_equal(kernel(x), 2 * x)
    assert all(t.timing is not None for t in kernel.results[0].trials)


def test_a_grid_of_the_launch(threads: Executor, own_cache: Path) -> None:
    kernel = tilec.autotune(
        on_grid, configs=[{"BN": 32}, {"BN": 64, "threads": 64}], executor=threads
    )
    x, y = arrays(100)
    kernel[lambda meta: (T.cdiv(100, meta["BN"]),)](x, y)
    assert np.array_equal(y, x + 1) and len(kernel.results[0].trials) == 2


@tilec.kernel
def shift(X: T.Tensor((N,), "float32"), by: T.int32, f: T.float32, BN: T.constexpr = 32):
    with T.Kernel(T.ceildiv(N, BN), threads=32) as b:
        for j in T.Parallel(BN):
            X[b * BN + j] += by * f


def test_numbers_are_not_tuned_for(threads: Executor, own_cache: Path) -> None:
    for count in (1, 0):
        kernel = tilec.autotune(shift, configs=SIZES, executor=threads)
        x = np.zeros(100, np.float32)
        for by, f in ((1, 2.0), (1, 3.0), (5, 2.0), (5, 4.0)):
            kernel(x, by, f=f, stream=None)
        assert (x == 2 + 3 + 10 + 20).all()
        (found,) = kernel.results
        assert bool(found.trials) == bool(count)


def test_what_is_tuned_again_is_taken(threads: Executor, own_cache: Path) -> None:
    kernel = tilec.autotune(shift, configs=SIZES, executor=threads, cache=False)
    x = np.zeros(100, np.float32)
    for by in (1, 2):
        kernel(x, by, 1.0)
    (key,) = kernel._tuned
    assert set(kernel._found) == {(key, (("by", 1),)), (key, (("by", 2),))}
    found = kernel.tune(x, 2, 1.0)
    kernel(x, 2, 1.0)
    kernel(x, 1, 1.0)
    assert len(kernel.results) == 2
    assert all(config == found.config for config in kernel._found.values())


@tilec.autotune(configs=SIZES)
@tilec.kernel
def at_the_top(X: T.Tensor((N,), "float32"), BN: T.constexpr = 32):
    with T.Kernel(T.ceildiv(N, BN), threads=32) as b:
        for j in T.Parallel(BN):
            X[b * BN + j] = 1.0


def test_tuned_kernels_are_copied_and_pickled() -> None:
    assert copy.deepcopy([at_the_top])[0] is at_the_top
    assert pickle.loads(pickle.dumps(at_the_top)) is at_the_top
    with pytest.raises(tilec.LaunchError, match="cannot be pickled"):
        pickle.dumps(tilec.autotune(scaling()))


def test_one_element(threads: Executor, own_cache: Path) -> None:
    x, y = arrays(1, 1)
    tilec.autotune(scaling(), configs=SIZES, executor=threads)(x + 1, y, 2.0)
    assert y[0, 0] == 2


@pytest.mark.parametrize("strides", [(40, 1), (1, 7), (-8, 1), (80, 2)])
def test_copies_have_the_strides_of_what_they_copy(strides: tuple[int, int]) -> None:
    memory = np.arange(1000, dtype=np.float32)[500:]
    bytes_ = tuple(4 * s for s in strides)
    array = np.lib.stride_tricks.as_strided(memory, (7, 5), bytes_)
    made = _copy(array, "x")
    assert made.strides == array.strides and np.array_equal(made, array)
    assert not np.shares_memory(made, array)


# --- wrong results --------------------------------------------------------------------------------

FAULTY = [{"fault": 1}, {"fault": 0}, {"BN": 32}]


def test_a_reference_excludes_what_is_wrong(threads: Executor, own_cache: Path) -> None:
    def reference(x: Any, y: Any, by: float) -> None:
        y[...] = x.astype(np.float64) * by

    x, y = arrays(3, 70)
    found = tilec.autotune(
        scaling(), x, y, 2.0, configs=FAULTY, executor=threads, reference=reference
    )
    assert "fault" not in found.config or found.config["fault"] == 0
    (wrong,) = [t for t in found.trials if t.timing is None]
    assert wrong.config == {"fault": 1} and wrong.reason.startswith("wrong: ")
    assert wrong.reason.endswith(" of 210 elements differ")
    exact = tilec.autotune(
        scaling(), x, y, 2.0, configs=FAULTY, executor=threads, rtol=1.0, atol=2.0,
        reference=lambda x, y, by: x * by, cache=False,
    )  # fmt: skip
    assert all(t.timing is not None for t in exact.trials), "near enough, it was said"


def test_what_was_measured_unchecked_is_not_taken_for_checked(
    threads: Executor, own_cache: Path
) -> None:
    x, y = arrays(3, 70)
    kernel, asked = scaling(), list[str]()

    def reference(x: Any, y: Any, by: float) -> Any:
        asked.append("")
        return x * by

    tilec.autotune(kernel, configs=SIZES, executor=threads)(x, y, 2.0)
    for _ in range(2):  # the second finds what the first has measured
        checked = tilec.autotune(kernel, configs=SIZES, executor=threads, reference=reference)
        checked(x, y, 2.0)
        assert len(asked) == 1 and (y == 2 * x).all()


def test_a_tuned_kernel_is_compiled_as_the_kernel_is() -> None:
    array = tilec.spec((300,), "float32")
    made = at_the_top.compile(array, target="cuda:sm_80", BN=32)
    assert str(made) == str(at_the_top.kernel.compile(array, target="cuda:sm_80", BN=32))


@pytest.mark.parametrize("shape", [(0, 70), (3, 0), (0, 0)])
def test_empty_arrays(shape: tuple[int, int], threads: Executor, own_cache: Path) -> None:
    x, y = arrays(*shape)
    tilec.autotune(scaling(), configs=SIZES, executor=threads)(x, y, 2.0)
    assert _copy(y[:, ::-1], "y").shape == shape


def test_without_a_reference_most_are_right(threads: Executor, own_cache: Path) -> None:
    x, y = arrays(3, 70)
    found = tilec.autotune(scaling(), x, y, 2.0, configs=FAULTY, executor=threads)
    (wrong,) = [t for t in found.trials if t.timing is None]
    assert wrong.config == {"fault": 1} and "most others" in wrong.reason


def test_a_reference_of_another_shape(threads: Executor, own_cache: Path) -> None:
    x, y = arrays(3, 70)
    with pytest.raises(tilec.LaunchError, match="the reference gives 2 arrays, scale 1") as e:
        tilec.autotune(
            scaling(), x, y, 2.0, configs=SIZES, executor=threads,
            reference=lambda x, y, by: (x, y), cache=False,
        )  # fmt: skip
    assert "in the order of its parameters" in e.value.hint


def test_configurations_that_do_not_compile(threads: Executor, own_cache: Path) -> None:
    x, y = arrays(3, 70)
    found = tilec.autotune(scaling(), x, y, 2.0, configs=[{"BN": 0}, {"BN": 64}], executor=threads)
    assert found.config == {"BN": 64}
    (refused,) = [t for t in found.trials if t.timing is None]
    assert refused.reason
    with pytest.raises(tilec.TilecError):
        tilec.autotune(scaling(), x, y, 2.0, configs=[{"BN": 0}], executor=threads, cache=False)


# --- time, progress -------------------------------------------------------------------------------


class Slow(Executor):
    """Never done."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        return concurrent.futures.Future()


def test_the_budget_ends_it(own_cache: Path) -> None:
    x, y = arrays(3, 70)
    begin = time.monotonic()
    found = tilec.autotune(scaling(), x, y, 2.0, configs=SIZES, executor=Slow(), budget=1.0)
    assert time.monotonic() - begin < 8
    assert len([t for t in found.trials if t.timing is not None]) == 1
    assert {t.reason for t in found.trials} == {"", "not tried: the budget is spent"}


def test_progress_is_drawn_where_asked(
    threads: Executor, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = arrays(3, 70)
    for progress, lines in ((None, 0), (False, 0), (True, 3)):
        kernel = tilec.autotune(scaling(), configs=SIZES, executor=threads, progress=progress)
        kernel.tune(x, y, 2.0)
        assert len(capsys.readouterr().err.splitlines()) == lines


# --- results on disk ------------------------------------------------------------------------------


def test_results_are_kept(
    threads: Executor, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = arrays(3, 70)

    def tried(configs: Any = SIZES, **given: Any) -> int:
        kernel = tilec.autotune(scaling(), configs=configs, executor=threads, **given)
        kernel(x, y, 2.0)
        assert np.array_equal(y, 2 * x)
        (found,) = kernel.results
        assert bool(found.trials) == bool(found.seconds) == ("from disk" not in str(found))
        return len(found.trials)

    assert tried() == 3 and tried() == 0
    assert tried(cache=False) == 3
    assert tried(SIZES[:2]) == 2, "another list"
    monkeypatch.setattr(tuned, "_device_name", lambda kind, index: "another device")
    assert tried() == 3 and tried() == 0
    for note in own_cache.glob("??/*.json"):
        note.write_text("[]")
    assert tried() == 3, "damaged"


PROGRAM = """
import numpy as np, tilec, tilec.language as T
N = T.dynamic("N")

@tilec.autotune(configs=[{"BN": 32}, {"BN": 64}])
@tilec.kernel
def double(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"), BN: T.constexpr = 8):
    with T.Kernel(T.ceildiv(N, BN), threads=32) as b:
        for j in T.Parallel(BN):
            Y[b * BN + j] = X[b * BN + j] * 2

x = np.ones(100, np.float32)
y = np.zeros_like(x)
double(x, y)
assert (y == 2).all()
print(len(double.results[0].trials))
"""


def test_a_script_without_a_guard(tmp_path: Path) -> None:
    """Processes compile, and the script's own module is not run again in them; what they found is
    there for the next program."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    root = str(Path(tilec.__file__).parent.parent)
    environment = {**os.environ, "TILEC_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": root}
    for count in ("2", "0"):
        found = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, env=environment
        )
        assert found.stdout.split() == [count], found.stderr
        assert not found.stderr


# --- executors ------------------------------------------------------------------------------------


def test_an_executor_of_the_users(own_cache: Path) -> None:
    """What travels can be pickled, whatever the kernel's function is."""
    x, y = arrays(3, 70)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        found = tilec.autotune(scaling(), x, y, 2.0, configs=SIZES, executor=pool, budget=60)
        assert pool.submit(os.getpid).result() != os.getpid(), "it is still the user's"
    assert len([t for t in found.trials if t.timing is not None]) == 3


def test_the_measured_plan_is_the_kernels_own(
    threads: Executor, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a GPU, with the measurements played: compiled elsewhere, the slowest by prediction is
    found the fastest, and is what the kernel runs from then on."""
    kernel = product()
    spec = tilec.spec((512, 512), "float16")
    given = {"A": spec, "B": spec, "C": spec}
    asked: list[Any] = []
    monkeypatch.setattr(Trials, "check", lambda self, candidate, variant: "")

    def played(self: Any, candidate: Any, variant: Any, warmup: float, rep: float) -> Any:
        assert variant.plan == candidate.chosen.plan, "compiled with this plan"
        asked.append(candidate)
        ms = 1.0 / len(asked)
        return tilec.bench.Timing(ms, [ms], "cuda:0")

    monkeypatch.setattr(Trials, "time", played)
    problem = Problem(kernel, given, None, "cuda:sm_90a")
    options = Options(topk=3, budget=200, executor=threads)
    found, best = measure(problem, options, (), {})
    assert len(found.trials) >= 3 and best in asked
    assert isinstance(best.chosen.plan, Plan) and found.config.keys() == {"BM", "BN"}
    again = kernel.compile(**given, **found.config, target="cuda:sm_90a")
    assert again.plan == best.chosen.plan


def test_jobs_can_be_pickled(own_cache: Path) -> None:
    given = {n: tilec.spec((64, 64), "float16") for n in "ABC"}
    problem = Problem(product(), given, None, "cpu", [{"BM": 64, "BN": 64}])
    tried, refused = candidates(problem, 1)
    (candidate,) = tried
    asked = candidate.asked
    key = asked.key(candidate.chosen)
    func = problem.kernel.choices.traced(asked.signature, key)
    job = pickle.loads(pickle.dumps(make_job(asked.signature, key, func, None)))
    made = compile_job(job)
    assert made.image and not made.reason and not refused


def fail(how: str) -> int:
    if how == "end":
        os._exit(3)
    if how == "sleep":
        time.sleep(60)
    raise tilec.LaunchError("refused", hint="do not")


def test_processes() -> None:
    with Processes(2) as pool:
        assert pool.submit(pow, 2, 10).result() == 1024
        assert pool.submit(os.getpid).result() != os.getpid()
        with pytest.raises(tilec.LaunchError, match="refused"):
            pool.submit(fail, "raise").result()
        with pytest.raises(RuntimeError, match="ended \\(status 3\\)"):
            pool.submit(fail, "end").result()
        assert [f.result() for f in [pool.submit(abs, -n) for n in range(5)]] == list(range(5))
        with pytest.raises(Exception, match="pickle"):
            pool.submit(lambda: 1)
        assert pool.submit(print, "noise").result() is None
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(abs, 1)


def test_processes_say_nothing_when_they_are_not_wanted_any_more() -> None:
    """After Ctrl-C, which a terminal sends to a whole session, and where the budget has ended."""
    with Processes(1) as processes:
        assert processes.submit(os.getsid, 0).result() != os.getsid(0)
    command = [sys.executable, "-c", workers._START.format(path=sys.path)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin and process.stdout and process.stderr
    workers._send(process.stdin, pickle.dumps((time.sleep, (0.5,), {})))
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == b"" and process.wait() == 0
    process.stderr.close()


def test_processes_are_ended_at_once() -> None:
    pool = Processes(1)
    pool.submit(fail, "sleep")
    late = pool.submit(abs, 1)
    while not pool._running:
        time.sleep(0.01)
    begin = time.monotonic()
    pool.shutdown(cancel_futures=True)
    assert time.monotonic() - begin < 30 and late.cancelled()
    assert processors() >= 1


# --- torch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_tensors_of_torch(torch: Any, threads: Executor, own_cache: Path, device: str) -> None:
    a, b = (torch.randn(200, 96, device=device).half() for _ in range(2))
    c = torch.zeros(200, 200, dtype=torch.float16, device=device)
    kernel = tilec.autotune(
        product(), topk=4, executor=threads, budget=60,
        reference=lambda a, b, c: a.double() @ b.double(),
    )  # fmt: skip
    kernel(a, b.T, c)
    torch.testing.assert_close(c.double(), a.double() @ b.T.double(), rtol=1e-2, atol=5e-2)
    timed = [t for t in kernel.results[0].trials if t.timing is not None]
    assert len(timed) > 1 and "wrong" not in str(kernel.results[0]), kernel.results[0]
    assert kernel.results[0].device == ("cpu" if device == "cpu" else "cuda:0")
    kernel(a, b.T, c)
    assert len(kernel.results) == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("eager_calls", [0, 2])
def test_under_torch_compile(
    torch: Any, threads: Executor, own_cache: Path, eager_calls: int
) -> None:
    kernel = tilec.autotune(doubled, configs=SIZES, executor=threads)
    for _ in range(eager_calls):
        kernel(torch.ones(100))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: kernel(x + 1) + 1, backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(100)), torch.full((100,), 5.0))
    assert len(kernel.results) == 1


# --- mistakes -------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "configs": ({"configs": {"BN": 4}}, "not a list", "configs=[{'BN': 64}, …]"),
    "no configs": ({"configs": []}, r"configs of autotune are \[\]", "configs=[{'BN': 64}, …]"),
    "config": ({"configs": [64]}, "a configuration is 64", "configs=[{'BN': 64}, …]"),
    "name": ({"configs": [{"BM": 64}]}, "names 'BM', which is no compile-time", "BN, fault"),
    "topk": ({"topk": 0}, "topk of tilec.autotune is 0", "topk=16"),
    "budget": ({"budget": -1}, "budget of tilec.autotune is -1", "budget=10"),
    "executor": ({"executor": 4}, "executor of tilec.autotune is 4", "concurrent.futures"),
    "reference": ({"reference": 4}, "reference of tilec.autotune is 4", "function"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case: str) -> None:
    given, message, hint = MISTAKES[case]
    with pytest.raises(tilec.LaunchError, match=message) as e:
        tilec.autotune(scaling(), **given)
    assert hint in e.value.hint and e.value.loc.file == __file__


def test_keywords_of_others() -> None:
    with pytest.raises(tilec.LaunchError, match="has no keyword 'rep'") as e:
        tilec.autotune(rep=100)
    assert "budget= limits the seconds" in e.value.hint


@pytest.mark.parametrize("option", ["configs", "reference"])
def test_a_function_that_fails(option: str, own_cache: Path) -> None:
    kernel = tilec.autotune(add_to, **{"configs": SIZES, option: lambda: 1 / 0})
    with pytest.raises(tilec.LaunchError, match=f"{option} of tilec.autotune failed: TypeError"):
        kernel(np.ones(100, np.float32), np.ones(100, np.float32))


def test_the_line_that_no_configuration_compiles() -> None:
    @tilec.kernel
    def plus(C: T.Tensor((4,), "float32"), k: T.constexpr):
        with T.Kernel(1, threads=32) as _:
            C[0] = k

    with pytest.raises(tilec.CompileError, match="this value is the str 'x', not a number") as e:
        tilec.autotune(plus, configs=[{"k": "x"}])(np.zeros(4, np.float32))
    assert "C[0] = k" in str(e.value)


def test_constants_without_a_default(threads: Executor, own_cache: Path) -> None:
    """As of a kernel of Triton's; and those that are lists."""

    @tilec.kernel
    def total(C: T.Tensor((4,), "float32"), k: T.constexpr, n: T.int32 = 1):
        with T.Kernel(1, threads=32) as _:
            C[0] = sum(k) + n

    for configs in ([{"k": [1, 2]}], lambda given: [{"k": [3, 0]}, {"k": [0, 3]}]):
        kernel = tilec.autotune(total, configs=configs, executor=threads)
        c = np.zeros(4, np.float32)
        for n in (1, 2):
            kernel(c, n=n)
            assert c[0] == 3 + n
        kernel(c, k=[9])
        assert c[0] == 10
    configs = [{"k": [7]}, {"threads": 32}]  # one gives none
    kernel = tilec.autotune(total, configs=configs, executor=threads)
    kernel(c)
    assert c[0] == 8 and "missing k" in str(kernel.results[-1])


def test_threads_that_call_first_wait_for_one_of_them(threads: Executor) -> None:
    kernel = tilec.autotune(add_to, configs=SIZES, executor=threads)
    wrong: list[Any] = []

    def call(k: int) -> None:
        x, y = np.full(100, k, np.float32), np.ones(100, np.float32)
        kernel(x, y)
        wrong.extend(y[y != k + 1])

    with ThreadPoolExecutor(4) as callers:
        list(callers.map(call, range(4)))
    assert not wrong and len({str(r) for r in kernel.results if r.trials}) == 1


def test_what_takes_a_kernel_takes_a_tuned_one(tmp_path: Path) -> None:
    kernel = tilec.autotune(add_to, configs=SIZES)
    x, y = np.arange(100, dtype=np.float32), np.ones(100, np.float32)
    assert tilec.simulate(kernel, x, y, target="cuda:sm_80").ok
    assert (y == x + 1).all() and not kernel.results
    (entry,) = tilec.recommend(kernel, x, y, target="cuda:sm_80")
    assert entry.estimate.seconds > 0
    path = tmp_path / "tuned.py"
    path.write_text(TUNED)
    for place in (path, f"{path}:scaled"):
        assert find_kernel(str(place)).compile(x, y, target="cpu").name == "scaled"


TUNED = """
import tilec
import tilec.language as T
N = T.dynamic("N")

@tilec.autotune(configs=[{"BN": 64}, {"BN": 128}])
@tilec.kernel
def scaled(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), BN: T.constexpr = 64):
    with T.Kernel(T.ceildiv(N, BN), threads=64) as bx:
        for i in T.Parallel(BN):
            B[bx * BN + i] = A[bx * BN + i] * 2
"""


def test_a_mistake_of_a_decorator_names_its_line() -> None:
    with pytest.raises(tilec.LaunchError, match="names 'BM'") as e:

        @tilec.autotune(configs=[{"BM": 64}])
        @tilec.kernel
        def kernel(X: T.Tensor((64,), "float32"), BN: T.constexpr = 64):
            for i in T.Parallel(64):
                X[i] = 1.0

    assert e.value.loc.file == __file__ and "autotune" in e.value.loc.source_line()


def test_more_mistakes(torch: Any) -> None:
    with pytest.raises(tilec.LaunchError, match="takes a kernel, not") as e:
        tilec.autotune(scaling)
    assert "above @tilec.kernel" in e.value.hint
    with pytest.raises(tilec.LaunchError, match="no keyword 'config'; did you mean 'configs'"):
        tilec.autotune(config=[])
    kernel = tilec.autotune(doubled, configs=SIZES)
    with pytest.raises(tilec.LaunchError, match="X has a shape but no memory") as e:
        kernel(torch.empty(5, device="meta"))
    assert e.value.loc.file == __file__ and "kernel(torch.empty" in e.value.loc.source_line()
    with pytest.raises(tilec.LaunchError, match="missing X"):
        kernel()
    with pytest.raises(tilec.LaunchError, match="expected float32, got float64"):
        kernel(np.zeros(4))
