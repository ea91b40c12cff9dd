"""Training with dropout: loss curves with different attentions, and samples per second by sequence length.

Curves of one model differ only by rounding and, with dropout, by the masks: how much that is, two runs show that have
nothing of flashwave in them. Tokens are sequences of equal steps through a few hundred words, some of them replaced by
others: a model learns first the words, then the steps, so that the loss falls within 50 steps.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from .bert import BATCHES, BERT_BASE, PREDICTED, QUICK, Bert, Config, Layer, speed_table
from .plan import Settings
from .progress import Progress
from .report import Table
from .svg import Chart
from .verify import check
from .workloads import OURS, PEERS, Shape, backends_on, draw

Tensor = torch.Tensor

GPT_SMALL = Config(
    "GPT, small", layers=6, hidden=512, heads=8, feed_forward=2048, vocabulary=8192, seqlen=1024, causal=True,
    norm_first=True, rate=1e-4,
)  # fmt: skip
_QUICK_GPT = QUICK._replace(name="a small decoder", causal=True, norm_first=True)
_DROPOUT = 0.1
_STEPS, _QUICK_STEPS, _WARM_UP = 50, 6, 10
_WORDS, _STRIDES, _REPLACED = 256, 7, 0.1
_FLOOR = 0.02  # difference of losses that is no difference: what bf16 alone makes of a loss of several units


class Gpt(nn.Module):
    """A decoder that predicts the next word."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.hidden)
        self.positions = nn.Embedding(config.seqlen, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.hidden)
        nn.init.normal_(self.words.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens: Tensor, places: Tensor, words: Tensor, attention: str) -> Tensor:
        x = self.dropout(self.words(tokens) + self.positions.weight[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x, attention)
        x = self.norm(x).flatten(0, 1)[places]
        return F.cross_entropy(F.linear(x, self.words.weight).float(), words)


class _Batch(NamedTuple):
    tokens: Tensor
    places: Tensor  # in the flattened batch, of what is predicted
    words: Tensor  # that belong there


def _batch(config: Config, size: int, generator: torch.Generator) -> _Batch:
    device, active = generator.device, min(_WORDS, config.vocabulary - 1)

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator, device=device)

    places = torch.arange(config.seqlen + 1, device=device)
    tokens = (integers(active, size, 1) + (1 + integers(_STRIDES, size, 1)) * places) % active
    replaced = torch.rand(tokens.shape, generator=generator, device=device) < _REPLACED
    tokens = torch.where(replaced, integers(active, *tokens.shape), tokens)
    if config.causal:
        return _Batch(tokens[:, :-1], torch.arange(size * config.seqlen, device=device), tokens[:, 1:].flatten())
    tokens = tokens[:, :-1].contiguous()
    count = int(PREDICTED * tokens.numel())
    hidden = torch.randperm(tokens.numel(), generator=generator, device=device)[:count]
    words = tokens.flatten()[hidden]
    tokens.view(-1)[hidden] = config.vocabulary - 1  # the word that stands for a hidden one
    return _Batch(tokens, hidden, words)


def curve(config: Config, attention: str, seed: int, size: int, steps: int, settings: Settings) -> list[float]:
    """The losses of a training. The model and the tokens are always the same, the masks of dropout are the seed's."""
    device, mixed = settings.device, settings.dtype != torch.float32
    torch.manual_seed(0)
    model = (Gpt if config.causal else Bert)(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.rate, fused=device.type == "cuda")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / _WARM_UP))
    generator = torch.Generator(device).manual_seed(1)
    torch.manual_seed(seed)
    losses = []
    for _ in range(steps):
        batch = _batch(config, size, generator)
        with torch.autocast(device.type, settings.dtype) if mixed else nullcontext():
            loss = model(*batch, attention)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def _apart(a: list[float], b: list[float]) -> float:
    """The largest difference of two curves at any step."""
    return max(abs(x - y) for x, y in zip(a, b))


class _Run(NamedTuple):
    attention: str
    seed: int


def _runs(dropout: float, ours: tuple[str, ...]) -> list[_Run]:
    """The yardstick, what shows how far two runs without flashwave are apart, and flashwave's."""
    other = _Run("sdpa", 2) if dropout else _Run("standard", 1)
    return [_Run("sdpa", 1), other, *[_Run(name, 1) for name in ours]]


def _curves(config: Config, size: int, steps: int, ours: tuple[str, ...], settings: Settings) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for run in _runs(config.dropout, ours):
        losses = curve(config, run.attention, run.seed, size, steps, settings)
        found.append({"x": config.name, "dropout": config.dropout, **run._asdict(), "losses": losses})
    noise = _apart(found[0]["losses"], found[1]["losses"])
    for one in found:
        one["apart"] = _apart(one["losses"], found[0]["losses"])
        # A curve of ours has masks of its own, as the second run has: it may be as far away, on the other side.
        one["within"] = one["apart"] <= 2.0 * noise + _FLOOR
    return found


def train_table(settings: Settings, progress: Progress) -> Table:
    """Curves of BERT and of a small GPT, with dropout and without."""
    steps = _QUICK_STEPS if settings.quick else _STEPS
    configs = (QUICK, _QUICK_GPT) if settings.quick else (BERT_BASE, GPT_SMALL)
    triton = tuple(name for name in backends_on(settings.device, settings.dtype) if name == "triton")
    ours = (OURS, *triton)
    tokens, data = 128 if settings.quick else 8192, []
    for config in configs:
        size = tokens // config.seqlen
        shape = Shape(size, config.seqlen, config.heads, config.hidden // config.heads, config.causal)
        for name in ours:
            check(shape, draw(shape, settings.dtype, settings.device), gradients=True, name=name)
        for dropout in (_DROPOUT, 0.0):
            progress.step(f"{config.name}, dropout {dropout:g}")
            data += _curves(config._replace(dropout=dropout), size, steps, ours, settings)
    shown = sorted({0, steps // 4, steps // 2, steps - 1})
    header = (
        "model",
        "dropout",
        "attention",
        "seed",
        *[f"loss, step {step + 1}" for step in shown],
        "apart",
        "within noise",
    )
    rows = []
    for one in data:
        cells = [one["x"], f"{one['dropout']:g}", PEERS[one["attention"]].label, str(one["seed"])]
        cells += [f"{one['losses'][step]:.3f}" for step in shown]
        rows.append((*cells, f"{one['apart']:.3f}", "yes" if one["within"] else "NO"))
    text = (
        f"Losses of {steps} steps of AdamW in {str(settings.dtype).replace('torch.', '')} (autocast), {tokens} tokens "
        "a step. `apart`: the largest difference from the first run of SDPA at any step; within noise: at most twice "
        "that of the second run without flashwave (the same attention with other masks, or without dropout standard "
        f"attention), and {_FLOOR:g}."
    )
    notes = [f"{row[0]}, dropout {row[1]}: {row[2]} is outside the noise." for row in rows if row[-1] == "NO"]
    return Table("train", "Training curves", text, header, rows, notes, _chart(data, settings), data)


def _chart(data: list[dict[str, Any]], settings: Settings) -> Chart:
    """The last loss of every run."""
    groups = list(dict.fromkeys((one["x"], one["dropout"]) for one in data))
    series: dict[str, dict[tuple[str, float], float]] = {}
    for one in data:
        name = f"{PEERS[one['attention']].label}, seed {one['seed']}"
        series.setdefault(name, {})[one["x"], one["dropout"]] = one["losses"][-1]
    return Chart(
        "Loss after training",
        f"after {len(data[0]['losses'])} steps on {settings.device.type}",
        "",
        "loss",
        tuple(f"{name}, dropout {dropout:g}" for name, dropout in groups),
        {name: tuple(found.get(group) for group in groups) for name, found in series.items()},
    )


# --------------------------------------------------------------------------------------------------------------- speed


def train_speed_table(settings: Settings, progress: Progress) -> Table:
    """Steps of BERT-base with dropout by sequence length, of as many tokens each."""
    triton = tuple(name for name in backends_on(settings.device, settings.dtype) if name == "triton")
    settings = settings._replace(peers=(*settings.peers, *[name for name in triton if name not in settings.peers]))
    tokens = 64 if settings.quick else 8192 if settings.device.type == "cuda" else 1024
    batches = {seqlen: tokens // seqlen for seqlen in ((32, 64) if settings.quick else BATCHES)}
    dropout = settings.dropout or _DROPOUT
    return speed_table("train-speed", "Training by sequence length", batches, dropout, settings, progress)
