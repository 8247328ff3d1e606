"""The parts of the demo that need no compilation: batches of the text, the table, the checks, the picture."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from xml.etree import ElementTree

import pytest
import torch

from demo import mebibytes
from demo_runs import Variant
from demo_table import HEADINGS, Outcome, failures, picture, relative_difference, rows, table
from masked_text import MASK, NOT_ASKED, SPECIAL, TEXT, UNKNOWN, Vocabulary, batches, words_of
from remat_compiler.memory_budget import MemoryBudget

MIB = 2**20
FREE = Outcome("no budget", "remat", None, 80 * MIB, 80 * MIB, 10**8, 1.0, (6.3, 5.5), 0.0)
LIMITED = replace(
    FREE, name="budget 0.5", limit_bytes=40 * MIB, predicted_bytes=39 * MIB, measured_bytes=39 * MIB, ratio=1.1
)
KNOB = replace(FREE, name="knob", compiler="torch", predicted_bytes=None, measured_bytes=60 * MIB)


def test_words_and_marks_are_tokens() -> None:
    assert words_of('"Not so," said Ada.') == ['"', "not", "so", ",", '"', "said", "ada", "."]


def test_the_text_of_the_repository_is_enough_and_small() -> None:
    words = words_of(TEXT.read_text(encoding="utf-8"))
    assert len(words) > 10 * 128
    assert 200 < len(Vocabulary.of(words)) <= 2000


def test_rare_words_have_no_number() -> None:
    vocabulary = Vocabulary.of(["sea", "sea", "sea", "rock", "rock", "cat"], most=len(SPECIAL) + 2)
    assert vocabulary.words == (*SPECIAL, "sea", "rock")
    assert vocabulary.encode(["rock", "cat", "sea"]).tolist() == [4, UNKNOWN, 3]


def test_equally_frequent_words_stand_in_alphabetical_order() -> None:
    assert Vocabulary.of(["b", "a", "c"]).words == (*SPECIAL, "a", "b", "c")


def test_a_vocabulary_has_room_for_a_word() -> None:
    with pytest.raises(ValueError, match="most=3"):
        Vocabulary.of(["a"], most=3)


def test_only_hidden_words_are_asked_for_and_the_others_show() -> None:
    tokens = torch.arange(10, 500)
    for batch in islice(batches(tokens, size=8, length=64), 5):
        inputs, labels = batch["input_ids"], batch["labels"]
        assert inputs.shape == labels.shape == (8, 64)
        hidden = inputs == MASK
        assert torch.equal(hidden, labels != NOT_ASKED)
        assert 0.05 < hidden.float().mean() < 0.3
        pieces = torch.where(hidden, labels, inputs)
        assert torch.equal(pieces, pieces[:, :1] + torch.arange(64))


def test_every_batch_asks_something() -> None:
    for batch in islice(batches(torch.arange(3, 8), size=1, length=1, masked=0.001), 20):
        assert (batch["labels"] != NOT_ASKED).any()


def test_batches_repeat_by_their_seed_alone() -> None:
    def first(seed: int) -> torch.Tensor:
        torch.manual_seed(torch.seed())
        return next(batches(torch.arange(400), size=4, length=32, seed=seed))["input_ids"]

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))


@pytest.mark.parametrize(("length", "masked"), [(0, 0.15), (11, 0.15), (4, 0.0), (4, 1.0), (4, float("nan"))])
def test_impossible_batches_are_refused_at_once(length: int, masked: float) -> None:
    with pytest.raises(ValueError, match="allowed"):
        batches(torch.arange(10), size=2, length=length, masked=masked)


def test_the_table_is_aligned_and_has_every_run() -> None:
    lines = table([FREE, KNOB, LIMITED]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert all(heading in lines[0] for heading in HEADINGS)
    assert [line.split("  ")[0] for line in lines[2:]] == ["no budget", "knob", "budget 0.5"]
    cells = " ".join(lines[4].split()[2:])
    assert cells == "40.0 MiB 39.0 MiB 39.0 MiB 0 B yes 100 ms 1.10x 5.50000 yes"
    assert "-" in lines[3].split()


def test_rows_for_programs_have_the_figures_and_the_checks() -> None:
    written = json.loads(json.dumps(rows([FREE, KNOB, replace(LIMITED, limit_bytes=39 * MIB - 1)])))
    assert [row["name"] for row in written] == ["no budget", "knob", "budget 0.5"]
    assert [row["measured_bytes"] for row in written] == [80 * MIB, 60 * MIB, 39 * MIB]
    assert [row["kept"] for row in written] == [True, True, False]
    assert all(row["same_loss"] for row in written)


def test_nothing_fails_where_all_is_kept() -> None:
    assert failures([FREE, KNOB, LIMITED]) == []


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (replace(LIMITED, limit_bytes=39 * MIB - 1), "above its budget"),
        (replace(LIMITED, predicted_bytes=int(39 * MIB * 1.0011)), "measured"),
        (replace(LIMITED, predicted_bytes=int(39 * MIB * 0.9989)), "measured"),
        (replace(LIMITED, predicted_bytes=None), "no peak was predicted"),
        (replace(LIMITED, loss_error=1.1e-4), "loss differs"),
        (replace(KNOB, loss_error=float("inf")), "loss differs"),
    ],
)
def test_a_broken_promise_is_told(outcome: Outcome, words: str) -> None:
    (sentence,) = failures([FREE, outcome])
    assert outcome.name in sentence
    assert words in sentence


def test_pytorchs_knob_promises_no_peak() -> None:
    assert failures([replace(KNOB, limit_bytes=1)]) == []


def test_a_loss_that_is_no_number_is_a_difference() -> None:
    assert relative_difference((2.0, 1.0), (2.0, 1.0)) == 0.0
    assert relative_difference((2.0, 1.1), (2.0, 1.0)) == pytest.approx(0.1)
    assert relative_difference((float("nan"),), (1.0,)) == float("inf")
    with pytest.raises(ValueError, match="equally many"):
        relative_difference((1.0,), (1.0, 2.0))


def test_the_picture_has_every_run_within_its_frame() -> None:
    drawn = ElementTree.fromstring(picture([FREE, KNOB, LIMITED], "A & B"))
    space = "{http://www.w3.org/2000/svg}"
    words = [element.text for element in drawn.iter(f"{space}text")]
    assert {"A & B", "no budget", "knob", "budget 0.5", "39.0 MiB", "100 ms  1.10x"} <= set(words)
    width, height = float(drawn.attrib["width"]), float(drawn.attrib["height"])
    for box in drawn.iter(f"{space}rect"):
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width
        assert float(box.attrib["y"]) + float(box.attrib["height"]) <= height


@pytest.mark.parametrize("num_bytes", [1, 2**20 - 1, 65_487_960, 2**20 * 59 + 104_857])
def test_a_written_budget_is_at_most_what_was_meant(num_bytes: int) -> None:
    written = mebibytes(num_bytes)
    if written == "0.0MiB":
        assert num_bytes < MIB / 10
        return
    limit = MemoryBudget.parse(written).limit_bytes
    assert num_bytes - MIB / 10 - 1 < limit <= num_bytes


def test_folders_are_plain_words() -> None:
    assert Variant('budget "59.5MiB"').folder == "budget_59.5MiB"
    assert Variant("PyTorch's knob at 0.5").folder == "PyTorch_s_knob_at_0.5"
