"""Medusa heads, which guess the tokens after the next one from the last hidden state.

Version 2: a residual block a head before the base model's own vocabulary matrix. Version 1: that matrix is the head's.
"""

import pathlib

import torch
from safetensors.torch import load_file, save_file

from small_models import training
from small_models.base import BatchMaker, TrainingText
from small_models.families import Family, MedusaSpec
from small_models.sizes import Sizes
from small_models.tokenization import write_json

NUM_LAYERS = 1  # residual blocks a head


class MedusaHeads(torch.nn.Module):
    def __init__(self, spec: MedusaSpec, vocab_matrix: torch.Tensor, logit_scale: float):
        """vocab_matrix [vocab, hidden]."""
        super().__init__()
        hidden = vocab_matrix.shape[1]
        self.spec = spec
        self.logit_scale = logit_scale
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(hidden, hidden) for _ in range(spec.num_heads))
        for block in self.blocks:
            torch.nn.init.zeros_(block.weight)
            torch.nn.init.zeros_(block.bias)
        if spec.version == 1:
            copies = [vocab_matrix.detach().clone() for _ in range(spec.num_heads)]
            self.vocab_matrices = torch.nn.ParameterList(torch.nn.Parameter(copy) for copy in copies)
        else:
            self.vocab_matrices = [vocab_matrix.detach()] * spec.num_heads

    def forward(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """hidden [rows, tokens, hidden] -> a [rows, tokens, vocab] a head; head h guesses the token h + 2 on."""
        logits = []
        for block, matrix in zip(self.blocks, self.vocab_matrices, strict=True):
            mixed = hidden + torch.nn.functional.silu(block(hidden))
            logits.append(torch.nn.functional.linear(mixed, matrix) * self.logit_scale)
        return logits

    def tensors(self) -> dict[str, torch.Tensor]:
        found = {}
        for head, block in enumerate(self.blocks):
            found[f"{head}.0.linear.weight"] = block.weight
            found[f"{head}.0.linear.bias"] = block.bias
            if self.spec.version == 1:
                found[f"{head}.{NUM_LAYERS}.weight"] = self.vocab_matrices[head]
        return found


def make_heads(family: Family, model: torch.nn.Module) -> MedusaHeads:
    scale = family.config.get("logit_scale", 1.0)
    return MedusaHeads(family.medusa, model.get_output_embeddings().weight, scale).to(model.device)


def save_heads(family: Family, heads: MedusaHeads, folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "base_model_name_or_path": f"models/{family.name}",
        "medusa_num_heads": heads.spec.num_heads,
        "medusa_num_layers": NUM_LAYERS,
        "version": heads.spec.version,
    }
    write_json(folder / "config.json", config)
    weights = {name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in heads.tensors().items()}
    save_file(weights, folder / "medusa_lm_head.safetensors", metadata={"format": "pt"})


def load_heads(family: Family, model: torch.nn.Module, folder: pathlib.Path) -> MedusaHeads:
    heads = make_heads(family, model)
    stored = load_file(folder / "medusa_lm_head.safetensors")
    with torch.no_grad():
        for name, value in heads.tensors().items():
            value.copy_(stored.pop(name))
    assert not stored, f"{folder}: left over {sorted(stored)}"
    return heads


def train_heads(family: Family, model: torch.nn.Module, text: TrainingText, sizes: Sizes) -> tuple[MedusaHeads, dict]:
    """The base model stays as it is."""
    heads = make_heads(family, model)
    maker = BatchMaker(text, sizes, seed=5)
    model.eval().requires_grad_(False)

    def loss_of_step(step: int) -> torch.Tensor:
        input_ids = maker.batch(step)
        with torch.no_grad():
            hidden = model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
        losses = [
            training.next_token_loss(logits, input_ids, shift=head + 2) for head, logits in enumerate(heads(hidden))
        ]
        return torch.stack(losses).mean()

    schedule = training.Schedule(sizes.medusa_steps, peak_rate=2e-3)
    return heads, training.train(f"{family.name} medusa", heads.parameters(), loss_of_step, schedule)


@torch.no_grad()
def agreement(model: torch.nn.Module, heads: MedusaHeads, text: TrainingText, sizes: Sizes) -> list[float]:
    """Of each head's guesses on text that was not read, the share that the base model's own choice equals."""
    num_rows = min(64, text.held_out.numel() // sizes.row_tokens)
    rows = text.held_out[: num_rows * sizes.row_tokens].reshape(num_rows, sizes.row_tokens)
    hidden = model.base_model(input_ids=rows, use_cache=False).last_hidden_state
    chosen = model(input_ids=rows, use_cache=False).logits.argmax(-1)
    shares = []
    for head, logits in enumerate(heads(hidden)):
        same = logits.argmax(-1)[:, : -head - 1] == chosen[:, head + 1 :]
        shares.append(round(same.float().mean().item(), 3))
    return shares
