"""Causal attention with a sink for each head, 64 heads over 8 of keys and values of 64 numbers,
against TileLang's examples and the Triton kernel beside them."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

import tilec
from benchmarks.attention_calls import (
    Call,
    Step,
    attended,
    by_tokens,
    example,
    spec_by_tokens,
    tilec_candidate,
    tilelang_candidate,
    triton_candidate,
)
from benchmarks.case import Candidate, Case, Config, Tensors
from benchmarks.peers import TILELANG
from benchmarks.products import random

LENGTHS, WINDOW = (1024, 2048, 4096, 8192), 128
CONFIGS: tuple[Config, ...] = (
    {"BM": 64, "BN": 64},
    {"BM": 64, "BN": 128},
    {"BM": 128, "BN": 64},
    {"BM": 128, "BN": 128},
)
PEER_CONFIGS: tuple[Config, ...] = tuple(
    {"program": program, "block_M": 128, "block_N": bn, "num_stages": 2, "threads": threads}
    for program in ("example_gqa_sink_fwd_varlen", "example_mha_sink_fwd_bhsd")
    for bn, threads in ((128, 256), (64, 256))
)


@dataclass(frozen=True)
class Sinks:
    """Tensors are (batch, heads, sequence, dim); `window`: of the last keys, or 0 for all."""

    length: int
    window: int = 0
    batch: int = 1
    heads: int = 64
    groups: int = 8
    dim: int = 64

    @property
    def label(self) -> str:
        window = f" window {self.window}" if self.window else ""
        heads = f"{self.heads}/{self.groups}"
        return f"fp16 d{self.dim} sinks{window} {self.batch}x{heads}x{self.length}"

    @property
    def seen(self) -> float:
        """Keys of a query, on average."""
        n, w = self.length, min(self.window or self.length, self.length)
        return (w * (w + 1) / 2 + (n - w) * w) / n

    def make(self, device: str) -> Tensors:
        generator = torch.Generator(device).manual_seed(self.length)
        b, s, d = self.batch, self.length, self.dim
        made = {
            name: random((b, heads, s, d), torch.float16, device, generator)
            for name, heads in (("q", self.heads), ("k", self.groups), ("v", self.groups))
        }
        sinks = random((self.heads,), torch.float16, device, generator)
        out = torch.empty((b * self.heads, s, d), dtype=torch.float16, device=device)
        return {**made, "sinks": sinks, "wide": sinks.float(), "out": out}

    def reference(self, t: Tensors, rows: torch.Tensor) -> torch.Tensor:
        at = torch.arange(self.length, device=rows.device)
        seen = at[:, None] >= at
        if self.window:
            seen &= at[:, None] - at < self.window
        found = []
        for row in rows.tolist():
            b, h = divmod(row, self.heads)
            g = h // (self.heads // self.groups)
            sink = t["sinks"][h].expand(self.length)
            found.append(attended(t["q"][b, h], t["k"][b, g], t["v"][b, g], seen=seen, sink=sink))
        return torch.stack(found)


def cases() -> list[Case]:
    found = [Sinks(n) for n in LENGTHS] + [Sinks(8192, WINDOW)]
    return [case(s, priority) for priority, s in enumerate(found)]


def case(s: Sinks, priority: int = 0) -> Case:
    return Case(
        operator="sinks",
        name=s.label,
        facts={
            "shape": [s.batch, s.heads, s.groups, s.length, s.dim],
            "kind": f"window {s.window}" if s.window else "causal",
            "dtype": "float16",
        },
        work=4.0 * s.batch * s.heads * s.length * s.seen * s.dim,
        bytes=4 * s.batch * (s.heads + s.groups) * s.length * s.dim + 6 * s.heads,
        tolerance=2e-3,
        make=s.make,
        reference=s.reference,
        candidates=lambda: [c for c in (ours(s), peer(s), triton(s)) if c],
        priority=priority,
        baseline=TILELANG,
        seed=s.length,
    )


def ours(s: Sinks) -> Candidate:
    kernel = example("attention_sink").sink(s.dim, s.window)
    q, kv = (spec_by_tokens((s.batch, h, s.length, s.dim)) for h in (s.heads, s.groups))
    sums = tilec.spec((s.batch, s.heads, s.length), "float32")
    specs = [q, kv, kv, tilec.spec((s.heads,), "float32"), q, sums]

    def views(t: Tensors, config: Config) -> Tensors:
        shape = t["q"].shape
        return by_tokens(t, "q", "k", "v") | {
            "o": t["out"].view(shape).transpose(1, 2),
            "lse": torch.empty(shape[:3], device=t["q"].device),
        }

    def steps(config: Config) -> list[Step]:
        return [Step(kernel, specs, ("q", "k", "v", "wide", "o", "lse"), config)]

    return tilec_candidate(steps, views, CONFIGS, s.label)


def peer(s: Sinks) -> Candidate | None:
    """TileLang's example for sequences of any length, whose heads share keys (a view of one
    sequence's result is by heads), and the one whose heads do not, with keys for every head."""
    path = "attention_sink/"

    def compiled(examples: ModuleType, config: Config) -> Any:
        settings = {k: v for k, v in config.items() if k != "program"}
        window = s.window or None
        if config["program"] == "example_mha_sink_fwd_bhsd":
            sizes: tuple[Any, ...] = (s.batch, s.heads, s.length, s.length, s.dim, window)
            return examples.compiled(path + config["program"], "flashattn", *sizes, **settings)
        tokens = s.batch * s.length
        sizes = (s.batch, s.heads // s.groups, tokens, tokens, s.heads, s.dim, True, window)
        return examples.compiled(path + config["program"], "flashattn_sink", *sizes, **settings)

    def run(kernel: Any, t: Tensors, config: Config) -> Call:
        if config["program"] == "example_mha_sink_fwd_bhsd":
            k, v = (t[x].repeat_interleave(s.heads // s.groups, 1) for x in "kv")
            return lambda: kernel(t["q"], k, v, t["sinks"]).flatten(0, 1)
        q, k, v = (t[x].transpose(1, 2).flatten(0, 1).contiguous() for x in "qkv")
        ends = torch.arange(s.batch + 1, dtype=torch.int32, device=q.device) * s.length

        def call() -> torch.Tensor:
            o: torch.Tensor = kernel(q, k, v, ends, ends, s.length, t["sinks"])
            return o.view(s.batch, s.length, s.heads, -1).transpose(1, 2).flatten(0, 1)

        return call

    return tilelang_candidate(s.label, PEER_CONFIGS, compiled, run)


def triton(s: Sinks) -> Candidate | None:
    """The Triton kernel of TileLang's benchmark; it takes windows of whole blocks."""

    def run(program: ModuleType, t: Tensors) -> Call:
        args = (t["q"], t["k"], t["v"], t["sinks"], s.window or None)
        return lambda: program.triton_program(*args).flatten(0, 1)

    return triton_candidate("attention_sink/benchmark_gqa_sink_fwd", run)
