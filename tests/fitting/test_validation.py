"""A step on paper held against one on a GPU: what differs is found and named, and what is asked must make sense."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fitting.paper_models import language
from fitting.paper_traces import traced, traced_as_if_real
from remat_compiler.cli.main import main
from remat_compiler.costs.op_call import OpCall
from remat_compiler.costs.seen_workspace import WorkspaceWatch
from remat_compiler.devices.gpus import GPUS
from remat_compiler.errors import OptionError
from remat_compiler.fitting.paper_process import call_in_process
from remat_compiler.fitting.request import FitRequest
from remat_compiler.fitting.step_trace import OperatorCall, StepTrace
from remat_compiler.fitting.tracing import seen_workspaces, workspaces_of
from remat_compiler.fitting.validate import validated
from remat_compiler.fitting.validation import Validation

HOST = "kernels\nasync_compile.wait(globals())\ndef call(args):\n    buf0 = _scaled_dot_product_flash_attention(q)\n"
PAPER = StepTrace((HOST,), (1024, 512, 512), 4096, 1024, 2048, 512, 2**21, {"mm": 0, "flash": 512}, 1_000_000)


def compared(real: StepTrace, paper: StepTrace = PAPER) -> Validation:
    """Both, on a T4."""
    return Validation(GPUS["t4"], {"torch": "2.13"}, {"batch": 1}, paper, real)


def test_what_is_the_same_is_said_to_be() -> None:
    # Kernels differ with the version of Triton, and memory does not hang on them.
    found = compared(replace(PAPER, texts=(HOST.replace("kernels", "others"),)))
    assert found.same_code
    assert not found.code_difference() + list(found.more_requests + found.fewer_requests)
    text = str(found)
    assert "backward                    2.0 KiB  2.0 KiB        none" in text
    assert "emitted code of 1 graphs, without its kernels: the same on both" in text
    assert "kernels of attention: flash" in text
    assert "what operators take inside: 2 measured, 0 otherwise than said" in text


def test_what_differs_is_named() -> None:
    real = replace(
        PAPER,
        texts=(HOST.replace("flash", "efficient"),),
        requests=(1024, 512, 2**20, 2**20),
        backward_bytes=2560,
        workspaces={"mm": 0, "flash": 1024, "conv": 2**20},
        step_ns=1_500_000,
    )
    found = compared(real)
    assert not found.same_code
    assert [line for line in found.code_difference() if line.startswith(("-  ", "+  "))] == [
        f"{side}    buf0 = _scaled_dot_product_{kernel}_attention(q)"
        for side, kernel in (("-", "flash"), ("+", "efficient"))
    ]
    assert found.wrong_workspaces == {"flash": (512, 1024), "conv": (None, 2**20)}
    text = str(found)
    assert "+512 B (+25.00 %)" in text
    assert "+500,000 ns (+50.00 %)" in text
    assert "kernels of attention: different: flash and efficient" in text
    assert "asked for on the GPU alone: 2 with 2.0 MiB, such as 2 x 1.0 MiB" in text
    assert "asked for on paper alone: 1 with 512 B" in text
    assert "nothing said, 1.0 MiB taken: conv" in text
    record = json.loads(found.to_json())
    assert record["gpu"]["product"] == "Tesla T4"
    assert record["real"]["backward_bytes"] == 2560
    assert record["same_code"] is False
    assert record["code_difference"]


def test_a_step_is_traced_alike_on_both() -> None:
    """As if the GPU were there: its allocator says nothing, but the step is made, compiled and run by the same code."""
    request = FitRequest(language, GPUS["h100"], 0.7, (16,), None, "AdamW", {"inner": "eager"})
    paper = call_in_process(traced, request)
    assert paper.requests
    assert sum(paper.requests) > max(paper.forward_bytes, paper.backward_bytes) > paper.update_bytes > 0
    assert paper.allocated_bytes <= paper.reserved_bytes
    assert {call.operator for call in paper.calls} >= {"aten.mm.default"}
    assert call_in_process(traced_as_if_real, request, paper.calls) == {
        call.key: paper.workspaces[call.key] for call in paper.calls if call.key in paper.workspaces
    }


def test_one_step_is_validated(capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["--batch", "1,2"], ["--max-batch"]):
        assert main(["fit", f"{__file__}:compared", "--validate", *more]) == 2
        assert "--validate takes one step" in capsys.readouterr().err


def test_what_is_not_run_by_itself_is_seen_as_the_step_runs_it() -> None:
    """Its values are indices, so it has a form, which would else be held against itself."""
    table, indices = torch.nn.Embedding(64, 8), torch.arange(48)

    def run() -> None:
        table(indices).sum().backward()

    backward = "aten.embedding_dense_backward.default"
    calls = list[OperatorCall]()
    with WorkspaceWatch({backward, "aten.sum.default"}, lambda call, size: calls.append(portable(call))):
        run()
    assert sorted(call.operator for call in calls) == [backward, "aten.sum.default"]
    seen = seen_workspaces(run, calls)
    # A sum is measured by itself.
    assert list(seen) == [call.key for call in calls if call.operator == backward]
    assert list(seen.values()) == [workspaces_of(calls)[key] for key in seen]
    assert min(seen.values()) > 0


def portable(call: OpCall) -> OperatorCall:
    return OperatorCall(call.key, str(call.func), call.args, dict(call.kwargs))


def test_paper_is_held_against_the_gpu_that_is_here() -> None:
    with pytest.raises(OptionError, match="held against a GPU that is here; leave it out"):
        validated(FitRequest(language, "h100"))
    if not torch.cuda.is_available():
        with pytest.raises(OptionError, match="torch sees no GPU here"):
            validated(FitRequest(language))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_paper_holds_on_a_gpu(tmp_path: Path) -> None:
    """What is called exact is: peaks of both phases and of the optimizer's step."""
    file = tmp_path / "validation.json"
    models = Path(__file__).with_name("paper_models.py")
    assert main(["fit", f"{models}:language", "--batch", "16", "--budget", "0.7", "--validate", str(file)]) == 0
    record = json.loads(file.read_text())
    assert record["same_code"], "\n".join(record["code_difference"])
    for name in ("forward_bytes", "backward_bytes", "update_bytes"):
        # Paper counts whole steps of 512 bytes, and the GPU what was asked for: of a few tensors, they are numbers.
        assert 0 <= record["paper"][name] - record["real"][name] < 16 * 512, name
