"""Writes a tiny random Solar-shaped model with a real byte-level BPE tokenizer and eight LoRA adapters.

Used by the end-to-end tests: `python make_tiny_model.py FOLDER` makes FOLDER/model and FOLDER/adapters.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

HIDDEN = 64
HEADS = 4
KV_HEADS = 2
HEAD_DIM = HIDDEN // HEADS
INTERMEDIATE = 128
LAYERS = 2
VOCAB = 512
POSITIONS = 1024
NUM_ADAPTERS = 8

CORPUS = [
    "The quick brown fox jumps over the lazy dog. Many small fish swim as one shoal.",
    "A server answers many tenants at once: each with an adapter of its own, all in one batch.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. 1234567890",
    "def main():\n    return sum(i * i for i in range(10))\n",
] * 4

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[AddedToken(text, special=True) for text in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": CHAT_TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def make_weights(folder: Path) -> None:
    rng = np.random.default_rng(7)

    def matrix(rows: int, columns: int, scale: float) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * scale).astype(np.float32)

    # Large enough that each token says something about the next: answers wander and adapters differ.
    tensors = {
        "model.embed_tokens.weight": matrix(VOCAB, HIDDEN, 1.0),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": matrix(VOCAB, HIDDEN, 0.3),
    }
    # The end token is never the likeliest: tests choose lengths themselves.
    tensors["lm_head.weight"][2] = 0.0
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        tensors[name + "input_layernorm.weight"] = np.ones(HIDDEN, np.float32)
        tensors[name + "post_attention_layernorm.weight"] = np.ones(HIDDEN, np.float32)
        tensors[name + "self_attn.q_proj.weight"] = matrix(HEADS * HEAD_DIM, HIDDEN, 0.2)
        tensors[name + "self_attn.k_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN, 0.2)
        tensors[name + "self_attn.v_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN, 0.2)
        tensors[name + "self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * HEAD_DIM, 0.2)
        tensors[name + "mlp.gate_proj.weight"] = matrix(INTERMEDIATE, HIDDEN, 0.2)
        tensors[name + "mlp.up_proj.weight"] = matrix(INTERMEDIATE, HIDDEN, 0.2)
        tensors[name + "mlp.down_proj.weight"] = matrix(HIDDEN, INTERMEDIATE, 0.2)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def make_adapter(folder: Path, seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    rank = [4, 8, 16, 5][seed % 4]
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    tensors = {}
    for layer in range(LAYERS):
        for module, (rows, columns) in shapes.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[name + ".lora_A.weight"] = (rng.standard_normal((rank, columns)) * 0.3).astype(np.float32)
            tensors[name + ".lora_B.weight"] = (rng.standard_normal((rows, rank)) * 0.3).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": ["q_proj", "v_proj", "down_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1))


def main(root: Path) -> None:
    model = root / "model"
    model.mkdir(parents=True)
    make_tokenizer(model)
    make_weights(model)
    for index in range(NUM_ADAPTERS):
        name = f"tenant-{index}" if index < 6 else f"org/tenant-{index}"
        make_adapter(root / "adapters" / name, index)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
