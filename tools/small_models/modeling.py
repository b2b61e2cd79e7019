"""The models in transformers' own classes; Solar is Mistral's with the mixing across layers hooked in."""

import contextlib
import json
import pathlib
import sys
import unittest.mock
from collections.abc import Iterator

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.falcon import modeling_falcon

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from make_goldens import add_bskcn, mistral_config  # noqa: E402

TIED = "lm_head.weight"


def model_config(raw: dict) -> transformers.PretrainedConfig:
    if raw["model_type"] == "solar":
        return mistral_config(raw)
    kept = {key: value for key, value in raw.items() if key not in ("architectures", "torch_dtype")}
    return transformers.AutoConfig.for_model(**kept)


def build_model(raw: dict) -> torch.nn.Module:
    """Float32, freshly initialised."""
    model = transformers.AutoModelForCausalLM.from_config(
        model_config(raw), dtype=torch.float32, attn_implementation="sdpa"
    )
    if raw["model_type"] == "solar":
        add_bskcn(model, raw)
    return model


def scale_initial_weights(model: torch.nn.Module, num_layers: int) -> None:
    """What writes to the residual stream starts smaller the deeper the model is."""
    into_residual = ("o_proj.weight", "down_proj.weight", "dense.weight", "dense_4h_to_h.weight", "c_proj.weight")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(into_residual):
                parameter.div_((2 * num_layers) ** 0.5)


def save_model(model: torch.nn.Module, path: pathlib.Path) -> None:
    """bfloat16, the tied head left out."""
    is_tied = model.config.tie_word_embeddings
    weights = {
        name: parameter.detach().to("cpu", torch.bfloat16).contiguous()
        for name, parameter in model.named_parameters()
        if not (is_tied and name == TIED)
    }
    save_file(weights, path, metadata={"format": "pt"})


def load_model(folder: pathlib.Path, device: str) -> torch.nn.Module:
    """The saved model in float32."""
    model = build_model(json.loads((folder / "config.json").read_text()))
    weights = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
    missing, left_over = model.load_state_dict(weights, strict=False)
    if left_over or [name for name in missing if name != TIED]:
        raise SystemExit(f"{folder}: missing {missing}, left over {left_over}")
    model.tie_weights()
    return model.to(device).eval()


@contextlib.contextmanager
def causal_without_mask() -> Iterator[None]:
    """Falcon always writes its causal mask out; without one, attention takes the fast path to the same result."""
    with unittest.mock.patch.object(modeling_falcon, "create_causal_mask", lambda **_: None):
        yield


def num_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
