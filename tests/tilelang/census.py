"""Which of TileLang's own kernels compile.

    TILELANG_SOURCE=checkout python tests/tilelang/census.py [--jobs 1] [--out census.json]
        [--table docs/tilelang.md] [--right right.json] [--programs programs.json]
        [--known census.json] [file …]

A kernel is a function that holds `T.Kernel`. Every file of `examples` and of three folders of
`testing/python` runs in a process of its own: its tests, else its `main`; where some of its
kernels were not reached so, the other of the two, and both again with real tensors. There is no
GPU and no memory: tensors are torch's fake ones at first, each launch only compiles for TARGET with
the sizes of the program; comparisons of results, and the files' own assertions, are left out. What
a kernel's first variants say is its result; one that its file makes and never asks for is compiled
for the shapes that it names, one that is never made is told by what stopped its file. Programs
import `einops`, `scipy` and `tqdm`: they are needed here, too.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import dis
import importlib.abc
import importlib.machinery
import importlib.util
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from page import FOLDERS, TARGET, compiling, table
from sorts import elsewhere

MOST_VARIANTS = 1
SECONDS = 45  # of computing, of the kernels of a file
MOST_BYTES = 12 << 30
EXPECTED = "expected: "
ARITHMETIC = {  # of triton, as programs use it for sizes
    "cdiv": lambda a, b: -(-a // b),
    "next_power_of_2": lambda n: 1 << max(0, n - 1).bit_length(),
}
SOURCES = {"decode_i4_to_f16": "__device__ void decode_i4u_to_f16(int8_t *, half *, int)"}
COMPARED = frozenset("triton fla bitblas flash_attn flashinfer deep_gemm vllm iket tvm_ffi".split())

# Programs with a mistake in a kernel, which a tool of TileLang's is to find.
MISTAKEN = ("examples/autodd/",)

# Programs with a mistake that nothing of TileLang's finds: what is wrong with them.
_SINKS = (
    "a mistake of the program: sinks has a place for each of the heads, and block_M are written"
)
WRONG = {
    ("examples/attention_sink/example_gqa_sink_bwd_bhsd.py", "flash_fwd"): _SINKS,
    ("examples/attention_sink/example_mha_sink_bwd_bhsd.py", "flash_fwd"): _SINKS,
}

# Files whose main leaves kernels out, and what asks for them there.
ASKED = {
    "examples/analyze/example_conv_analyze.py": """
sizes = dict(N=N, C=C, H=H, W=W, F=F, K=K, S=S, D=D, P=P)
blocks = dict(block_M=64, block_N=128, block_K=32, num_stages=3)
kernel.compile(**sizes, **blocks, threads=256)
""",
    "examples/analyze/example_gemm_analyze.py": """
blocks = dict(block_M=64, block_N=128, block_K=32, num_stages=3)
kernel.compile(**blocks, thread_num=128, enable_rasteration=False)
""",
    "examples/deepseek_nsa/example_tilelang_nsa_bwd.py": """
q, k = torch.empty(1, 32, 16, 32).half(), torch.empty(1, 32, 1, 32).half()
sums, mask, dk = torch.empty(1, 32, 16), torch.empty(1, 32, 1, 1).int(), k.unsqueeze(0)
tilelang_kernel_bwd_dkv(q, k, k, sums, sums, q, dk, k, mask, 32, True, None, 32, 16)
""",
    "examples/grouped_gemm/example_grouped_gemm_bwd.py": """
a, sizes = torch.empty(192, 8192).half(), torch.empty(2).int()
grouped_gemm_bwd(a, a, sizes, sizes, 64, 128, 64, 2, 256)
""",
    "examples/deepseek_v32/inference/kernel.py": """
act_quant_kernel(7168)
fp8_gemm_kernel(7168, 2048)
fp8_index_kernel(64, 128)
""",
    "examples/deepseek_v32/sparse_mla_bwd.py": "postprocess(torch.empty(1, 64, 1, 576), 512, 64)",
    "examples/dsa_sparse_finetune/sparse_mla_bwd.py": """
postprocess(torch.empty(64, 1, 576), 512, 64)
""",
    "examples/dequantize_gemm/example_dequant_gemm_w4a8.py": """
_convert_test(1024, 1024, 128, 128, "int8")
""",
    "examples/gemm/example_gemm_advanced_autotune.py": """
get_best_config(4096, 4096, 4096)
""",
    "examples/gemm/example_gemm_autotune.py": """
get_best_config(4096, 4096, 4096)
""",
    "examples/norm/rms_norm.py": """
rms_norm_splitk(torch.randn(8192, 8192), 1, 512)
""",
    "testing/python/language/test_tilelang_cast_rounding.py": """
_make_rs_kernel(256, 128, "float8_e4m3fn")
_kernel_rbits_scalar(256, 128, "float8_e4m3fn")
_kernel_rbits_idiv2(256, 128, "float8_e4m3fn")
_kernel_rbits_idiv4(256, 128, "float8_e4m3fn")
_kernel_rbits_per_element(256, 128, "float8_e4m3fn")
_kernel_rbits_rng_rand(256, 128, "float8_e4m3fn")
""",
    "examples/flash_attention/example_gqa_bwd.py": "main(8, 32, 1024, 192, 128, 16, False, False)",
    "examples/flash_attention/example_gqa_bwd_tma_reduce.py": """
main(8, 32, 1024, 192, 128, 16, False, False)
""",
    "examples/flash_attention/example_gqa_bwd_tma_reduce_varlen.py": "main(use_atomic=False)",
}
# mypy: ignore-errors


def kernels_of(path: Path) -> list[tuple[int, str]]:
    """(line, name) of each function that holds T.Kernel itself; the line is its decorator's."""

    def own(function: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(function):
            if not isinstance(child, ast.FunctionDef | ast.Lambda):
                yield child
                yield from own(child)

    def launches(n: ast.AST) -> bool:
        named = isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
        return named and n.func.attr in ("Kernel", "ClusterKernel")

    tree = ast.parse(path.read_text())
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    found = [f for f in found if any(map(launches, own(f)))]
    return [(min(d.lineno for d in (*f.decorator_list, f)), f.name) for f in found]


def tests_that_ask(path: str, line: int) -> list[str]:
    """The tests of a file that name the function around a line, or one that names it."""
    tree = ast.parse(Path(path).read_text())
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    around = [
        f.name for f in functions if min(d.lineno for d in (*f.decorator_list, f)) <= line
        and line <= (f.end_lineno or line)
    ]  # fmt: skip
    names = {
        f.name: {n.id for n in ast.walk(f) if isinstance(n, ast.Name)} | {f.name} for f in functions
    }
    found = set(around)
    while more := {f for f, inside in names.items() if inside & found} - found:
        found |= more
    return [f.name for f in functions if f.name in found and f.name.startswith("test")]


def skipped_for(askers: list[str], tests: dict[str, str]) -> str:
    """Why all of the tests that ask for a kernel are skipped; "" where one is not."""
    reasons = [tests.get(t, "") for t in askers]
    return reasons[0] if reasons and all(r.startswith("skipped: ") for r in reasons) else ""


def refused_on_purpose(path: str, line: int) -> bool:
    """Whether a kernel stands in a `try` that ends in a `raise`: it must not get there."""
    tries = [n for n in ast.walk(ast.parse(Path(path).read_text())) if isinstance(n, ast.Try)]
    return any(
        isinstance(t.body[-1], ast.Raise) and t.body[0].lineno - 2 <= line <= t.body[-1].lineno
        for t in tries
    )


def only_elsewhere(askers: list[str]) -> str:
    """The other hardware that all tests that ask for a kernel name, "" if there is none."""
    kinds = [elsewhere("", test, "") for test in askers]
    return kinds[0] if kinds and all(kinds) else ""


class AnySource(str):
    """The source of a kernel in which tests find whatever they look for."""

    def __contains__(self, text: object) -> bool:
        return True

    def count(self, *_: Any) -> int:
        return 1


class Recorder:
    """What became of the variants that a file asks for, by file and line of the kernel."""

    def __init__(self) -> None:
        self.results: dict[tuple[str, int], list[str]] = collections.defaultdict(list)
        self.made_up = False  # tensors are fake
        self.expecting = False  # inside of pytest.raises
        self.wrong: set[int] = set()  # the kernels that were made there
        self.inlined: set[tuple[str, int]] = set()  # the macros of the kernel at hand
        self.asked: set[Any] = set()
        self.made: dict[types.CodeType, Any] = {}
        self.kernels: list[Any] = []

    def compile(self, kernel: Any, described: Any) -> Any:
        """Note what the compiler says of one variant, and return it or None; `described` makes its
        arguments."""
        code = kernel.function.__code__
        said = self.results[code.co_filename, code.co_firstlineno]
        if len(said) >= MOST_VARIANTS:
            if self.expecting and said[0] and not said[0].startswith(EXPECTED):
                said[0] = f"{EXPECTED}{said[0]}"
            return self.made.get(code)
        import tilec

        try:
            args, kwargs = described()
            key = (id(kernel), repr(args), repr(kwargs))
            if key in self.asked:
                return self.made.get(code)
            self.asked.add(key)
            self.inlined.clear()
            if kernel.is_sequence:
                self.made[code] = kernel.parts.compile(args, TARGET, kwargs)[0]
            else:
                self.made[code] = kernel.real_compile(args, TARGET, kwargs)
            said.append("")
            for place in self.inlined:  # a macro may hold T.Kernel
                self.results[place] = self.results[place] or [""]
        except tilec.ir.errors.LaunchError as e:
            if self.made_up:  # an argument does not suit, whose numbers are none
                return None
            said.append(e.message)
        except tilec.TilecError as e:
            message = getattr(e, "message", None) or str(e).splitlines()[0]
            expected = self.expecting or id(kernel.function) in self.wrong
            said.append(f"{EXPECTED}{message}" if expected else message)
            if self.expecting:
                raise
        except Exception as e:  # the compiler's own fault
            said.append(f"fault: {type(e).__name__}: {e}")
        return self.made.get(code)

    def raises(self, *_: Any, **__: Any) -> Any:
        """`pytest.raises` of any exception, or none: what is asked inside is to be refused."""
        outer = self

        class Expecting(contextlib.suppress):
            value = "", ()

            def __enter__(self) -> Any:
                outer.expecting = True
                return self

            def __exit__(self, *raised: Any) -> Any:
                outer.expecting = False
                return super().__exit__(*raised)

        return Expecting(Exception)

    def compile_the_rest(self, wrap: Any, path: Path) -> None:
        """Kernels that the file has made and not asked for, of the shapes that they say; what is
        wrong with those of files that it imports, these files' own runs tell."""
        for kernel in self.kernels:
            code = kernel.function.__code__
            if (code.co_filename, code.co_firstlineno) not in self.results:
                said = self.results[code.co_filename, code.co_firstlineno]
                with contextlib.suppress(Exception):
                    wrap(kernel)
                elsewhere_too = said and said[0] and Path(code.co_filename).resolve() != path
                if elsewhere_too or (said and "missing" in said[0]):  # what only a call gives
                    del self.results[code.co_filename, code.co_firstlineno]


def watch(recorder: Recorder) -> None:
    """Let kernels be compiled, and never launched, and torch think that there is a GPU."""
    import torch

    import tilec
    from tilec.builtins.annotations import Macro
    from tilec.kernel import Kernel
    from tilec.tilelang import profiler, programs

    Kernel.real_compile = Kernel.compile_for

    def spec_of(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return tilec.spec(tuple(value.shape), str(value.dtype), tuple(value.stride()))

    def named_of(kernel: Any, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        """The parameters of a call, its values in place of sizes, and its arguments by name."""
        given = dict(zip([p.name for p in kernel.parameters], args, strict=False)) | kwargs
        plain = {k: v for k, v in given.items() if not isinstance(v, torch.Tensor | Anything)}
        try:
            return list(kernel.parameters_for(plain)), given
        except tilec.TilecError:
            return list(kernel.parameters), given

    def launch(kernel: Any, grid: Any, args: Any, kwargs: Any, keys: Any = None) -> Any:
        if any(isinstance(a, Anything) for a in args):  # what a missing package would have made
            parameters, given = named_of(kernel, args, kwargs)
            known = {p.name: p for p in parameters if p.kind == "tensor"}
            sizes = sizes_of(parameters, given)
            args = [
                supplied(known[p.name], sizes) if isinstance(a, Anything) and p.name in known else a
                for p, a in zip(kernel.parameters, args, strict=False)
            ]
        specs = [spec_of(a) for a in args], {k: spec_of(v) for k, v in kwargs.items()}
        variant = recorder.compile(kernel, lambda: specs)
        return made_by(kernel, variant, args, kwargs)

    def sizes_of(parameters: Any, given: Any) -> dict[str, int]:
        sizes = {}
        for p in parameters:
            if p.kind == "tensor" and p.shape is not None and p.name in given:
                if isinstance(given[p.name], torch.Tensor):  # an address has no extents
                    sizes |= dict(zip(map(str, p.shape), given[p.name].shape, strict=False))
        return sizes

    def supplied(parameter: Any, sizes: dict[str, int]) -> Any:
        shape = [e if isinstance(e, int) else sizes.get(str(e), 4096) for e in parameter.shape]
        return torch.empty(shape, dtype=getattr(torch, str(parameter.dtype)))

    def made_by(kernel: Any, variant: Any, args: Any, kwargs: Any) -> Any:
        """Fake tensors of the shapes that the call would allocate."""
        signature = kernel.signature
        known = {a.name: a.shape for a in variant.image.arguments} if variant else {}
        sizes = sizes_of(*named_of(kernel, args, kwargs))
        shapes = {p.name: p.shape for p in signature.parameters if p.shape is not None} | known
        dtypes = {p.name: p.dtype for p in signature.parameters}
        dtypes |= {a.name: a.dtype for a in variant.image.arguments} if variant else {}
        made = []
        for name in signature.returns:
            if name not in shapes:
                raise RuntimeError(f"{kernel.name} was refused, and its {name} has no shape")
            shape = [e if isinstance(e, int) else sizes.get(str(e), 4096) for e in shapes[name]]
            dtype = str(getattr(dtypes[name], "name", dtypes[name]))
            dtype = {"float8_e4m3": "float8_e4m3fn"}.get(dtype, dtype)
            made.append(torch.empty(shape, dtype=getattr(torch, dtype), device="cpu"))
        return made[0] if len(made) == 1 else tuple(made) or None

    def compiled(kernel: Any, args: Any, target: Any, kwargs: Any) -> Any:
        recorder.compile(kernel, lambda: ([spec_of(a) for a in args], kwargs))
        return types.SimpleNamespace(asm=AnySource(), stages={})

    def inlined(macro: Any) -> Any:
        code = vars(macro)["function"].__code__
        recorder.inlined.add((code.co_filename, code.co_firstlineno))
        return vars(macro)["function"]

    Macro.function = property(inlined, lambda macro, f: vars(macro).update(function=f))
    begin = Kernel.__init__

    def begun(kernel: Any, *args: Any, **kwargs: Any) -> None:
        begin(kernel, *args, **kwargs)
        recorder.kernels.append(kernel)
        if recorder.expecting:
            recorder.wrong.add(id(kernel.function))

    Kernel.__init__, Kernel._launch, Kernel.compile_for = begun, launch, compiled
    made = programs.JITKernel.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self.compile()

    programs.JITKernel.__init__ = init
    profiler.Profiler.do_bench = lambda self, *_, **__: (self.kernel(*self.inputs()), 1.0)[1]
    profiler.Profiler.assert_allclose = lambda self, *_, **__: self.kernel(*self.inputs())
    profiler.do_bench = lambda fn, *_, **__: (fn(), 1.0)[1]
    fake_gpu(torch)


def fake_gpu(torch: Any) -> None:
    """Answers of a Hopper GPU, where torch has none; comparisons of fake numbers succeed."""
    import numpy
    from torch._subclasses.fake_tensor import FakeTensor

    cuda, nothing = torch.cuda, lambda *_, **__: None
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.get_device_name = lambda *_: "NVIDIA H200"
    cuda.synchronize = cuda.manual_seed = cuda.manual_seed_all = cuda.empty_cache = nothing
    facts = types.SimpleNamespace(multi_processor_count=132, major=9, minor=0, name="NVIDIA H200")
    facts.shared_memory_per_block_optin, facts.total_memory = 232448, 141 << 30
    cuda.mem_get_info = lambda *_: (facts.total_memory, facts.total_memory)
    cuda.get_device_properties = lambda *_: facts
    cuda.Event = cuda.Stream = cuda.default_stream = cuda.current_stream = cuda.stream = (
        cuda.device
    ) = Anything
    cuda.init = cuda.set_device = nothing
    generator = torch.Generator

    class AnyDevice(generator):  # a class: torch's own annotations say `torch.Generator | None`
        def __new__(cls, *_, **__):
            return generator()

    torch.Generator = AnyDevice
    torch.compile = lambda function=None, **_: function or (lambda f: f)
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda t, *_, **__: t
    torch.testing.assert_close = nothing
    torch.allclose = torch.equal = lambda *_, **__: True
    FakeTensor.__bool__ = lambda _: True
    FakeTensor.item = lambda t: 1.0 if t.dtype.is_floating_point else 1
    FakeTensor.numpy = lambda t, *_, **__: numpy.ones(tuple(t.shape), str(t.dtype)[6:])
    FakeTensor.__float__, FakeTensor.__int__ = lambda _: 1.0, lambda _: 1
    gradient = torch.Tensor.grad  # what a reference that is not there would have left

    def grad(t: Any) -> Any:
        found = gradient.__get__(t)
        return torch.zeros_like(t) if found is None and t.requires_grad and t.is_leaf else found

    torch.Tensor.grad = property(grad, gradient.__set__, gradient.__delete__)
    values_for_fakes(torch)


def values_for_fakes(torch: Any) -> None:
    """Fake tensors have no elements: where a program asks for one it is 1, where it looks for some
    one is found, where it counts them there are eight kinds."""
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensorMode,
    )

    dispatch = FakeTensorMode.dispatch

    def answered(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        try:
            return dispatch(mode, func, types, args, kwargs)
        except DataDependentOutputException:
            if name != "aten::_local_scalar_dense":
                raise
            return 1.0 if args[0].dtype.is_floating_point else 1
        except DynamicOutputShapeException:
            shapes = {"aten::nonzero": (1, args[0].dim()), "aten::bincount": (8,)}
            if name not in shapes:
                raise
            with mode:
                return torch.empty(shapes[name], dtype=torch.int64)

    FakeTensorMode.dispatch = answered


class Anything:
    """What a package that is not there gives: it can be called, compared and computed with."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __iter__(self) -> Any:
        """As many as the caller unpacks."""
        caller = sys._getframe(1)
        asking = next(i for i in dis.get_instructions(caller.f_code) if i.offset == caller.f_lasti)
        unpacked = asking.arg if asking.opname == "UNPACK_SEQUENCE" else 0
        return iter([Anything() for _ in range(unpacked or 0)])

    def __getitem__(self, _: Any) -> Any:
        return self

    def __bool__(self) -> bool:
        return True

    def __call__(self, *args: Any, **_: Any) -> Any:
        """Itself; as a decorator what is called as the function is."""
        function = args[0] if len(args) == 1 else None
        if isinstance(function, type):
            return function
        if isinstance(function, types.FunctionType | _Decorated):
            return _Decorated(function)
        if not isinstance(function, Anything) and hasattr(function, "requires_grad"):
            return _LikeItsArgument(function)
        return self

    __enter__ = __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __call__
    __radd__ = __rsub__ = __rmul__ = __mod__ = __neg__ = __pow__ = __exit__ = __call__
    __lt__ = __gt__ = __le__ = __ge__ = lambda self, _: True
    __index__ = __int__ = __len__ = lambda self: 1
    __float__ = lambda self: 1.0  # noqa: E731


class _Decorated(Anything):
    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __getitem__(self, grid: Any) -> Any:
        """Triton's launch of a kernel: nothing is done."""
        return Anything()


class _LikeItsArgument(Anything):
    """What a function of a tensor gives; the first of several is such a tensor."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __iter__(self) -> Any:
        return iter([self.tensor, Anything()])

    def __getitem__(self, index: Any) -> Any:
        return Anything() if index else self.tensor


class _Compared(types.ModuleType):
    """A package that programs only compare with."""

    __path__: list[str] = []
    __version__ = "0"
    __file__ = os.devnull

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for known in (ARITHMETIC, SOURCES):
            if name in known:
                return known[name]
        if name[:1].isupper():
            return type(name, (Anything,), {})  # for isinstance and base classes
        return Anything()


class _ComparedFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] in COMPARED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Compared(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def on_cpu() -> Any:
    """A mode in which what torch is asked to put on a GPU is put on the CPU: fake tensors of a GPU
    cannot be indexed without one."""
    import torch
    from torch.overrides import TorchFunctionMode

    def moved(value: Any) -> Any:
        device = isinstance(value, str | torch.device) and str(value).startswith("cuda")
        return torch.device("cpu") if device else value

    class OnCpu(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, _: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = {k: moved(v) for k, v in (kwargs or {}).items()}
            if function is torch.Tensor.to:
                args = tuple(map(moved, args))
            if function is torch.tensor and isinstance(args[0], list):
                args = ([x.item() if isinstance(x, torch.Tensor) else x for x in args[0]],)
            return function(*args, **kwargs)

    return OnCpu()


class Failures:
    """A pytest plugin: what stopped each test, in a line."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.tests: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._note(
                report, crash.message.splitlines()[0] if crash else str(report.longrepr)[-200:]
            )
        elif report.skipped:
            self._note(report, f"skipped: {report.longrepr[2]}")

    def _note(self, report: Any, message: str) -> None:
        self.said.append(message)
        self.tests.setdefault(report.location[2].partition("[")[0], message)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            lines = [x for x in str(report.longrepr).splitlines() if x.startswith("E ")]
            self.said.append((lines or ["not collected"])[-1].removeprefix("E").strip())


class _WithoutAssertions(importlib.machinery.SourceFileLoader):
    """Loads programs, which look for CUDA in what was compiled, without their assertions."""

    def source_to_code(self, data: Any, path: Any, **_: Any) -> Any:
        return compile(data, path, "exec", dont_inherit=True, optimize=1)

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _ProgramFinder(importlib.abc.MetaPathFinder):
    loader = _WithoutAssertions

    def __init__(self, source: Path) -> None:
        self.source = source

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        found = importlib.machinery.PathFinder.find_spec(name, path)
        inside = found and found.origin and Path(found.origin).resolve()
        if not inside or self.source not in inside.parents or inside.suffix != ".py":
            return None
        places = found.submodule_search_locations
        return importlib.util.spec_from_file_location(
            name,
            found.origin,
            loader=self.loader(name, found.origin),
            submodule_search_locations=places,
        )


def run_file(path: Path, out: Path, source: Path, how: tuple[str, str]) -> None:
    """Run one file in this process, its tests or its main, with fake or real tensors, and write
    what became of its kernels."""
    import pytest
    from torch._subclasses.fake_tensor import FakeTensorMode

    import tilec.tilelang

    tensors, part = how
    recorder, failures = Recorder(), Failures()

    def write() -> None:
        found = [[f, n, said] for (f, n), said in recorder.results.items() if said]
        out.write_text(
            json.dumps({"kernels": found, "stopped": failures.said, "tests": failures.tests})
        )

    def late(*_: Any) -> None:
        failures.said.append(f"not done after {SECONDS} s")
        write()
        os._exit(1)

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    tilec.tilelang.install()
    sys.meta_path.insert(1, _ProgramFinder(source))
    sys.meta_path.append(_ComparedFinder())  # asked last: where they are installed, they are used
    watch(recorder)
    recorder.made_up = tensors == "fake"
    pytest.raises = recorder.raises
    os.chdir(path.parent)
    sys.path[:0] = [str(path.parent), str(source)]
    sys.argv = [str(path)]
    with contextlib.ExitStack() as modes:
        if tensors == "fake":
            modes.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        modes.enter_context(on_cpu())
        try:
            if part == "tests":
                options = ["-q", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull]
                options += ["--assert=plain", "--import-mode=importlib"]
                pytest.main([str(path), *options], plugins=[failures])
            else:
                code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True, optimize=1)
                main = types.ModuleType("__main__")
                main.__file__ = str(path)
                sys.modules["__main__"] = main
                exec(code, main.__dict__)
        except BaseException as e:
            failures.said.append(f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}")
        asking = ASKED.get(str(path.relative_to(source)), "") if part == "main" else ""
        for line in asking.strip().splitlines():
            try:
                exec(line, main.__dict__)
            except BaseException as e:
                failures.said.append(f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}")
        recorder.compile_the_rest(tilec.tilelang.JITKernel, path)
    write()
    os._exit(0)


def one(path: Path, scratch: Path, source: Path) -> dict[str, Any]:
    """The result of a file: of forked processes, which have everything imported already, until each
    of its kernels was asked for."""
    parts = ["tests"] * bool(re.search(r"^def test_|^class Test", path.read_text(), re.MULTILINE))
    parts += ["main"]
    wanted = {line for line, _ in kernels_of(path)}
    said: dict[tuple[str, int], list[str]] = {}
    stopped: list[str] = []
    tests: dict[str, str] = {}
    for how in ((tensors, part) for tensors in ("fake", "real") for part in parts):
        out = scratch / f"{abs(hash(path))}.json"
        out.unlink(missing_ok=True)
        run = multiprocessing.get_context("fork").Process(
            target=quietly, args=(path, out, source, how)
        )
        run.start()
        run.join(10 * SECONDS)  # other programs compute, too
        if run.is_alive():
            run.kill()
        found = {"kernels": [], "stopped": [f"the process ended with {run.exitcode}"]}
        if out.exists():
            found = json.loads(out.read_text())
        stopped += found["stopped"]
        tests = found.get("tests", {}) | tests
        for file, line, messages in found["kernels"]:
            said.setdefault((file, line), messages)
        if not wanted - {line for f, line in said if Path(f).resolve() == path}:
            break
    said_of = [[f, n, m] for (f, n), m in said.items()]
    return {"kernels": said_of, "stopped": stopped, "tests": tests}


def quietly(path: Path, *rest: Any) -> None:
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        run_file(path, *rest)


def census(source: Path, files: list[Path], jobs: int, scratch: Path) -> list[dict[str, str]]:
    """One entry for each kernel: path, name, status, and what was said."""
    # torch._dynamo lists torch's functions when it is loaded, which is before they are replaced.
    for module in ("torch._dynamo", "pytest", "tilec.tilelang.testing", "tilec.jit.build"):
        __import__(module)
    listed = {str(f): kernels_of(f) for f in files}
    said: dict[tuple[str, int], list[str]] = collections.defaultdict(list)
    stopped, tests = {}, {}
    with ThreadPoolExecutor(jobs) as pool:
        for file, found in zip(
            files, pool.map(lambda f: one(f, scratch, source), files), strict=True
        ):
            stopped[str(file)], tests[str(file)] = found["stopped"], found["tests"]
            for path, line, messages in found["kernels"]:
                said[str(Path(path).resolve()), line] += messages
    entries = []
    for path, kernels in listed.items():
        lines = Path(path).read_text().splitlines()
        short = str(Path(path).relative_to(source))
        for line, name in kernels:
            messages = said.get((path, line), [])
            askers = tests_that_ask(path, line)
            wrong = next((m for m in messages if m), "")
            text = "\n".join(lines[line - 1 : line + 80]) if not messages or wrong else ""
            text = text if re.search(r"tcgen05|alloc_tmem|T\.clc_", text) else ""
            other = elsewhere(short, name, f"{wrong} {text}") or only_elsewhere(askers)
            on_purpose = short.startswith(MISTAKEN) or refused_on_purpose(path, line)
            if messages and not wrong:
                status = "compiles"
            elif (skipped := skipped_for(askers, tests[path])) and elsewhere("", "", skipped):
                status, wrong = "other hardware", elsewhere("", "", skipped)
            elif wrong.startswith(EXPECTED) or (wrong and on_purpose):
                status, wrong = "refused as there", wrong.removeprefix(EXPECTED)
            elif other:
                status, wrong = "other hardware", other
            elif wrong and (short, name) in WRONG:
                status, wrong = "refused rightly", f"{WRONG[short, name]}: {wrong}"
            elif wrong:
                status = "refused"
            else:
                wrong = (stopped[path] or ["nothing of the file asks for it"])[0]
                wrong = next((tests[path][t] for t in askers if t in tests[path]), wrong)
                skipped = wrong.startswith("skipped: ") and elsewhere("", "", wrong)
                status = "other hardware" if skipped else "not reached"
                wrong = skipped or wrong
            entries.append({"path": short, "kernel": name, "line": str(line), "status": status})
            entries[-1]["said"] = wrong
    return entries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--programs", type=Path, help="where to list the kernels that compile")
    parser.add_argument("--entries", type=Path, help="what --out has written: nothing is run")
    parser.add_argument("--known", type=Path, help="entries of an --out, of files that are not run")
    parser.add_argument("--right", type=Path, help="what right.py has written, for the table")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp"))
    given = parser.parse_args()
    source = Path(os.environ["TILELANG_SOURCE"]).resolve()
    os.environ["TILEC_TARGET"] = TARGET
    files = [f.resolve() for f in given.files]
    for folder in () if files else FOLDERS:
        found = sorted((source / folder).rglob("*.py"))
        files += [f for f in found if kernels_of(f) or f.name.startswith("test_")]
    given.scratch.mkdir(parents=True, exist_ok=True)
    if given.entries:
        entries = json.loads(given.entries.read_text())
    else:
        entries = census(source, files, given.jobs, given.scratch)
    if given.known:
        ran = {e["path"] for e in entries}
        known = json.loads(given.known.read_text())
        entries += [e for e in known if e["path"] not in ran]
        order = {folder: n for n, folder in enumerate(FOLDERS)}
        first = {e["path"]: next(order[f] for f in FOLDERS if e["path"].startswith(f))
                 for e in entries}  # fmt: skip
        entries.sort(key=lambda e: (first[e["path"]], e["path"]))
    right = json.loads(given.right.read_text()) if given.right else {}
    if given.out:
        given.out.write_text(json.dumps(entries, indent=1) + "\n")
    if given.programs:
        given.programs.write_text(json.dumps(compiling(entries), indent=1) + "\n")
    if given.table:
        given.table.write_text(table(entries, right))
    print(table(entries, right))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
