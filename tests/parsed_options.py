"""Options as the code and the environment give them, parsed."""

from __future__ import annotations

from remat_compiler.errors import UnknownName
from remat_compiler.options import Environment, RematOptions, variable_of

EMPTY = Environment.read({"HOME": "/nowhere"})


def check_planner(name: str) -> None:
    if name not in ("auto", "min_cut", "chen_sqrt"):
        raise UnknownName("planner", name, ("auto", "min_cut", "chen_sqrt"))


def parse(environment: Environment = EMPTY, **options: object) -> RematOptions:
    return RematOptions.parse(options, check_planner=check_planner, environment=environment)


def in_environment(**texts: str) -> Environment:
    return Environment.read({"HOME": "/h", **{variable_of(name): text for name, text in texts.items()}})
