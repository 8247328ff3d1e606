"""A class for each pixel of an image: scores of small images are enlarged under the loss, which is whole or in chunks.

    python -m studies.chunked_loss.image_classes [--size 128] [--budgets 0.4 min] [--inners eager inductor]

The model is SegFormer of transformers in its smallest size, with random weights, 150 classes and 4 images; the rest is
as in `language_loss`.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from studies.chunked_loss.language_loss import Asked, print_table

CLASSES, IMAGES = 150, 4


class Loss(nn.Module):
    """The loss of a model of transformers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        """A scalar."""
        found: Tensor = self.model(**inputs).loss
        return found


def segformer() -> nn.Module:
    """The model, which returns its loss."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(0)
    return Loss(SegformerForSemanticSegmentation(SegformerConfig(num_labels=CLASSES)).eval())


def images(size: int) -> dict[str, Tensor]:
    """Images, and a class for each of their pixels."""
    drawn = torch.Generator().manual_seed(1)
    pixels = torch.randn(IMAGES, 3, size, size, generator=drawn)
    return {"pixel_values": pixels, "labels": torch.randint(0, CLASSES, (IMAGES, size, size), generator=drawn)}


def main() -> None:
    """Print a table of Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=128, help="height and width of the images")
    parser.add_argument("--budgets", nargs="*", default=["0.4", "min"])
    parser.add_argument("--inners", nargs="*", default=["eager", "inductor"])
    given = parser.parse_args()
    ways = [Asked("whole, without a budget", segformer, 1.0, "never"), Asked('whole, "min"', segformer, "min", "never")]
    ways += [Asked(f'chunks="auto", {budget}', segformer, budget, "auto") for budget in given.budgets]
    print_table(ways, images(given.size), given.inners)


if __name__ == "__main__":
    main()
