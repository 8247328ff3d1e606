"""Random training programs: a few instructions over tensors, run by an ordinary module.

    inputs x0 x1 ─► [matmul, dropout, transpose, add_in_place, bump_buffer, ...] ─► several outputs

Every instruction names earlier values by position, so that values are read often, late, and through views.
Shapes are followed on meta tensors while a program is drawn, so that every program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

WIDTH = 8
"""Last dimension of what parameters and buffers can be applied to."""
BATCH = 4
VOCABULARY = 10
LARGEST = 8 * BATCH * WIDTH
"""Elements that a value may have; concatenations would grow without bound."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a program: the operation, its arguments by position, and a number that varies it."""

    name: str
    args: tuple[int, ...]
    knob: int


@dataclass(frozen=True, slots=True)
class Program:
    """What `ProgramModule` runs.

    Attributes:
        inputs: Whether each floating-point input requires a gradient.
        code: Instructions; value `i` is input `i`, then one value an instruction.
        outputs: Positions of what is returned.
    """

    inputs: tuple[bool, ...]
    code: tuple[Instruction, ...]
    outputs: tuple[int, ...]


class ProgramModule(nn.Module):
    """Runs a program; its parameters and buffers serve all operations."""

    running_mean: Tensor
    running_var: Tensor
    scale: Tensor
    count: Tensor

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)
        self.other = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.table = nn.Parameter(torch.randn(VOCABULARY, WIDTH))
        self.unused = nn.Parameter(torch.randn(3))
        self.frozen = nn.Parameter(torch.randn(WIDTH), requires_grad=False)
        self.register_buffer("running_mean", torch.zeros(WIDTH))
        self.register_buffer("running_var", torch.ones(WIDTH))
        self.register_buffer("scale", torch.full((WIDTH,), 1.5))
        self.register_buffer("count", torch.tensor(1.0))

    def forward(self, indices: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        values = list(inputs)
        for instruction in self.program.code:
            chosen = [values[i] for i in instruction.args]
            values.append(OPERATIONS[instruction.name].run(self, indices, instruction.knob, *chosen))
        return tuple(_returnable(values[i]) for i in self.program.outputs)


def _returnable(value: Tensor) -> Tensor:
    """The value, or a copy where torch 2.12 would fail on a dense tangent of an expanded output."""
    return value.clone() if torch.__version__.startswith("2.12.") and 0 in value.stride() else value


@dataclass(frozen=True, slots=True)
class Operation:
    """How an instruction is run, and which shapes it takes.

    Attributes:
        run: Gets the module, the indices, the knob and the arguments.
        fits: Whether arguments of these shapes are allowed.
        arity: How many arguments it has.
        weight: How often it is drawn, relative to the others.
    """

    run: Callable[..., Tensor]
    fits: Callable[..., bool]
    arity: int = 1
    weight: int = 2


def _any(*_: torch.Size) -> bool:
    return True


def _wide(a: torch.Size) -> bool:
    return len(a) >= 2 and a[-1] == WIDTH


def _batched(a: torch.Size) -> bool:
    return len(a) == 2 and a[-1] == WIDTH and a[0] > 1


def _matrix(a: torch.Size) -> bool:
    return len(a) >= 2


def _even(a: torch.Size) -> bool:
    return len(a) >= 1 and a[-1] % 2 == 0 and a[-1] > 1


def _same(a: torch.Size, b: torch.Size) -> bool:
    return a == b


def _can_multiply(a: torch.Size, b: torch.Size) -> bool:
    return len(a) == 2 and len(b) == 2 and a[1] == b[0]


def _can_concatenate(a: torch.Size, b: torch.Size) -> bool:
    return len(a) >= 1 and a == b and 2 * a.numel() <= LARGEST


def _small(a: torch.Size) -> bool:
    return len(a) >= 2 and 3 * a.numel() <= LARGEST


def _linear(m: ProgramModule, _: Tensor, knob: int, a: Tensor) -> Tensor:
    return F.linear(a, (m.weight, m.other)[knob % 2], m.bias if knob % 3 else None)


def _pointwise(m: ProgramModule, _: Tensor, knob: int, a: Tensor) -> Tensor:
    functions = (torch.sin, torch.tanh, torch.relu, F.gelu, torch.sigmoid, torch.square, F.silu, torch.exp)
    return functions[knob % 8](a * 0.5)


def _binary(m: ProgramModule, _: Tensor, knob: int, a: Tensor, b: Tensor) -> Tensor:
    return (a + b, a * b, a - 2 * b, torch.maximum(a, b), torch.where(a > 0, a, b))[knob % 5]


def _reduce(m: ProgramModule, _: Tensor, knob: int, a: Tensor) -> Tensor:
    if knob % 4 == 3:
        return a.sum(-1, keepdim=True).expand_as(a)
    return (a.sum(-1), a.mean(0), a.amax(-1, keepdim=True))[knob % 4]


def _normalise(m: ProgramModule, _: Tensor, knob: int, a: Tensor) -> Tensor:
    if knob % 2:
        return torch.softmax(a, -1)
    return F.layer_norm(a, (WIDTH,), m.bias, m.other[0])


def _batch_norm(m: ProgramModule, _: Tensor, knob: int, a: Tensor) -> Tensor:
    return F.batch_norm(a, m.running_mean, m.running_var, m.bias, None, training=True, momentum=0.1)


def _dropout(m: ProgramModule, _: Tensor, knob: int, a: Tensor) -> Tensor:
    return F.dropout(a, (0.1, 0.25, 0.5)[knob % 3], training=True)


def _noise(m: ProgramModule, _: Tensor, knob: int, a: Tensor) -> Tensor:
    if knob % 2:
        return a * torch.bernoulli(torch.full_like(a, 0.5))
    return a + torch.rand_like(a)


def _attention(m: ProgramModule, _: Tensor, knob: int, a: Tensor) -> Tensor:
    heads = a.reshape(1, -1, 2, WIDTH // 2).transpose(1, 2)
    out = F.scaled_dot_product_attention(heads, heads * 2, heads + 1, dropout_p=(0.0, 0.2, 0.5)[knob % 3])
    return out.transpose(1, 2).reshape(a.shape)


def _embed(m: ProgramModule, indices: Tensor, knob: int, a: Tensor) -> Tensor:
    rows = F.embedding(indices, m.table)
    return a + rows if a.shape == rows.shape else a * rows.mean(0)


def _tied(m: ProgramModule, _: Tensor, knob: int, a: Tensor) -> Tensor:
    return (a @ m.table.t()) @ m.table if knob % 2 else a @ m.weight @ m.weight.t()


def _view(m: ProgramModule, _: Tensor, knob: int, a: Tensor) -> Tensor:
    return (
        a.transpose(-1, -2),
        a.reshape(-1, a.shape[-1]),
        a.flatten(),
        a[: max(1, a.shape[0] // 2)],
        a.unsqueeze(0),
        a.detach() * 0.5 + a,
        a[..., 1::2] if a.shape[-1] > 1 else a.clone(),
        a.narrow(0, a.shape[0] - 1, 1),
    )[knob % 8]


def _split(m: ProgramModule, _: Tensor, knob: int, a: Tensor) -> Tensor:
    first, second = a.chunk(2, -1) if knob % 2 else torch.tensor_split(a, 2, -1)
    return first if knob % 4 < 2 else first * second


def _several(m: ProgramModule, _: Tensor, knob: int, a: Tensor) -> Tensor:
    if knob % 3 == 0:
        values, indices = a.max(-1)
        return values + indices.to(values.dtype)
    if knob % 3 == 1:
        variance, mean = torch.var_mean(a, -1, correction=0)
        return variance if knob % 2 else variance + mean
    values, _ = a.sort(-1)
    return values


def _in_place(m: ProgramModule, _: Tensor, knob: int, a: Tensor) -> Tensor:
    fresh = a * 1.25
    if knob % 4 == 0:
        return fresh.add_(1).mul_(m.count)
    if knob % 4 == 1:
        fresh[0].mul_(2)
        return fresh
    if knob % 4 == 2:
        fresh.relu_()
        fresh.flatten()[:1].zero_()
        return fresh
    view = fresh[..., :1]
    fresh.mul_(a.detach())
    return fresh + view


def _read_buffer(m: ProgramModule, _: Tensor, knob: int, a: Tensor) -> Tensor:
    old = torch.sin(a * m.scale.clone() * 3) if knob % 2 else a * m.scale.exp()
    if knob % 3 == 0:
        with torch.no_grad():
            m.scale.add_(0.5)
    return old


def _bump_buffer(m: ProgramModule, _: Tensor, knob: int, a: Tensor) -> Tensor:
    if knob % 3 == 0:
        m.count.add_(1)
        return a / m.count
    if knob % 3 == 1:
        m.scale.mul_(0.9).add_(a.detach().mean())
        return a * m.scale.sum()
    m.scale.copy_(a.detach().reshape(-1, WIDTH).mean(0))
    return a * m.frozen


OPERATIONS: dict[str, Operation] = {
    "linear": Operation(_linear, _wide, weight=4),
    "matmul": Operation(lambda m, i, k, a, b: a @ b, _can_multiply, 2, weight=4),
    "pointwise": Operation(_pointwise, _any, weight=5),
    "binary": Operation(_binary, _same, 2, weight=4),
    "reduce": Operation(_reduce, _matrix),
    "normalise": Operation(_normalise, _wide),
    "batch_norm": Operation(_batch_norm, _batched),
    "dropout": Operation(_dropout, _any, weight=4),
    "noise": Operation(_noise, _any),
    "attention": Operation(_attention, _batched),
    "embed": Operation(_embed, _wide, weight=1),
    "tied": Operation(_tied, _wide),
    "view": Operation(_view, _matrix, weight=5),
    "split": Operation(_split, _even),
    "cat": Operation(lambda m, i, k, a, b: torch.cat((a, b), -(k % 2)), _can_concatenate, 2),
    "expand": Operation(lambda m, i, k, a: a.unsqueeze(0).expand(3, *a.shape), _small, weight=1),
    "several": Operation(_several, _even),
    "in_place": Operation(_in_place, _matrix),
    "read_buffer": Operation(_read_buffer, _wide),
    "bump_buffer": Operation(_bump_buffer, _wide),
}
_NAMES = tuple(name for name, operation in OPERATIONS.items() for _ in range(operation.weight))


@st.composite
def programs(draw: st.DrawFn, max_instructions: int = 20) -> Program:
    """Programs of a few instructions with one to three outputs, views and inputs among them.

    The instructions come from a seed, so that programs differ as much as they can; a failing one shrinks in length.
    """
    random = Random(draw(st.integers(0, 2**32 - 1)))
    length = draw(st.integers(1, max_instructions))
    inputs = tuple(random.random() < 0.7 for _ in range(random.randint(1, 3)))
    shapes = [torch.Size((BATCH, WIDTH))] * len(inputs)
    code: list[Instruction] = []
    while len(code) < length:
        instruction = _random_instruction(random, shapes)
        if instruction is not None:
            code.append(instruction)
            shapes.append(shape_of(instruction, shapes))
    outputs = [len(shapes) - 1, *(random.randrange(len(shapes)) for _ in range(random.randrange(3)))]
    return without_dead_code(Program(inputs, tuple(code), tuple(outputs)))


def _random_instruction(random: Random, shapes: Sequence[torch.Size]) -> Instruction | None:
    """An instruction that fits some of the values, later ones more often; `None` when the draw does not fit."""
    name = random.choice(_NAMES)
    operation = OPERATIONS[name]
    first = max(0, len(shapes) - 1 - random.choice((0, 0, 0, 1, 2, 3, 5)))
    if operation.arity == 1:
        args: list[tuple[int, ...]] = [(first,)] if operation.fits(shapes[first]) else []
    else:
        args = [(first, i) for i in range(len(shapes)) if operation.fits(shapes[first], shapes[i])]
    return Instruction(name, random.choice(args), random.randrange(24)) if args else None


_META = ProgramModule(Program((), (), ())).to("meta")
_META_INDICES = torch.empty(BATCH, dtype=torch.int64, device="meta")


def shape_of(instruction: Instruction, shapes: Sequence[torch.Size]) -> torch.Size:
    """Shape of the instruction's result."""
    arguments = [torch.empty(shapes[i], device="meta") for i in instruction.args]
    with torch.no_grad():
        return OPERATIONS[instruction.name].run(_META, _META_INDICES, instruction.knob, *arguments).shape


def without_dead_code(program: Program) -> Program:
    """The program without instructions that no output needs: tracing drops them, and their random draws."""
    offset = len(program.inputs)
    needed = set(program.outputs)
    kept: list[int] = []
    for position in reversed(range(len(program.code))):
        if position + offset in needed:
            kept.append(position)
            needed.update(program.code[position].args)
    kept.reverse()
    moved = {i: i for i in range(offset)} | {old + offset: new + offset for new, old in enumerate(kept)}
    code = tuple(
        Instruction(program.code[i].name, tuple(moved[a] for a in program.code[i].args), program.code[i].knob)
        for i in kept
    )
    return Program(program.inputs, code, tuple(moved[o] for o in program.outputs))


def returns_an_input(program: Program) -> bool:
    """Whether an input that requires a gradient, or possibly a view of one, is returned."""
    aliases = {i for i, requires_grad in enumerate(program.inputs) if requires_grad}
    for position, instruction in enumerate(program.code, len(program.inputs)):
        may_be_view = instruction.name in ("view", "split", "expand", "reduce")
        if may_be_view and not aliases.isdisjoint(instruction.args):
            aliases.add(position)
    return not aliases.isdisjoint(program.outputs)


def inputs_of(program: Program, seed: int) -> tuple[Tensor, ...]:
    """Indices, then one tensor an input."""
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(VOCABULARY, (BATCH,), generator=generator)
    tensors = [torch.randn(BATCH, WIDTH, generator=generator).requires_grad_(r) for r in program.inputs]
    return (indices, *tensors)
