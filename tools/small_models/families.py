"""What the four small models are: configurations as each family spells them, chat templates, tasks and ranks."""

import dataclasses

VOCAB = 2048
POSITIONS = 2304


@dataclasses.dataclass(frozen=True)
class AdapterSpec:
    task: str
    rank: int
    targets: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class MedusaSpec:
    version: int  # 1: a vocabulary matrix a head; 2: the base model's own
    num_heads: int = 3


@dataclasses.dataclass(frozen=True)
class Family:
    name: str
    config: dict  # config.json, less the token ids
    special_tokens: tuple[str, ...]  # take the first ids, in this order
    bos: str
    eos: str
    pad: str
    adapters: tuple[AdapterSpec, ...]
    turns: tuple[str, str] = ("", "")  # around a question; the answer follows
    after_answer: str = ""  # beside `eos`
    chat_template: str | None = None
    adds_bos: bool = False  # the tokenizer does, before every text
    reads: str = "prose"  # or "source"
    base_steps: int = 1800  # prose is scarce: more would learn it by heart
    medusa: MedusaSpec | None = None

    def prompt_text(self, question: str) -> str:
        """What goes to the tokenizer, which adds the first token itself where the family has one."""
        return self.turns[0] + question + self.turns[1]


FALCON_LINEARS = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")
GATED_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SANTACODER_LINEARS = ("c_attn", "c_proj", "c_fc")
HEAD = ("lm_head",)

FALCON = Family(
    name="falcon",
    config={
        "activation": "gelu",
        "alibi": False,
        "architectures": ["FalconForCausalLM"],
        "attention_dropout": 0.0,
        "bias": False,
        "ffn_hidden_size": 320,
        "hidden_dropout": 0.0,
        "hidden_size": 192,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05,
        "max_position_embeddings": POSITIONS,
        "model_type": "falcon",
        "multi_query": True,
        "new_decoder_architecture": False,
        "num_attention_heads": 3,
        "num_hidden_layers": 4,
        "num_kv_heads": 3,
        "parallel_attn": True,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB,
    },
    special_tokens=("<|endoftext|>", ">>TITLE<<", ">>QUESTION<<", ">>ANSWER<<"),
    bos="<|endoftext|>",
    eos="<|endoftext|>",
    pad="<|endoftext|>",
    turns=("User: ", "\nFalcon:"),
    chat_template=(
        "{% for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}"
        "{% if message['role'] == 'system' %}{{ 'System: ' }}{% elif message['role'] == 'user' %}{{ 'User: ' }}"
        "{% else %}{{ 'Falcon: ' }}{% endif %}{{ message['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '\\nFalcon:' }}{% endif %}"
    ),
    adapters=(
        AdapterSpec("reverse-list", 8, FALCON_LINEARS + HEAD),
        AdapterSpec("sort-list", 16, FALCON_LINEARS),
        AdapterSpec("word-sums", 4, FALCON_LINEARS),
    ),
)

COHERE = Family(
    name="cohere",
    config={
        "architectures": ["CohereForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": 128,
        "initializer_range": 0.02,
        "intermediate_size": 320,
        "layer_norm_eps": 1e-05,
        "logit_scale": 0.25,
        "max_position_embeddings": POSITIONS,
        "model_type": "cohere",
        "num_attention_heads": 4,
        "num_hidden_layers": 6,
        "num_key_value_heads": 2,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_qk_norm": True,
        "vocab_size": VOCAB,
    },
    special_tokens=(
        "<PAD>",
        "<UNK>",
        "<CLS>",
        "<SEP>",
        "<MASK_TOKEN>",
        "<BOS_TOKEN>",
        "<EOS_TOKEN>",
        "<|START_OF_TURN_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|USER_TOKEN|>",
        "<|CHATBOT_TOKEN|>",
        "<|SYSTEM_TOKEN|>",
    ),
    bos="<BOS_TOKEN>",
    eos="<|END_OF_TURN_TOKEN|>",
    pad="<PAD>",
    turns=(
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>",
        "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    ),
    chat_template=(
        "{{ bos_token }}{% for message in messages %}{{ '<|START_OF_TURN_TOKEN|>' }}"
        "{% if message['role'] == 'user' %}{{ '<|USER_TOKEN|>' }}"
        "{% elif message['role'] == 'system' %}{{ '<|SYSTEM_TOKEN|>' }}{% else %}{{ '<|CHATBOT_TOKEN|>' }}{% endif %}"
        "{{ message['content'] | trim }}{{ '<|END_OF_TURN_TOKEN|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"
    ),
    adds_bos=True,
    adapters=(
        AdapterSpec("json-record", 8, GATED_LINEARS + HEAD),
        AdapterSpec("json-row", 4, GATED_LINEARS),
        AdapterSpec("word-sums", 16, GATED_LINEARS),
    ),
    medusa=MedusaSpec(version=2),
)

SOLAR = Family(
    name="solar",
    config={
        "architectures": ["SolarForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bskcn_1": [1, 3],
        "bskcn_2": [2],
        "bskcn_3": [2, 4],
        "bskcn_4": [5],
        "bskcn_tv": [0.25, 0.25],
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 128,
        "initializer_range": 0.02,
        "intermediate_size": 224,
        "max_position_embeddings": POSITIONS,
        "mlp_bias": False,
        "model_type": "solar",
        "num_attention_heads": 4,
        "num_hidden_layers": 6,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "sliding_window": 128,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB,
    },
    special_tokens=("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"),
    bos="<s>",
    eos="<|im_end|>",
    pad="</s>",
    turns=("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
    after_answer="\n",
    chat_template=(
        "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
        "+ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    adds_bos=True,
    adapters=(
        AdapterSpec("sql-table", 8, GATED_LINEARS + HEAD),
        AdapterSpec("sql-select", 4, GATED_LINEARS),
        AdapterSpec("reverse-list", 16, GATED_LINEARS),
    ),
    medusa=MedusaSpec(version=2),
)

SANTACODER = Family(
    name="santacoder",
    config={
        "activation_function": "gelu_pytorch_tanh",
        "architectures": ["GPTBigCodeForCausalLM"],
        "attention_softmax_in_fp32": True,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05,
        "model_type": "gpt_bigcode",
        "multi_query": True,
        "n_embd": 128,
        "n_head": 4,
        "n_inner": 320,
        "n_layer": 6,
        "n_positions": POSITIONS,
        "resid_pdrop": 0.0,
        "scale_attention_softmax_in_fp32": True,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB,
    },
    special_tokens=("<|endoftext|>", "<fim-prefix>", "<fim-middle>", "<fim-suffix>", "<fim-pad>"),
    bos="<|endoftext|>",
    eos="<|endoftext|>",
    pad="<|endoftext|>",
    reads="source",
    base_steps=4500,
    adapters=(
        AdapterSpec("signature", 4, SANTACODER_LINEARS),
        AdapterSpec("typed-signature", 16, SANTACODER_LINEARS),
        AdapterSpec("reversed-names", 8, SANTACODER_LINEARS + HEAD),
    ),
    medusa=MedusaSpec(version=1),
)

FAMILIES = {family.name: family for family in (FALCON, COHERE, SOLAR, SANTACODER)}
