"""Greedy decoding in float32 without a cache, many prompts at once."""

import dataclasses

import torch
from tokenizers import Tokenizer

from small_models import tasks
from small_models.families import Family


@dataclasses.dataclass
class Greedy:
    tokens: torch.Tensor  # [prompts, new tokens] i64
    gaps: torch.Tensor  # [prompts, new tokens] f32: top logit less the second
    largest: torch.Tensor  # [prompts, new tokens] f32: the largest |logit|


@torch.no_grad()
def decode(model: torch.nn.Module, prompts: list[list[int]], num_new: int, stop_id: int | None = None) -> Greedy:
    """Rows are padded on the right, which causal attention does not see. Ends early once each row has had `stop_id`."""
    device = next(model.parameters()).device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    rows = torch.arange(len(prompts), device=device)
    ids = torch.zeros(len(prompts), int(lengths.max()) + num_new, dtype=torch.int64, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt)
    tokens, gaps, largest = [], [], []
    stopped = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for step in range(num_new):
        hidden = model(input_ids=ids[:, : int(lengths.max()) + step], use_cache=False).logits
        logits = hidden[rows, lengths + step - 1].float()
        top = logits.topk(2)
        tokens.append(top.indices[:, 0])
        gaps.append(top.values[:, 0] - top.values[:, 1])
        largest.append(logits.abs().amax(-1))
        ids[rows, lengths + step] = tokens[-1]
        if stop_id is not None:
            stopped |= tokens[-1] == stop_id
            if stopped.all():
                break
    return Greedy(torch.stack(tokens, 1).cpu(), torch.stack(gaps, 1).cpu(), torch.stack(largest, 1).cpu())


def answers(
    model: torch.nn.Module, family: Family, tokenizer: Tokenizer, items: list[tasks.Item], num_new: int
) -> list[str]:
    """Greedy text of each item's prompt, up to the end token."""
    eos = tokenizer.token_to_id(family.eos)
    prompts = [tokenizer.encode(family.prompt_text(item.prompt)).ids for item in items]
    decoded = decode(model, prompts, num_new, eos).tokens.tolist()
    cut = [row[: row.index(eos)] if eos in row else row for row in decoded]
    return [tokenizer.decode(row) for row in cut]


def score(model: torch.nn.Module, family: Family, tokenizer: Tokenizer, items: list[tasks.Item], num_new: int) -> int:
    """How many items are answered exactly."""
    texts = answers(model, family, tokenizer, items, num_new)
    return sum(tasks.is_right(text, item.answer) for text, item in zip(texts, items, strict=True))
