"""Folders for `shoal serve --load-format dummy`: a config, a tokenizer of one token a word, and adapters of random but
reproducible content, each different from all others."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import struct
from pathlib import Path

import numpy as np

Shapes = dict[str, tuple[int, int]]  # module path: (out_features, in_features)


@dataclasses.dataclass(frozen=True)
class AdapterSet:
    """Where the adapters of a run lie, and what they are."""

    folder: Path
    count: int
    bytes_each: int  # of the largest file
    rank: str

    @staticmethod
    def name(index: int) -> str:
        return f"a{index:05d}"


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    special = ["<unk>", "<s>", "</s>"]
    vocab = {token: index for index, token in enumerate(special)}
    vocab |= {f"w{index}": index for index in range(len(special), vocab_size)}
    added = [{"id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for index, token in enumerate(special)]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
              "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_model(folder: Path, config_file: Path) -> dict:
    """The config's values."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(config_file, folder / "config.json")
    config = json.loads(config_file.read_text())
    write_tokenizer(folder, config["vocab_size"])
    return config


def attention_modules(config: dict) -> Shapes:
    """The projections around attention: q, k, v and o, or what a family has in their place."""
    family = config["model_type"]
    layers = range(config.get("num_hidden_layers") or config["n_layer"])
    hidden = config.get("hidden_size") or config["n_embd"]
    if family in ("solar", "llama", "cohere"):
        head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
        query, key = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
        shapes = {"q_proj": (query, hidden), "k_proj": (key, hidden), "v_proj": (key, hidden),
                  "o_proj": (hidden, query)}
        return {f"model.layers.{layer}.self_attn.{name}": shape for layer in layers for name, shape in shapes.items()}
    if family == "falcon" and config["multi_query"] and not config["new_decoder_architecture"]:
        head_dim = hidden // config["num_attention_heads"]
        shapes = {"query_key_value": (hidden + 2 * head_dim, hidden), "dense": (hidden, hidden)}
        return {f"transformer.h.{layer}.self_attention.{name}": shape
                for layer in layers for name, shape in shapes.items()}
    raise ValueError(f"adapters for model_type {family!r} are not drawn here")


def _tensors(modules: Shapes, rank: int) -> tuple[bytes, int]:
    """The head of a safetensors file of bfloat16 pairs, and how many values follow it."""
    head, offset = {"__metadata__": {"format": "pt"}}, 0
    for path, (out_features, in_features) in modules.items():
        for half, shape in (("lora_A", (rank, in_features)), ("lora_B", (out_features, rank))):
            end = offset + 2 * shape[0] * shape[1]
            head[f"base_model.model.{path}.{half}.weight"] = {
                "dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
            offset = end
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, offset // 2


def _values(count: int, seed: int) -> bytes:
    """[count] bfloat16 of random sign, between 2^-7 and 2^-5 in size."""
    random_bits = np.frombuffer(np.random.default_rng([seed, 4]).bytes(2 * count), np.uint16)
    return ((random_bits & 0x80FF) | 0x3C00).astype(np.uint16).tobytes()


def write_adapters(root: Path, config: dict, count: int, ranks: tuple[int, ...]) -> AdapterSet:
    """`count` adapters whose ranks follow each other in turn; those that are there already stay."""
    modules = attention_modules(config)
    rank_name = "-".join(str(rank) for rank in ranks)
    folder = root / f"rank-{rank_name}"
    heads = {rank: _tensors(modules, rank) for rank in ranks}
    bytes_each = max(len(head) + 2 * values for head, values in heads.values())
    for index in range(count):
        rank = ranks[index % len(ranks)]
        adapter = folder / AdapterSet.name(index)
        weights, settings = adapter / "adapter_model.safetensors", adapter / "adapter_config.json"
        if settings.exists():  # written last
            continue
        adapter.mkdir(parents=True, exist_ok=True)
        head, num_values = heads[rank]
        weights.write_bytes(head + _values(num_values, index))
        settings.write_text(json.dumps({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "dummy", "r": rank,
            "lora_alpha": rank, "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False,
            "target_modules": sorted({path.rsplit(".", 1)[1] for path in modules}),
        }))
    return AdapterSet(folder, count, bytes_each, rank_name)


def make(work: Path, config_file: Path, count: int, ranks: tuple[int, ...]) -> tuple[Path, AdapterSet]:
    """The model's folder and its adapters, under a folder of `work` that is named after the config and its content."""
    digest = hashlib.sha256(config_file.read_bytes()).hexdigest()[:8]
    root = work / f"{config_file.stem}-{digest}"
    config = write_model(root / "model", config_file)
    adapters = write_adapters(root / "adapters", config, count, ranks) if count else AdapterSet(root, 0, 0, "none")
    adapters.folder.mkdir(parents=True, exist_ok=True)
    return root / "model", adapters

