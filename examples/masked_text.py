"""The text that the demo learns, as batches for a masked language model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

TEXT = Path(__file__).parent / "text" / "the_keeper.txt"
PAD, UNKNOWN, MASK = 0, 1, 2
SPECIAL = ("[PAD]", "[UNK]", "[MASK]")
NOT_ASKED = -100
"""Label of a place whose word the model does not have to guess."""

_TOKEN = re.compile(r"\w+|[^\w\s]")


def words_of(text: str) -> list[str]:
    """Lower-case words and single punctuation marks."""
    return _TOKEN.findall(text.lower())


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words that have a number: the special ones, then the most frequent first."""

    words: tuple[str, ...]

    @staticmethod
    def of(words: Sequence[str], most: int = 2000) -> Vocabulary:
        """The vocabulary of `words`, of at most `most` entries with the special ones."""
        if most <= len(SPECIAL):
            raise ValueError(f"got most={most}; allowed is more than the {len(SPECIAL)} special words; raise it")
        counted = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
        return Vocabulary((*SPECIAL, *(word for word, _ in counted[: most - len(SPECIAL)])))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Sequence[str]) -> Tensor:
        """The numbers of `words`; a word that has none counts as unknown."""
        numbers = {word: number for number, word in enumerate(self.words)}
        return torch.tensor([numbers.get(word, UNKNOWN) for word in words], dtype=torch.long)


def batches(
    tokens: Tensor, *, size: int, length: int, masked: float = 0.15, seed: int = 0
) -> Iterator[dict[str, Tensor]]:
    """Endless batches ``input_ids`` and ``labels`` of `size` pieces of `length` tokens, drawn from `seed`.

    Each piece starts anywhere in the text.  A fraction `masked` of its tokens is hidden behind the mask; these, and
    only these, are to be guessed.

    Raises:
        ValueError: The text is shorter than one piece, or the fraction is not between 0 and 1.
    """
    if not 0 < length <= len(tokens):
        raise ValueError(
            f"got length={length}; allowed is 1 to the {len(tokens)} tokens of the text; shorten the pieces"
        )
    if not 0.0 < masked < 1.0:
        raise ValueError(f"got masked={masked}; allowed is a fraction above 0 and below 1")
    return _drawn(tokens, size, length, masked, torch.Generator().manual_seed(seed))


def pieces(tokens: Tensor, *, count: int, length: int, seed: int = 0) -> list[dict[str, Tensor]]:
    """A data set for trainers that make their own batches: `count` pieces of what `batches` draws, one by one."""
    drawn = next(batches(tokens, size=count, length=length, seed=seed))
    return [{name: values[place] for name, values in drawn.items()} for place in range(count)]


def _drawn(
    tokens: Tensor, size: int, length: int, masked: float, random: torch.Generator
) -> Iterator[dict[str, Tensor]]:
    pieces = tokens.unfold(0, length, 1)
    while True:
        piece = pieces[torch.randint(len(pieces), (size,), generator=random)]
        hidden = torch.rand(piece.shape, generator=random) < masked
        # A batch without a single question has no loss.
        hidden[0, 0] = True
        yield {"input_ids": piece.masked_fill(hidden, MASK), "labels": piece.masked_fill(~hidden, NOT_ASKED)}
