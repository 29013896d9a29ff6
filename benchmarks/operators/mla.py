"""Decoding of multi-head latent attention, 128 heads over keys of 512 + 64 numbers: whole batches,
few sequences whose keys are split, and a cache in pages, against TileLang's examples."""

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
from benchmarks.peers import TILELANG
from benchmarks.products import random

HEADS, DIM, ROPE, PAGE = 128, 512, 64, 64
TILE = {"BM": 64, "BN": 64}  # heads and tokens of a block, as TileLang's text has them
SPLITS = {1: (16, 32, 64), 8: (4, 8, 16)}  # by the batch
PEER_SPLITS = {1: (4, 16, 32, 64), 8: (2, 4, 8, 16)}


@dataclass(frozen=True)
class Mla:
    """`batch` sequences of `length` tokens; `paged`: in pages, in any order."""

    batch: int
    length: int
    paged: bool = False
    heads: int = HEADS
    dim: int = DIM
    rope: int = ROPE

    @property
    def label(self) -> str:
        return f"fp16 MLA decode {self.batch}x{self.length}{' paged' if self.paged else ''}"

    @property
    def page(self) -> int:
        return PAGE if self.paged else self.length

    @property
    def pages(self) -> int:
        """Of a sequence."""
        return self.length // self.page

    @property
    def scale(self) -> float:
        return float((self.dim + self.rope) ** -0.5)

    def make(self, device: str) -> Tensors:
        generator = torch.Generator(device).manual_seed(self.batch + self.length)
        order = torch.randperm if self.paged else torch.arange
        table = order(self.batch * self.pages, dtype=torch.int32)
        made = {
            name: random((rows, each, size), torch.float16, device, generator)
            for name, rows, each, size in (
                ("q", self.batch, self.heads, self.dim),
                ("q_pe", self.batch, self.heads, self.rope),
                ("kv", self.batch * self.pages, self.page, self.dim),
                ("k_pe", self.batch * self.pages, self.page, self.rope),
            )
        }
        return {
            **made,
            "table": table.view(self.batch, self.pages).to(device),
            "lengths": torch.full((self.batch,), self.length, dtype=torch.int32, device=device),
            "out": torch.empty_like(made["q"]),
        }

    def reference(self, t: Tensors, rows: torch.Tensor) -> torch.Tensor:
        found = []
        for b in rows.tolist():
            pages = t["table"][b].long()
            kv, k_pe = (t[x][pages].flatten(0, 1) for x in ("kv", "k_pe"))
            q, k = torch.cat([t["q"][b], t["q_pe"][b]], 1), torch.cat([kv, k_pe], 1)
            found.append(attended(q, k, kv, self.scale))
        return torch.stack(found)


def cases() -> list[Case]:
    found = [Mla(64, n) for n in (8192, 4096, 2048, 1024)]
    found += [Mla(1, 8192), Mla(8, 8192)]
    found += [Mla(batch, 8192, paged=True) for batch in (64, 8, 1)]
    return [case(m, priority) for priority, m in enumerate(found)]


def case(m: Mla, priority: int = 0) -> Case:
    width, tokens = m.dim + m.rope, m.batch * m.length
    return Case(
        operator="mla",
        name=m.label,
        facts={
            "shape": [m.batch, m.heads, m.length, m.dim, m.rope],
            "kind": "paged" if m.paged else "dense",
            "dtype": "float16",
        },
        work=2.0 * m.heads * tokens * (width + m.dim),
        bytes=2 * (tokens * width + m.batch * m.heads * (width + m.dim))
        + 4 * m.batch * (m.pages + 1),
        tolerance=2e-3,
        make=m.make,
        reference=m.reference,
        candidates=lambda: [c for c in (ours(m), *dense(m), peer(m)) if c],
        priority=priority,
        baseline=TILELANG,
        seed=m.length,
    )


# --- candidates ---------------------------------------------------------------------------------


def ours(m: Mla, name: str = "", paged: bool | None = None) -> Candidate:
    """One kernel, and one that puts the parts together where there are several."""
    paged = m.paged if paged is None else paged
    counts = SPLITS.get(m.batch, (1,))
    page = PAGE if paged else m.length
    mla, decoding = example("mla_decode"), example("flash_decoding")

    def steps(config: Config) -> list[Step]:
        splits, kind = config["splits"], config["parts"]
        kernel = mla.mla(m.dim, m.rope, page if paged else mla.S, kind)
        specs = mla.specs(m.batch, m.length, page, splits, kind, m.dim, m.rope, m.heads)
        names = ("q", "q_pe", "kv", "k_pe", "table", "lengths", "parts", "sums")
        first = Step(kernel, specs, names, TILE)
        if splits == 1:
            return [first]
        specs = decoding.combine_specs(m.dim, m.batch, m.heads, splits, kind)
        combine = decoding.combine(m.dim, kind, splits)
        return [first, Step(combine, specs, ("parts", "sums", "out", "lse"))]

    def views(t: Tensors, config: Config) -> Tensors:
        found = split_views(t, config)
        if paged != m.paged:  # the same cache, as if its pages followed each other
            found |= {x: t[x].view(m.batch, m.length, -1) for x in ("kv", "k_pe")}
            found["table"] = torch.arange(m.batch, dtype=torch.int32, device=t["q"].device)[:, None]
        return found

    if name:
        return tilec_candidate(steps, views, split_configs(counts), m.label, name, yardstick=True)
    return tilec_candidate(steps, views, split_configs(counts), m.label)


def dense(m: Mla) -> list[Candidate]:
    """What a paged cache is compared with: tilec on one that is not."""
    return [ours(m, "not paged", paged=False)] if m.paged else []


def peer(m: Mla) -> Candidate | None:
    """TileLang's example, and its variant with roles by hand where that takes these sizes. Most
    parts first: its host code keeps them in a pool, which gives memory back to the device where it
    needs more, and graphs of the configurations before would go on using that."""
    found: list[Config] = [
        {"program": "example_mla_decode_paged" if m.paged else "example_mla_decode", "splits": n}
        for n in sorted(PEER_SPLITS.get(m.batch, (1,)), reverse=True)
    ]
    # That variant takes two blocks of tokens at a time. Where keys are split its results are NaN.
    if not m.paged and found[0]["splits"] == 1 and m.length % (2 * TILE["BN"]) == 0:
        found.append({"program": "example_mla_decode_ws", "splits": 1})

    def compiled(examples: ModuleType, config: Config) -> Any:
        path, splits = f"deepseek_mla/{config['program']}", config["splits"]
        sizes = (m.batch, m.heads, 1, m.length, m.dim, m.rope, TILE["BN"], TILE["BM"], splits)
        if m.paged:
            return examples.compiled(path, "mla_decode_tilelang", *sizes, PAGE, m.scale)
        return examples.compiled(path, "flashattn", *sizes, m.scale)

    def run(kernel: Any, t: Tensors, config: Config) -> Call:
        shape = (m.batch * m.length, 1) if m.paged else (m.batch, m.length, 1)
        args = [t["q"], t["q_pe"], t["kv"].view(*shape, m.dim), t["k_pe"].view(*shape, m.rope)]
        splits, q = config["splits"], t["q"]
        if m.paged:
            args += [t["table"], t["lengths"]]
        if config["program"] != "example_mla_decode":  # that one makes its parts itself
            args += [q.new_empty(m.batch, m.heads, splits)]
            args += [q.new_empty(m.batch, m.heads, splits, m.dim)]
        return lambda: kernel(*args)

    return tilelang_candidate(m.label, tuple(found), compiled, run)
