"""Programs that end in a loss over many classes, as people write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, WIDTH, IGNORED = 512, 16, -100
Loss = Callable[[Tensor, Tensor], Tensor | tuple[Tensor, ...]]


class Head(nn.Module):
    """A small model with a large product and its loss.

    Args:
        loss: From logits and targets to what the program returns.
        bias: Whether the head adds one.
        frozen: Whether the head is not trained.
        tied: Whether its weight is an embedding's, too.
    """

    def __init__(self, loss: Loss, *, bias: bool = False, frozen: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.loss, self.tied = loss, tied
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=bias)
        self.head.requires_grad_(not frozen)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor | tuple[Tensor, ...]:
        if self.tied:
            x = x + F.embedding(targets.clamp(min=0), self.head.weight)
        return self.loss(self.head(torch.tanh(self.body(x))), targets)


class Adapted(nn.Module):
    """A frozen head with a trained product of two small matrices beside it."""

    loss: Loss = staticmethod(F.cross_entropy)

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, CLASSES, bias=False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor | tuple[Tensor, ...]:
        hidden = torch.tanh(self.body(x))
        return self.loss(self.head(hidden) + 0.5 * self.up(self.down(hidden)), targets)


class AdaptedAndShifted(Adapted):
    """The same where each row predicts the next."""

    loss = staticmethod(lambda logits, targets: shifted(logits, targets))


class Distilled(nn.Module):
    """A student that is to give what a frozen teacher gives."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES).requires_grad_(False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        student, teacher = self.student(torch.tanh(x)), self.teacher(x)
        known = F.log_softmax(student / 2, -1)
        far = F.kl_div(known, F.log_softmax(teacher / 2, -1), log_target=True, reduction="batchmean")
        return F.cross_entropy(student, targets) + 4 * far


class TwoHeads(nn.Module):
    """Two vocabularies, with a loss each."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES // 2)

    def forward(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.tanh(x)
        other = F.cross_entropy(self.other(x), targets.clamp(min=0) // 2)
        return F.cross_entropy(self.one(x), targets), other


def capped(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of logits that are held between bounds."""
    return F.cross_entropy(30 * torch.tanh(logits / 30), targets)


def with_z_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """A loss that holds the normaliser near 1, too."""
    return F.cross_entropy(logits, targets) + 0.1 * torch.logsumexp(logits, -1).square().mean()


def weighted_rows(logits: Tensor, targets: Tensor) -> Tensor:
    """A loss for each row, weighed by the program."""
    rows = F.cross_entropy(logits, targets, reduction="none")
    return (rows * torch.arange(len(targets)).to(rows.dtype)).mean()


def weighted_classes(logits: Tensor, targets: Tensor) -> Tensor:
    """Rare classes count more."""
    weights = torch.arange(CLASSES).to(logits.dtype) / CLASSES + 0.1
    return F.cross_entropy(logits, targets, weight=weights)


def two_losses(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Two losses on one product, with a gradient each."""
    return F.cross_entropy(logits, targets), logits.square().mean()


def centred(logits: Tensor, targets: Tensor) -> Tensor:
    """Every chunk needs a value of all logits, and of their gradients."""
    return F.cross_entropy(logits - logits.mean(), targets)


class Regression(nn.Module):
    """A loss by terms, of each of many results against a number of its own.

    Args:
        loss: From results and numbers between 0 and 1 to what the program returns.
    """

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss, self.head = loss, nn.Linear(WIDTH, CLASSES)
        self.register_buffer("numbers", torch.linspace(0.1, 0.9, 31 * CLASSES).view(31, CLASSES))

    def forward(self, x: Tensor, targets: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.loss(self.head(torch.tanh(x)) * (targets > 0).to(x.dtype)[:, None], self.numbers[: len(x)])


def of_probabilities(results: Tensor, numbers: Tensor) -> Tensor:
    """Each result as a probability."""
    return F.binary_cross_entropy(torch.sigmoid(results), numbers)


def of_logarithms(results: Tensor, numbers: Tensor) -> Tensor:
    """Each row as a distribution, beside a given one."""
    return F.kl_div(F.log_softmax(results, -1), numbers, reduction="batchmean")


def of_log_probabilities(results: Tensor, numbers: Tensor) -> Tensor:
    """A likelihood of logarithms that the program takes."""
    return F.nll_loss(torch.log(torch.softmax(results, -1) + 1e-6), (numbers[:, 0] * 100).long())


def by_rows(results: Tensor, numbers: Tensor) -> Tensor:
    """A loss for each row, of its terms."""
    return F.mse_loss(results, numbers, reduction="none").mean(-1)


def weighted_terms(results: Tensor, numbers: Tensor) -> Tensor:
    """Rare classes count more where they are right."""
    return F.binary_cross_entropy_with_logits(results, numbers, pos_weight=1 + numbers[0], reduction="sum")


def in_sequences(logits: Tensor, targets: Tensor) -> Tensor:
    """Rows of several sequences, and a loss of at least 32 bits."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide.reshape(-1, CLASSES), targets.flatten())


def shifted(logits: Tensor, targets: Tensor) -> Tensor:
    """Rows of several sequences, of which each predicts its next."""
    return F.cross_entropy(logits[:, :-1].reshape(-1, CLASSES), targets[:, 1:].reshape(-1))


def capped_and_shifted(logits: Tensor, targets: Tensor) -> Tensor:
    """Logits of at least 32 bits between bounds, and a loss as of older programs."""
    wide = 30 * torch.tanh(logits.to(torch.promote_types(logits.dtype, torch.float32)) / 30)
    return F.cross_entropy(wide[..., :-1, :].contiguous().view(-1, CLASSES), targets[..., 1:].contiguous().view(-1))


def shifted_logarithms(logits: Tensor, targets: Tensor) -> Tensor:
    """Rows in the middle of each sequence, taken of what is normalised, and taken again; each weighed."""
    weights = 1 + targets[..., None].clamp(min=0) / CLASSES
    known = (weights * F.log_softmax(logits, -1))[..., 1:, :][..., :-1, :]
    own = known.gather(-1, targets[..., 2:, None].clamp(min=0))
    return -own.mean() + 0.1 * known.exp().square().mean()


def with_classes_in_front(logits: Tensor, targets: Tensor) -> Tensor:
    """Classes are the second dimension, as losses of sequences and of images take them."""
    return F.cross_entropy(logits.transpose(1, 2), targets)


def weighted_with_classes_in_front(logits: Tensor, targets: Tensor) -> Tensor:
    """A loss for each row, with rare classes and smoothed labels, which the program weighs."""
    weights = torch.arange(CLASSES).to(logits.dtype) / CLASSES + 0.1
    rows = F.cross_entropy(logits.movedim(-1, 1), targets, weights, label_smoothing=0.1, reduction="none")
    return (rows * (1 + targets).to(rows.dtype)).sum() / targets.numel() + F.nll_loss(
        F.log_softmax(logits, -1).movedim(-1, 1), targets, weights
    )


class Pixels(nn.Module):
    """A class for each pixel: scores of a small image are enlarged.

    Args:
        mode: How pixels in between are computed.
        loss: Of scores, with classes as the second dimension, and targets.
    """

    def __init__(self, mode: str = "bilinear", loss: Loss = F.cross_entropy) -> None:
        super().__init__()
        self.mode, self.loss, self.head = mode, loss, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor | tuple[Tensor, ...]:
        scores = self.head(torch.tanh(x[:, ::4, ::4])).movedim(-1, 1)
        return self.loss(F.interpolate(scores, size=targets.shape[1:], mode=self.mode), targets)


def weighted_pixels(scores: Tensor, targets: Tensor) -> Tensor:
    """A sum over pixels with rare classes, divided by the program."""
    weights = torch.arange(CLASSES).to(scores.dtype) / CLASSES + 0.1
    return F.cross_entropy(scores, targets, weights, reduction="sum") / targets.numel()


def by_overlap(scores: Tensor, targets: Tensor) -> Tensor:
    """The gradient of each pixel depends on sums over all of them."""
    likely, known = scores.softmax(1), F.one_hot(targets.clamp(min=0), CLASSES).movedim(-1, 1)
    both = (likely * known).sum((0, 2, 3))
    return 1 - (2 * both / (likely.sum((0, 2, 3)) + known.sum((0, 2, 3)) + 1)).mean()


def of_each_class(scores: Tensor, targets: Tensor) -> Tensor:
    """Each class is there or not, and pixels that are ignored do not count."""
    known = F.one_hot(targets.clamp(min=0), CLASSES).movedim(-1, 1).to(scores.dtype)
    terms = F.binary_cross_entropy_with_logits(scores, known, reduction="none")
    return (terms * (targets != IGNORED)[:, None]).mean()


def shifted_and_turned(logits: Tensor, targets: Tensor) -> Tensor:
    """Rows that lie in memory behind classes, so that sequences stay together."""
    turned = logits[:, :-1].transpose(1, 2).contiguous().transpose(1, 2)
    return F.cross_entropy(turned.reshape(-1, CLASSES), targets[:, 1:].reshape(-1))


def with_noise_behind(logits: Tensor, targets: Tensor) -> Tensor:
    """Random numbers that the gradient needs are drawn behind others that it does not."""
    rows = F.cross_entropy(logits, targets, reduction="none")
    noise = F.dropout(torch.ones_like(rows), 0.5).sum() * 1e-3
    return (F.dropout(torch.ones_like(rows), 0.5) * rows).mean() + noise.detach()


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        make: Makes the module.
        shape: Shape of the targets; inputs have the width behind it.
        chunks: How many chunks there are when four are asked for.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (31,)
    chunks: int = 4


def _of(loss: Loss, shape: tuple[int, ...] = (31,), chunks: int = 4, **head: bool) -> Program:
    return Program(partial(Head, loss, **head), shape, chunks)


PROGRAMS: dict[str, Program] = {
    "mean": _of(F.cross_entropy),
    "sum": _of(partial(F.cross_entropy, reduction="sum")),
    "none": _of(partial(F.cross_entropy, reduction="none")),
    "whole_rows": _of(F.cross_entropy, (32,)),
    "weighted_rows": _of(weighted_rows),
    "weighted_classes": _of(weighted_classes),
    "label_smoothing": _of(partial(F.cross_entropy, label_smoothing=0.1)),
    "capped": _of(capped),
    "z_loss": _of(with_z_loss),
    "two_losses": _of(two_losses),
    "centred": _of(centred),
    "bias": _of(F.cross_entropy, bias=True),
    "frozen": _of(F.cross_entropy, frozen=True),
    "tied": _of(F.cross_entropy, tied=True),
    "in_sequences": _of(in_sequences, (2, 16)),
    "shifted": _of(shifted, (6, 8)),
    "one_sequence_shifted": _of(shifted, (1, 32)),
    "rows_shifted": _of(shifted_logarithms),
    "tied_and_shifted": _of(shifted, (2, 9), bias=True, tied=True),
    "capped_and_shifted": _of(capped_and_shifted, (2, 9), bias=True),
    "adapted_and_shifted": Program(AdaptedAndShifted, (2, 9)),
    "shifted_and_turned": _of(shifted_and_turned, (9, 3), 3),
    "shifted_logarithms": _of(shifted_logarithms, (2, 9)),
    "classes_in_front": _of(with_classes_in_front, (8, 4)),
    "one_sequence_with_classes_in_front": _of(with_classes_in_front, (1, 32)),
    "weighted_with_classes_in_front": _of(weighted_with_classes_in_front, (9, 3), 3),
    "pixels": Program(Pixels, (4, 8, 8)),
    "nearest_pixels": Program(partial(Pixels, "nearest", partial(F.cross_entropy, ignore_index=IGNORED)), (5, 8, 9), 3),
    "smooth_pixels": Program(partial(Pixels, "bicubic", weighted_pixels), (4, 8, 8)),
    "classes_of_pixels": Program(partial(Pixels, "bilinear", of_each_class), (3, 8, 8), 3),
    "overlap_of_pixels": Program(partial(Pixels, "bilinear", by_overlap), (4, 8, 8)),
    "adapted": Program(Adapted),
    "distilled": Program(Distilled),
    "two_heads": Program(TwoHeads),
    **{
        name: Program(partial(Regression, loss))
        for name, loss in {
            "squares": F.mse_loss,
            "sum_of_squares": partial(F.mse_loss, reduction="sum"),
            "rows_of_squares": by_rows,
            "distances": F.l1_loss,
            "smooth_distances": partial(F.smooth_l1_loss, beta=0.3),
            "huber": F.huber_loss,
            "logits": F.binary_cross_entropy_with_logits,
            "weighted_terms": weighted_terms,
            "probabilities": of_probabilities,
            "logarithms": of_logarithms,
            "log_probabilities": of_log_probabilities,
        }.items()
    },
}


def with_logits(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The program returns the logits, too."""
    return F.cross_entropy(logits, targets), logits


def of_both_sides(logits: Tensor, targets: Tensor) -> Tensor:
    """Every row depends on every other one."""
    return F.cross_entropy(logits, targets) + F.log_softmax(logits, 0).square().mean()


def with_dropout(logits: Tensor, targets: Tensor) -> Tensor:
    """Random numbers would be others in chunks."""
    return F.cross_entropy(F.dropout(logits, 0.5), targets)


def shifted_with_a_row(logits: Tensor, targets: Tensor) -> Tensor:
    """The row that the loss leaves out is read beside it."""
    return shifted(logits, targets) + logits[:, -1].square().mean()


WHOLE: dict[str, Program] = {
    "shifted_with_a_row": _of(shifted_with_a_row, (1, 32)),
    "with_logits": _of(with_logits),
    "of_both_sides": _of(of_both_sides),
}
"""Programs whose large values are needed whole."""

RANDOM: dict[str, tuple[Program, bool]] = {
    "of_logits": (_of(with_dropout), False),
    "of_rows": (_of(with_noise_behind), True),
}
"""Programs that draw random numbers, and whether their losses are cut."""
