"""Random training programs, as Python source that runs by itself: what a seed draws never changes.

    program = draw(17)
    print(program.source)

A program is a module whose forward is a list of lines (`random_lines`), what makes its inputs, and a training step.
While it is drawn each line runs in eager, so that lines fit what stands before them; a program that eager cannot train,
or whose numbers overflow, is drawn again.
"""

from __future__ import annotations

import copy
import linecache
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from end_to_end import random_hooks, random_losses
from end_to_end.random_lines import BATCH, CLASSES, HOLES, INPUTS, LINES, MEMBERS, USES, WIDTH, Hole, InputKind, Lines

PRELUDE = """\
from functools import partial
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from end_to_end.custom_operators import exchanged, gathered, scaled, summed, told
from end_to_end.custom_functions import ChangesSaved, CountsBackwards, Curved, KeepsResult, WithMask
from end_to_end.random_losses import labels
from end_to_end import random_hooks

keep_products = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])


def repeated(x):
    start = (torch.zeros((), dtype=torch.int64), x)
    with torch.no_grad():
        return while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, torch.tanh(h) * 1.1), start)[1]


"""
BLOCK = """
    def block(self, a):
        return F.dropout(torch.tanh(F.linear(a, self.weight)) @ self.other, 0.2).sin()
"""
_USES_OUTPUTS = frozenset({"all outputs", "another output"})
STEPS = 3
"""How many steps a program must train in eager."""
_HOLE = re.compile(r"\{(\w+)\}")
_MAKES = re.compile(
    r"torch\.(zeros|ones|full|tensor|arange|linspace|randn|rand|randint)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*(?=\))"
)
"""A call that makes a tensor, up to its last bracket."""
_MEMBERS = {**MEMBERS, **random_losses.MEMBERS}
_FAILURES = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a forward.

    Attributes:
        text: Python text.
        feature: Its key in the table of lines.
    """

    text: str
    feature: str


@dataclass(frozen=True)
class Program:
    """A model, its inputs and a training step.

    Attributes:
        seed: What drew it.
        dtype: Name of the main dtype, such as ``float32``.
        dynamic: The argument `dynamic` of ``torch.compile``.
        inputs: Lines that make the inputs, one an input, and the kind of each.
        body: Lines of the forward.
        summed: Values that the loss is made of.
        outputs: What is returned besides the loss.
        use: Key in the table of uses.
        second: Position of another output that has a gradient, or 0.
        differentiable: Positions of all outputs that have a gradient.
        new_gradients: Whether gradients are dropped between steps.
        chunks: The option `chunks`.
        hooks: Post-accumulate hooks of parameters: a key of `random_hooks.HOOKS`, or nothing.
        device: Type of the device that it runs on.
    """

    seed: int
    dtype: str
    dynamic: bool | None
    inputs: tuple[Line, ...]
    body: tuple[Line, ...]
    summed: tuple[str, ...]
    outputs: tuple[str, ...]
    use: str
    second: int = 0
    differentiable: tuple[int, ...] = (0,)
    new_gradients: bool = True
    chunks: str | int = "never"
    hooks: str = ""
    device: str = "cpu"

    @property
    def features(self) -> frozenset[str]:
        """What it is made of: keys of the tables, each kind of input as ``input: kind`` and the use as ``use: key``."""
        inputs = {f"input: {line.feature}" for line in self.inputs}
        hooks = {f"hooks: {self.hooks}"} if self.hooks else set()
        return frozenset({line.feature for line in self.body} | inputs | hooks | {f"use: {self.use}"})

    @property
    def slack_bytes(self) -> int:
        """What eager code around the compiled module may take besides."""
        outside = sum(INPUTS[line.feature].outside for line in self.inputs)
        # Inputs that are returned as they are: the graph does not see them, and eager makes their gradients.
        outside += sum(output.startswith("x") for output in self.outputs) if self.use in _USES_OUTPUTS else 0
        return USES[self.use].slack_bytes + outside * BATCH * 32 * 8

    @property
    def breaks(self) -> bool:
        """Whether several calls of graphs make up its step."""
        return "graph break" in self.features or self.use == "two calls"

    @property
    def exact(self) -> bool:
        """Whether nothing but the compiled graphs takes memory, so that a prediction must be met to the byte."""
        dropped = self.use == "outputs dropped" and self.outputs  # the prediction takes all outputs to be held
        hooked = self.hooks and not random_hooks.HOOKS[self.hooks].exact
        return (
            USES[self.use].exact
            and not hooked
            and not dropped
            and not any(INPUTS[line.feature].outside for line in self.inputs)
        )

    @cached_property
    def source(self) -> str:
        """The program as Python text."""
        forward = [line.text for line in self.body]
        names = ", ".join(f"x{i}" for i in range(len(self.inputs)))
        text = "\n".join([*forward, *self.summed])
        block = BLOCK if "self.block" in text else ""
        used = set(re.findall(r"self\.(\w+)", text + block))
        members = [f"self.{name} = {made}" for name, made in _MEMBERS.items() if name in used | {"unread", "linear"}]
        if "tied" in used:
            members.append("self.tied.weight = self.linear.weight")
        if self.hooks:
            members.append(f"random_hooks.add(self, {self.hooks!r})")
        returned = ", ".join(["loss", *self.outputs])
        forward += [f"loss = sum(v.to(D).sin().sum() for v in ({', '.join(self.summed)},))", f"return {returned},"]
        given = [line.text for line in self.inputs]
        leaves = sorted(set(re.findall(r"\bl\d+\b", " ".join(given))))
        use = [text.format(second=self.second, d=self.differentiable) for text in USES[self.use].lines]
        return self._on_device("\n".join([
            PRELUDE + f"B, W, V, D = {BATCH}, {WIDTH}, {CLASSES}, torch.{self.dtype}",
            f"# seed {self.seed}, dynamic={self.dynamic}, chunks={self.chunks!r}\n\n",
            "class Model(nn.Module):", "    def __init__(self):", "        super().__init__()",
            *_indented(members, 8), block,
            f"    def forward(self, {names}):", *_indented(forward, 8), "", "",
            "def inputs():", *_indented([*given, f"return [{', '.join(leaves)}], [{names}]"], 4), "", "",
            "def step(call, leaves, inputs):", *_indented(use, 4), "",
        ]))  # fmt: skip

    def _on_device(self, source: str) -> str:
        """The source with all tensors made on its device, but for those of modules."""
        if self.device == "cpu":
            return source
        made = _MAKES.sub(rf"\g<0>, device={self.device!r}", source)
        return made.replace("autocast('cpu'", f"autocast({self.device!r}")

    def load(self) -> Loaded:
        """What the source defines."""
        name = f"<random program {self.seed}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(keepends=True), name)
        # A module that can be imported, since Dynamo imports what functions of branches and loops read from it.
        module = ModuleType(f"random_program_{self.seed}")
        sys.modules[module.__name__] = module
        exec(compile(self.source, name, "exec"), vars(module))
        return Loaded(lambda: module.Model().to(self.device), module.inputs, module.step)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What runs a program.

    Attributes:
        model: Makes the module.
        inputs: Makes the leaves and the arguments of a step.
        step: Called with the module, eager or compiled, the leaves, and the arguments; returns what came out.
    """

    model: Callable[[], nn.Module]
    inputs: Callable[[], tuple[list[Tensor], list[Tensor]]]
    step: Callable[..., Sequence[Any]]

    def made(self, compiled: Callable[[nn.Module], Any]) -> tuple[nn.Module, Any]:
        """A module and what is called in its place; its ``beside[0]`` is the same of a copy, for steps that use two."""
        model = self.model()
        model.beside = [compiled(copy.deepcopy(model))]  # type: ignore[assignment] - in a list, so that it is no part
        return model, compiled(model)


def _indented(lines: Sequence[str], by: int) -> list[str]:
    return [" " * by + line for line in lines]


def draw(seed: int) -> Program:
    """The program of a seed, always the same one."""
    for attempt in range(1000):
        program = _Draw(Random(1000 * seed + attempt), seed).program()
        if program is not None and trains(program):
            return program
    raise RuntimeError(f"seed {seed}: none of 1000 programs trains in eager; make the tables of lines less exotic")


def trains(program: Program) -> bool:
    """Whether eager trains it and every number stays finite."""
    loaded = program.load()
    torch.manual_seed(program.seed)
    model, _ = loaded.made(lambda module: module)
    try:
        for _ in range(STEPS):
            leaves, inputs = loaded.inputs()
            found = [*loaded.step(model, leaves, inputs), *(p.grad for p in model.parameters()), *leaves, *inputs]
            found += [leaf.grad for leaf in leaves] + [*model.state_dict().values()]
            if not all(_bounded(value) for value in found if isinstance(value, Tensor)):
                return False
    except (*_FAILURES, AssertionError, NameError, AttributeError):  # a check of torch itself is a failure, too
        return False
    return True


def _bounded(value: Tensor) -> bool:
    return not value.is_floating_point() or bool((value.detach().abs() < 1e4).all())


class _Draw:
    """Draws one program line by line, each one run in eager."""

    def __init__(self, random: Random, seed: int) -> None:
        self.random, self.seed = random, seed
        self.dtype = random.choice(("float32",) * 6 + ("float64",) * 2 + ("bfloat16",) * 2)
        self.main: torch.dtype = getattr(torch, self.dtype)
        self.scope: dict[str, Any] = {}
        self.given: list[str] = []
        self.made: list[str] = []
        self.unread: dict[str, None] = {}
        torch.manual_seed(seed)

    def program(self) -> Program | None:
        """A program, or `None` where the draw came to nothing."""
        inputs = self._draw_inputs()
        bare = Program(self.seed, self.dtype, None, inputs, (), (), (), "backward")
        members = _MEMBERS if random_losses.are_drawn(self.seed) else MEMBERS
        every = ", ".join(f"self.{name}" for name in (*members, "block"))
        whole = replace(bare, body=(Line(every, "pointwise"),), summed=("x0",))
        scope = self.scope
        exec(compile(whole.source, "<draw>", "exec"), scope)
        scope["self"] = scope["Model"]()
        scope |= {f"x{i}": value for i, value in enumerate(scope["inputs"]()[1])}
        self.given = [f"x{i}" for i in range(len(inputs))]
        body = self._draw_body()
        if random_losses.are_drawn(self.seed):
            features = random_losses.draw_features(self.random)
            body += filter(None, [self._line(feature, random_losses.LINES[feature]) for feature in features])
        return self._finished(replace(bare, body=tuple(body)))

    def _draw_body(self) -> list[Line]:
        body: list[Line] = []
        features, weights = list(LINES), [lines.weight for lines in LINES.values()]
        length = self.random.choice((3, 5, 8, 12, 16, 24))
        for _ in range(4 * length):
            if len(body) < length:
                feature = self.random.choices(features, weights)[0]
                line = self._line(feature, LINES[feature])
                body += [line] if line is not None else []
        return body

    def _draw_inputs(self) -> tuple[Line, ...]:
        kinds = [self.random.choice(("leaf", "leaf", "made", "plain"))]
        names, weights = list(INPUTS), [kind.weight for kind in INPUTS.values()]
        kinds += self.random.choices(names, weights, k=self.random.choice((0, 1, 1, 2, 2, 3)))
        return tuple(Line(_named(INPUTS[kind], i), kind) for i, kind in enumerate(kinds))

    def _line(self, feature: str, lines: Lines) -> Line | None:
        """A line of the feature that runs after those before, or `None`."""
        text = self.random.choice(lines.texts)
        filled: dict[str, str] = {"new": f"v{len(self.made)}"}
        first: Tensor | None = None
        for name in _HOLE.findall(text):
            if name in filled:
                continue
            chosen = self._value(name, first)
            if chosen is None:
                return None
            filled[name] = chosen
            first = self.scope[chosen] if first is None else first
        defines = not text.startswith("!") or "{new}" in text
        template = text[1:] if text.startswith("!") else "{new} = " + text
        line = _HOLE.sub(lambda hole: filled[hole.group(1)], template)
        if not self._runs(line, filled["new"] if defines else None):
            return None
        for name, value in filled.items():
            self.unread.pop(value, None)
            if name == "made" or (name == "new" and defines):
                self.unread[value] = None
        if defines:
            self.made.append(filled["new"])
        return Line(line, feature)

    def _value(self, hole: str, first: Tensor | None) -> str | None:
        """The name of a value that fits, later ones more often."""
        names = self.given if hole.endswith("_input") else [*self.given, *self.made]
        fitting = [
            n for n in names if HOLES[hole](Hole(self.scope[n], first, self.main)) and self.scope[n] is not first
        ]
        if not fitting:
            return None
        weights = [4.0 ** (3 * (i + 1) / len(fitting)) for i in range(len(fitting))]
        return self.random.choices(fitting, weights)[0]

    def _runs(self, line: str, new: str | None) -> bool:
        try:
            exec(line, self.scope)
        except _FAILURES:
            return False
        value = self.scope[new] if new else None
        return new is None or (isinstance(value, Tensor) and value.numel() <= 8 * BATCH * 64 and _bounded(value))

    def _finished(self, program: Program) -> Program | None:
        """The program with a loss that reads what nothing else reads, outputs, and a use."""
        random, scope = self.random, self.scope
        values = [*self.given, *self.made]
        floating = [name for name in self.unread if scope[name].is_floating_point()]
        summed = floating or [name for name in values if scope[name].is_floating_point()][-1:]
        if not any(scope[name].requires_grad for name in summed):
            return None
        outputs = [name for name in self.unread if name not in floating]
        outputs += random.choices(values, k=random.choice((0, 0, 1, 1, 2, 3)))
        outputs += random.choices(("None", f"{values[-1]}.detach()", f"({values[0]}, {values[-1]})[1].view(-1)", "2"),
                                  k=random.choice((0, 0, 0, 1)))  # fmt: skip
        random.shuffle(outputs)
        graded = [i for i, name in enumerate(outputs, 1) if name in scope and scope[name].requires_grad]
        use = random.choices(list(USES), [use.weight for use in USES.values()])[0]
        if not graded and use in ("two losses", "another output"):
            use = "backward"
        return replace(
            program,
            summed=tuple(summed),
            outputs=tuple(outputs),
            use=use,
            second=graded[-1] if graded else 0,
            differentiable=(0, *graded),
            dynamic=random.choice((None,) * 8 + (True,)),
            new_gradients=random.random() < 0.85,
            chunks=random_losses.draw_chunks(random) if random_losses.are_drawn(self.seed) else program.chunks,
            hooks=random_hooks.draw(random) if random_hooks.are_drawn(self.seed) else program.hooks,
        )


def _named(kind: InputKind, position: int) -> str:
    return kind.text.format(x=f"x{position}", leaf=f"l{position}")
