"""Random programs with less in them, among which the smallest one that fails alike is looked for."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from end_to_end.random_programs import Line, Program

_VALUE = re.compile(r"\b[vx]\d+\b")


def largest(program: Program) -> int:
    """How long it is: what shrinking makes less."""
    return len(program.body) + len(program.outputs) + len(program.inputs) + math.ceil(len(program.summed) / 2)


def smaller(program: Program) -> list[Program]:
    """Programs with one line, output or summand less, which may or may not train."""
    found: list[Program] = []
    if program.use in ("backward", "outputs dropped", "grad"):
        for i in range(len(program.outputs)):
            rest = program.outputs[:i] + program.outputs[i + 1 :]
            found.append(replace(program, outputs=rest, second=0, differentiable=(0,)))
    if len(program.summed) > 1:
        found += [
            replace(program, summed=program.summed[:i] + program.summed[i + 1 :]) for i in range(len(program.summed))
        ]
    for i in reversed(range(len(program.body))):
        found += _without_line(program, i)
    if program.use != "backward":
        found.append(replace(program, use="backward"))
    return found


def _without_line(program: Program, i: int) -> list[Program]:
    """The program without a line; what it made is replaced by one of what it read."""
    line, rest = program.body[i], program.body[:i] + program.body[i + 1 :]
    made, _, right = line.text.partition(" = ")
    if not _VALUE.fullmatch(made):
        return [replace(program, body=rest)]
    found = []
    for read in dict.fromkeys([*_VALUE.findall(right), "x0"]):
        swap = re.compile(rf"\b{made}\b")
        found.append(replace(
            program,
            body=tuple(Line(swap.sub(read, other.text), other.feature) for other in rest),
            summed=tuple(dict.fromkeys(swap.sub(read, name) for name in program.summed)),
            outputs=tuple(swap.sub(read, name) for name in program.outputs),
        ))  # fmt: skip
    return found
