"""The questions for a GPU can be asked, and what they answer is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import gpu.run
from gpu.asked import Asked

RUN = Path(gpu.run.__file__)


def test_a_question_is_asked_and_its_answer_kept(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    command = [sys.executable, str(RUN), "--device", "cpu", "--only", "card", "--json", str(file)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = json.loads(file.read_text(encoding="utf-8"))
    assert [(row["question"], row["case"], row["status"]) for row in rows] == [
        ("card", "versions", "told"),
        ("card", "rates", "told"),
    ]
    assert "card: versions" in shown


@pytest.mark.parametrize(("raised", "status"), [(None, "ok"), (AssertionError("no"), "failed"), ("beside it", "short")])
def test_what_fails_and_what_falls_short_is_told(tmp_path: Path, raised: object, status: str) -> None:
    asked = Asked("q", "cpu", tmp_path)
    for _ in range(2):
        with asked.row("a case") as row:
            if isinstance(raised, Exception):
                raise raised
            row.expect(raised is None, str(raised))
    rows = [json.loads(line) for line in (tmp_path / "q.rows").read_text(encoding="utf-8").splitlines()]
    assert [row["status"] for row in rows] == [status] * 2
    assert (str(raised) in rows[0]["why"]) == (raised is not None)
    assert gpu.run.table(rows).count(status) == 2
