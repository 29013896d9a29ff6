"""Causal attention over half and a tenth of the blocks of keys, and along verticals and slashes,
against TileLang's examples, Triton's kernels in them, and tilec on all keys."""

from __future__ import annotations

import functools
import math
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
from benchmarks.operators.attention import configs_of, steps_of
from benchmarks.peers import TILELANG, TRITON
from benchmarks.products import random

BLOCK = 64  # of queries and of keys: the examples have no other
DENSE = "dense"
WIDTH = 4  # lists are as long as a multiple of it
VERTICALS, SLASHES = 1000, 200  # as TileLang's example has them
_BLOCKS = "blocksparse_attention/"
_VERTICAL_SLASH = "minference/example_vertical_slash_sparse_attn"
_LISTS = ("run_count", "runs", "single_count", "singles")  # as the examples take them


@dataclass(frozen=True)
class Sparse:
    """Tensors are (batch, heads, sequence, dim). `kept`: about this share of the blocks of keys;
    or, where it is 0, `verticals` and `slashes` of each head."""

    length: int
    dim: int
    heads: int
    kept: float = 0.0
    verticals: int = VERTICALS
    slashes: int = SLASHES
    batch: int = 1

    @property
    def label(self) -> str:
        kind = f"{1 - self.kept:.0%} of blocks out" if self.kept else "vertical-slash"
        return f"fp16 d{self.dim} {kind} {self.batch}x{self.heads}x{self.length}"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.length, self.dim

    @property
    def blocks(self) -> int:
        """Of a sequence."""
        return -(-self.length // BLOCK)

    # --- what is seen ---------------------------------------------------------------------------

    @functools.cached_property
    def mask(self) -> torch.Tensor:
        """Which blocks of keys (batch, heads, blocks, blocks) those of queries see: their own and
        others up to it."""
        generator = torch.Generator().manual_seed(self.length)
        shape = (self.batch, self.heads, self.blocks, self.blocks)
        chosen = torch.rand(shape, generator=generator) < self.kept
        return (chosen | torch.eye(self.blocks, dtype=torch.bool)).tril()

    @functools.cached_property
    def lists(self) -> Tensors:
        """For each head and block of queries, the first keys of runs of BLOCK and the single keys
        that it sees: of keys and distances at random, the first and the least among these."""
        generator = torch.Generator().manual_seed(self.length)
        first, rows = min(30, self.length), []
        for _ in range(self.heads):
            chosen = []
            for count in (min(self.verticals, self.length), min(self.slashes, self.length)):
                others = torch.randperm(self.length - first, generator=generator) + first
                kept = [*range(first), *others[: max(0, count - first)].tolist()]
                chosen.append(sorted(kept))
            rows.append(example("vertical_slash").lists(self.length, *chosen, BLOCK, BLOCK))
        made: Tensors = {}
        for name, heads in zip(("run", "single"), zip(*rows)):
            counts = [[len(row) for row in head] for head in heads]
            width = -(-max(1, *map(max, counts)) // WIDTH) * WIDTH
            filled = [[[*row, *[0] * (width - len(row))] for row in head] for head in heads]
            made[f"{name}s"] = torch.tensor([filled] * self.batch, dtype=torch.int32)
            made[f"{name}_count"] = torch.tensor([counts] * self.batch, dtype=torch.int32)
        return made

    @property
    def density(self) -> float:
        """Blocks of keys that are multiplied, over those up to the queries'."""
        whole = self.batch * self.heads * self.blocks * (self.blocks + 1) / 2
        if self.kept:
            return float(self.mask.sum()) / whole
        blocks = self.lists["run_count"] + -(-self.lists["single_count"] // BLOCK)
        return float(blocks.sum()) / whole

    def keys_of(self, t: Tensors, b: int, h: int, i: int) -> torch.Tensor:
        """Which keys (keys,) query i of a head sees, of those up to it."""
        block = i // BLOCK
        seen = torch.zeros(self.length + BLOCK, dtype=torch.bool, device=t["q"].device)
        if self.kept:
            blocks = t["mask"][b, h, block].repeat_interleave(BLOCK)
            seen[: len(blocks)] = blocks
        else:
            runs, singles = (
                t[f"{x}s"][b, h, block, : int(t[f"{x}_count"][b, h, block])].long()
                for x in ("run", "single")
            )
            seen[singles] = True
            seen[(runs[:, None] + torch.arange(BLOCK, device=runs.device)).flatten()] = True
        return seen[: i + 1]

    # --- a case ---------------------------------------------------------------------------------

    def make(self, device: str) -> Tensors:
        generator = torch.Generator(device).manual_seed(self.length + self.dim)
        made = {x: random(self.shape, torch.float16, device, generator) for x in "qkv"}
        rows = (math.prod(self.shape[:3]), self.dim)
        tables = {"mask": self.mask} if self.kept else self.lists
        tables = {name: table.to(device) for name, table in tables.items()}
        return {**made, **tables, "out": torch.empty(rows, dtype=torch.float16, device=device)}

    def reference(self, t: Tensors, rows: torch.Tensor) -> torch.Tensor:
        found = []
        for row in rows.tolist():
            head, i = divmod(row, self.length)
            b, h = divmod(head, self.heads)
            k, v = (t[x][b, h, : i + 1] for x in "kv")
            seen = self.keys_of(t, b, h, i)[None, :]
            found.append(attended(t["q"][b, h, i][None, :], k, v, seen=seen)[0])
        return torch.stack(found)


def cases() -> list[Case]:
    found = [Sparse(n, 128, 64, kept=kept) for n in (8192, 4096, 2048, 1024) for kept in (0.5, 0.1)]
    found += [Sparse(n, 64, 8) for n in (8192, 16384, 32768, 65536)]
    return [case(s, priority) for priority, s in enumerate(found)]


def case(s: Sparse, priority: int = 0) -> Case:
    """Work and bytes are of attention to all keys: rates compare times."""
    return Case(
        operator="sparse_attention",
        name=s.label,
        facts={
            "shape": [s.batch, s.heads, s.length, s.dim],
            "kind": "blocks" if s.kept else "vertical-slash",
            "dtype": "float16",
            **({"density": round(s.density, 4)} if s.kept else {}),
        },
        work=2.0 * math.prod(s.shape) * (s.length + 1),
        bytes=8 * math.prod(s.shape),
        tolerance=2e-3,
        make=s.make,
        reference=s.reference,
        candidates=lambda: [c for c in (ours(s), dense(s), peer(s), triton(s)) if c],
        priority=priority,
        baseline=TRITON if s.kept else TILELANG,
        seed=s.length,
    )


# --- candidates ---------------------------------------------------------------------------------


def ours(s: Sparse) -> Candidate:
    x, count = spec_by_tokens(s.shape), (s.batch, s.heads, s.blocks)
    meta = {"BM": BLOCK, "BN": BLOCK}
    if s.kept:
        kernel = example("block_sparse").block_sparse(s.dim)
        specs = [x, x, x, tilec.spec((*count, s.blocks), "int8"), x]
        names: tuple[str, ...] = ("q", "k", "v", "blocks", "o", "lse")
    else:
        kernel = example("vertical_slash").vertical_slash(s.dim)
        counts, lists = tilec.spec(count, "int32"), tilec.spec((*count, WIDTH), "int32")
        specs = [x, x, x, counts, lists, counts, lists, x]
        names = ("q", "k", "v", "run_count", "runs", "single_count", "singles", "o", "lse")
    specs.append(tilec.spec((s.batch, s.heads, s.length), "float32"))

    def views(t: Tensors, config: Config) -> Tensors:
        found = by_tokens(t, "q", "k", "v") | {"o": t["out"].view(s.shape).transpose(1, 2)}
        if s.kept:
            found["blocks"] = t["mask"].view(torch.int8)
        found["lse"] = torch.empty(s.shape[:3], device=t["q"].device)
        return found

    return tilec_candidate(lambda _: [Step(kernel, specs, names, meta)], views)


def dense(s: Sparse) -> Candidate:
    """tilec on all keys."""
    specs = [spec_by_tokens(s.shape)] * 4
    steps = steps_of(s.dim, True, specs, ("q", "k", "v", "all"))

    def views(t: Tensors, config: Config) -> Tensors:
        return by_tokens(t, "q", "k", "v") | {"all": torch.empty_like(t["q"]).transpose(1, 2)}

    return tilec_candidate(steps, views, configs_of(s.dim), s.label, DENSE, yardstick=True)


def peer(s: Sparse) -> Candidate | None:
    """TileLang's example for either kind."""

    def compiled(examples: ModuleType, config: Config) -> Any:
        if s.kept:
            path = _BLOCKS + "example_tilelang_block_sparse_attn"
            return examples.compiled(path, "blocksparse_flashattn", *s.shape, s.blocks, True)
        widths = (s.lists[x].shape[3] for x in ("singles", "runs"))
        return examples.compiled(_VERTICAL_SLASH, "_tl_vs_sparse_flashattn", *s.shape, *widths)

    def run(kernel: Any, t: Tensors, config: Config) -> Call:
        args = [t[x] for x in ("q", "k", "v", *(("mask",) if s.kept else _LISTS))]
        return lambda: kernel(*args).view(-1, s.dim)

    return tilelang_candidate(s.label, ({},), compiled, run)


def triton(s: Sparse) -> Candidate | None:
    """The Triton kernels of the same programs."""
    scale = s.dim**-0.5

    def blocks(program: ModuleType, t: Tensors) -> Call:
        args = (None, t["q"], t["k"], t["v"], t["mask"], scale)
        o = t["out"].view(s.shape)
        return lambda: program._forward(*args, out=o).view(-1, s.dim)

    def lists(program: ModuleType, t: Tensors) -> Call:
        lengths = torch.full((s.batch,), s.length, dtype=torch.int32, device=t["q"].device)
        args = (t["q"], t["k"], t["v"], lengths, *(t[x] for x in _LISTS), scale)
        return lambda: program._triton_mixed_sparse_attention(*args).view(-1, s.dim)

    if s.kept:
        return triton_candidate(_BLOCKS + "block_sparse_attn_triton", blocks)
    return triton_candidate(_VERTICAL_SLASH, lists)
