"""The lines that random programs are made of, and the inputs and uses: tables of Python text with holes.

A hole is the name of a kind of value, such as ``{any}``; `HOLES` says which values fill it.  A line that starts with
``!`` is a statement; the result of any other one gets a name.
"""

# ruff: noqa: E501 (a table reads best with one row a line)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

BATCH, WIDTH, ROWS, CLASSES = 48, 32, 20, 256
"""Sizes of most inputs, rows of the embedding, and numbers for each row of logits."""

MEMBERS = {
    "weight": "nn.Parameter(torch.randn(W, W, dtype=D) / W**0.5)",
    "other": "nn.Parameter(torch.randn(W, W, dtype=D) / W**0.5)",
    "bias": "nn.Parameter(torch.randn(W, dtype=D))",
    "table": "nn.Parameter(torch.randn(20, W, dtype=D) / 4)",
    "frozen": "nn.Parameter(torch.randn(W, W, dtype=D) / W**0.5, requires_grad=False)",
    "unread": "nn.Parameter(torch.randn(3, dtype=D))",
    "scale": "nn.Buffer(torch.full((W,), 1.5, dtype=D))",
    "state": "nn.Buffer(torch.ones(W, dtype=D))",
    "count": "nn.Buffer(torch.tensor(1.0, dtype=D))",
    "calls": "nn.Buffer(torch.tensor(0))",
    "norm": "nn.BatchNorm1d(W, dtype=D)",
    "drop": "nn.Dropout(0.2)",
    "linear": "nn.Linear(W, W, dtype=D)",
    "tied": "nn.Linear(W, W, dtype=D)",
    "wide": "nn.Sequential(nn.Linear(W, 3 * W, dtype=D), nn.GELU(), nn.Linear(3 * W, W, dtype=D))",
    "rate": "0.5",
    "fails": "False",
    "conv": "nn.Conv1d(1, 3, 3, padding=1, dtype=D)",
}
"""What a program's module may have: name and constructor.  `tied` shares its weight with `linear`."""


class Hole(NamedTuple):
    """What a hole asks for: the value, what filled the line's first hole, and the program's main dtype."""

    value: Tensor
    first: Tensor | None
    main: torch.dtype


def _matching(hole: Hole) -> bool:
    return hole.first is not None and hole.value.shape == hole.first.shape and hole.value.dtype == hole.first.dtype


def _wide(hole: Hole) -> bool:
    shape = hole.value.shape
    return len(shape) == 2 and shape[0] > 1 and shape[1] == WIDTH and hole.value.dtype == hole.main


def _mask(hole: Hole) -> bool:
    return hole.value.dtype == torch.bool and (hole.first is None or hole.value.shape == hole.first.shape)


def _labels(hole: Hole) -> bool:
    return hole.first is not None and hole.value.dtype == torch.int64 and hole.value.shape == hole.first.shape[:1]


def _made(hole: Hole) -> bool:
    try:
        made = hole.value.grad_fn is not None
    except RuntimeError:  # another view of its base was changed in place, so that it is of no use any more
        return False
    return hole.value.is_floating_point() and made and hole.value.dim() > 0


def _fixed(hole: Hole) -> bool:
    return hole.value.is_floating_point() and not hole.value.requires_grad and hole.value.dim() > 0


HOLES: dict[str, Callable[[Hole], bool]] = {
    "any": lambda hole: hole.value.is_floating_point(),
    "same": _matching,
    "wide": _wide,
    "mask": _mask,
    "matrix": lambda hole: hole.value.is_floating_point() and hole.value.dim() == 2 and hole.value.numel() > 0,
    "whole": lambda hole: hole.value.dtype == torch.int64 and hole.value.dim() == 1,
    "logits": lambda hole: hole.value.is_floating_point() and hole.value.shape[1:] == (CLASSES,),
    "labels": _labels,
    "number": lambda hole: hole.value.dtype == torch.int64,
    "scalar": lambda hole: hole.value.is_floating_point() and hole.value.dim() == 0,
    "made": _made,
    "made_input": _made,
    "fixed_input": _fixed,
    "whole_input": lambda hole: hole.value.dtype == torch.int64,
}
"""Which values fill a hole; those that end in ``_input`` only take what the program was given."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Alternatives that one feature is made of, and how often it is drawn relative to others."""

    weight: int
    texts: tuple[str, ...]


LINES: dict[str, Lines] = {
    "pointwise": Lines(8, ("torch.sin({any})", "torch.tanh({any})", "F.gelu({any})", "torch.sigmoid({any})",
                           "F.silu({any})", "F.relu({any})", "{any} * 0.5 + 1", "torch.exp(-{any}.abs())")),
    "binary": Lines(6, ("{any} + {same}", "{any} * {same}", "{any} - 2 * {same}", "torch.maximum({any}, {same})",
                        "torch.lerp({any}, {same}, 0.3)", "{any} * {scalar}")),
    "matmul": Lines(7, ("self.linear({wide})", "F.linear({wide}, self.weight, self.bias)", "{wide} @ self.other",
                        "self.wide({wide})", "{wide} @ {wide}.t() @ {wide} / 48")),
    "tied weights": Lines(2, ("self.tied(self.linear({wide}))", "{wide} @ self.table.t() @ self.table",
                              "{wide} @ self.weight @ self.weight.t()")),
    "frozen": Lines(2, ("{wide} @ self.frozen", "{any} + {any}.detach()", "{wide} @ self.frozen.exp()")),
    "normalise": Lines(3, ("torch.softmax({wide}, -1)", "F.layer_norm({wide}, (W,), self.bias)",
                           "{wide} / ({wide}.norm(dim=-1, keepdim=True) + 1)")),
    "batch norm": Lines(2, ("self.norm({wide})",)),
    "dropout": Lines(5, ("F.dropout({any}, 0.3)", "self.drop({any})", "F.alpha_dropout({any}, 0.2)",
                         "F.dropout({any} * 1.5, 0.5, inplace=True)", "F.feature_alpha_dropout({wide}, 0.2)")),
    "random": Lines(4, ("{any} + torch.rand_like({any})", "{any} * torch.bernoulli(torch.full_like({any}, 0.6))",
                        "{any} * torch.randn({any}.shape, dtype={any}.dtype)", "torch.rand_like({any})",
                        "{any} + torch.randint(0, 3, {any}.shape).to({any}.dtype)", "F.rrelu({any}, training=True)")),
    "reduce": Lines(5, ("{matrix}.sum(-1)", "{matrix}.mean(0)", "{any}.sum()", "{matrix}.amax(-1, keepdim=True)",
                        "torch.logsumexp({matrix}, 0)", "{matrix}.cumsum(0) / 20", "{any}.var()")),
    "several results": Lines(3, ("{matrix}.max(-1)[0]", "sum(torch.var_mean({matrix}, -1))", "{matrix}.sort(-1)[0]",
                                 "{matrix}.topk(2, -1)[0]", "torch.aminmax({matrix})[1]")),
    "views": Lines(7, ("{matrix}.t()", "{any}.reshape(-1)", "{matrix}[:5]", "{matrix}[..., 1::2]", "{any}.unsqueeze(0)",
                       "{matrix}.chunk(2, -1)[1]", "{matrix}.unbind(0)[1]", "{matrix}.diagonal()", "{any}.view_as({any})",
                       "{matrix}.narrow(0, 0, 1)", "{any}.squeeze()", "{wide}.unflatten(1, (4, -1)).transpose(1, 2)")),
    "expand": Lines(2, ("{any}.unsqueeze(0).expand(2, *{any}.shape)", "{scalar}.expand(B, W)",
                        "{matrix}[:1].expand({matrix}.shape)", "{matrix}.sum(-1, keepdim=True).expand_as({matrix})")),
    "contiguous": Lines(2, ("{matrix}.t().contiguous()", "{any}.clone()", "{matrix}.t().reshape(-1)")),
    "join": Lines(2, ("torch.cat(({any}, {same}))", "torch.stack(({any}, {same}), -1)", "torch.cat(({matrix}, {matrix}))")),
    "gather": Lines(3, ("self.table[{whole} % 20]", "F.embedding({whole} % 20, self.table)", "{matrix}[{whole} % 2]",
                        "{wide}.index_select(1, {whole} % W)",
                        "torch.zeros(20, W, dtype={wide}.dtype).index_add(0, torch.arange({wide}.shape[0]) % 20, {wide})")),
    "whole numbers": Lines(3, ("{matrix}.argmax(-1)", "({any} * 3).to(torch.int64)", "{number} + 1", "{whole} * 2 % 7",
                               "torch.arange(B)", "{matrix}.sort(-1)[1]", "{number}.sum()", "{mask}.sum()")),
    "masks": Lines(3, ("{any} > 0", "{any} < {same}.detach()", "~{mask}", "{mask}.logical_or({mask})")),
    "masked": Lines(3, ("torch.where({any} > 0, {any}, {same})", "{any}.masked_fill({mask}, 0.25)", "{any} * {mask}",
                        "torch.where({any}.abs() < 1, {any} * 2, 0.1)")),
    "precision": Lines(3, ("{any}.to(torch.float64)", "{any}.to(torch.float32)", "{any}.to(torch.bfloat16)", "{any}.to(D)",
                           "{any} + {number}.to(D).mean()")),
    "convolution": Lines(1, ("self.conv({wide}.unsqueeze(1)).mean(1)",)),
    "attention": Lines(2, ("F.scaled_dot_product_attention({wide}[None, None], {wide}[None, None], {wide}[None, None])[0, 0]",
                           "F.scaled_dot_product_attention({wide}[None], {wide}[None] * 2, {wide}[None], dropout_p=0.2)[0]")),
    "autocast": Lines(1, ("!with torch.autocast('cpu', torch.bfloat16): {new} = self.linear({wide})",)),
    "checkpoint": Lines(3, ("checkpoint(self.block, {wide}, use_reentrant=False)",
                            "checkpoint(self.block, {wide}, use_reentrant=True)",
                            "checkpoint(self.block, {wide}, use_reentrant=False, context_fn=keep_products)")),
    "custom function": Lines(3, ("Curved.apply({any}, {same})", "WithMask.apply({any})[0]", "WithMask.apply({any})[1]",
                                 "KeepsResult.apply({any})[0]", "sum(KeepsResult.apply({any}))")),
    "custom operator": Lines(3, ("scaled({any})", "summed({wide}, torch.tensor([0, 1, {wide}.shape[0]]))", "told({any})",
                                 "scaled(scaled({any}))")),
    "communication": Lines(2, ("exchanged({any})", "gathered({matrix})", "gathered(exchanged({matrix}))",
                               "{any} + exchanged({any}.detach())")),
    "a number that changes": Lines(1, ("{any} * self.rate", "torch.where({any} > self.rate, {any}, 0.1)")),
    "branches": Lines(3, ("torch.cond({any}.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() + 1, ({any},))",
                          "scan(lambda h, u: (torch.tanh(h + u), h * u), torch.zeros(W, dtype=D), {wide})[1]",
                          "mapped(lambda rows: torch.tanh(rows).sin(), {wide})", "{any} + repeated({any}.detach())")),
    "changed in backward": Lines(2, ("ChangesSaved.apply({any}, {fixed_input})", "CountsBackwards.apply({any}, {fixed_input})",
                                     "CountsBackwards.apply({any}, self.state)", "ChangesSaved.apply({any}, self.state)")),
    "change a made value": Lines(7, ("!{made}.mul_(0.5)", "!{made}.add_(1)", "!{made}.relu_()", "!{made}[..., :1].zero_()",
                                     "!{made}.masked_fill_({mask}, 0.5)", "!{made}.copy_({same})", "!{made}[0] = 0.5",
                                     "!{made}.add_({same})", "!{made}.sigmoid_()", "!F.dropout({made}, 0.3, inplace=True)")),
    "change an input": Lines(5, ("!{fixed_input}.add_(1)", "!{fixed_input}[0].zero_()", "!{fixed_input}.copy_({same}.detach())",
                                 "!{fixed_input}.mul_(2)", "!{whole_input}.add_(1)", "!{fixed_input}.uniform_()")),
    "change an input with a gradient": Lines(7, ("!{made_input}.mul_(2)", "!{made_input}.relu_()", "!{made_input}.add_({same})",
                                                 "!{made_input}[..., :1].mul_(3)", "!{made_input}.tanh_()")),
    "change a buffer": Lines(4, ("!self.count.add_(1)", "!self.calls += 1", "!self.scale.mul_(0.9).add_({any}.detach().mean().to(D))",
                                 "!with torch.no_grad(): self.scale.copy_({wide}.mean(0))", "!self.state = self.state * 0.5 + 1")),
    "read a buffer": Lines(4, ("torch.sin({wide} * self.scale.clone() * 3)", "{any} / (self.count.abs() + 1)", "{wide} * self.scale",
                               "{any} * (self.calls + 1)", "{wide} + self.state")),
    "change a parameter": Lines(1, ("!with torch.no_grad(): self.table.mul_(0.9)", "!with torch.no_grad(): self.bias.add_(0.1)",
                                    "!self.bias.detach().mul_(0.5)", "!self.frozen.add_(0.01)")),
    "change data": Lines(3, ("!{fixed_input}.data = {fixed_input}.data * 0.9 + 1", "!self.scale.data = self.scale.data * 0.9 + 0.1",
                             "!{fixed_input}.data = {same}.detach().clone()", "!self.frozen.data = self.frozen.data.t().contiguous()",
                             "!self.bias.data = self.bias.data * 0.9", "!self.table.data.mul_(0.9)", "!{fixed_input}.data.add_(1)",
                             "!self.scale.data, self.state.data = self.state.data, self.scale.data")),
    "set storage": Lines(2, ("!{fixed_input}.set_({same}.detach() * 1)", "!with torch.no_grad(): self.scale.set_(self.scale * 0.9)",
                             "!with torch.no_grad(): self.scale.set_({wide}.detach().mean(0).to(D))",
                             "!with torch.no_grad(): self.frozen.set_({wide}.detach().t() @ {wide}.detach() / 48)")),
    "change form": Lines(1, ("!{fixed_input}.t_()", "!{fixed_input}.unsqueeze_(0)", "!{fixed_input}.squeeze_()", "!{fixed_input}.t_().mul_(0.9)",
                             "!{fixed_input}.requires_grad_()", "!{fixed_input}.resize_({fixed_input}.shape)")),
    "inference mode": Lines(1, ("!with torch.inference_mode(): self.count.add_(1)", "!with torch.inference_mode(): {fixed_input}.mul_(0.5)")),
    "without gradients": Lines(1, ("!with torch.no_grad(): {new} = {any} * 2 + 1", "{any}.detach().sin() + {same}", "{any}.detach()")),
    "nothing": Lines(1, ("{matrix}[:0]", "{matrix}[:0].sum() + {matrix}.sum()", "torch.cat(({matrix}[:0], {matrix}))")),
    "graph break": Lines(1, ("!torch._dynamo.graph_break()",)),
    "graph break in a loop": Lines(1, ("!for _ in range(2): torch._dynamo.graph_break(); {new} = torch.sin({any})",)),
    "bad batch": Lines(1, ("!if self.fails: raise ValueError('bad batch')",)),
}  # fmt: skip
"""What stands in the forward of a program, by feature."""


@dataclass(frozen=True, slots=True)
class InputKind:
    """How an input is made.

    Attributes:
        weight: How often it is drawn, relative to others.
        text: Python text with the names ``{leaf}`` and ``{x}`` to be assigned; ``{leaf}`` gets a gradient.
        outside: How many times the bytes of the input autograd may take outside of what is compiled.
    """

    weight: int
    text: str
    outside: int = 0


INPUTS: dict[str, InputKind] = {
    "leaf": InputKind(8, "{x} = {leaf} = torch.randn(B, W, dtype=D).requires_grad_()"),
    "plain": InputKind(6, "{x} = torch.randn(B, W, dtype=D)"),
    "made": InputKind(5, "{leaf} = torch.randn(B, W, dtype=D).requires_grad_(); {x} = {leaf}.clone()"),
    "transposed": InputKind(2, "{leaf} = torch.randn(W, B, dtype=D).requires_grad_(); {x} = {leaf}.t()"),
    "transposed plain": InputKind(1, "{x} = torch.randn(W, B, dtype=D).t()"),
    "expanded": InputKind(1, "{x} = torch.randn(1, W, dtype=D).expand(B, W)"),
    "expanded leaf": InputKind(1, "{leaf} = torch.randn(1, W, dtype=D).requires_grad_(); {x} = {leaf}.expand(B, W)", 2),
    "overlapping": InputKind(1, "{x} = torch.randn(B + W, dtype=D).as_strided((B, W), (1, 1))"),
    "part of a larger one": InputKind(1, "{x} = torch.randn(2 * B, W, dtype=D)[::2]"),
    "part of a larger leaf": InputKind(
        1, "{leaf} = torch.randn(2 * B, W, dtype=D).requires_grad_(); {x} = {leaf}[B:]", 4
    ),
    "the same again": InputKind(1, "{x} = x0", 2),
    "view of the first": InputKind(2, "{x} = x0.t()", 3),
    "rows of the first": InputKind(1, "{x} = x0[:5]", 3),
    "whole numbers": InputKind(4, "{x} = torch.randint(0, W, (B,))"),
    "mask": InputKind(2, "{x} = torch.rand(B, W) > 0.4"),
    "scalar": InputKind(2, "{x} = {leaf} = torch.randn((), dtype=D).requires_grad_()"),
    "empty": InputKind(1, "{x} = {leaf} = torch.randn(0, W, dtype=D).requires_grad_()"),
    "double": InputKind(1, "{x} = {leaf} = torch.randn(B, W, dtype=torch.float64).requires_grad_()"),
    "half": InputKind(1, "{x} = {leaf} = torch.randn(B, W, dtype=torch.bfloat16).requires_grad_()"),
    "large leaf": InputKind(2, "{x} = {leaf} = torch.randn(4 * B, W, dtype=D).requires_grad_()"),
}
"""How the inputs are made.  The first one of a program is a leaf, a made or a plain one."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a training step does with the compiled module.

    Attributes:
        weight: How often it is drawn, relative to others.
        lines: The body of ``step(call, leaves, inputs)``; ``{d}`` are the positions of differentiable outputs.
        slack_bytes: What the eager code of the step may take outside of what is compiled.
        exact: Whether nothing runs in eager but the start of the backward, so that the prediction is exact.
    """

    weight: int
    lines: tuple[str, ...]
    slack_bytes: int = 0
    exact: bool = False


USES: dict[str, Use] = {
    "backward": Use(20, ("out = call(*inputs)", "out[0].backward()", "return out"), exact=True),
    "outputs dropped": Use(4, ("call(*inputs)[0].backward()", "return []"), exact=True),
    "grad": Use(3, ("out = call(*inputs)",
                    "return [*out, *torch.autograd.grad(out[0], leaves, allow_unused=True)]"), 64),
    "twice": Use(2, ("out = call(*inputs)", "out[0].backward(retain_graph=True)", "out[0].backward()", "return out"), 64),
    "two losses": Use(2, ("out = call(*inputs)", "out[0].backward(retain_graph=True)",
                          "out[{second}].sum().backward()", "return out"), 64),
    "another output": Use(2, ("out = call(*inputs)", "out[{second}].sum().backward()", "return out"), 64),
    "all outputs": Use(3, ("out = call(*inputs)", "sum(out[i].sum().to(torch.float64) for i in {d}).backward()",
                           "return out"), 1024),
    "two calls": Use(2, ("out = call(*inputs)", "again = call(*inputs)", "(out[0] + again[0]).backward()",
                         "return [*out, *again]"), 128),
    "a call in vain": Use(1, ("call(*inputs)", "out = call(*inputs)", "out[0].backward()", "return out"), 64),
    "saved hooks": Use(2, ("with torch.autograd.graph.saved_tensors_hooks(lambda v: (v.data_ptr(), v)[1], lambda v: v):",
                           "    out = call(*inputs)", "out[0].backward()", "return out"), 64),
    "checkpoint around": Use(2, ("out = checkpoint(call, *inputs, use_reentrant=False)", "out[0].backward()",
                                 "return out"), 2**30),
    "other numbers": Use(2, ("getattr(call, '_orig_mod', call).rate = float(torch.randint(1, 9, ())) / 10",
                             "out = call(*inputs)", "out[0].backward()", "return out"), 64),
    "a bad batch first": Use(1, ("module = getattr(call, '_orig_mod', call)", "module.fails = True",
                                 "try: call(*inputs)", "except ValueError: pass",
                                 "module.fails = False", "out = call(*inputs)", "out[0].backward()", "return out"), 64),
    "buffers updated late": Use(2, ("out = call(*inputs)", "module = getattr(call, '_orig_mod', call)",
                                    "for buffer in module.buffers(): buffer.mul_(0.5) if buffer.is_floating_point() else 0",
                                    "out[0].backward()", "return out"), 4096),
    "two modules in turns": Use(2, ("module = getattr(call, '_orig_mod', call)", "out = call(*inputs)",
                                    "out[0].backward()", "module.beside[0].zero_grad()", "again = module.beside[0](*inputs)", "again[0].backward()",
                                    "return [*out, *again, *(p.grad for p in module.beside[0].parameters())]"), 4096),
    "no backward": Use(1, ("with torch.no_grad():", "    return call(*inputs)")),
}  # fmt: skip
"""How a step uses the module."""
