"""One training loop for base models, adapters and heads."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable

import torch

WARM_UP_SHARE = 0.04
LAST_RATE = 0.05  # of the peak, at the end of the cosine
REPORT_EVERY = 500


@dataclasses.dataclass(frozen=True)
class Schedule:
    steps: int
    peak_rate: float
    weight_decay: float = 0.0
    clip: float = 1.0

    def rate(self, step: int) -> float:
        warm_up = max(1, int(self.steps * WARM_UP_SHARE))
        if step < warm_up:
            return self.peak_rate * (step + 1) / warm_up
        done = (step - warm_up) / max(1, self.steps - warm_up)
        return self.peak_rate * (LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * done)))


def parameter_groups(parameters: Iterable[torch.nn.Parameter], weight_decay: float) -> list[dict]:
    """Matrices decay, vectors do not."""
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def train(
    name: str, parameters: Iterable[torch.nn.Parameter], loss_of_step: Callable[[int], torch.Tensor], schedule: Schedule
) -> dict:
    """Runs the schedule; `loss_of_step` computes a step's loss. Returns what the card says about the run."""
    groups = parameter_groups(parameters, schedule.weight_decay)
    trained = [parameter for group in groups for parameter in group["params"]]
    device = trained[0].device
    optimizer = torch.optim.AdamW(groups, lr=schedule.peak_rate, betas=(0.9, 0.95), fused=device.type == "cuda")
    began = time.monotonic()
    recent = torch.zeros((), device=device)
    for step in range(schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of_step(step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, schedule.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent = loss.detach() if step == 0 else 0.98 * recent + 0.02 * loss.detach()
        if (step + 1) % REPORT_EVERY == 0:
            print(f"{name}: step {step + 1}, loss {recent.item():.3f}, {time.monotonic() - began:.0f} s", flush=True)
    return {"steps": schedule.steps, "loss": round(recent.item(), 4), "seconds": round(time.monotonic() - began, 1)}


def next_token_loss(logits: torch.Tensor, labels: torch.Tensor, shift: int = 1) -> torch.Tensor:
    """logits [rows, tokens, vocab] against the label `shift` tokens on; labels [rows, tokens] i64."""
    return torch.nn.functional.cross_entropy(
        logits[:, :-shift].flatten(0, 1).float(), labels[:, shift:].flatten(), ignore_index=-100
    )
