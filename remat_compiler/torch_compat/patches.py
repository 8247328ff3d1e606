"""Every place where this project changes torch, in one table: what is changed, why, and what happens without it.

A *correctness* row keeps a result right or a budget kept; where its target is missing, what needs it raises
`UnsupportedTorch`.  A *speed* row only saves time; where its target is missing, or takes other arguments than is known
here, it switches itself off, with one line at level INFO.  Nothing is looked up before it is needed.

What changes torch goes through `patching`, which takes rows of this table and nothing else.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

from remat_compiler.errors import UnsupportedTorch
from remat_compiler.version import TESTED_TORCH

logger = logging.getLogger(__name__)


class Purpose(enum.Enum):
    """What a change of torch is for."""

    CORRECTNESS = "correctness"
    SPEED = "speed"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a target was found.

    Attributes:
        owner: Module, class or configuration that has it.
        attribute: Its name there.
        value: What is there now; `None` for a field that only instances have.
    """

    owner: Any
    attribute: str
    value: Any


@dataclass(frozen=True, slots=True)
class Patch:
    """One change of torch.

    Attributes:
        name: Short name, for people.
        target: What is changed, as ``module:attribute``; attributes may follow one another.
        purpose: What it is for.
        gives: What it does, in half a sentence.
        without: What happens where the target is missing, in half a sentence.
        takes: Names that the target's parameters must begin with, for each form that is known; empty where any will do.
        since: Oldest version of torch that needs it.
        before: First version that needs it no more; `None` where all later ones do.
    """

    name: str
    target: str
    purpose: Purpose
    gives: str
    without: str
    takes: tuple[tuple[str, ...], ...] = ()
    since: tuple[int, int] = (0, 0)
    before: tuple[int, int] | None = None

    @property
    def needed(self) -> bool:
        """Whether the torch at hand needs it."""
        version = torch_version()
        return self.since <= version and (self.before is None or version < self.before)

    def place(self) -> Place:
        """Where the target is.

        Raises:
            LookupError: It is not there, or takes other arguments than is known here; the message says which.
        """
        module, _, path = self.target.partition(":")
        *owners, attribute = path.split(".")
        try:
            owner: Any = importlib.import_module(module)
            for name in owners:
                owner = getattr(owner, name)
            value = _attribute(owner, attribute)
        except (ImportError, AttributeError) as error:
            raise LookupError(f"{module}.{path} is missing") from error
        if self.takes:
            self._check_parameters(f"{module}.{path}", value)
        return Place(owner, attribute, value)

    def _check_parameters(self, target: str, value: Any) -> None:
        try:
            parameters = inspect.signature(value).parameters.values()
        except (TypeError, ValueError) as error:
            raise LookupError(f"{target} is no function whose parameters can be read") from error
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return  # another library stands before it, and hands over what it gets
        names = tuple(p.name for p in parameters)
        if not any(names[: len(known)] == known for known in self.takes):
            allowed = " or ".join(f"({', '.join(known)})" for known in self.takes)
            raise LookupError(f"{target} takes ({', '.join(names)}) rather than {allowed}")

    def usable(self) -> Place | None:
        """Where the target is; `None` where a speed row stays off.

        Raises:
            UnsupportedTorch: The target of a correctness row cannot be changed.
        """
        if not self.needed:
            return None
        try:
            return self.place()
        except LookupError as error:
            if self.purpose is Purpose.CORRECTNESS:
                raise self.unsupported(str(error)) from error
            _say_once(self, str(error))
            return None

    def unsupported(self, problem: str) -> UnsupportedTorch:
        """The error that says why this torch cannot be worked with."""
        import torch

        return UnsupportedTorch(torch.__version__, problem, self.without)


def torch_version() -> tuple[int, int]:
    """Major and minor number of the torch at hand."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def untested() -> str:
    """Why the torch at hand may not work; empty for a version that was tested."""
    import torch

    oldest, newest = TESTED_TORCH
    if oldest <= torch_version() <= newest:
        return ""
    return f"got torch {torch.__version__}, tested are {shown(oldest)} to {shown(newest)}"


def shown(version: tuple[int, int]) -> str:
    """A version as people write it."""
    return ".".join(map(str, version))


def _attribute(owner: Any, name: str) -> Any:
    """An attribute; `None` for a field of a data class without a default."""
    if name in getattr(owner, "__dataclass_fields__", ()) and not hasattr(owner, name):
        return None
    return getattr(owner, name)


@cache
def _say_once(patch: Patch, problem: str) -> None:
    logger.info("%s is off: %s; %s", patch.name, problem, patch.without)


_CORRECTNESS, _SPEED = Purpose.CORRECTNESS, Purpose.SPEED
_INDUCTOR = "torch._inductor.config"
_FUNCTORCH = "torch._functorch.config"

EMITTED_GRAPHS = Patch(
    "emitted graphs",
    "torch._inductor.output_code:CompiledFxGraph.post_compile",
    _CORRECTNESS,
    "shows each graph that Inductor compiled or loaded, whose peak is checked before it runs",
    "nothing tells what the compiled step takes",
    (("self", "example_inputs", "constants", "graph_kwargs"),),
)
EMITTED_CALLABLE = Patch(
    "emitted callable",
    "torch._inductor.output_code:CompiledFxGraph.current_callable",
    _CORRECTNESS,
    "runs an emitted graph on fake tensors, and stops calls at a forward",
    "nothing tells what the compiled step takes",
)
EMITTED_CONTEXT = Patch(
    "context of emitted graphs",
    "torch._inductor.output_code:CompiledFxGraph._compile_context",
    _SPEED,
    "keeps a dry run from using up what the first call needs to find tuned kernels",
    "kernels are tuned anew",
    since=(2, 14),
)
RETAINED_GRAPHS = Patch(
    "retained graphs",
    "torch._functorch._aot_autograd.runtime_wrappers:AOTDispatchAutograd.post_compile",
    _CORRECTNESS,
    "gives a backward that keeps its graph copies of what it writes over",
    "backward(retain_graph=True) would be refused, or find its values overwritten",
    (("spec",), ("compiled_fw_func", "compiled_bw_func")),
)
KERNEL_GROUPS = Patch(
    "kernel groups",
    "torch._inductor.codegen.cpp:CppScheduling.ready_to_flush",
    _CORRECTNESS,
    "ends a C++ kernel where the plan frees memory",
    "loops of a planned graph would hold memory that the plan frees",
    (("self",),),
)
PRODUCT_FUSION = Patch(
    "product fusion",
    "torch._inductor.fx_passes.post_grad:is_valid_addmm_fusion",
    _CORRECTNESS,
    "keeps mm + x apart where the fused product would hold what the plan frees",
    "fused products would take memory that was not planned",
    (("match",),),
)
LOOP_FUSION = Patch(
    "loop fusion",
    "torch._inductor.choices:InductorChoices.can_fuse",
    _CORRECTNESS,
    "fuses no loops of a planned graph over a kernel",
    "fused loops would hold memory that the plan frees",
    (("scheduler", "node1", "node2", "shared_data_score"),),
)
CHANGING_SIZES = Patch(
    "changing sizes",
    "torch._dynamo.variables.builder:is_dynamic_source",
    _CORRECTNESS,
    "has Dynamo's last compilation of a function serve all sizes",
    "sizes after the last compilation would run in eager, without a budget",
    (("source_name",),),
)
GRAPH_CODE = Patch(
    "code of graphs",
    "torch.fx.graph_module:GraphModule.recompile",
    _SPEED,
    "writes no Python code for graphs that nobody calls",
    "Python code is written for every graph in between",
    (("self",),),
)
NODE_ARGUMENTS = Patch(
    "arguments of nodes",
    "torch.fx.graph:pytree",
    _SPEED,
    "does not search the arguments of copied nodes for symbolic numbers",
    "making a node takes twice as long",
    since=(2, 13),
)
DEAD_CODE = Patch(
    "dead code",
    "torch.fx.graph:Graph.eliminate_dead_code",
    _SPEED,
    "finds dead code by its missing users",
    "torch's own pass looks at every node",
    (("self", "is_impure_node"),),
)
MINIMUM_CUT = Patch(
    "minimum cut",
    "networkx:minimum_cut",
    _SPEED,
    "solves the network of torch's partitioner part by part",
    "networkx solves all of it at once",
    (("flowG", "_s", "_t"),),
    before=(2, 15),  # torch has a solver of its own
)
EXTRACTION = Patch(
    "extraction",
    "torch._functorch.partitioners:_extract_graph_with_inputs_outputs",
    _SPEED,
    "extracts no graph twice",
    "torch extracts the backward twice",
    (("joint_graph", "inputs", "outputs", "outputs_descs"),),
)
CPU_KERNELS = Patch(
    "C++ kernels",
    "torch._inductor.async_compile:AsyncCompile.cpp_pybinding",
    _SPEED,
    "compiles no kernels of code that only serves a dry run",
    "kernels of tries that are given up are compiled, too",
)
PLAIN_CPU_KERNELS = Patch(
    "plain C++ kernels",
    "torch._inductor.async_compile:AsyncCompile.cpp",
    _SPEED,
    CPU_KERNELS.gives,
    CPU_KERNELS.without,
)
TRITON_KERNELS = Patch(
    "Triton kernels",
    "torch._inductor.async_compile:AsyncCompile.triton",
    _SPEED,
    CPU_KERNELS.gives,
    CPU_KERNELS.without,
)
BUFFER_REUSE = Patch(
    "setting: reuse of buffers",
    f"{_INDUCTOR}:allow_buffer_reuse",
    _CORRECTNESS,
    "frees memory where the plan frees it",
    "memory would be held beyond the plan",
)
REORDERING = Patch(
    "setting: order by peak",
    f"{_INDUCTOR}:reorder_for_peak_memory",
    _CORRECTNESS,
    "runs the kernels of a planned graph in the planned order",
    "kernels would run in another order than planned",
)
LAYOUT = Patch(
    "setting: layout",
    f"{_INDUCTOR}:layout_optimization",
    _CORRECTNESS,
    "runs convolutions without copies of their weights where those do not fit",
    "convolutions would take memory that was not planned",
)
PARTITIONER = Patch(
    "setting: partitioner",
    f"{_INDUCTOR}:custom_partitioner_fn",
    _CORRECTNESS,
    "cuts joint graphs as planned",
    "nothing would be planned",
)
KERNEL_CACHES = Patch(
    "setting: no caches",
    f"{_INDUCTOR}:force_disable_caches",
    _CORRECTNESS,
    "keeps code whose kernels were not compiled out of all caches",
    "a cache could hand out code that cannot run",
)
QUANTIZATION = Patch(
    "setting: passes after the cut",
    f"{_INDUCTOR}:post_grad_fusion_options",
    _CORRECTNESS,
    "quantizes saved values once, in the graphs that run",
    "saved values would be quantized in an outline of the graphs",
)
OWN_BUDGET = Patch(
    "setting: torch's budget",
    f"{_FUNCTORCH}:activation_memory_budget",
    _CORRECTNESS,
    "cuts as torch does without a budget of its own",
    "torch's budget would count beside the one asked for",
)
MERGING = Patch(
    "setting: merging",
    f"{_FUNCTORCH}:cse",
    _CORRECTNESS,
    "merges duplicates once",
    "nodes merged a second time would not be those that were planned",
)
STEP_CACHE = Patch(
    "setting: cache of steps",
    f"{_FUNCTORCH}:enable_autograd_cache",
    _CORRECTNESS,
    "has every joint graph planned",
    "a cache could hand out a step planned for another budget",
)
BACKWARD_AT_ONCE = Patch(
    "setting: backward at once",
    f"{_FUNCTORCH}:force_non_lazy_backward_lowering",
    _CORRECTNESS,
    "compiles the backward with the forward, to check both before the first step",
    "a step would run before its peak is known",
)

PATCHES: tuple[Patch, ...] = (
    EMITTED_GRAPHS,
    EMITTED_CALLABLE,
    EMITTED_CONTEXT,
    RETAINED_GRAPHS,
    KERNEL_GROUPS,
    PRODUCT_FUSION,
    LOOP_FUSION,
    CHANGING_SIZES,
    GRAPH_CODE,
    NODE_ARGUMENTS,
    DEAD_CODE,
    MINIMUM_CUT,
    EXTRACTION,
    CPU_KERNELS,
    PLAIN_CPU_KERNELS,
    TRITON_KERNELS,
    BUFFER_REUSE,
    REORDERING,
    LAYOUT,
    PARTITIONER,
    KERNEL_CACHES,
    QUANTIZATION,
    OWN_BUDGET,
    MERGING,
    STEP_CACHE,
    BACKWARD_AT_ONCE,
)
"""The table."""
