"""Losses drawn at random, in chunks: the same as eager, in whatever order their parts come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from chunks.chunked import Chunked, step
from chunks.programs import CLASSES, IGNORED, WIDTH

Part = Callable[[Tensor, Tensor], Tensor]


def scaled_by_row(logits: Tensor, targets: Tensor) -> Tensor:
    return logits * (1 + targets.clamp(min=0).to(logits.dtype) / CLASSES).unsqueeze(-1)


def masked(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.masked_fill(torch.arange(CLASSES) % 7 == 3, -50.0)


def without_own(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.scatter_add(-1, targets.clamp(min=0).unsqueeze(-1), -torch.ones_like(logits[..., :1]))


def centred(logits: Tensor, targets: Tensor) -> Tensor:
    return logits - logits.mean(-1, keepdim=True)


def joined(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.cat([logits[..., : CLASSES // 2].tanh(), logits[..., CLASSES // 2 :]], -1)


BEFORE: dict[str, Part] = {
    "capped": lambda logits, _: 5 * torch.tanh(logits / 5),
    "scaled_by_row": scaled_by_row,
    "masked": masked,
    "without_own": without_own,
    "centred": centred,
    "joined": joined,
    "normalised": lambda logits, _: F.layer_norm(logits, (CLASSES,)),
    "turned": lambda logits, _: logits.transpose(-1, -2).contiguous().transpose(-1, -2) * 0.5,
}
"""What programs do to logits."""


def entropy(logits: Tensor, targets: Tensor) -> Tensor:
    known = F.log_softmax(logits, -1)
    return -(known.exp() * known).sum(-1).mean()


def margin(logits: Tensor, targets: Tensor) -> Tensor:
    own = logits.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return F.relu(1 - own + logits.amax(-1)).mean()


def focal(logits: Tensor, targets: Tensor) -> Tensor:
    rows = F.cross_entropy(logits.reshape(-1, CLASSES), targets.flatten(), reduction="none")
    return ((1 - torch.exp(-rows)) ** 2 * rows).sum() / (targets >= 0).sum()


def crossed(**options: object) -> Part:
    return lambda logits, targets: F.cross_entropy(logits.reshape(-1, CLASSES), targets.flatten(), **options)


LOSSES: dict[str, Part] = {
    "mean": crossed(),
    "sum": crossed(reduction="sum"),
    "smoothed": crossed(label_smoothing=0.2),
    "none": lambda logits, targets: crossed(reduction="none")(logits, targets).square().sum(),
    "z": lambda logits, _: torch.logsumexp(logits, -1).square().mean(),
    "squares": lambda logits, _: logits.square().mean(),
    "entropy": entropy,
    "margin": margin,
    "focal": focal,
    "itself": lambda logits, _: F.kl_div(
        F.log_softmax(logits, -1), F.softmax(2 * logits.detach(), -1), reduction="batchmean"
    ),
}
"""Losses that programs add up."""


@dataclass(frozen=True)
class Drawn:
    """A program.

    Attributes:
        before: What it does to logits, in order.
        shifted: Behind how many of these each row predicts the next one; `None` if it predicts its own.
        losses: Losses; each is returned by itself, or all are added up.
        apart: Whether each is returned.
        shape: Shape of the targets.
        chunks: Chunks that are asked for.
        decomposed: Whether operators are decomposed as for Inductor.
    """

    before: Sequence[str]
    shifted: int | None
    losses: Sequence[str]
    apart: bool
    shape: tuple[int, ...]
    chunks: int
    decomposed: bool


class Model(nn.Module):
    """The program of a drawing."""

    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        self.drawn = drawn
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor | tuple[Tensor, ...]:
        logits = self.head(torch.tanh(self.body(x)))
        for i, name in enumerate([*self.drawn.before, None]):
            if i == self.drawn.shifted:
                logits, targets = logits[..., :-1, :], targets[..., 1:]
            if name is not None:
                logits = BEFORE[name](logits, targets)
        losses = [LOSSES[name](logits, targets) for name in self.drawn.losses]
        return tuple(losses) if self.drawn.apart else torch.stack(losses).sum()


DRAWN = st.builds(
    Drawn,
    before=st.lists(st.sampled_from(sorted(BEFORE)), max_size=3),
    shifted=st.none() | st.integers(0, 3),
    losses=st.lists(st.sampled_from(sorted(LOSSES)), min_size=1, max_size=3),
    apart=st.booleans(),
    shape=st.sampled_from([(17,), (24,), (2, 9), (3, 8), (1, 20)]),
    chunks=st.integers(2, 7),
    decomposed=st.booleans(),
)


@given(DRAWN)
@settings(max_examples=8)
def test_a_drawn_loss_in_chunks_is_the_same(drawn: Drawn) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Model(drawn).double(), torch.randn(*drawn.shape, WIDTH, dtype=torch.float64)
    targets = torch.where(torch.rand(drawn.shape) < 0.2, IGNORED, torch.randint(0, CLASSES, drawn.shape))
    backend = Chunked(drawn.chunks, drawn.decomposed)
    made = step(torch.compile(model, backend=backend), model, (x, targets))
    torch.testing.assert_close(made, step(model, model, (x, targets)), rtol=1e-11, atol=1e-12)
    assert all(one.chunks <= drawn.chunks for one in backend.found)
