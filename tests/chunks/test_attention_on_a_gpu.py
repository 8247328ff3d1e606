"""The kernels of a GPU for attention, in chunks: as near to what is exact as they are whole."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from chunks.chunked import Chunked, beside_eager, step
from chunks.layer_programs import WIDTH, Model
from chunks.test_losses import DECOMPOSED, error
from remat_compiler.chunks.attention import ATTENTION, GRADIENTS
from remat_compiler.chunks.layers import chunk_layers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
LAYERS, CHUNKS, ROWS, EACH, HEADS = 2, 4, 128, 32, 8


class Seen(nn.Module):
    """Attention with rotated queries and keys.

    Args:
        keys: Heads of keys and values, of which several queries' heads may share one.
        fused: Whether queries, keys and values are of one product.
        masks: How many masks there are, one or one of each head; none for causal attention.
    """

    def __init__(self, keys: int = HEADS, *, fused: bool = False, masks: int = 0) -> None:
        super().__init__()
        self.keys, self.fused = keys, fused
        wide = (HEADS + 2 * keys) * EACH
        made = (wide,) if fused else (HEADS * EACH, keys * EACH, keys * EACH)
        self.parts = nn.ModuleList(nn.Linear(WIDTH, one) for one in made)
        self.out = nn.Linear(HEADS * EACH, WIDTH)
        self.slopes, self.rows = nn.Buffer(torch.rand(masks, 1, 1)), nn.Buffer(torch.linspace(-1, 1, ROWS))

    def forward(self, x: Tensor) -> Tensor:
        heads = (HEADS, self.keys, self.keys)
        made = [part(x) for part in self.parts]
        if self.fused:
            made = list(made[0].split([one * EACH for one in heads], -1))
        query, key, value = (one.unflatten(-1, (some, EACH)).transpose(1, 2) for one, some in zip(made, heads))
        if not self.fused:
            query, key = (
                torch.cat([one[..., :4] * self.rows[:, None].cos(), one[..., 4:]], -1).to(value.dtype)
                for one in (query, key)
            )
        shared, mask = self.keys < HEADS, None
        if len(self.slopes):
            mask = (self.slopes * self.rows).expand(-1, ROWS, ROWS)[None]
        seen = F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, enable_gqa=shared)
        return self.out(seen.transpose(1, 2).flatten(2))


PROGRAMS = {
    "alone": Seen,
    "shared": lambda: Seen(2),
    "fused": lambda: Seen(fused=True),
    "masked": lambda: Seen(masks=1),
    "masked_by_head": lambda: Seen(masks=HEADS),
}
KERNELS = {
    SDPBackend.FLASH_ATTENTION: ("alone", "shared", "fused"),
    SDPBackend.EFFICIENT_ATTENTION: ("alone", "fused", "masked", "masked_by_head"),
    SDPBackend.CUDNN_ATTENTION: ("alone", "shared", "fused", "masked"),
}
"""Programs that each kernel takes."""


@DECOMPOSED
@pytest.mark.parametrize(
    ("kernel", "name", "sequences"),
    [
        (kernel, name, sequences)
        for kernel, names in KERNELS.items()
        for name in names
        # A product of queries, keys and values is not cut by heads.
        for sequences in ((4,) if name == "fused" else (4, 1))
    ],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_attention_of_a_gpu_in_chunks(kernel: SDPBackend, name: str, sequences: int, decomposed: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Model(PROGRAMS[name], LAYERS).to("cuda", torch.bfloat16)
    given = torch.randn(sequences, ROWS, WIDTH, dtype=torch.bfloat16, device="cuda")
    backend = Chunked(CHUNKS, decomposed, chunk_layers)
    with sdpa_kernel(kernel):
        made, whole = beside_eager(backend, model, [given])
    kernels = Counter(node.target for node in backend.graph.nodes)
    (forward,), (backward,) = (tuple(some & kernels.keys()) for some in (ATTENTION, GRADIENTS))
    assert kernels[forward] == kernels[backward] == sum(one.count * one.chunks for one in backend.found) > LAYERS
    exact = step(model.double(), model, [given.double()])
    for one, other, right in zip(made, whole, exact, strict=True):
        assert error(one, right) <= 1.5 * error(other, right) + torch.finfo(torch.bfloat16).eps
