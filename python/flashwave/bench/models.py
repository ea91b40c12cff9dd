"""Whole training steps of known models as CUDA graphs: what attention is worth to them, whatever the host costs."""

from __future__ import annotations

from typing import Callable, NamedTuple

import torch
from torch import nn

from .bert import ATTENTIONS, BERT_BASE, NO_ATTENTION, QUICK, Bert, Config, speed, training_steps
from .graphs import measure_graphs
from .plan import Settings
from .progress import Progress
from .report import Table, quotient, ratio
from .svg import Chart
from .timing import measure
from .train import Gpt
from .verify import check
from .workloads import OURS, Shape, draw

_DROPOUT = 0.1
_GPT2 = BERT_BASE._replace(name="GPT-2", vocabulary=50257, seqlen=1024, causal=True, norm_first=True)
_VIT = BERT_BASE._replace(name="ViT-B/16", vocabulary=1024, seqlen=197, norm_first=True)


class _Model(NamedTuple):
    config: Config
    batch: int
    network: Callable[[Config], nn.Module] = Bert


def _models(settings: Settings) -> list[_Model]:
    if settings.quick:
        return [_Model(QUICK, 2), _Model(QUICK._replace(name="a small decoder", causal=True), 2, Gpt)]
    tokens = 8192 if settings.device.type == "cuda" else 1024
    bert = [BERT_BASE._replace(seqlen=seqlen, dropout=_DROPOUT) for seqlen in (128, 256, 512, 1024)]
    models = [_Model(config, tokens // config.seqlen) for config in bert]
    models.append(_Model(_GPT2._replace(dropout=_DROPOUT), tokens // _GPT2.seqlen, Gpt))
    models.append(_Model(_VIT, tokens // 128))
    return models


def model_steps(settings: Settings) -> int:
    return len(_models(settings))


def models_table(settings: Settings, progress: Progress) -> Table:
    """Samples per second of training steps; on a GPU as CUDA graphs, forward, backward and optimizer."""
    graphs = settings.device.type == "cuda"
    shown = settings.everyone
    settings = settings._replace(peers=(*settings.peers, NO_ATTENTION))
    rows, data = [], []
    for config, batch, network in _models(settings):
        progress.step(f"models {config.name} {config.seqlen}")
        shape = Shape(batch, config.seqlen, config.heads, config.hidden // config.heads, causal=config.causal)
        check(shape, draw(shape, settings.dtype, settings.device), gradients=True, name=OURS)
        steps = training_steps(config, batch, settings, network, captured=graphs)
        if graphs:
            measured = measure_graphs({name: [call] for name, call in steps.items()}, settings.device, settings.budget)
        else:
            measured = measure(steps, settings.device, settings.budget)
        speeds = {name: quotient(batch, measured[name].seconds) for name in settings.everyone}
        model = f"{config.name}, {config.seqlen}"
        data.append({"x": model, "batch": batch, "dropout": config.dropout, "samples_per_second": speeds})
        cells = [config.name, str(config.seqlen), str(batch), f"{config.dropout:g}", speed(speeds[OURS])]
        for name in settings.peers:
            cells += [speed(speeds[name]), ratio(quotient(speeds[OURS], speeds[name]))]
        rows.append(tuple(cells))
    header = ["model", "seqlen", "batch", "dropout", "flashwave, samples/s"]
    for name in settings.peers:
        header += [f"{ATTENTIONS[name].label}, samples/s", "speed-up"]
    mixed = "" if settings.dtype == torch.float32 else ", autocast"
    how = "each captured in a CUDA graph, so that the host's time is left out" if graphs else "eager"
    text = (
        f"Training steps (forward, loss, backward, AdamW in fp32{mixed}) of models of these shapes, {how}. Tokens are "
        "random; ViT has words in the place of patches. No attention: the values themselves in its place, which is as "
        "fast as a step can become by attention."
    )
    chart = Chart(
        "Training steps",
        f"forward, backward and optimizer on {settings.device.type}; higher is better",
        "model and sequence length",
        "samples/s",
        tuple(one["x"] for one in data),
        {ATTENTIONS[name].label: tuple(one["samples_per_second"][name] for one in data) for name in shown},
    )
    return Table("models", "Training steps of models", text, tuple(header), rows, [], chart, data)
