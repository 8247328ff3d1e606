"""The lines of random programs that make losses over many classes, as `random_lines` has those of all programs.

One program in three has such lines, which are drawn besides: the other programs are what they are without this table.
A line takes logits, rows of `CLASSES` numbers, and labels, of which some may be `IGNORED`.
"""

# ruff: noqa: E501 (a table reads best with one row a line)

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from end_to_end.random_lines import CLASSES, Lines

IGNORED = -100
"""The label of rows that do not count."""
EACH = 3
"""One of so many programs has losses."""


def are_drawn(seed: int) -> bool:
    """Whether the program of this seed draws lines of this table."""
    return seed % EACH == 1


def labels(logits: Tensor) -> Tensor:
    """A class for each row of logits, drawn at random, and `IGNORED` for every fifth row."""
    rows = torch.arange(logits.shape[0], device=logits.device)
    return torch.where(rows % 5 == 4, IGNORED, torch.randint(0, CLASSES, rows.shape, device=rows.device))


def draw_chunks(random: Random) -> str | int:
    """An option `chunks` for a program with losses."""
    return random.choice(("never", "auto", "auto", 2, 3, 5, 16))


def draw_features(random: Random) -> list[str]:
    """Keys of the table, in the order of a program: products, what is done to them, losses; some of it twice."""
    found: list[str] = []
    for _ in range(random.choice((1, 1, 1, 2))):
        found += ["logits", *["done to logits"] * random.choice((0, 0, 1, 2))]
        found += ["loss over classes"] * random.choice((1, 1, 2, 3))
    return found


MEMBERS = {
    "head": f"nn.Parameter(torch.randn({CLASSES}, W, dtype=D) / W**0.5)",
    "vocabulary": f"nn.Linear(W, {CLASSES}, dtype=D)",
}

LINES: dict[str, Lines] = {
    "logits": Lines(0, ("F.linear({wide}, self.head)", "self.vocabulary({wide})", "{wide} @ self.head.t()",
                        "F.linear({wide}, self.head.detach())", "F.linear({wide} + self.head[{whole} % V], self.head)",
                        "F.linear({wide}, self.head) + {wide} @ self.table.t() @ self.table @ self.frozen @ self.head.t()",
                        "F.linear({wide}, self.head).to(torch.float32)",
                        "checkpoint(self.vocabulary, {wide}, use_reentrant=False)",
                        "!with torch.autocast('cpu', torch.bfloat16): {new} = self.vocabulary({wide})")),
    "done to logits": Lines(0, ("5 * torch.tanh({logits} / 5)", "{logits} * 0.5", "{logits} / (self.count.abs() + 1)",
                                "{logits}.masked_fill(torch.arange(V) % 7 == 3, -9.0)", "{logits}.to(torch.float64)",
                                "{logits} - {logits}.mean(-1, keepdim=True)", "{logits} - {logits}.mean()",
                                "{logits} * {wide}.mean(-1, keepdim=True)", "F.dropout({logits}, 0.1)",
                                "{logits}.scatter_add(-1, labels({logits}).clamp(min=0)[:, None], -torch.ones_like({logits}[:, :1]))",
                                "torch.cat(({logits}[:, :100].tanh(), {logits}[:, 100:]), -1)",
                                "{logits}.t().contiguous().t() * 0.5", "{logits} + {same}",
                                "!{logits}.div_(2)", "!{logits}.tanh_()", "!{logits}[:, :3] = -1")),
    "loss over classes": Lines(0, (
        "F.cross_entropy({logits}, labels({logits}))",
        "F.cross_entropy(F.interpolate({logits}.unflatten(0, (2, -1, 2)).movedim(-1, 1), (16, 12), mode='bilinear'), labels({logits}.new_empty(384)).view(2, 16, 12))",
        "F.cross_entropy({logits}, {labels} % V)",
        "F.cross_entropy({logits}, labels({logits}), reduction='sum') / B",
        "F.cross_entropy({logits}, labels({logits}), reduction='none')",
        "F.cross_entropy({logits}, labels({logits}), label_smoothing=0.1)",
        "F.cross_entropy({logits}, labels({logits}), weight=torch.arange(V).to({logits}.dtype) / V + 0.1)",
        "F.cross_entropy({logits}, labels({logits}), weight=torch.rand(V, dtype={logits}.dtype), label_smoothing=0.2, reduction='sum') / B",
        "F.cross_entropy({logits}, labels({logits})) + 0.1 * torch.logsumexp({logits}, -1).square().mean()",
        "(F.cross_entropy({logits}, labels({logits}), reduction='none') * torch.linspace(0, 1, {logits}.shape[0]).to({logits}.dtype)).mean()",
        "F.cross_entropy({logits}, labels({logits}), reduction='sum') / (labels({logits}) >= 0).sum()",
        "F.cross_entropy({logits}, torch.softmax({logits}.detach() * 2, -1))",
        "F.cross_entropy({logits}[:-1], labels({logits})[1:])",
        "F.cross_entropy({logits}.unflatten(0, (2, -1))[:, :-1].flatten(0, 1), labels({logits}).unflatten(0, (2, -1))[:, 1:].flatten())",
        "F.cross_entropy({logits}.unflatten(0, (2, -1)).movedim(-1, 1), labels({logits}).unflatten(0, (2, -1)))",
        "F.nll_loss(F.log_softmax({logits}, -1), labels({logits}))",
        "F.kl_div(F.log_softmax({logits}, -1), torch.softmax({same}.detach() * 2, -1), reduction='batchmean')",
        "F.kl_div(F.log_softmax({logits} / 2, -1), F.log_softmax({same}, -1), log_target=True, reduction='batchmean')",
        "F.binary_cross_entropy_with_logits({logits}, torch.zeros_like({logits}))",
        "F.multi_margin_loss({logits}, {labels} % V)",
        "-(torch.softmax({logits}, -1) * F.log_softmax({logits}, -1)).sum(-1).mean()",
        "F.relu(1 - {logits}.gather(-1, ({labels} % V)[:, None])[:, 0] + {logits}.amax(-1)).mean()",
        "torch.logsumexp({logits}, -1).square().mean()",
        "torch.logsumexp({logits}, 0).mean()",
        "{logits}.square().mean()",
        "F.cross_entropy({logits}, labels({logits})) * {scalar}",
        "({logits}.argmax(-1) == labels({logits})).sum()",
    )),
}  # fmt: skip
"""What makes losses, by feature."""
