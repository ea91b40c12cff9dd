"""Training steps of a BERT encoder with different attentions."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Callable, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from .plan import Settings
from .progress import Progress
from .report import Table, quotient, ratio
from .svg import Chart, number
from .timing import Call, measure
from .verify import check
from .workloads import BACKENDS, OURS, PEERS, Peer, Shape, draw

Tensor = torch.Tensor


class Config(NamedTuple):
    name: str
    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int
    seqlen: int
    dropout: float = 0.0  # of the attention's weights and, in training, of what each block adds
    causal: bool = False
    norm_first: bool = False  # before each block, as GPT-2 has it, not after, as BERT has it
    rate: float = 3e-4  # of learning, in the curves


BERT_BASE = Config("BERT-base", layers=12, hidden=768, heads=12, feed_forward=3072, vocabulary=30522, seqlen=512)
QUICK = Config(
    "a small encoder, not BERT-base", layers=2, hidden=64, heads=2, feed_forward=128, vocabulary=512, seqlen=64
)
PREDICTED = 0.15  # of the tokens, as in BERT's pre-training
# The values in the place of attention: as fast as a step can become by it.
NO_ATTENTION = "none"
ATTENTIONS = {**PEERS, NO_ATTENTION: Peer("no attention", lambda q, k, v, causal, dropout_p: v, False)}


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.causal, self.norm_first = config.heads, config.causal, config.norm_first
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.projection = nn.Linear(config.hidden, config.hidden)
        self.norm = nn.LayerNorm(config.hidden)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.hidden, config.feed_forward), nn.GELU(), nn.Linear(config.feed_forward, config.hidden)
        )
        self.last_norm = nn.LayerNorm(config.hidden)
        self.dropout = nn.Dropout(config.dropout)

    def _attend(self, x: Tensor, attention: str) -> Tensor:
        peer = ATTENTIONS[attention]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        if peer.heads_first:
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        out = peer.attend(q, k, v, self.causal, self.dropout.p if self.training else 0.0)
        if peer.heads_first:
            out = out.transpose(1, 2)
        return self.dropout(self.projection(out.flatten(2)))

    def forward(self, x: Tensor, attention: str) -> Tensor:
        if self.norm_first:
            x = x + self._attend(self.norm(x), attention)
            return x + self.dropout(self.feed_forward(self.last_norm(x)))
        x = self.norm(x + self._attend(x, attention))
        return self.last_norm(x + self.dropout(self.feed_forward(x)))


class Bert(nn.Module):
    """BERT with its head for masked words; without dropout every attention computes the same numbers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.hidden)
        self.positions = nn.Embedding(config.seqlen, config.hidden)
        self.norm = nn.LayerNorm(config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.layers)])
        self.head = nn.Sequential(nn.Linear(config.hidden, config.hidden), nn.GELU(), nn.LayerNorm(config.hidden))
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))
        for embedding in (self.words, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def encode(self, tokens: Tensor, attention: str) -> Tensor:
        x = self.dropout(self.norm(self.words(tokens) + self.positions.weight[: tokens.shape[1]]))
        for layer in self.layers:
            x = layer(x, attention)
        return x

    def forward(self, tokens: Tensor, places: Tensor, words: Tensor, attention: str) -> Tensor:
        """The loss of predicting `words` at `places` of the flattened batch."""
        x = self.head(self.encode(tokens, attention).flatten(0, 1)[places])
        return F.cross_entropy(F.linear(x, self.words.weight, self.bias).float(), words)


def training_steps(
    config: Config,
    batch: int,
    settings: Settings,
    network: Callable[[Config], nn.Module] = Bert,
    captured: bool = False,
) -> dict[str, Call]:
    """A call for every peer that trains one shared model by a step on random tokens. captured: by CUDA graphs."""
    torch.manual_seed(0)
    device = settings.device
    model = network(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, capturable=captured)
    tokens = torch.randint(config.vocabulary, (batch, config.seqlen), device=device)
    places = torch.randperm(batch * config.seqlen, device=device)[: int(PREDICTED * batch * config.seqlen)]
    words = torch.randint(config.vocabulary, places.shape, device=device)

    def step(attention: str) -> None:
        mixed = settings.dtype != torch.float32
        with torch.autocast(device.type, settings.dtype) if mixed else nullcontext():
            loss = model(tokens, places, words, attention)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return {name: (lambda name=name: step(name)) for name in settings.everyone}


BATCHES = {128: 32, 256: 32, 512: 16, 1024: 8}  # by sequence length, on a GPU
_QUICK_BATCHES = {32: 2, 64: 2}
_TOKENS = 1024  # of a batch on a CPU


def speed_table(
    name: str, title: str, batches: dict[int, int], dropout: float, settings: Settings, progress: Progress
) -> Table:
    """Samples per second of training steps, by sequence length."""
    base = QUICK if settings.quick else BERT_BASE
    rows, data = [], []
    for seqlen, batch in batches.items():
        progress.step(f"{name} {seqlen}")
        config = base._replace(seqlen=seqlen, dropout=dropout)
        shape = Shape(batch, seqlen, config.heads, config.hidden // config.heads)
        for one in (OURS, *[peer for peer in settings.peers if peer in BACKENDS]):
            check(shape, draw(shape, settings.dtype, settings.device), gradients=True, name=one)
        measured = measure(training_steps(config, batch, settings), settings.device, settings.budget)
        speeds = {one: quotient(batch, measured[one].seconds) for one in settings.everyone}
        samples = {one: len(measured[one].samples) for one in settings.everyone}
        data.append({"x": seqlen, "batch": batch, "samples_per_second": speeds, "samples": samples})
        cells = [str(seqlen), str(batch), speed(speeds[OURS])]
        for one in settings.peers:
            cells += [speed(speeds[one]), ratio(quotient(speeds[OURS], speeds[one]))]
        rows.append(tuple(cells))
    header = ["seqlen", "batch", "flashwave, samples/s"]
    for one in settings.peers:
        header += [f"{PEERS[one].label}, samples/s", "speed-up"]
    mixed = "" if settings.dtype == torch.float32 else ", autocast without loss scaling"
    text = (
        f"Training steps of {base.name}: {base.layers} layers, hidden {base.hidden}, {base.heads} heads, dropout "
        f"{dropout:g}, random tokens, AdamW in fp32{mixed}. A step is forward, loss at 15% of the tokens, backward and "
        "optimizer; speed-up is flashwave's rate over the peer's."
    )
    chart = Chart(
        title,
        f"{base.name}, dropout {dropout:g}, on {settings.device.type}; higher is better",
        "seqlen",
        "samples/s",
        tuple(row[0] for row in rows),
        {PEERS[one].label: tuple(row["samples_per_second"][one] for row in data) for one in settings.everyone},
    )
    return Table(name, title, text, tuple(header), rows, [], chart, data)


def speed(rate: float | None) -> str:
    """Samples per second in a cell of a table."""
    return "-" if rate is None else number(rate)


def bert_table(settings: Settings, progress: Progress) -> Table:
    batches = _QUICK_BATCHES if settings.quick else BATCHES
    if not settings.quick and settings.device.type != "cuda":
        batches = {seqlen: max(1, _TOKENS // seqlen) for seqlen in BATCHES}
    title = "Training of a small encoder" if settings.quick else "BERT-base training"
    return speed_table("bert", title, batches, settings.dropout, settings, progress)
