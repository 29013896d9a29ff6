"""Matrix products as cases: their inputs, their reference, and who computes them."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tilec
from benchmarks import kernels
from benchmarks.case import Candidate, Case, Config, Tensors
from benchmarks.peers import CUBLAS, TILELANG, TRITON, module_of, version
from benchmarks.store import OURS

_TORCH = {
    "float16": (torch.float16, torch.float16),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "float8_e4m3": (torch.float8_e4m3fn, torch.bfloat16),
    "int8": (torch.int8, torch.int32),
    "float32": (torch.float32, torch.float32),
}
# Relative Frobenius error that no right result exceeds: rounding of the result, and for TF32 of the
# operands, with room; fp8's fast accumulation keeps 14 bits.
_TOLERANCE = {
    "float16": 1e-3,
    "bfloat16": 6e-3,
    "float8_e4m3": 2e-2,
    "int8": 0.0,
    "float32": 2e-3,
}
_SHORT = {"float16": "fp16", "bfloat16": "bf16", "float8_e4m3": "fp8", "float32": "tf32"}


@dataclass(frozen=True)
class Product:
    """C (M, N) = A (M, K) B (K, N). `kind`: N or T for A and B; NT stores B as (N, K). `dtype` is
    the operands', as tilec names it; float32 means TF32. `rows`: in memory they are "dense", begin
    at multiples of 16 bytes with as many "padded" behind, or are an "odd" number of elements
    apart."""

    m: int
    n: int
    k: int
    kind: str = "NN"
    dtype: str = "float16"
    rows: str = "dense"

    @property
    def ta(self) -> bool:
        return self.kind[0] == "T"

    @property
    def tb(self) -> bool:
        return self.kind[1] == "T"

    @property
    def label(self) -> str:
        rows = "" if self.rows == "dense" else f" {self.rows}"
        return f"{_SHORT.get(self.dtype, self.dtype)} {self.kind} {self.m}x{self.n}x{self.k}{rows}"

    @property
    def facts(self) -> dict[str, Any]:
        found = {"shape": [self.m, self.n, self.k], "kind": self.kind, "dtype": self.dtype}
        return found if self.rows == "dense" else {**found, "rows": self.rows}

    @property
    def stored(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The shapes of A and B in memory."""
        m, n, k = self.m, self.n, self.k
        return ((k, m) if self.ta else (m, k)), ((n, k) if self.tb else (k, n))

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the operands."""
        return _TORCH[self.dtype][0].itemsize

    @property
    def bytes(self) -> int:
        operand, result = (t.itemsize for t in _TORCH[self.dtype])
        return (self.m + self.n) * self.k * operand + self.m * self.n * result

    def pitch(self, columns: int) -> int:
        """Elements from one row of a tensor in memory to the next."""
        if self.rows == "padded":
            each = 16 // self.itemsize
            return -(-columns // each) * each + each
        return columns | 1 if self.rows == "odd" else columns

    def spec(self, shape: tuple[int, int], dtype: str) -> Any:
        """What tilec compiles for: such a tensor with the rows of this product."""
        return tilec.spec(shape, dtype, strides=(self.pitch(shape[1]), 1))

    def empty(self, shape: tuple[int, int], dtype: torch.dtype, device: str) -> torch.Tensor:
        pitch = self.pitch(shape[1])
        return torch.empty(shape[0] * pitch, dtype=dtype, device=device).as_strided(
            shape, (pitch, 1)
        )

    def views(self, t: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        """A as (M, K) and B as (K, N)."""
        return (t["a"].t() if self.ta else t["a"]), (t["b"].t() if self.tb else t["b"])

    def make(self, device: str) -> Tensors:
        operand, result = _TORCH[self.dtype]
        a, b = self.stored
        generator = torch.Generator(device).manual_seed(self.m + 3 * self.n + 7 * self.k)
        made = {"out": self.empty((self.m, self.n), result, device)}
        for name, shape in (("a", a), ("b", b)):
            made[name] = random(shape, operand, device, generator)
            if self.rows != "dense":
                made[name] = self.empty(shape, operand, device).copy_(made[name])
        return made

    def reference(self, t: Tensors, rows: torch.Tensor) -> torch.Tensor:
        a, b = self.views(t)
        return float64(a[rows] if a.dtype.itemsize > 1 else a.float()[rows]) @ float64(b)


def random(
    shape: tuple[int, ...], dtype: torch.dtype, device: str, generator: torch.Generator
) -> torch.Tensor:
    """Normal numbers, or all int8 but -128."""
    if dtype == torch.int8:
        return torch.randint(-127, 128, shape, dtype=dtype, device=device, generator=generator)
    wide = torch.float32 if dtype.itemsize == 1 else dtype
    return torch.randn(shape, dtype=wide, device=device, generator=generator).to(dtype)


def float64(t: torch.Tensor) -> torch.Tensor:
    return t.float().double() if t.dtype.itemsize == 1 else t.double()


def product_case(
    operator: str,
    p: Product,
    priority: int = 0,
    quick: bool = True,
    candidates: Sequence[Callable[[Product], Candidate | None]] | None = None,
) -> Case:
    """The case of a product against every peer that has it, or of these `candidates`."""
    makers = (ours, cublas, triton, tilelang) if candidates is None else candidates
    return Case(
        operator=operator,
        name=p.label,
        facts=p.facts,
        work=2.0 * p.m * p.n * p.k,
        bytes=p.bytes,
        tolerance=_TOLERANCE[p.dtype],
        make=p.make,
        reference=p.reference,
        candidates=lambda: [c for c in (maker(p) for maker in makers) if c],
        priority=priority,
        quick=quick,
        seed=p.m + p.n + p.k,
    )


# --- candidates ---------------------------------------------------------------------------------


def tilec_candidate(
    kernel: Any,
    specs: list[Any],
    arguments: Callable[[Tensors], tuple[Any, ...]],
    meta: Mapping[str, Any] | None = None,
    name: str = OURS,
) -> Candidate:
    """A tilec kernel, known by the code it compiles to for `specs`; `meta`: its constants."""

    def bind(t: Tensors, config: Config) -> Callable[[], torch.Tensor]:
        args = arguments(t)

        def call() -> torch.Tensor:
            kernel(*args, **config)
            return t["out"]

        return call

    def compiled(config: Config) -> Any:
        return kernel.compile(*specs, **config)

    return Candidate(
        name,
        lambda config: code_hash(compiled(config)),
        bind,
        (dict(meta or {}),),
        prepare=compiled,
        on_disk=True,
        about=lambda config: schedule_of(compiled(config)),
    )


def ours(p: Product) -> Candidate:
    """tilec, with tiles and schedule left to it."""
    kernel = kernels.product(p.dtype, p.ta, p.tb)
    a, b = p.stored
    result = kernels.DTYPES[p.dtype][1]
    specs = [p.spec(a, p.dtype), p.spec(b, p.dtype), p.spec((p.m, p.n), result)]
    return tilec_candidate(kernel, specs, lambda t: (t["a"], t["b"], t["out"]))


def cublas(p: Product) -> Candidate:
    """torch.matmul, torch._scaled_mm with fast accumulation, or torch._int_mm."""

    def bind(t: Tensors, config: Config) -> Callable[[], torch.Tensor]:
        (a, b), out = p.views(t), t["out"]
        if p.dtype == "int8":
            return lambda: torch._int_mm(a, b, out=out)
        if p.dtype == "float8_e4m3":
            one = torch.ones((), device=a.device)
            return functools.partial(
                torch._scaled_mm, a, b, one, one,
                out_dtype=out.dtype, use_fast_accum=True, out=out,
            )  # fmt: skip
        torch.backends.cuda.matmul.allow_tf32 = True  # only float32 products look at it
        return lambda: torch.matmul(a, b, out=out)

    return Candidate(CUBLAS, lambda _: version(CUBLAS), bind)


def triton(p: Product) -> Candidate | None:
    """None where Triton is not installed."""
    module = module_of(TRITON)
    if module is None:
        return None

    def bind(t: Tensors, config: Config) -> Callable[[], torch.Tensor]:
        a, b = p.views(t)
        call: Callable[[], torch.Tensor] = module.bind(a, b, t["out"], dict(config))
        return call

    return _tuned(TRITON, p, module.configs(p.m, _TORCH[p.dtype][0].itemsize), bind)


def tilelang(p: Product) -> Candidate | None:
    """None where TileLang is not installed."""
    module = module_of(TILELANG)
    if module is None:
        return None
    operand, result = _TORCH[p.dtype]

    def bind(t: Tensors, config: Config) -> Callable[[], torch.Tensor]:
        call: Callable[[], torch.Tensor] = module.bind(
            t["a"], t["b"], t["out"], p.ta, p.tb, dict(config)
        )
        return call

    def prepare(config: Config) -> object:
        made: object = module.compiled(p.m, p.n, p.k, p.ta, p.tb, operand, result, dict(config))
        return made

    return _tuned(TILELANG, p, module.configs(p.m, operand.itemsize), bind, prepare)


def _tuned(
    peer: str,
    p: Product,
    configs: tuple[Config, ...],
    bind: Callable[[Tensors, Config], Callable[[], torch.Tensor]],
    prepare: Callable[[Config], object] | None = None,
) -> Candidate:
    return Candidate(
        peer,
        lambda config: f"{version(peer)} {dict(config)}",
        bind,
        configs,
        tuned_as=f"{peer} {p.label}",
        prepare=prepare,
    )


# --- the code that tilec emits ------------------------------------------------------------------


def schedule_of(compiled: Any) -> dict[str, Any]:
    """What tilec chose: the plan, the grid (it shows the tile), what it takes of the machine."""
    used = compiled.resources
    plan = compiled.plan.describe() if compiled.plan else ""
    return {
        "plan": " ".join([plan, *(f"{name} packed" for name in compiled.image.packed)]),
        "grid": compiled.image.grid,
        "registers": used.registers,
        "spilled": used.spilled_bytes,
        "shared": used.shared_bytes,
        "threads": used.threads,
    }


_LOCATIONS = re.compile(r"^\s*(\.loc|\.file|//|\$L__tmp).*\n", re.MULTILINE)


def code_hash(compiled: Any) -> str:
    """A hash of the assembly without line numbers and of how it is launched."""
    code = _LOCATIONS.sub("", compiled.asm).split("\t.section")[0]
    image = compiled.image
    launch = (image.grid, image.persistent, image.cluster, image.split, image.resources.threads)
    text = f"{code}\n{(*launch, image.packed) if image.packed else launch}"
    return f"{compiled.target} {hashlib.sha256(text.encode()).hexdigest()[:16]}"
