"""Measures a training step of torch.nn.Transformer.

Usage: step_torch.py float32|bfloat16 [compile] [paper]

With "compile", `torch.compile` compiles model and loss. With "paper", dropout is where the paper
has it: not on the attention weights, nor inside the feed-forward network. On a GPU, the program
also measures the rate of a product of two matrices of 8,192 x 8,192.
"""

import sys

import torch
from setting import (
    BATCH,
    D_MODEL,
    DROPOUT,
    HEADS,
    INTERMEDIATE,
    LAYERS,
    SMOOTHING,
    SOURCE,
    TARGET,
    VOCAB,
    rate_of,
    report,
    time_steps,
)
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, D_MODEL, padding_idx=0)
        self.transformer = nn.Transformer(
            D_MODEL, HEADS, LAYERS, LAYERS, INTERMEDIATE, DROPOUT, batch_first=True
        )
        self.register_buffer("positions", torch.randn(1, 512, D_MODEL))
        self.dropout = nn.Dropout(DROPOUT)

    def embed(self, ids):
        states = self.embedding(ids) * D_MODEL**0.5 + self.positions[:, : ids.shape[1]]
        return self.dropout(states)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(TARGET, device=target.device)
        states = self.transformer(
            self.embed(source), self.embed(target), tgt_mask=mask, tgt_is_causal=True
        )
        return states @ self.embedding.weight.t()


half = sys.argv[1] == "bfloat16"
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = Model().to(device)
optimizer = torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
if "paper" in sys.argv[2:]:
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
        elif isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
            module.dropout.p = 0.0
source, target, labels = (
    torch.randint(1, VOCAB, (BATCH, length), device=device) for length in (SOURCE, TARGET, TARGET)
)


def loss_of(source, target, labels):
    with torch.autocast(device, torch.bfloat16, enabled=half):
        logits = model(source, target).view(-1, VOCAB)
        return nn.functional.cross_entropy(logits, labels.view(-1), label_smoothing=SMOOTHING)


if "compile" in sys.argv[2:]:
    loss_of = torch.compile(loss_of)


def step():
    global loss
    loss = loss_of(source, target, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


seconds = time_steps(step, lambda: loss.item())
more = {}
if device == "cuda":
    more["peak_memory_mb"] = torch.cuda.max_memory_allocated() / 2**20
    first, second = torch.randn(2, 8192, 8192, device=device, dtype=torch.bfloat16)
    more["matrix_rate"] = rate_of(lambda: first @ second, lambda _: torch.cuda.synchronize())
report(seconds, **more)
