"""A torch operator over the forward and the backward kernel, and a small transformer that learns
with it: to repeat a sequence of symbols that it has seen, which only attention can.

On a GPU the kernels run there, elsewhere on the CPU.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from mha_bwd import backward
from mha_fwd import mha
from torch import nn

WHERE = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Attention(torch.autograd.Function):
    """softmax(Q Kᵀ / sqrt(dim)) V of float16 tensors (batch, sequence, heads, dim)."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Any:
        b, s, h, dim = q.shape
        o = torch.empty_like(q)
        lse = q.new_empty((b, h, s), dtype=torch.float32)
        mha(dim, dim, causal)(q, k, v, q.new_empty((1,)), o, lse)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal = causal
        return o

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        q, k, v, o, lse = ctx.saved_tensors
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        delta, log, unused = torch.empty_like(lse), torch.empty_like(lse), lse.new_empty(1, 1, 1, 1)
        do = gradients[0].contiguous()
        backward(q, k, v, o, do, lse, ctx.causal, True, dq, dk, dv, delta, log, unused)
        return dq, dk, dv, None


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.more_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, width = x.shape
        qkv = self.qkv(self.norm(x)).half().view(b, s, 3, self.heads, width // self.heads)
        o = Attention.apply(*qkv.unbind(2), True)
        x = x + self.out(o.reshape(b, s, width).to(x.dtype))
        return x + self.feed(self.more_norm(x))


class Transformer(nn.Module):
    def __init__(self, symbols: int, length: int, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.symbol, self.place = nn.Embedding(symbols, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, symbols)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.out(self.norm(self.blocks(self.symbol(x) + self.place(places))))


def check_gradients() -> float:
    """Against torch's own, in float64; the largest relative error."""
    generator = torch.Generator().manual_seed(3)
    made = torch.randn(4, 2, 50, 2, 32, generator=generator).half().to(DEVICE)
    q, k, v, do = made.unbind()
    ours = [x.clone().requires_grad_() for x in (q, k, v)]
    theirs = [x.double().requires_grad_() for x in (q, k, v)]
    o = Attention.apply(*ours, True)
    want = F.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in theirs), is_causal=True
    ).transpose(1, 2)
    o.backward(do)
    want.backward(do.double())
    pairs = [(o.detach(), want.detach()), *((x.grad, y.grad) for x, y in zip(ours, theirs))]
    error = max(float((x.double() - y).abs().max() / y.abs().max()) for x, y in pairs)
    assert error <= 2.0**-9, f"relative error {error:.1e}"
    return error


def main(steps: int = 100, half: int = 10, symbols: int = 8) -> None:
    error = check_gradients()
    torch.manual_seed(1)
    model = Transformer(symbols, 2 * half, 64, 2, 2).to(DEVICE)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(2)
    losses = []
    for _ in range(steps):
        first = torch.randint(symbols, (16, half), generator=generator)
        x = torch.cat([first, first], 1).to(DEVICE)
        guess = model(x[:, :-1])[:, half - 1 :]  # of the second half
        loss = F.cross_entropy(guess.reshape(-1, symbols), x[:, half:].reshape(-1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    end = sum(losses[-5:]) / 5
    assert losses[0] > 0.8 * math.log(symbols) and end < 0.1 * losses[0], losses[::20]
    told = f"loss {losses[0]:.2f} to {end:.2f} in {steps} steps"
    print(f"transformer on {WHERE}: {told}, largest relative error of gradients {error:.1e}")


if __name__ == "__main__":
    main()
