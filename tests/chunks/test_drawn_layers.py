"""Layers drawn at random, in chunks: the same as eager, whatever is between their products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from chunks.chunked import Chunked, step
from chunks.layer_programs import Attention, Fused, Grouped, Layer, by_sequence, capped, causal
from remat_compiler.chunks.layers import chunk_layers

WIDTH, HIDDEN = 16, 64
Part = Callable[[Tensor], Tensor]

PARTS: dict[str, Part] = {
    "gelu": F.gelu,
    "squared": lambda h: F.relu(h).square(),
    "normalised": lambda h: F.layer_norm(h, (HIDDEN,)),
    "soft": lambda h: h.softmax(-1) * h,
    "halves": lambda h: torch.cat([h[..., : HIDDEN // 2].sigmoid() * h[..., HIDDEN // 2 :], h[..., : HIDDEN // 2]], -1),
    "by_row": lambda h: h * torch.linspace(0.5, 1.5, h.shape[-2], dtype=h.dtype).unsqueeze(-1),
    "masked": lambda h: h.masked_fill((torch.arange(h.shape[-2]) % 3 == 1).unsqueeze(-1), 0.25),
    "turned": lambda h: h.transpose(-1, -2).contiguous().transpose(-1, -2) + 1,
    "grouped": lambda h: (h.unflatten(-1, (4, -1)) * h.unflatten(-1, (4, -1)).mean(-1, keepdim=True)).flatten(-2),
    "largest": lambda h: torch.where(h >= h.topk(8, -1).values[..., -1:], h, torch.zeros_like(h)),
    # Rows that depend on each other.
    "earlier": lambda h: h.cumsum(-2) * 0.1,
    "centred": lambda h: h - h.mean(-2, keepdim=True),
    "shifted": lambda h: h + torch.roll(h, 1, -2),
    "backwards": lambda h: h + h.flip(-2).tanh(),
}
"""What programs do between two products."""
ATTENTIONS: dict[str, Layer] = {
    "scores": Attention,
    **{mask.__name__: partial(Attention, mask) for mask in (causal, capped, by_sequence)},
    "fused": Fused,
    "unbound": lambda: Fused(unbound=True),
    "grouped": lambda: Grouped(stretched=False),
    "stretched": lambda: Grouped(stretched=True),
    "masked_by_head": lambda: Grouped(stretched=True, mask=(1, Grouped.HEADS, 1, 1)),
}

MORE: dict[str, Layer] = {
    "gate": lambda: nn.Linear(WIDTH, HIDDEN, bias=False),
    "narrow": lambda: nn.Sequential(nn.Linear(WIDTH, 2), nn.Linear(2, HIDDEN)),
    "down": lambda: nn.Linear(HIDDEN, WIDTH),
    "adapter": lambda: nn.Sequential(nn.Linear(HIDDEN, 2), nn.Linear(2, WIDTH)),
}
"""Products beside those of a layer."""


@dataclass(frozen=True)
class Drawn:
    """A program.

    Attributes:
        parts: What it does between products, in order; of each layer.
        shared: Whether all layers are one.
        frozen: Whether the products are not trained.
        saved: Whether each layer is recomputed by the program itself.
        beside: Whether what is between the products is read beside them, too.
        more: Further products, whose results or gradients are added up.
        attention: Before the layers; `None` without.
        shape: Of the input, but for the width.
        chunks: Chunks that are asked for.
        decomposed: Whether operators are decomposed as for Inductor.
    """

    parts: Sequence[Sequence[str]]
    shared: bool
    frozen: bool
    saved: bool
    beside: bool
    more: frozenset[str]
    attention: str | None
    shape: tuple[int, ...]
    chunks: int
    decomposed: bool


class Model(nn.Module):
    """The program of a drawing."""

    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        self.drawn = drawn
        self.first = nn.Linear(WIDTH, WIDTH)
        self.attention = None if drawn.attention is None else ATTENTIONS[drawn.attention]()
        pairs = [nn.ModuleList([nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)]) for _ in drawn.parts]
        self.more = nn.ModuleDict({name: MORE[name]() for name in sorted(drawn.more)})
        self.pairs = nn.ModuleList(pairs[:1] * len(pairs) if drawn.shared else pairs).requires_grad_(not drawn.frozen)

    def layer(self, x: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """What a layer makes, and what else is made of its large values."""
        up, down = self.pairs[i]
        hidden = up(x)
        if "gate" in self.more:
            hidden = hidden * self.more["gate"](x).sigmoid()
        if "narrow" in self.more:
            hidden = hidden + self.more["narrow"](x)
        for name in self.drawn.parts[i]:
            hidden = PARTS[name](hidden)
        result = down(hidden)
        for name in sorted(self.drawn.more & {"down", "adapter"}):
            result = result + 0.5 * self.more[name](hidden)
        return x + torch.tanh(result), hidden.square().mean() if self.drawn.beside else x.sum() * 0

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.attention is not None:
            x = x + self.attention(x)
        loss = x.new_zeros(())
        for i in range(len(self.drawn.parts)):
            made = checkpoint(self.layer, x, i, use_reentrant=False) if self.drawn.saved else self.layer(x, i)
            x, loss = made[0], loss + made[1]
        return x.square().mean() + loss


DRAWN = st.builds(
    Drawn,
    parts=st.lists(st.lists(st.sampled_from(sorted(PARTS)), max_size=3), min_size=1, max_size=3),
    shared=st.booleans(),
    frozen=st.booleans(),
    saved=st.booleans(),
    beside=st.booleans(),
    more=st.frozensets(st.sampled_from(sorted(MORE))),
    attention=st.none() | st.sampled_from(sorted(ATTENTIONS)),
    shape=st.sampled_from([(2, 24), (3, 33), (1, 40), (4, 9)]),
    chunks=st.integers(2, 7),
    decomposed=st.booleans(),
)


@given(DRAWN)
@settings(max_examples=6)
def test_a_drawn_layer_in_chunks_is_the_same(drawn: Drawn) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Model(drawn).double(), torch.randn(*drawn.shape, WIDTH, dtype=torch.float64)
    backend = Chunked(drawn.chunks, drawn.decomposed, chunk_layers)
    made = step(torch.compile(model, backend=backend), model, (x,))
    torch.testing.assert_close(made, step(model, model, (x,)), rtol=1e-10, atol=1e-11)
    assert all(one.chunks <= drawn.chunks for one in backend.found)
