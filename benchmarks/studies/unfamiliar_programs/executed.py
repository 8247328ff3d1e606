"""Every operator that is executed on real tensors while programs are compiled, by a dispatch mode that sees it.

    python -m studies.unfamiliar_programs.executed                      # 20 random programs, by both cost models
    python -m studies.unfamiliar_programs.executed --programs 5 --seed 100

While a program is compiled for the first time, with nothing known of any operator, the product sets dispatch modes
aside; here it is given this one instead.  The table says how often each operator ran.  Those that stand not among the
ones that are safe on any values (`safe` in `remat_compiler/operators`) are named below it, and end the command with 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.append(str(Path(__file__).parents[3] / "tests"))

from end_to_end.judged_programs import observe
from end_to_end.random_programs import draw
from remat_compiler import torch_compat
from remat_compiler.backend import remat
from remat_compiler.costs.any_values import is_measurable
from remat_compiler.costs.op_call import OpCall, allocates_results_only, tensors_in
from remat_compiler.torch_compat import modes

COST_MODELS = ("nominal", "measured")
_ran: Counter[Any] = Counter()
_unsafe: set[str] = set()


class _Seen(TorchDispatchMode):
    """Counts operators that run on real tensors."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """The result of the operator."""
        kwargs = kwargs or {}
        tensors = list(tensors_in((args, kwargs)))
        # Dry runs work on tensors without data.
        if not any(one.is_meta or isinstance(one, torch_compat.FakeTensor) for one in tensors):
            _ran[func] += 1
            if not is_safe(func, args, kwargs):
                _unsafe.add(str(func))
        return func(*args, **kwargs)


def watch() -> None:
    """Have operators counted wherever the product leaves the modes of a compilation."""
    aside = modes._disable_current_modes

    @contextmanager
    def watched() -> Iterator[None]:
        with aside(), _Seen():
            yield

    modes._disable_current_modes = watched


def is_safe(func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call may run: it is in the table, or makes or copies tensors, of which arguments are made up."""
    call = OpCall.any(func, args, kwargs)
    named = call is not None and is_measurable(call)
    return named or (isinstance(func, torch._ops.OpOverload) and allocates_results_only(func))


def main() -> None:
    """Print what runs while programs are compiled."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--programs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    watch()
    for number in range(arguments.programs):
        program, model = draw(arguments.seed + number), COST_MODELS[number % 2]
        # A folder of its own, so that every operator is new.
        with tempfile.TemporaryDirectory() as folder:
            os.environ["REMAT_CACHE_DIR"] = folder
            options = {"memory_budget": 0.7, "inner": "eager", "cost_model": model, "on_infeasible": "min"}
            observe(program, partial(remat, options=options))
        print(f"{number + 1} of {arguments.programs}: {sum(_ran.values())} runs", file=sys.stderr, flush=True)
    for func, count in _ran.most_common():
        print(f"{count:8}  {func}")
    print(f"{len(_ran)} operators; not among those that are safe on any values: {', '.join(sorted(_unsafe)) or 'none'}")
    raise SystemExit(bool(_unsafe))


if __name__ == "__main__":
    main()
