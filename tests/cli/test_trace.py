"""The command `remat trace`: what it reads and writes, and that mistakes end with code 2 and a sentence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from profiles import START_US, call_of, dumped, profile_of
from remat_compiler.cli.main import main
from trace_format import events_of


@pytest.mark.parametrize("name", ["profile.json", "profile.json.gz"])
def test_the_command_reads_and_writes_both_forms(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    directory, profile = dumped(tmp_path / "dump", ("graph0", "0/0"), ("graph1", "5/0")), tmp_path / name
    text = json.dumps(profile_of(call_of("0/0", START_US, 7, backward=False))).encode()
    profile.write_bytes(gzip.compress(text) if profile.suffix == ".gz" else text)
    outputs = [tmp_path / "one.json", tmp_path / "one.json.gz", tmp_path / "again.json.gz"]
    for output in outputs:
        assert main(["trace", str(directory), "--with", str(profile), "-o", str(output)]) == 0
    one, zipped, again = (output.read_bytes() for output in outputs)
    assert gzip.decompress(zipped) == one
    assert zipped == again, "the same bytes whenever it is written"
    fields = json.loads(one)
    assert (fields["schemaVersion"], fields["traceName"]) == (1, "mine")
    told = capsys.readouterr().out
    assert "graph0: beside the call of 0/0 in the profile, whose backward it does not have" in told
    assert "graph1: left out" in told
    assert {event["pid"] for event in fields["traceEvents"]} == {77, 5_000_000}


def test_without_a_profile_the_command_writes_the_plans_alone(tmp_path: Path) -> None:
    directory = dumped(tmp_path / "dump", ("graph0", "0/0"), ("graph1", "1/0"))
    output = tmp_path / "new" / "plans.json"
    assert main(["trace", str(directory), "-o", str(output)]) == 0
    assert len({event["pid"] for event in events_of(output.read_bytes())}) == 2
    assert main(["trace", str(directory), "--graph", "graph1", "-o", str(output)]) == 0
    assert len({event["pid"] for event in events_of(output.read_bytes())}) == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "expected JSON"),
        (b"\xff\xfe{}", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b"3", "expected a trace"),
        (b'{"traceEvents": 3}', "expected a trace"),
        (b'{"traceEvents": [3]}', "expected a trace"),
        (b"\x1f\x8bno", "cannot be read"),
        (b'[{"ph": "X", "name": "aten::mm", "ts": 1, "dur": 2}]', "has no compiled function"),
        (
            b'[{"ph": "X", "name": "Torch-Compiled Region: 4/0", "ts": 1, "dur": 2}]',
            "it has Torch-Compiled Region: 4/0",
        ),
        (b'[{"ph": "X", "name": "Torch-Compiled Region: 0/0", "ts": NaN, "dur": "2"}]', "has no compiled function"),
    ],
)
def test_a_profile_that_is_none_is_told(
    tmp_path: Path, content: bytes, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, profile = dumped(tmp_path / "dump", ("graph0", "0/0")), tmp_path / "profile.json"
    profile.write_bytes(content)
    output = tmp_path / "out.json"
    assert main(["trace", str(directory), "--with", str(profile), "-o", str(output)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("remat: ")
    assert told in error
    assert not output.exists()


def test_other_mistakes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, profile = dumped(tmp_path / "dump", ("graph0", "0/0")), tmp_path / "profile.json"
    profile.write_text(json.dumps(profile_of(call_of("0/0", START_US, 7))))
    output = tmp_path / "out.json"
    for more, told in (
        (["-o", str(profile)], "which is the profile"),
        (["-o", str(tmp_path)], "cannot be written"),
        (["-o", str(output), "--graph", "graph7"], "unknown graph 'graph7'"),
        (["-o", str(output), "--call", "3"], "got call 3"),
    ):
        assert main(["trace", str(directory), "--with", str(profile), *more]) == 2
        assert told in capsys.readouterr().err
    assert main(["trace", str(directory), "--with", str(profile), "-o", str(output)]) == 0
    assert main(["trace", str(directory), "--with", str(output), "-o", str(tmp_path / "twice.json")]) == 2
    assert "has plans in it already" in capsys.readouterr().err
    assert main(["trace", str(tmp_path), "-o", str(output)]) == 2
    assert "holds no dump: expected timeline.perfetto.json" in capsys.readouterr().err
