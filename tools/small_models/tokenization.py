"""BPE tokenizers in the style of each family, and the files beside them."""

import json
import pathlib
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from small_models.families import POSITIONS, VOCAB, Family

NUM_BYTES = 256
METASPACE = "▁"


def byte_level() -> pre_tokenizers.ByteLevel:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def falcon_pieces() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation("contiguous"),
            byte_level(),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    )


def single_digit_pieces() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()])


def train_byte_level(family: Family, texts: Iterable[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = falcon_pieces() if family.name == "falcon" else single_digit_pieces()
    tokenizer.decoder = decoders.ByteLevel()
    if family.name == "cohere":
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in family.special_tokens],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_metaspace(family: Family, texts: Iterable[str]) -> Tokenizer:
    """Characters outside the vocabulary, line ends among them, become the tokens of their bytes."""
    pieces = pre_tokenizers.Metaspace(replacement=METASPACE, prepend_scheme="first", split=True)
    trained = Tokenizer(models.BPE())
    # No learnt token mixes letters with punctuation or digits, so encoding needs no such cut.
    cuts = [pieces, pre_tokenizers.Punctuation("isolated"), pre_tokenizers.Digits(individual_digits=True)]
    trained.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    num_own = VOCAB - NUM_BYTES - len(family.special_tokens)
    trainer = trainers.BpeTrainer(vocab_size=num_own, limit_alphabet=128, show_progress=False)
    trained.train_from_iterator((line for text in texts for line in text.split("\n")), trainer)
    learnt = json.loads(trained.to_str())["model"]
    own = sorted(learnt["vocab"], key=learnt["vocab"].get)
    vocab = [*family.special_tokens, *(f"<0x{byte:02X}>" for byte in range(NUM_BYTES)), *own]
    model = models.BPE(
        vocab={token: token_id for token_id, token in enumerate(vocab)},
        merges=[tuple(merge) for merge in learnt["merges"]],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pieces
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in family.special_tokens])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(METASPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return tokenizer


def train_tokenizer(family: Family, texts: Iterable[str]) -> Tokenizer:
    tokenizer = train_metaspace(family, texts) if family.name == "solar" else train_byte_level(family, texts)
    if family.adds_bos:
        bos_id = tokenizer.token_to_id(family.bos)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{family.bos} $A", pair=f"{family.bos} $A $B", special_tokens=[(family.bos, bos_id)]
        )
    assert tokenizer.get_vocab_size() == VOCAB, f"{family.name}: {tokenizer.get_vocab_size()} tokens"
    return tokenizer


def token_ids(family: Family, tokenizer: Tokenizer) -> dict:
    return {
        "bos_token_id": tokenizer.token_to_id(family.bos),
        "eos_token_id": tokenizer.token_to_id(family.eos),
        "pad_token_id": tokenizer.token_to_id(family.pad),
    }


def write_json(path: pathlib.Path, document: dict) -> None:
    path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def write_tokenizer(family: Family, tokenizer: Tokenizer, folder: pathlib.Path) -> None:
    """tokenizer.json, tokenizer_config.json, generation_config.json and config.json."""
    config = {
        "add_bos_token": family.adds_bos,
        "bos_token": family.bos,
        "clean_up_tokenization_spaces": False,
        "eos_token": family.eos,
        "model_max_length": POSITIONS,
        "pad_token": family.pad,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if family.chat_template:
        config["chat_template"] = family.chat_template
    ids = token_ids(family, tokenizer)
    write_json(folder / "tokenizer_config.json", config)
    write_json(folder / "generation_config.json", {**ids, "max_new_tokens": 128})
    write_json(folder / "config.json", dict(sorted({**family.config, **ids}.items())))
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
