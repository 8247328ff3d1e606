"""One rank of a job that runs examples one after the other, as `torchrun` would each.

    python examples_program.py RANK SIZE NAME=PORT,NAME=PORT ARGUMENTS

A line names each example before what it writes, to the standard output and to the standard error.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def main() -> None:
    """Run the examples that are named, whose ranks meet at a port of its own each, with the same arguments."""
    rank, size, named, *arguments = sys.argv[1:]
    sys.path.insert(0, str(EXAMPLES))
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, MASTER_ADDR="localhost")
    for pair in named.split(","):
        name, port = pair.split("=")
        for stream in (sys.stdout, sys.stderr):
            print(f"example {name}", file=stream, flush=True)
        os.environ["MASTER_PORT"] = port
        torch._dynamo.reset()
        sys.argv = [str(EXAMPLES / name), *arguments]
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
