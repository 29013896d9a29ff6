"""One query a sequence, 64 heads over 8 of keys and values of 128 numbers, in TB/s: what is read
beside a device copy that moves as many bytes, and TileLang's example."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from benchmarks.attention_calls import (
    Call,
    Step,
    attended,
    example,
    split_configs,
    split_views,
    tilec_candidate,
    tilelang_candidate,
)
from benchmarks.case import Candidate, Case, Config, Tensors
from benchmarks.operators.memory import DEVICE_COPY, device_copy
from benchmarks.products import random

HEADS, GROUPS, DIM = 64, 8, 128
BATCHES, LENGTHS = (1, 4, 16, 64), (8192, 32768, 131072)
BLOCKS = (128, 256, 512, 1024)  # of a launch, about: what the keys are split for
ROWS = (16, 64)  # of a product, of which the queries that share keys fill some: T.auto's BM
PEER_SPLITS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Decoding:
    batch: int
    length: int
    heads: int = HEADS
    groups: int = GROUPS
    dim: int = DIM

    @property
    def label(self) -> str:
        return f"fp16 d{self.dim} decode {self.batch}x{self.heads}/{self.groups}x{self.length}"

    def make(self, device: str) -> Tensors:
        generator = torch.Generator(device).manual_seed(self.batch + self.length)
        cache = (self.batch, self.length, self.groups, self.dim)
        q = random((self.batch, self.heads, self.dim), torch.float16, device, generator)
        return {
            "q": q,
            "k": random(cache, torch.float16, device, generator),
            "v": random(cache, torch.float16, device, generator),
            "lengths": torch.full((self.batch,), self.length, dtype=torch.int32, device=device),
            "out": torch.empty_like(q),
        }

    def reference(self, t: Tensors, rows: torch.Tensor) -> torch.Tensor:
        found = []
        for b in rows.tolist():
            q = t["q"][b].view(self.groups, -1, self.dim)
            heads = [attended(q[g], t["k"][b, :, g], t["v"][b, :, g]) for g in range(self.groups)]
            found.append(torch.cat(heads))
        return torch.stack(found)


def cases() -> list[Case]:
    found = [Decoding(b, n) for n in LENGTHS for b in BATCHES]
    return [case(d, priority) for priority, d in enumerate(found)]


def case(d: Decoding, priority: int = 0) -> Case:
    cache = d.batch * d.length * d.groups * d.dim
    moved = 2 * (2 * cache + 2 * d.batch * d.heads * d.dim) + 4 * d.batch
    return Case(
        operator="decoding",
        name=d.label,
        facts={"shape": [d.batch, d.heads, d.groups, d.length, d.dim], "dtype": "float16"},
        work=float(moved),
        bytes=moved,
        tolerance=2e-3,
        make=d.make,
        reference=d.reference,
        candidates=lambda: [c for c in (ours(d), device_copy(moved), peer(d)) if c],
        priority=priority,
        baseline=DEVICE_COPY,
        seed=d.length,
        sets=2 if moved < 1 << 30 else 1,
    )


def ours(d: Decoding) -> Candidate:
    """tilec: how many parts there are, and rows of a product, are tried; keys of a block are its
    choice."""
    decoding = example("flash_decoding")
    counts = sorted({max(1, n // (d.batch * d.groups)) for n in BLOCKS})
    configs = tuple(
        {**config, "BM": rows} for config in split_configs(counts, ("float32",)) for rows in ROWS
    )

    def steps(config: Config) -> list[Step]:
        splits, kind = config["splits"], config["parts"]
        shape = (d.batch, d.length, splits, kind, d.heads, d.groups)
        names = ("q", "k", "v", "lengths", "parts", "sums")
        tile = {"BM": config["BM"]}
        first = Step(decoding.decode(d.dim, kind), decoding.specs(d.dim, *shape), names, tile)
        if splits == 1:
            return [first]
        specs = decoding.combine_specs(d.dim, d.batch, d.heads, splits, kind)
        combine = decoding.combine(d.dim, kind, splits)
        return [first, Step(combine, specs, ("parts", "sums", "out", "lse"))]

    return tilec_candidate(steps, split_views, configs, d.label)


def peer(d: Decoding) -> Candidate | None:
    """TileLang's example, without its search for tiles: these are the harness's to try."""
    configs: tuple[Config, ...] = tuple(
        {"block_N": 128, "num_split": splits, "num_stages": 2}
        for splits in PEER_SPLITS
        if 128 <= d.batch * d.groups * splits <= 512
    )

    def compiled(examples: ModuleType, config: Config) -> Any:
        sizes = (d.batch, d.heads, d.groups, d.length, d.dim)
        path = "flash_decoding/example_gqa_decode"
        return examples.compiled(path, "flashattn", *sizes, block_H=64, threads=128, **config)

    def run(kernel: Any, t: Tensors, config: Config) -> Call:
        seen = torch.ones(d.batch, d.length, d.groups, dtype=torch.uint8, device=t["q"].device)
        return lambda: kernel(t["q"], t["k"], t["v"], seen)

    return tilelang_candidate(d.label, configs, compiled, run)
