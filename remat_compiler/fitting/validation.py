"""A step on paper beside the same step on the GPU that is there: what is the same, and by how much the rest differs."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from remat_compiler.devices.gpus import Gpu
from remat_compiler.fitting.fit_report import gib
from remat_compiler.fitting.step_trace import StepTrace
from remat_compiler.ir.text_form import format_time, table
from remat_compiler.report.notebook import Shown

FORMAT_VERSION = 1
"""Version of the JSON file."""
_FIGURES = {
    "resident_bytes": "before the step",
    "forward_bytes": "forward",
    "backward_bytes": "backward",
    "update_bytes": "optimizer's step",
    "allocated_bytes": "allocated",
    "reserved_bytes": "reserved",
}
"""What people call the figures of both."""
_MOST_LINES = 200
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Validation(Shown):
    """A step on paper and on a GPU.

    Attributes:
        gpu: The GPU as it stands on paper.
        versions: Versions of what took part, by name.
        step: What was asked: function, batch, budget, and what else tells the step.
        paper: The step on paper.
        real: The step on the GPU.
    """

    gpu: Gpu
    versions: Mapping[str, str]
    step: Mapping[str, Any]
    paper: StepTrace
    real: StepTrace

    @property
    def same_code(self) -> bool:
        """Whether the emitted code is the same but for the kernels."""
        return self.paper.host_code == self.real.host_code

    def code_difference(self) -> list[str]:
        """Lines in which the emitted code differs, as in a patch; the first ones, if there are many."""
        paper, real = ("\n".join(trace.host_code).splitlines() for trace in (self.paper, self.real))
        return list(difflib.unified_diff(paper, real, "paper", "GPU", lineterm="", n=1))[:_MOST_LINES]

    @property
    def more_requests(self) -> Counter[int]:
        """Sizes that the GPU's allocator was asked for and paper's not: what operators take inside, or a defect."""
        return Counter(self.real.requests) - Counter(self.paper.requests)

    @property
    def fewer_requests(self) -> Counter[int]:
        """Sizes that paper asks for and the GPU's allocator was not asked for."""
        return Counter(self.paper.requests) - Counter(self.real.requests)

    @property
    def wrong_workspaces(self) -> dict[str, tuple[int | None, int]]:
        """By call, what forms say that an operator takes inside (`None`: no form is known), and what it took."""
        forms = self.paper.workspaces
        return {key: (forms.get(key), took) for key, took in self.real.workspaces.items() if forms.get(key) != took}

    def to_json(self) -> str:
        """All figures, for tools and to be sent in."""
        record = {
            "format": FORMAT_VERSION,
            "gpu": asdict(self.gpu),
            "versions": dict(self.versions),
            "step": dict(self.step),
            "paper": self.paper.record(),
            "real": self.real.record(),
            "same_code": self.same_code,
            "code_difference": self.code_difference(),
        }
        return json.dumps(record, indent=1)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("", "paper", "GPU", "difference")]
        for name, spoken in _FIGURES.items():
            paper, real = getattr(self.paper, name), getattr(self.real, name)
            rows.append((spoken, gib(paper), gib(real), _difference(paper, real)))
        times = self.paper.step_ns, self.real.step_ns
        rows.append(("time, forward and backward", *map(format_time, times), _difference(*times, " ns")))
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [f"{self.gpu.product}: {versions}", "", *table(rows, right=(1, 2, 3)), "", *self._verdicts()]
        return "".join(f"{line}\n" for line in lines)

    def _verdicts(self) -> list[str]:
        """What else was compared."""
        code = "the same on both" if self.same_code else "different; the file has the lines"
        kernels = " and ".join(", ".join(trace.attention) or "none" for trace in (self.paper, self.real))
        attention = self.paper.attention if self.paper.attention == self.real.attention else f"different: {kernels}"
        wrong = self.wrong_workspaces
        lines = [
            f"emitted code of {len(self.paper.texts)} graphs, without its kernels: {code}",
            f"kernels of attention: {attention if isinstance(attention, str) else ', '.join(attention) or 'none'}",
            f"requests: {len(self.paper.requests)} on paper, {len(self.real.requests)} on the GPU",
            *_sizes("asked for on the GPU alone", self.more_requests),
            *_sizes("asked for on paper alone", self.fewer_requests),
            f"what operators take inside: {len(self.real.workspaces)} measured, {len(wrong)} otherwise than said",
        ]
        worst = sorted(wrong.items(), key=lambda item: -abs(item[1][1] - (item[1][0] or 0)))[:_SHOWN]
        for key, (form, took) in worst:
            lines.append(f"  {'nothing' if form is None else gib(form)} said, {gib(took)} taken: {key}")
        return lines


def _difference(paper: int, real: int, unit: str = " B") -> str:
    """By how much the GPU differs from paper."""
    if paper == real:
        return "none"
    return f"{real - paper:+,}{unit}" + (f" ({100 * (real / paper - 1):+.2f} %)" if paper else "")


def _sizes(what: str, sizes: Counter[int]) -> list[str]:
    """The largest of these requests; nothing if there are none."""
    if not sizes:
        return []
    largest = ", ".join(f"{count} x {gib(size)}" for size, count in sorted(sizes.items(), reverse=True)[:_SHOWN])
    return [f"  {what}: {sizes.total()} with {gib(sum(n * count for n, count in sizes.items()))}, such as {largest}"]
