"""Whatever a public name is given, it takes it or says in words what is wrong with it: never an
error of Python's own, never a hang, never a crash."""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.errors import shown
from tilec.layout import make_mma_swizzle_layout, make_swizzled_layout

pytestmark = pytest.mark.turns

M, N = T.dynamic("M, N")


@tilec.kernel
def scale(
    A: T.Tensor((N,), "float32"),
    B: T.Tensor((N,), "float32"),
    n: T.int32,
    x: T.float32,
    f: T.bool,
    BN: T.constexpr = 32,
):
    with T.Kernel(T.ceildiv(N, BN), threads=32) as b:
        for i in T.Parallel(BN):
            B[b * BN + i] = A[b * BN + i] * x + n


@tilec.kernel
def gridless(A: T.Tensor((N,), "float32")):
    with T.Kernel(threads=32) as b:
        for i in T.Parallel(32):
            A[b * 32 + i] = 1.0


@tilec.kernel
def chosen(A: T.Tensor((N,), "float32"), BN: T.constexpr = T.auto(32, 64)):
    with T.Kernel(T.ceildiv(N, BN), threads=32) as b:
        for i in T.Parallel(BN):
            A[b * BN + i] = 1.0


@tilec.macro
def twice(x):
    return x + x


class Raises:
    def __repr__(self) -> str:
        raise ValueError("no repr")

    def __index__(self) -> int:
        raise ValueError("no index")

    def __bool__(self) -> bool:
        raise ValueError("no truth")

    def __len__(self) -> int:
        raise ValueError("no length")


class NoIndex:
    def __index__(self) -> Any:
        return "x"


class OddShape:
    shape = 5
    dtype = object()


class Exporter:
    """An array whose DLPack methods give these, or raise them."""

    def __init__(self, capsule: Any, device: Any = (1, 0)) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **options: Any) -> Any:
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.capsule

    def __dlpack_device__(self) -> Any:
        if isinstance(self.device, Exception):
            raise self.device
        return self.device


def on_gpu(**fields: Any) -> Any:
    whole = {"shape": (32,), "typestr": "<f4", "data": (4096, False), "strides": None, "version": 3}
    given = {k: v for k, v in {**whole, **fields}.items() if v != "absent"}
    return type("OnGpu", (), {"__cuda_array_interface__": given})()


def used_capsule() -> Any:
    capsule = np.zeros(32, np.float32).__dlpack__()
    np.from_dlpack(Exporter(capsule))
    return capsule


ODD: dict[str, Any] = {
    "None": None, "zero": 0, "negative": -1, "long": 10**400, "long negative": -(10**5000),
    "float": 1.5, "nan": float("nan"), "infinity": float("inf"), "complex": 1j, "text": "abc",
    "no text": "", "non-ASCII": "größe", "half a character": "\ud800", "zero byte": "a\0b",
    "long text": "x" * 100_000, "bytes": b"ab", "tuple": (1, 2), "tuples": ((1,), (2,)),
    "list": [1, 2], "long list": list(range(100_000)), "dict": {"a": 1}, "set": {1, 2},
    "object": object(), "raises": Raises(), "no index": NoIndex(), "odd shape": OddShape(),
    "class": int, "builtin": len, "module": sys, "ellipsis": ..., "generator": (i for i in "a"),
    "range": range(3), "member": enum.Enum("E", "x").x, "error": ValueError("x"),
    "view": memoryview(b"abc"), "0-d": np.array(3), "int64": np.int64(3), "objects": np.array([{}]),
    "texts": np.array(["a"]), "records": np.zeros(3, [("a", "i4"), ("b", "f4")]),
    "dates": np.array(["2020"], "M8[D]"), "masked": np.ma.zeros(32, np.float32),
    "half": np.zeros(32, np.float16), "matrix": np.zeros((4, 8), np.float32),
    "kernel": gridless, "macro": twice, "auto": T.auto, "size": M, "language": T,
    "spec": tilec.spec((32,), "float32"), "constexpr": T.constexpr, "planned": T.tcgen05_gemm,
    "dtype": T.float32, "foreign dtype": np.dtype(ml_dtypes.bfloat16),
    "export fails": Exporter(RuntimeError("broken")), "export refused": Exporter(BufferError("ro")),
    "no capsule": Exporter(5), "used capsule": Exporter(used_capsule()),
    "no device": Exporter(None, None), "device fails": Exporter(None, ValueError("x")),
    "device in words": Exporter(None, ("cpu",)), "shape of cai": on_gpu(shape=5),
    "type of cai": on_gpu(typestr="<"), "no type of cai": on_gpu(typestr="absent"),
    "data of cai": on_gpu(data=None), "no data of cai": on_gpu(data="absent"),
    "strides of cai": on_gpu(strides=("a",)), "no shape of cai": on_gpu(shape="absent"),
}  # fmt: skip

a, b = np.ones(32, np.float32), np.zeros(32, np.float32)
spec = tilec.spec((32,), "float32")


def simulated(option: str) -> Callable[[Any], Any]:
    return lambda x: tilec.simulate(
        scale, a, b, 1, 1.0, True, **{"target": "cuda:sm_80", option: x}
    )


NUMBERS = [f for name, f in sorted(vars(T).items()) if isinstance(f, T.Elementwise)]
CALLS: dict[str, Callable[[Any], Any]] = {
    "array": lambda x: scale(x, b, 1, 1.0, True),
    "array written": lambda x: scale(a, x, 1, 1.0, True),
    "int": lambda x: scale(a, b, x, 1.0, True),
    "float": lambda x: scale(a, b, 1, x, True),
    "bool": lambda x: scale(a, b, 1, 1.0, x),
    "threads": lambda x: scale(a, b, 1, 1.0, True, threads=x),
    "stream": lambda x: scale(a, b, 1, 1.0, True, stream=x),
    "unknown keyword": lambda x: scale(a, b, 1, 1.0, True, foo=x),
    "grid": lambda x: gridless[x](b),
    "grid of two": lambda x: gridless[1, x](b),
    "grid function": lambda x: gridless[lambda meta: x](b),
    "compile": lambda x: scale.compile(x, spec, target="cpu"),
    "target": lambda x: scale.compile(spec, spec, target=x),
    "recommend": tilec.recommend,
    "recommend for": lambda x: tilec.recommend(chosen, spec, target=x),
    "recommend most": lambda x: tilec.recommend(chosen, spec, target="cuda:sm_80", topk=x),
    "simulate": lambda x: tilec.simulate(x, a),
    "simulate array": lambda x: tilec.simulate(scale, x, b, 1, 1.0, True, target="cuda:sm_80"),
    **{
        f"simulate {option}": simulated(option)
        for option in ("grid", "target", "blocks", "checks", "trace", "on_change", "seed",
                       "check_outputs", "resident_blocks")
    },
    "spec": lambda x: tilec.spec(x, "float32"),
    "spec extent": lambda x: tilec.spec((x,), "float32"),
    "spec dtype": lambda x: tilec.spec((3,), x),
    "spec strides": lambda x: tilec.spec((3,), "float32", x),
    "spec stride": lambda x: tilec.spec((3,), "float32", (x,)),
    "load": tilec.load,
    "kernel": tilec.kernel,
    "kernel of": lambda x: tilec.kernel()(x),
    "kernel out": lambda x: tilec.kernel(out=x)(scale.function),
    "kernel threads": lambda x: tilec.kernel(threads=x)(scale.function),
    "kernel pdl": lambda x: tilec.kernel(pdl=x)(scale.function),
    "kernel enable_fp_fusion": lambda x: tilec.kernel(enable_fp_fusion=x)(scale.function),
    "macro": tilec.macro,
    "dynamic": T.dynamic,
    "dynamic dtype": lambda x: T.dynamic("M", x),
    "const": T.const,
    "Tensor": T.Tensor,
    "Tensor extent": lambda x: T.Tensor((x,), "float32"),
    "Tensor dtype": lambda x: T.Tensor((4,), x),
    "Tensor strides": lambda x: T.StridedTensor((4,), x, "float32"),
    "Tensor subscript": lambda x: T.Tensor[x],
    "auto": T.auto,
    "Layout": lambda x: T.Layout(x, lambda i: i),
    "Layout extent": lambda x: T.Layout((x,), lambda i: i),
    "Layout function": lambda x: T.Layout((8,), x),
    "Layout result": lambda x: T.Layout((8,), lambda i: x),
    "swizzle": make_swizzled_layout,
    "mma swizzle": make_mma_swizzle_layout,
    "infinity": T.infinity,
    "max_value": T.max_value,
    "min_value": T.min_value,
    "cast": T.float16,
    "planned word": T.tcgen05_gemm,
    "size sum": lambda x: M + x if not isinstance(x, np.ndarray) else None,
    "size product": lambda x: x * M if not isinstance(x, np.ndarray) else None,
    "functions": lambda x: None,  # see below
}  # fmt: skip
# Only what is asked of an odd value before anything is compiled: these are no odd values there.
GOOD = {("kernel of", "kernel"), ("simulate", "kernel")}


def check(call: Callable[..., Any], *given: Any) -> None:
    try:
        call(*given)
    except tilec.InternalError:
        raise
    except tilec.TilecError as e:
        text = str(e)
        assert e.message and e.hint, text
        assert e.loc is not None and e.loc.file == __file__, text
        assert text.count("\n") < 12 and max(map(len, text.split("\n"))) < 600, text
        assert e.__suppress_context__ or e.__context__ is None or e.__cause__ is not None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_odd_values(name: str) -> None:
    for what, value in ODD.items():
        if name == "functions":
            for function in NUMBERS:
                for given in ((value,), (value, 2), (2, value), (value, value)):
                    check(lambda f, *values: f(*values), function, *given)
        elif (name, what) not in GOOD:
            check(CALLS[name], value)


PUBLIC = [
    *(getattr(tilec, name) for name in ("kernel", "load", "recommend", "simulate", "spec",
                                        "macro")),
    *(getattr(T, name) for name in ("dynamic", "const", "Tensor", "StridedTensor", "Layout", "exp",
                                    "max", "cdiv", "infinity", "max_value", "min_value")),
    scale.compile, scale.recommend,
]  # fmt: skip


@pytest.mark.parametrize("function", PUBLIC, ids=lambda f: getattr(f, "__name__", "word"))
def test_arguments_too_few_too_many_and_of_other_names(function: Any) -> None:
    for call in (
        lambda: function(),
        lambda: function(1, 2, 3, 4, 5, 6, 7, 8, 9),
        lambda: function(nothing=1),
        lambda: function(1, nothing=1),
    ):
        check(call)


def test_the_message_of_a_wrong_signature() -> None:
    with pytest.raises(tilec.CompileError, match="missing 1 required .*'path'") as error:
        tilec.load()  # type: ignore[call-arg]
    assert error.value.hint == "write load(path)"


# --- what cannot be a kernel ----------------------------------------------------------------------


def plain(x):
    return x


class Holder:
    def method(self, A: T.Tensor((4,), "float32")):
        pass

    @classmethod
    def of_class(cls, A: T.Tensor((4,), "float32")):
        pass

    def __call__(self, x):
        pass


NO_KERNELS: dict[str, tuple[Any, str, str]] = {
    "class": (Holder, "the class Holder", "outside of the class"),
    "object": (Holder(), "Holder", "above a def"),
    "bound method": (Holder().method, "the method Holder.method", "take what it needs"),
    "bound to the class": (Holder.of_class, "the method Holder.of_class", "take what it needs"),
    "staticmethod": (staticmethod(plain), "a staticmethod", "below @staticmethod"),
    "classmethod": (classmethod(plain), "a classmethod", "below @classmethod"),
    "partial": (functools.partial(plain, 1), "a functools.partial", "at the call"),
    "cached": (functools.lru_cache(plain), "functools._lru_cache_wrapper", "above a def"),
    "builtin": (len, "built-in function len", "above a def"),
    "ufunc": (np.add, "ufunc", "above a def"),
    "kernel": (scale, "<kernel scale", "above a def"),
    "macro": (twice, "the macro twice", "keep one"),
    "text": ("kernel", "'kernel'", "above a def"),
}


@pytest.mark.parametrize("case", NO_KERNELS)
@pytest.mark.parametrize("decorate", [tilec.kernel, tilec.kernel(threads=64), tilec.macro])
def test_what_cannot_be_a_kernel(case: str, decorate: Callable[[Any], Any]) -> None:
    given, says, fix = NO_KERNELS[case]
    with pytest.raises(tilec.CompileError) as error:
        decorate(given)
    assert says in error.value.message and fix in error.value.hint
    assert error.value.loc is not None and error.value.loc.file == __file__


@tilec.kernel
def größe(A: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        A[0] = 1.0


@tilec.kernel
def with_umlaut(A: T.Tensor((N,), "float32"), größe: T.float32):
    with T.Kernel(1, threads=64):
        ä = T.alloc_shared((1,), "float32")
        ä[0] = größe
        A[0] = ä[0]


@pytest.mark.parametrize("kernel", [größe, with_umlaut])
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942"])
def test_names_beyond_ascii(kernel: Any, target: str) -> None:
    with pytest.raises(tilec.CompileError, match="the name größe has letters beyond ASCII") as e:
        kernel.compile(spec, target=target)
    assert e.value.loc is not None and "größe" in str(e.value).split("\n")[1]


@tilec.kernel
def odd_names(
    self: T.Tensor((N,), "float32"),
    values_: T.Tensor((N,), "float32"),
    KeyError: T.constexpr = 32,
    REQUIRED: T.float32 = 2.0,
):
    with T.Kernel(T.ceildiv(N, KeyError), threads=64) as b:
        for i in T.Parallel(KeyError):
            values_[b * KeyError + i] = self[b * KeyError + i] * REQUIRED


@tilec.kernel
def method_like(self: T.Tensor((N,), "float32"), grid: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 32), threads=64) as b:
        for i in T.Parallel(32):
            grid[b * 32 + i] = self[b * 32 + i] * 2


def test_parameters_of_any_name() -> None:
    for _ in range(4):
        for kernel in (odd_names, method_like):
            out = np.zeros(32, np.float32)
            kernel(a, out)
            assert (out == 2).all()
        out = np.zeros(32, np.float32)
        odd_names(self=a, values_=out, REQUIRED=3.0, KeyError=16)
        assert (out == 3).all()
        method_like(self=a, grid=out)
        assert (out == 2).all()


def test_a_kernel_is_no_sequence() -> None:
    """Indexing gives a launch: without more, `list(kernel)` would never end."""
    compiled = scale.compile(spec, spec, target="cpu")
    for given in (scale, compiled):
        with pytest.raises(TypeError, match="not iterable"):
            list(given)


def test_target_errors_are_tilecs() -> None:
    assert issubclass(tilec.TargetError, tilec.TilecError)
    with pytest.raises(tilec.TargetError) as error:
        scale.compile(spec, spec, target="cuda:sm_90b")
    assert (
        error.value.hint == 'write target="cuda:sm_90a", or leave target out'
        and error.value.loc is not None
    )
    assert "^^^" in str(error.value)


def test_values_in_messages() -> None:
    assert shown("abc") == "'abc'" and shown([1, 2]) == "[1, 2]" and shown(None) == "None"
    assert shown(10**5000) == "an int of 5001 digits"
    assert len(shown("x" * 10**6)) < 100 and len(shown(list(range(10**6)))) < 100
    assert "Raises" in shown(Raises())
