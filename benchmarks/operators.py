"""What every operator leaves and takes, foreseen against measured, over torch's own samples.

    python benchmarks/operators.py                                  # all, plain and transposed
    python benchmarks/operators.py --layouts plain --operators 0 60

Each operator of torch's database runs forward and backward on its samples on the CPU, in float32 and bfloat16.  Of each
call that it dispatches, the bytes of the results' storages are held against those of the corrected shape function, and
the workspace that is measured on made-up values against that on the sample's own.  The database needs ``expecttest``.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from instruments.operator_database import LAYOUTS, REFUSALS
from remat_compiler import torch_compat
from remat_compiler.costs.op_call import OpCall
from remat_compiler.costs.workspace import measure_workspace, workspace_of

SECONDS, MOST_SAMPLES, MOST_CALLS = 8, 14, 16
"""For each operator and type, the longest time and most samples; for each operator that is dispatched, most calls."""


@dataclass(slots=True)
class Found:
    """What was compared.

    Attributes:
        seen: Keys of the calls, by operator.
        wrong: By operator and what differs, how many calls differ.
        first: The first of them, with the bytes foreseen and measured.
    """

    seen: defaultdict[Any, set[str]] = field(default_factory=lambda: defaultdict(set))
    wrong: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """Different calls."""
        return sum(map(len, self.seen.values()))

    def compare(self, func: Any, what: str, foreseen: int | None, measured: int, key: str) -> None:
        """Note a difference."""
        if foreseen == measured:
            return
        # Too little breaks promises, too much room only.
        kind = "unknown" if foreseen is None else f"{what}, less" if foreseen < measured else f"{what}, more"
        self.wrong[str(func), kind] += 1
        self.first.setdefault((str(func), kind), f"{foreseen} for {measured}: {key[:90]}")


class Watch(TorchDispatchMode):
    """Compares each new call that is dispatched, and gives its result."""

    def __init__(self, found: Found) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """The result of the call."""
        kwargs = kwargs or {}
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        plain = func.namespace == "aten" and not func._schema.is_mutable and not func.is_view
        plain = plain and all(one.layout is torch.strided for one in tensors)
        call = OpCall.any(func, args, kwargs) if plain else None
        seen = self.found.seen[func]
        if call is None or call.key in seen or len(seen) == MOST_CALLS:
            return func(*args, **kwargs)
        seen.add(call.key)
        with _disable_current_modes():
            return self._compared(func, args, kwargs, call.key, {one.untyped_storage().data_ptr() for one in tensors})

    def _compared(self, func: Any, args: Any, kwargs: Any, key: str, given: set[int]) -> Any:
        results: list[Any] = []
        taken = workspace_of(lambda: results.append(func(*args, **kwargs)), "cpu")
        call = OpCall.of(func, args, kwargs, results[0])
        self.found.compare(func, "workspace", 0 if call is None else measure_workspace(call), taken, key)
        for foreseen, real in zip(_foreseen(func, args, kwargs), tree_leaves(results[0])):
            strided = isinstance(real, Tensor) and isinstance(foreseen, Tensor) and real.layout is torch.strided
            if strided and real.untyped_storage().data_ptr() not in given:
                self.found.compare(func, "result", _bytes(foreseen), _bytes(real), key)
        return results[0]


def _foreseen(func: Any, args: Any, kwargs: Any) -> list[Any]:
    mode = torch_compat.FakeTensorMode(allow_non_fake_inputs=True)
    try:
        fakes, named = tree_map_only(Tensor, mode.from_tensor, (args, kwargs))
        with mode:
            return tree_leaves(torch_compat.corrected_fake_result(func, tuple(fakes), func(*fakes, **named)))
    # Shapes that depend on data, which graphs are cut at.
    except torch_compat.FAKE_RUN_ERRORS:
        return []


def _bytes(value: Tensor) -> int:
    return int(value.untyped_storage().nbytes())


def compare(operators: Iterable[Any], layout: Callable[[Any], Any], found: Found) -> None:
    """Run the samples of each operator, forward and backward."""
    for operator in operators:
        for dtype in (torch.float32, torch.bfloat16):
            if not operator.supports_dtype(dtype, "cpu"):
                continue
            until = time.monotonic() + SECONDS
            samples = operator.sample_inputs("cpu", dtype, requires_grad=operator.supports_autograd)
            for sample, _ in zip(_without_errors(samples), range(MOST_SAMPLES)):
                if time.monotonic() < until:
                    _run(operator, sample.transform(layout), found)


def _run(operator: Any, sample: Any, found: Found) -> None:
    with suppress(*REFUSALS), Watch(found):
        results = tree_leaves(operator.op(sample.input, *sample.args, **sample.kwargs))
        ends = [one for one in results if isinstance(one, Tensor) and one.requires_grad]
        if ends:
            torch.autograd.backward(ends, [torch.ones_like(one) for one in ends])


def _without_errors(samples: Iterable[Any]) -> Iterable[Any]:
    with suppress(*REFUSALS):
        yield from samples


def main() -> None:
    """Compare, and print what differs."""
    from torch.testing._internal.common_methods_invocations import op_db

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--operators", nargs=2, type=int, default=(0, len(op_db)), metavar=("FROM", "TO"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("remat_compiler").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    first, last = arguments.operators
    for layout in arguments.layouts:
        found = Found()
        for start in range(first, last, 20):
            compare(op_db[start : min(start + 20, last)], LAYOUTS[layout], found)
            print(f"{layout}: {min(start + 20, last)} of {last} operators, {found.calls} calls", flush=True)
        print(f"\n{layout}: {found.calls} calls of {len(found.seen)} operators\n")
        print("| operator | what | results | first |\n|---|---|--:|---|")
        for (name, kind), count in sorted(found.wrong.items()):
            print(f"| {name} | {kind} | {count} | {found.first[name, kind]} |")


if __name__ == "__main__":
    main()
