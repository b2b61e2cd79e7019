"""Makes the checkpoints and logits of tests/goldens with Hugging Face transformers and PEFT, or verifies them.

A case is a folder with a config.json and, for each adapter, an adapter_*/adapter_config.json. `make` fills it with
seeded random weights (rounded to bfloat16) and what transformers answers; `verify` runs transformers on the stored
weights and compares. Needs tools/goldens-requirements.txt, apart from what the tests need:

  python -m venv /tmp/goldens && /tmp/goldens/bin/pip install -r tools/goldens-requirements.txt
  /tmp/goldens/bin/python tools/make_goldens.py verify
  /tmp/goldens/bin/python tools/make_goldens.py make --cases tests/goldens --out /tmp/new solar-tied
"""

import argparse
import copy
import json
import pathlib
import shutil
import sys
import warnings
import zlib

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.falcon import modeling_falcon

import golden_layouts

PROMPT_LENGTHS = [1, 7, 16, 33]
ADAPTER_PROMPTS = len(PROMPT_LENGTHS)  # the long one is for the base alone
LONG_PROMPT = 200
HAS_LONG_PROMPT = {"command-r-plus-like", "falcon-7b-like", "falcon-rw-like", "santacoder-mqa", "solar-pro-like"}
DYNAMIC_LENGTHS = [96, 96]  # dynamic rope fixes its table from the longest sequence, so both share it and none grows
SHARDED = {"solar-10.7b-like"}
GREEDY_TOKENS = 24
VERIFY_BOUND = 2e-5  # of the largest |logit|
EMBEDDINGS = ("embed_tokens", "word_embeddings", "wte", "wpe", "lm_head")


def exact_alibi(attention_mask: torch.Tensor, num_heads: int, dtype: torch.dtype) -> torch.Tensor:
    """transformers rounds slope x position to bfloat16; this keeps float32. -> [batch x heads, 1, positions]"""
    power = 2 ** (num_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    slopes += [2 ** (-4 * (2 * head + 1) / power) for head in range(num_heads - power)]
    positions = (attention_mask.cumsum(-1) - 1).masked_fill(attention_mask == 0, 0)[:, None, :]
    alibi = torch.tensor(slopes, dtype=torch.float32)[None, :, None] * positions
    return alibi.reshape(-1, 1, attention_mask.shape[-1]).to(dtype)


modeling_falcon.build_alibi_tensor = exact_alibi


def falcon_config(raw: dict) -> transformers.FalconConfig:
    """The legacy RefinedWeb spellings as transformers' FalconConfig."""
    return transformers.FalconConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        num_hidden_layers=raw["n_layer"],
        num_attention_heads=raw["n_head"],
        num_kv_heads=raw.get("n_head_kv"),
        multi_query=raw["multi_query"],
        new_decoder_architecture="n_head_kv" in raw,
        parallel_attn=raw["parallel_attn"],
        bias=raw["bias"],
        alibi=raw["alibi"],
        layer_norm_epsilon=raw["layer_norm_epsilon"],
        tie_word_embeddings=raw["tie_word_embeddings"],
    )


def bigcode_config(raw: dict) -> transformers.GPTBigCodeConfig:
    kept = {
        key: value for key, value in raw.items() if key not in ("architectures", "model_type", "attention_head_type")
    }
    return transformers.GPTBigCodeConfig(multi_query=raw["attention_head_type"] == "multiquery", **kept)


def mistral_config(raw: dict) -> transformers.MistralConfig:
    """Solar's layers are Mistral's (a Llama with a window); only the mixing across layers is its own."""
    dropped = ("architectures", "model_type", "attention_bias", "mlp_bias", "pretraining_tp")
    kept = {key: value for key, value in raw.items() if key not in dropped and not key.startswith("bskcn")}
    return transformers.MistralConfig(**{"sliding_window": None, **kept})


def add_bskcn(model: torch.nn.Module, raw: dict) -> None:
    """Saves and mixes the residual stream before the layers that the four lists name."""
    weight = raw["bskcn_tv"][1]
    saved: dict[int, torch.Tensor] = {}

    def hook_for(layer: int):
        def before(_, arguments):
            hidden = arguments[0]
            for slot, saves in enumerate(("bskcn_1", "bskcn_2")):
                if layer in raw[saves]:
                    saved[slot] = hidden
            for slot, mixes in enumerate(("bskcn_3", "bskcn_4")):
                if layer in raw[mixes]:
                    hidden = saved[slot] * weight + hidden * (1 - weight)
            return (hidden, *arguments[1:])

        return before

    for layer, module in enumerate(model.model.layers):
        module.register_forward_pre_hook(hook_for(layer))


def build_model(folder: pathlib.Path, raw: dict) -> torch.nn.Module:
    kind = raw["model_type"]
    if kind in ("RefinedWeb", "RefinedWebModel"):
        config = falcon_config(raw)
    elif kind == "gpt2":
        config = bigcode_config(raw)
    elif kind == "solar":
        config = mistral_config(raw)
    else:
        config = transformers.AutoConfig.from_pretrained(folder)
    config.quantization_config = None
    del config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    if kind == "solar":
        add_bskcn(model, raw)
    if golden_layouts.is_split(folder.name):
        golden_layouts.split_attention(model)
    return model


def random_value(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if "lora_" in name:
        value = 0.12 * noise
    elif name.endswith("bias"):
        value = 0.1 * noise
    elif any(part in name for part in ("norm", "ln_")):
        value = 1 + 0.2 * noise
    elif any(part in name for part in EMBEDDINGS):
        value = 0.5 * noise
    else:
        value = 1.6 / shape[1] ** 0.5 * noise
    return value.to(torch.bfloat16).float()


def randomise(model: torch.nn.Module, seed: int, only: str = "") -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if only in name:
                parameter.copy_(random_value(name, parameter.shape, generator))


def logits_of(model: torch.nn.Module, input_ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=input_ids[None], use_cache=False).logits[0].float()


def greedy_of(model: torch.nn.Module, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ids, tokens, gaps = input_ids, [], []
    for _ in range(GREEDY_TOKENS):
        top = logits_of(model, ids)[-1].topk(2)
        tokens.append(top.indices[0])
        gaps.append(top.values[0] - top.values[1])
        ids = torch.cat([ids, top.indices[:1]])
    return torch.stack(tokens), torch.stack(gaps)


def answers(
    model: torch.nn.Module, prompts: list[torch.Tensor], prefix: str, with_greedy: bool
) -> dict[str, torch.Tensor]:
    in_bfloat16 = copy.deepcopy(model).to(torch.bfloat16)
    tensors = {}
    for i, input_ids in enumerate(prompts):
        logits = logits_of(model, input_ids)
        error = (logits_of(in_bfloat16, input_ids) - logits) / logits.abs().max()
        key = f"{prefix}p{i}"
        tensors[f"{key}.input_ids"] = input_ids.clone()
        tensors[f"{key}.logits"] = logits
        tensors[f"{key}.bf16_error"] = torch.stack([error.abs().max(), error.square().mean().sqrt()])
        if with_greedy:
            tensors[f"{key}.greedy"], tensors[f"{key}.gap"] = greedy_of(model, input_ids)
    return tensors


def with_adapter(model: torch.nn.Module, adapter: pathlib.Path) -> peft.PeftModel:
    config = peft.LoraConfig.from_pretrained(adapter)
    return peft.get_peft_model(copy.deepcopy(model), config).eval()


def adapter_state(adapted: peft.PeftModel) -> dict[str, torch.Tensor]:
    return peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)


def write_adapter(adapted: peft.PeftModel, source: pathlib.Path, out: pathlib.Path) -> None:
    out.mkdir(parents=True)
    shutil.copy(source / "adapter_config.json", out)
    state = {
        golden_layouts.adapter_name(name): value.to(torch.bfloat16).contiguous()
        for name, value in adapter_state(adapted).items()
    }
    save_file(state, out / "adapter_model.safetensors", metadata={"format": "pt"})


def load_adapter(adapted: peft.PeftModel, folder: pathlib.Path) -> None:
    stored = load_file(folder / "adapter_model.safetensors")
    state = {name: stored.pop(golden_layouts.adapter_name(name)).float() for name in adapter_state(adapted)}
    if stored:
        raise SystemExit(f"{folder}: left over {sorted(stored)}")
    peft.set_peft_model_state_dict(adapted, state)


def make_prompts(name: str, raw: dict, seed: int) -> list[torch.Tensor]:
    lengths = PROMPT_LENGTHS + [LONG_PROMPT] * (name in HAS_LONG_PROMPT)
    if is_dynamic(raw):
        lengths = DYNAMIC_LENGTHS
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, raw["vocab_size"], (length,), generator=generator) for length in lengths]


def is_dynamic(raw: dict) -> bool:
    return (raw.get("rope_scaling") or {}).get("rope_type") == "dynamic"


def make(folder: pathlib.Path, out: pathlib.Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    seed = zlib.crc32(folder.name.encode())
    out.mkdir(parents=True)
    for name in ("config.json", "quantize_config.json"):
        if (folder / name).exists():
            shutil.copy(folder / name, out)
    model = build_model(folder, raw)
    randomise(model, seed)
    golden_layouts.write_weights(model, raw, out, folder.name in SHARDED)
    prompts = make_prompts(folder.name, raw, seed + 1)
    tensors = answers(model, prompts, "", not is_dynamic(raw))
    for i, adapter in enumerate(sorted(folder.glob("adapter_*"))):
        adapted = with_adapter(model, adapter)
        randomise(adapted, seed + 2 + i, only="lora_")
        write_adapter(adapted, adapter, out / adapter.name)
        tensors |= answers(
            adapted, prompts[:ADAPTER_PROMPTS], adapter.name.removeprefix("adapter_") + ".", not is_dynamic(raw)
        )
    save_file(tensors, out / "expected.safetensors")


def compare(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> list[str]:
    if expected.keys() != found.keys():
        return [f"keys differ: {sorted(expected.keys() ^ found.keys())}"]
    faults = []
    for key, value in expected.items():
        if value.shape != found[key].shape or value.dtype != found[key].dtype:
            faults.append(
                f"{key}: expected {value.dtype} {list(value.shape)}, found {found[key].dtype} {list(found[key].shape)}"
            )
        elif key.endswith(".logits"):
            error = ((value - found[key]).abs().max() / value.abs().max()).item()
            if error > VERIFY_BOUND:
                faults.append(f"{key}: off by {error:.2e} of the largest logit")
        elif key.endswith(".greedy"):
            limit = 2 * VERIFY_BOUND * expected[key.replace("greedy", "logits")].abs().max()
            sure = (expected[key.replace("greedy", "gap")] > limit).cumprod(0).bool()  # a near tie may part the streams
            if not torch.equal(value[sure], found[key][sure]):
                faults.append(f"{key}: other tokens")
    return faults


def verify(folder: pathlib.Path) -> list[str]:
    raw = json.loads((folder / "config.json").read_text())
    expected = load_file(folder / "expected.safetensors")
    model = build_model(folder, raw)
    golden_layouts.read_weights(model, raw, folder)
    prompts = [expected[f"p{i}.input_ids"] for i in range(len(expected)) if f"p{i}.input_ids" in expected]
    found = answers(model, prompts, "", not is_dynamic(raw))
    for adapter in sorted(folder.glob("adapter_*")):
        adapted = with_adapter(model, adapter)
        load_adapter(adapted, adapter)
        found |= answers(
            adapted, prompts[:ADAPTER_PROMPTS], adapter.name.removeprefix("adapter_") + ".", not is_dynamic(raw)
        )
    return compare(expected, found)


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("make", "verify"))
    parser.add_argument("names", nargs="*", help="cases; all when left out")
    parser.add_argument("--cases", type=pathlib.Path, default=root / "tests/goldens")
    parser.add_argument("--out", type=pathlib.Path, help="where `make` writes; must not exist yet for each case")
    arguments = parser.parse_args()
    if arguments.action == "make" and not arguments.out:
        parser.error("make needs --out")
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", category=UserWarning, module="peft")
    names = arguments.names or sorted(path.parent.name for path in arguments.cases.glob("*/config.json"))
    failed = 0
    for name in names:
        if arguments.action == "make":
            make(arguments.cases / name, arguments.out / name)
            print(f"{name}: made", flush=True)
        else:
            faults = verify(arguments.cases / name)
            failed += bool(faults)
            print(f"{name}: {'; '.join(faults) or 'agrees'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
