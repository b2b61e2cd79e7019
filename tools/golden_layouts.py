"""How the goldens' weights lie in files: SantaCoder's layouts, shards, GPTQ and AWQ. Used by make_goldens.py."""

import json
import pathlib

import torch
from safetensors.torch import load_file, save_file

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble i of a word holds this column of its eight
CONV1D_PARTS = ("c_attn", "q_attn", "kv_attn", "c_proj", "c_fc")


class SplitAttention(torch.nn.Module):
    """SantaCoder's separate projections behind the fused one's interface: q | k | v rows."""

    def __init__(self, fused: torch.nn.Linear):
        super().__init__()
        hidden = fused.in_features
        self.q_attn = torch.nn.Linear(hidden, hidden)
        self.kv_attn = torch.nn.Linear(hidden, fused.out_features - hidden)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.q_attn(hidden_states), self.kv_attn(hidden_states)], -1)


def is_split(case: str) -> bool:
    return case.endswith("conv1d-split")


def split_attention(model: torch.nn.Module) -> None:
    for block in model.transformer.h:
        block.attn.c_attn = SplitAttention(block.attn.c_attn)


def adapter_name(name: str) -> str:
    """The split projections stand right under `attn` in files."""
    return name.replace(".c_attn.q_attn.", ".q_attn.").replace(".c_attn.kv_attn.", ".kv_attn.")


def is_conv1d(raw: dict, name: str) -> bool:
    return raw["model_type"] == "gpt2" and name.endswith(".weight") and name.split(".")[-2] in CONV1D_PARTS


def pack(values: torch.Tensor, bits: int, axis: int) -> torch.Tensor:
    """[..., n, ...] small numbers -> int32 words of 32 / bits neighbours along `axis`, lowest bits first."""
    each = 32 // bits
    values = values.to(torch.int64).movedim(axis, -1)
    words = values.reshape(*values.shape[:-1], -1, each) << (torch.arange(each) * bits)
    return words.sum(-1).to(torch.uint32).view(torch.int32).movedim(-1, axis).contiguous()


def unpack(words: torch.Tensor, bits: int, axis: int) -> torch.Tensor:
    shifts = torch.arange(32 // bits) * bits
    values = (words.movedim(axis, -1).to(torch.int64)[..., None] >> shifts) & (2**bits - 1)
    return values.flatten(-2).movedim(-1, axis)


def awq_order(columns: torch.Tensor) -> torch.Tensor:
    return columns.reshape(columns.shape[0], -1, 8)[..., AWQ_ORDER].reshape(columns.shape)


def awq_unorder(columns: torch.Tensor) -> torch.Tensor:
    return columns.reshape(columns.shape[0], -1, 8)[..., torch.tensor(AWQ_ORDER).argsort()].reshape(columns.shape)


def quantise(weight: torch.Tensor, settings: dict, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """[out, in] float -> the tensors of one quantized linear layer; round to nearest, a scale and zero a group."""
    bits, columns = settings["bits"], weight.t().contiguous()  # [in, out]
    num_in = columns.shape[0]
    group = settings["group_size"] if settings["group_size"] > 0 else num_in
    g_idx = torch.arange(num_in) // group
    if settings.get("desc_act"):
        g_idx = g_idx[torch.randperm(num_in, generator=generator)]
    grouped = columns[g_idx.argsort(stable=True)].reshape(num_in // group, group, -1)
    top = 2**bits - 1
    if settings["sym"]:
        scales = (grouped.abs().amax(1) * 2 / top).half()
        zeros = torch.full_like(scales, 2 ** (bits - 1), dtype=torch.int64)
    else:
        low = grouped.amin(1).clamp(max=0)
        scales = ((grouped.amax(1).clamp(min=0) - low) / top).half()
        zeros = (-low / scales.float()).round().clamp(1, top).to(torch.int64)
    values = (columns / scales.float()[g_idx] + zeros[g_idx]).round().clamp(0, top).to(torch.int64)
    if settings["quant_method"] == "awq":
        return {
            "qweight": pack(awq_order(values), bits, 1),
            "qzeros": pack(awq_order(zeros), bits, 1),
            "scales": scales,
        }
    # The file holds zero - 1, as AutoGPTQ wrote it first.
    return {
        "qweight": pack(values, bits, 0),
        "qzeros": pack(zeros - 1, bits, 1),
        "scales": scales,
        "g_idx": g_idx.to(torch.int32),
    }


def dequantise(parts: dict[str, torch.Tensor], settings: dict) -> torch.Tensor:
    """-> [out, in] float32"""
    bits, scales = settings["bits"], parts["scales"].float()
    if settings["quant_method"] == "awq":
        values = awq_unorder(unpack(parts["qweight"], bits, 1))
        zeros = awq_unorder(unpack(parts["qzeros"], bits, 1))
        g_idx = torch.arange(values.shape[0]) // settings["group_size"]
    else:
        values, zeros = unpack(parts["qweight"], bits, 0), unpack(parts["qzeros"], bits, 1) + 1
        g_idx = parts["g_idx"].long()
    return ((values - zeros[g_idx]) * scales[g_idx]).t().contiguous()


def quantised_layers(model: torch.nn.Module, raw: dict) -> dict[str, torch.nn.Linear]:
    if "quantization_config" not in raw:
        return {}
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    }


def stored_parameters(model: torch.nn.Module, skipped: dict) -> dict[str, torch.nn.Parameter]:
    """Parameters by their names in files; of a tied pair, the embedding alone."""
    return {
        adapter_name(name): parameter
        for name, parameter in model.named_parameters()
        if name.removesuffix(".weight") not in skipped
    }


def write_weights(model: torch.nn.Module, raw: dict, out: pathlib.Path, sharded: bool) -> None:
    """Writes the checkpoint; quantized layers of `model` get the values that the file stands for."""
    generator = torch.Generator().manual_seed(0)
    layers = quantised_layers(model, raw)
    state = {}
    for name, layer in layers.items():
        parts = quantise(layer.weight.data, raw["quantization_config"], generator)
        layer.weight.data.copy_(dequantise(parts, raw["quantization_config"]))
        state |= {f"{name}.{part}": value for part, value in parts.items()}
    for name, parameter in stored_parameters(model, layers).items():
        value = parameter.data.t() if is_conv1d(raw, name) else parameter.data
        state[name] = value.to(torch.bfloat16).contiguous()
    shards = halves(state) if sharded else [state]
    names = (
        [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
        if sharded
        else ["model.safetensors"]
    )
    for shard, name in zip(shards, names, strict=True):
        save_file(shard, out / name, metadata={"format": "pt"})
    if sharded:
        total = sum(value.nbytes for value in state.values())
        weight_map = {key: name for shard, name in zip(shards, names, strict=True) for key in shard}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def halves(state: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    total, seen = sum(value.nbytes for value in state.values()), 0
    shards: list[dict[str, torch.Tensor]] = [{}, {}]
    for name in sorted(state):
        shards[2 * seen >= total][name] = state[name]
        seen += state[name].nbytes
    return shards


def read_weights(model: torch.nn.Module, raw: dict, folder: pathlib.Path) -> None:
    state = {}
    for path in sorted(folder.glob("model*.safetensors")):
        state |= load_file(path)
    layers = quantised_layers(model, raw)
    with torch.no_grad():
        for name, layer in layers.items():
            parts = {
                part: state.pop(f"{name}.{part}")
                for part in ("qweight", "qzeros", "scales", "g_idx")
                if f"{name}.{part}" in state
            }
            layer.weight.copy_(dequantise(parts, raw["quantization_config"]))
        for name, parameter in stored_parameters(model, layers).items():
            value = state.pop(name).float()
            parameter.copy_(value.t() if is_conv1d(raw, name) else value)
    if state:
        raise SystemExit(f"{folder}: left over {sorted(state)}")
