"""The gradients of attention in fp16, 128 numbers a head, (batch, sequence, heads, dim), against
cuDNN's: dQ, dK and dV from dO, the result and its lse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import tilec
from benchmarks.attention_calls import Call, Step, example, tilec_candidate
from benchmarks.case import Candidate, Case, Config, Tensors
from benchmarks.peers import CUDNN, version
from benchmarks.products import random

LENGTHS = (1024, 2048, 4096, 8192)
KEY_TILES = ((64, 128), (64, 64))  # BM (queries) and BN (keys) of the kernel by keys
ROW_TILES = ((128, 64), (64, 64))  # and of the one by queries
CONFIGS: tuple[Config, ...] = (
    *({"form": "atomic", "BM": bm, "BN": bn} for bm, bn in KEY_TILES),
    *(
        {"form": "deterministic", "BM": bm, "BN": bn, "row BM": row_bm, "row BN": row_bn}
        for (bm, bn), (row_bm, row_bn) in zip(KEY_TILES, ROW_TILES)
    ),
)


@dataclass(frozen=True)
class Backward:
    length: int
    causal: bool
    batch: int = 4
    heads: int = 16
    dim: int = 128

    @property
    def label(self) -> str:
        mask = " causal" if self.causal else ""
        return f"fp16 d{self.dim}{mask} backward {self.batch}x{self.heads}x{self.length}"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.length, self.heads, self.dim

    def head(self, t: Tensors, b: int, h: int, kind: torch.dtype) -> tuple[torch.Tensor, ...]:
        """Of one head: q, k, v and dO, the scores scaled, and the result."""
        q, k, v, do = (t[x][b, :, h].to(kind) for x in ("q", "k", "v", "do"))
        s = q @ k.T * self.dim**-0.5
        if self.causal:
            s.masked_fill_(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
        return q, k, v, do, s, torch.softmax(s, 1) @ v

    def make(self, device: str) -> Tensors:
        """`o` and `lse` (batch, heads, sequence) as a forward pass leaves them."""
        generator = torch.Generator(device).manual_seed(self.length)
        b, n, h, _ = self.shape
        t = {x: random(self.shape, torch.float16, device, generator) for x in ("q", "k", "v", "do")}
        t["o"], t["lse"] = torch.empty_like(t["q"]), torch.empty((b, h, n), device=device)
        for i in range(b):
            for j in range(h):
                *_, s, o = self.head(t, i, j, torch.float32)
                t["o"][i, :, j], t["lse"][i, j] = o, torch.logsumexp(s, 1)
        return {**t, "out": torch.empty((3, *self.shape), dtype=torch.float16, device=device)}

    def reference(self, t: Tensors, rows: torch.Tensor) -> torch.Tensor:
        found = torch.empty((3, *self.shape), dtype=torch.float64, device=t["q"].device)
        scale = self.dim**-0.5
        for i in range(self.batch):
            for j in range(self.heads):
                q, k, v, do, s, o = self.head(t, i, j, torch.float64)
                p = torch.softmax(s, 1)
                ds = p * (do @ v.T - (o * do).sum(1, keepdim=True)) * scale
                found[0, i, :, j], found[1, i, :, j], found[2, i, :, j] = ds @ k, ds.T @ q, p.T @ do
        return found[rows]


def cases() -> list[Case]:
    found = [Backward(n, causal) for causal in (False, True) for n in reversed(LENGTHS)]
    return [case(b, priority) for priority, b in enumerate(found)]


def case(b: Backward, priority: int = 0) -> Case:
    seen = (b.length + 1) / 2 if b.causal else b.length
    each = b.batch * b.length * b.heads
    return Case(
        operator="backward",
        name=b.label,
        facts={
            "shape": [b.batch, b.heads, b.heads, b.length, b.dim],
            "kind": "causal" if b.causal else "full",
            "dtype": "float16",
        },
        work=10.0 * each * seen * b.dim,
        bytes=16 * each * b.dim + 4 * each,
        tolerance=4e-3,
        make=b.make,
        reference=b.reference,
        candidates=lambda: [ours(b), cudnn(b)],
        priority=priority,
        baseline=CUDNN,
        seed=b.length,
    )


def ours(b: Backward) -> Candidate:
    """dQ by atomics, rounded at the end, or by a kernel of its own."""
    bwd = example("mha_bwd")
    x = tilec.spec(b.shape, "float16")
    wide, none = (tilec.spec(shape, "float32") for shape in (b.shape, (1, 1, 1, 1)))
    sums = tilec.spec((b.batch, b.heads, b.length), "float32")

    def steps(config: Config) -> list[Step]:
        tile = {"BM": config["BM"], "BN": config["BN"]}
        given = ("q", "k", "v", "do", "log", "delta")
        logs = ("o", "do", "lse", "delta", "log")
        atomic = config["form"] == "atomic"
        shared = (wide, "wide") if atomic else (none, "none")
        first = bwd.deltas(b.dim, atomic)
        found = [Step(first, [x, x, sums, sums, sums, shared[0]], (*logs, shared[1]))]
        keys = bwd.by_keys(b.dim, b.causal, atomic)
        specs = [x, x, x, x, sums, sums, shared[0], x, x]
        by_keys = Step(keys, specs, (*given, shared[1], "dk", "dv"), tile)
        if atomic:
            return [*found, by_keys, Step(bwd.rounded(b.dim), [wide, x], ("wide", "dq"))]
        rows = bwd.by_rows(b.dim, b.causal)
        row_tile = {"BM": config["row BM"], "BN": config["row BN"]}
        by_rows = Step(rows, [x, x, x, x, sums, sums, x], (*given, "dq"), row_tile)
        return [*found, by_rows, by_keys]

    def views(t: Tensors, config: Config) -> Tensors:
        device, shape = t["q"].device, t["lse"].shape
        found = dict(zip(("dq", "dk", "dv"), t["out"]))
        found |= {x: torch.empty(shape, device=device) for x in ("delta", "log")}
        if config["form"] == "atomic":
            return {**found, "wide": torch.empty(b.shape, device=device)}
        return {**found, "none": torch.empty((1, 1, 1, 1), device=device)}

    return tilec_candidate(steps, views, CONFIGS, b.label)


def cudnn(b: Backward) -> Candidate:
    """The operator behind the gradient of torch's scaled_dot_product_attention."""

    def bind(t: Tensors, config: Config) -> Call:
        q, k, v, do = (t[x].transpose(1, 2) for x in ("q", "k", "v", "do"))
        forward = torch.ops.aten._scaled_dot_product_cudnn_attention
        o, lse, ends_q, ends_k, most_q, most_k, seed, offset, _ = forward(
            q, k, v, None, True, 0.0, b.causal, False
        )
        args = (do, q, k, v, o, lse, seed, offset, None, ends_q, ends_k, most_q, most_k, 0.0)
        backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward

        def call() -> Any:
            return Gradients(backward(*args, b.causal))

        return call

    return Candidate(CUDNN, lambda _: version(CUDNN), bind, launches=3)


class Gradients:
    """dQ, dK and dV, each (batch, heads, sequence, dim), as one tensor where it is looked at."""

    def __init__(self, found: tuple[torch.Tensor, ...]) -> None:
        self.found = found

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.transpose(1, 2) for x in self.found])[rows]
