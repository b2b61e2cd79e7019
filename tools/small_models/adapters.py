"""Trains, saves and loads LoRA adapters with PEFT."""

import copy
import pathlib
import warnings

import peft
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from small_models import batches, greedy, tasks, training
from small_models.families import AdapterSpec, Family
from small_models.sizes import Sizes

VALIDATION_ITEMS = 200  # of the train items; they say when to stop
GOOD_ENOUGH = 0.98  # of them
LOW_ENOUGH = 0.02  # nats a token of the answer
PEAK_RATES = (2e-3, 1e-3)  # each attempt starts anew: too high a rate can blow up the residual stream for good

warnings.filterwarnings("ignore", category=UserWarning, module="peft")


def add_lora(model: torch.nn.Module, family: Family, spec: AdapterSpec) -> peft.PeftModel:
    config = peft.LoraConfig(
        r=spec.rank,
        lora_alpha=2 * spec.rank,
        lora_dropout=0.0,
        bias="none",
        target_modules=list(spec.targets),
        task_type="CAUSAL_LM",
        base_model_name_or_path=f"models/{family.name}",
    )
    return peft.get_peft_model(model, config)


def save_adapter(adapted: peft.PeftModel, folder: pathlib.Path) -> None:
    """As PEFT lays adapters out, in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    config = adapted.peft_config["default"]
    config.inference_mode = True
    config.target_modules = sorted(config.target_modules)
    config.save_pretrained(folder)
    state = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
    weights = {name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in state.items()}
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def load_adapter(model: torch.nn.Module, folder: pathlib.Path) -> peft.PeftModel:
    """In float32."""
    return peft.PeftModel.from_pretrained(model, str(folder)).float().eval()


def answer_tokens(labels: torch.Tensor) -> int:
    """The longest answer, end token included."""
    return int((labels != batches.IGNORED).sum(-1).max())


def train_adapter(
    family: Family, spec: AdapterSpec, model: torch.nn.Module, tokenizer: Tokenizer, sizes: Sizes
) -> tuple[peft.PeftModel, dict]:
    """Tries again more slowly where the validation items are not answered."""
    device = next(model.parameters()).device
    items, _ = tasks.make_items(tasks.TASKS[spec.task], sizes.train_items)
    validation, items = items[:VALIDATION_ITEMS], items[VALIDATION_ITEMS:] or items
    validation = validation[: sizes.checked_items]
    input_ids, labels = (rows.to(device) for rows in batches.item_rows(family, tokenizer, items))
    generator = torch.Generator(device).manual_seed(spec.rank)
    adapted, about = None, {}

    def loss_of_step(_: int) -> torch.Tensor:
        chosen = torch.randint(len(input_ids), (sizes.adapter_batch,), generator=generator, device=device)
        logits = adapted(input_ids=input_ids[chosen], use_cache=False).logits
        return training.next_token_loss(logits, labels[chosen])

    for rate in PEAK_RATES:
        adapted = add_lora(copy.deepcopy(model), family, spec).train()
        name = f"{family.name} {spec.task} at {rate}"
        about = training.train(name, adapted.parameters(), loss_of_step, training.Schedule(sizes.adapter_steps, rate))
        right = greedy.score(adapted.eval(), family, tokenizer, validation, answer_tokens(labels))
        about["validation"] = right / len(validation)
        print(f"{name}: {right} of {len(validation)} validation items", flush=True)
        if about["validation"] >= GOOD_ENOUGH and about["loss"] <= LOW_ENOUGH:
            break
    return adapted, about
