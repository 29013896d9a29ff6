"""Attention forward in fp16, (batch, sequence, heads, dim), against torch's (cuDNN and
FlashAttention-2), TileLang's and Triton's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import tilec
from benchmarks import attention_kernels, peers
from benchmarks.attention_calls import Step, tilec_candidate
from benchmarks.case import Candidate, Case, Config, Tensors
from benchmarks.peers import CUDNN, FLASH, TILELANG, TRITON, version
from benchmarks.products import random

LENGTHS = (1024, 2048, 4096, 8192)
# Rows and keys of a block, and its threads, by the dimension of a head: to choose from.
TILES = {
    64: ((256, 64, 512), (192, 128, 384)),
    96: ((128, 128, 256), (192, 112, 384)),
    128: ((128, 128, 256),),
    256: ((128, 80, 256),),
}


@dataclass(frozen=True)
class Attention:
    """`groups` heads of keys and values serve `heads` of queries; with `causal` query i sees the
    keys up to i."""

    batch: int
    heads: int
    groups: int
    length: int
    dim: int
    causal: bool

    @property
    def label(self) -> str:
        heads = f"{self.heads}" + (f"/{self.groups}" if self.groups != self.heads else "")
        mask = " causal" if self.causal else ""
        return f"fp16 d{self.dim}{mask} {self.batch}x{heads}x{self.length}"

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of queries (and results), of keys and values."""
        b, s, d = self.batch, self.length, self.dim
        return (b, s, self.heads, d), (b, s, self.groups, d)

    def make(self, device: str) -> Tensors:
        generator = torch.Generator(device).manual_seed(self.length + self.dim)
        q, kv = self.shapes
        made = {
            name: random(shape, torch.float16, device, generator)
            for name, shape in (("q", q), ("k", kv), ("v", kv))
        }
        rows = (self.batch * self.length, self.heads * self.dim)
        return {**made, "out": torch.empty(rows, dtype=torch.float16, device=device)}

    def result(self, t: Tensors) -> torch.Tensor:
        """`out` as (batch, sequence, heads, dim)."""
        return t["out"].view(self.shapes[0])

    def reference(self, t: Tensors, rows: torch.Tensor) -> torch.Tensor:
        found = []
        for row in rows.tolist():
            b, i = divmod(row, self.length)
            n = i + 1 if self.causal else self.length
            q = t["q"][b, i].double().view(self.groups, -1, self.dim)
            k, v = (t[x][b, :n].double() for x in "kv")
            s = torch.einsum("gcd,ngd->gcn", q, k) * self.dim**-0.5
            o = torch.einsum("gcn,ngd->gcd", torch.softmax(s, 2), v)
            found.append(o.reshape(-1))
        return torch.stack(found)


def cases() -> list[Case]:
    found = [Attention(8, 32, 32, n, 128, causal) for causal in (False, True) for n in LENGTHS]
    for n in (1024, 4096, 8192):
        for causal in (False, True):
            found += [Attention(8, 32, 32, n, dim, causal) for dim in (64, 96)]
            found += [Attention(8, 16, 16, n, 256, causal)]
            found += [Attention(4, 64, 8, n, 128, causal)]
    return [case(a, priority, quick=priority < 8) for priority, a in enumerate(found)]


def case(a: Attention, priority: int, quick: bool = True) -> Case:
    q, kv = a.shapes
    seen = (a.length + 1) / 2 if a.causal else a.length
    return Case(
        operator="attention",
        name=a.label,
        facts={
            "shape": [a.batch, a.heads, a.groups, a.length, a.dim],
            "kind": "causal" if a.causal else "full",
            "dtype": "float16",
        },
        work=4.0 * a.batch * a.heads * a.length * seen * a.dim,
        bytes=2 * sum(torch.Size(shape).numel() for shape in (q, q, kv, kv)),
        tolerance=2e-3,
        make=a.make,
        reference=a.reference,
        candidates=lambda: [
            c
            for c in (
                ours(a),
                torch_candidate(a, CUDNN, SDPBackend.CUDNN_ATTENTION),
                torch_candidate(a, FLASH, SDPBackend.FLASH_ATTENTION),
                peer(a, TILELANG),
                peer(a, TRITON),
            )
            if c
        ],
        priority=priority,
        quick=quick,
        baseline=CUDNN,
        seed=a.length + a.dim,
    )


def ours(a: Attention) -> Candidate:
    """tilec, with the tiles of TILES and the schedule left to it."""
    q, kv = a.shapes
    specs = [tilec.spec(shape, "float16") for shape in (q, kv, kv, q)]

    steps = steps_of(a.dim, a.causal, specs, ("q", "k", "v", "o"))
    return tilec_candidate(steps, lambda t, _: {"o": a.result(t)}, configs_of(a.dim), a.label)


def steps_of(
    dim: int, causal: bool, specs: list[Any], names: tuple[str, ...]
) -> Callable[[Config], list[Step]]:
    """The kernel for one of `configs_of`, called with the tensors of these names."""

    def steps(config: Config) -> list[Step]:
        tile = {name: config[name] for name in ("BM", "BN")}
        kernel = attention_kernels.forward(dim, causal, config["threads"])
        return [Step(kernel, specs, names, tile)]

    return steps


def configs_of(dim: int) -> tuple[Config, ...]:
    """What is tried for heads of `dim` numbers."""
    return tuple({"BM": m, "BN": n, "threads": threads} for m, n, threads in TILES[dim])


def torch_candidate(a: Attention, name: str, backend: SDPBackend) -> Candidate:
    """One of the implementations behind torch's scaled_dot_product_attention."""

    def bind(t: Tensors, config: Config) -> Callable[[], torch.Tensor]:
        q, k, v = (t[x].transpose(1, 2) for x in "qkv")
        shape = t["out"].shape

        def call() -> torch.Tensor:
            with sdpa_kernel(backend):
                o = F.scaled_dot_product_attention(
                    q, k, v, is_causal=a.causal, enable_gqa=a.groups != a.heads
                )
            return o.transpose(1, 2).reshape(shape)  # a view: results are laid out as the queries

        return call

    return Candidate(name, lambda _: version(name), bind)


def peer(a: Attention, name: str) -> Candidate | None:
    """An optional peer's kernel; None where it is not installed or has none for the dimension."""
    module = peers.module_of(name, "attention")
    configs: tuple[Config, ...] = module.configs(a.dim) if module is not None else ()
    if module is None or not configs:
        return None

    def bind(t: Tensors, config: Config) -> Callable[[], torch.Tensor]:
        run = module.bind(t["q"], t["k"], t["v"], a.result(t), a.causal, dict(config))

        def call() -> torch.Tensor:
            run()
            return t["out"]

        return call

    def prepare(config: Config) -> Any:
        return module.compiled(
            a.batch, a.length, a.heads, a.groups, a.dim, a.causal, **dict(config)
        )

    return Candidate(
        name,
        lambda config: f"{version(name)} {dict(config)}",
        bind,
        configs,
        tuned_as=f"{name} attention {a.label}",
        prepare=prepare if name == TILELANG else None,
    )
