"""What takes long is shown: at a terminal on one line, elsewhere in the log, and never of what is quick."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import time

import pytest

from remat_compiler import progress as module
from remat_compiler.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_for(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal, on which waiting is short; not a fixture, since pytest sets stderr anew behind those."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(module, "REDRAW_SECONDS", 0.01)
    return screen


def wait_for(screen: Terminal, text: str) -> bool:
    """Whether `text` appears on the screen within some seconds."""
    end = time.monotonic() + 20
    while text not in screen.getvalue() and time.monotonic() < end:
        time.sleep(0.005)
    return text in screen.getvalue()


def test_a_long_block_is_shown_with_its_count_and_its_line_is_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_for(monkeypatch)
    with progress("timing operators", 3) as bar:
        bar.advance()
        assert wait_for(terminal, "remat: timing operators, 1 of 3, ")
    assert terminal.getvalue().endswith("\r\033[K")
    assert "\n" not in terminal.getvalue()


def test_only_the_innermost_block_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_for(monkeypatch)
    with progress("outer"):
        with progress("inner", 2):
            assert wait_for(terminal, "remat: inner, 0 of 2,")
            assert "outer" not in terminal.getvalue()
        assert wait_for(terminal, "remat: outer, ")


def test_a_quick_block_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_for(monkeypatch)
    monkeypatch.setattr(module, "QUIET_SECONDS", 60.0)
    with progress("quick", 1) as bar:
        bar.advance()
    assert terminal.getvalue() == ""


def test_an_error_ends_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_for(monkeypatch)
    with pytest.raises(ZeroDivisionError), progress("fails"):
        raise ZeroDivisionError
    with progress("next"):
        assert wait_for(terminal, "remat: next")


@pytest.mark.parametrize(("quiet", "lines"), [(0.0, ["work, 1 of 2", "work, 2 of 2"]), (60.0, [])])
def test_without_a_terminal_the_log_hears_of_it(
    quiet: float, lines: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(module, "QUIET_SECONDS", quiet)
    with caplog.at_level(logging.INFO, logger="remat_compiler"), progress("work", 2) as bar:
        bar.advance()
        bar.advance()
    assert [message.rpartition(",")[0] for message in caplog.messages] == [f"remat: {line}" for line in lines]


def test_work_that_does_not_advance_is_told_of_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(module, "LOG_SECONDS", 0.01)
    with caplog.at_level(logging.INFO, logger="remat_compiler"), progress("outer"), progress("planning"):
        # On a busy machine the outer one is told of before the inner one begins.
        caplog.clear()
        end = time.monotonic() + 20
        while len(caplog.messages) < 2 and time.monotonic() < end:
            time.sleep(0.005)
    assert len(caplog.messages) >= 2
    assert all(message.startswith("remat: planning, ") for message in caplog.messages)


SCRIPT = """
import sys
from contextlib import nullcontext
from remat_compiler import progress as module
from remat_compiler.fitting.paper_process import call_in_process
module.QUIET_SECONDS = 0.0
there = "from remat_compiler import progress as p; p.QUIET_SECONDS = 0.0\\n"
there += "with p.progress('there', 1) as bar: bar.advance()"
with module.progress_on_stderr() if "shown" in sys.argv else nullcontext():
    with module.progress("here", 1) as bar:
        call_in_process(exec, there, {})
        bar.advance()
    call_in_process(exec, there, {})
with module.progress("afterwards", 1) as bar:
    bar.advance()
"""


@pytest.mark.parametrize(("arguments", "told"), [(["shown"], ["here, 1 of 1", "there, 1 of 1"]), ([], [])])
def test_commands_write_it_to_stderr_and_programs_only_if_they_ask_for_it(
    arguments: list[str], told: list[str]
) -> None:
    """So do the processes that a command starts, unless it shows the progress of them all."""
    command = [sys.executable, "-c", SCRIPT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line.rpartition(",")[0] for line in done.stderr.splitlines()] == [f"remat: {line}" for line in told]
    assert done.stdout == ""
