"""Each message of this project names its sender, whoever shows it."""

from __future__ import annotations

import io
import logging
import subprocess
import sys

import pytest

from remat_compiler.log import logger_of

TOLD = "remat: 3 operators (50 %) are not timed"


def tell() -> None:
    logger_of("remat_compiler.costs.told_here").warning("%d operators (50 %%) are not timed", 3)


def test_without_handlers_standard_error_has_the_sender() -> None:
    program = "from remat_compiler.log import logger_of\nlogger_of('remat_compiler.x').warning('told')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "remat: told\n")


@pytest.mark.parametrize("owner", ["", "remat_compiler"], ids=["root", "own"])
def test_a_handler_that_shows_the_bare_message_has_the_sender(owner: str) -> None:
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    handler.setFormatter(logging.Formatter("%(levelname)s|%(message)s"))
    logging.getLogger(owner).addHandler(handler)
    try:
        tell()
    finally:
        logging.getLogger(owner).removeHandler(handler)
    assert heard.getvalue() == f"WARNING|{TOLD}\n"


def test_a_record_has_name_file_and_line_of_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    tell()
    (record,) = caplog.records
    assert record.getMessage() == TOLD
    assert (record.name, record.filename, record.funcName) == ("remat_compiler.costs.told_here", "test_log.py", "tell")
