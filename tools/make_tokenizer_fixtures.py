#!/usr/bin/env python3
"""Trains three small tokenizers and writes what the reference implementation makes of hard texts, with these and with
those of models/.

    pip install tokenizers==0.23.3 && tools/make_tokenizer_fixtures.py

writes tests/data/tokenizers/{fixtures,models}.json, read by src/text/tokenizer_fixture_test.cc.
"""

import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "tests/data/tokenizers"

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog was not amused; the fox was.",
    "def add(first, second):\n    return first + second  # 1 + 2 == 3\n\n\nclass Fish:\n\tname = 'shoal'\n",
    "In 2024 the price rose from 1,234.50 to 98765 dollars, 12% more than in 1999.",
    "They're here, it's ours, we'll see, I'd go, you've won, I'm done.",
    "안녕하세요 세계, 한국어 문장입니다. 日本語の文章です。中文句子在这里。",
    "Größe, façade, naïve, coöperate, Übermut, Привет мир, καλημέρα κόσμε.",
] * 4

TEXTS = [
    "Hello, world!",
    " leading space",
    "trailing space ",
    "  two  spaces   three    four",
    "\ttabs\tand\nnew\r\nlines\n\n\n  indented\n\tcode",
    "The fox can't, won't, they're, IT'S I'LL",
    "0 1 12 123 1234 12345 123456 3.14159 1,000,000 x86_64 2024-02-29",
    "안녕하세요 日本語 中文 ไทย العربية עברית",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 👍🏽 thumb, 🇰🇷",
    "e\u0301 combining, n\u0303, A\u030a, \u1112\u1161\u11ab jamo, Å vs Å",
    "zero\u200bwidth\u200djoiner\ufeffbom\u00a0nbsp\u3000ideographic",
    "\ufffd real replacement \ufffd\ufffd",
    "!!!???...,,,;;;:::((()))[[[]]]{{{}}}<<<>>>",
    "<s>glued</s><|turn|>words<|turn|> <|turn|>\n<|pad|>  x",
    "a<|turn|>b<|half|><|turn",
    "<tag>word<tag>s inside<tag> a<tag>b",
    "snake_case camelCase kebab-case SCREAMING_CASE",
    "https://example.com/path?query=1&other=%20#fragment",
    "\u0000\u0001\u001f\u007f control",
    "<0x41> <0x0A> looks like bytes",
    "▁lower one eighth ▁▁ blocks",
    "ｆｕｌｌ ｗｉｄｔｈ ﬁ ligature ½ ² Ⅷ",
    "x" * 50 + " " * 50 + "=" * 50,
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 math and gothic",
    "",
    " ",
    "\n",
]

ADDED = [
    AddedToken("<|turn|>", special=True, normalized=False),
    AddedToken("<|pad|>", special=True, normalized=False, lstrip=True, rstrip=True),
    AddedToken("<|half|>", special=False, normalized=False),
    AddedToken("<tag>", special=False, normalized=True, single_word=True),
]


def train(tokenizer, vocab_size, alphabet):
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def bos_template(tokenizer):
    return processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )


def falcon_like():
    """Byte-level BPE behind a sequence of splitters; nothing is added around a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation("contiguous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 420, pre_tokenizers.ByteLevel.alphabet())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.add_tokens(ADDED)
    return tokenizer


def command_like():
    """NFC, single digits, byte-level BPE, BOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 420, pre_tokenizers.ByteLevel.alphabet())
    tokenizer.post_processor = bos_template(tokenizer)
    tokenizer.add_tokens(ADDED)
    return tokenizer


def solar_like():
    """SentencePiece-style BPE with byte fallback, as Llama files state it."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    train(trained, 260, [])
    state = json.loads(trained.to_str())["model"]
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    names += [name for name in state["vocab"] if name not in names]
    model = models.BPE(
        vocab={name: index for index, name in enumerate(names)},
        merges=[tuple(merge) for merge in state["merges"]],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = [AddedToken(name, special=True, normalized=False) for name in names[:3]]
    tokenizer.add_tokens(special + ADDED)
    tokenizer.post_processor = bos_template(tokenizer)
    return tokenizer


def glued_texts(tokenizer):
    """Each added token amid words, spaces and itself, and cut off."""
    for token in sorted(added.content for added in tokenizer.get_added_tokens_decoder().values()):
        yield f"word{token}word {token} {token}{token}\n{token} def f(x):{token[:-1]}"


def encode_cases(tokenizer, texts):
    cases = []
    for text in texts:
        bare = tokenizer.encode(text, add_special_tokens=False)
        whole = tokenizer.encode(text, add_special_tokens=True)
        cases.append(
            {
                "text": text,
                "ids": bare.ids,
                "ids_with_special": whole.ids,
                "offsets": [offset for pair in whole.offsets for offset in pair],
                "decoded": tokenizer.decode(whole.ids, skip_special_tokens=True),
                "decoded_with_special": tokenizer.decode(whole.ids, skip_special_tokens=False),
            }
        )
    return cases


def decode_cases(tokenizer, is_byte_level):
    """Random ids. With byte fallback the library spoils whole runs of bytes; those sequences are left out."""
    rng = random.Random(7)
    cases = []
    while len(cases) < 25:
        ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randrange(1, 24))]
        if not is_byte_level:
            ids = [i for i in ids if not tokenizer.id_to_token(i).startswith("<0x")]
        cases.append(
            {
                "ids": ids,
                "decoded": tokenizer.decode(ids, skip_special_tokens=True),
                "decoded_with_special": tokenizer.decode(ids, skip_special_tokens=False),
            }
        )
    return cases


def main():
    styles = {"falcon_like": falcon_like(), "command_like": command_like(), "solar_like": solar_like()}
    fixtures = {
        name: {
            "tokenizer": json.loads(tokenizer.to_str()),
            "encode": encode_cases(tokenizer, TEXTS),
            "decode": decode_cases(tokenizer, is_byte_level=name != "solar_like"),
        }
        for name, tokenizer in styles.items()
    }
    trained = {}
    for folder in sorted((ROOT / "models").glob("*/tokenizer.json")):
        tokenizer = Tokenizer.from_file(str(folder))
        trained[folder.parent.name] = {
            "encode": encode_cases(tokenizer, TEXTS + list(glued_texts(tokenizer))),
            "decode": decode_cases(tokenizer, is_byte_level=folder.parent.name != "solar"),
        }
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name, content in (("fixtures.json", fixtures), ("models.json", trained)):
        (OUTPUT / name).write_text(json.dumps(content, ensure_ascii=True, separators=(",", ":")) + "\n")
        print(f"{OUTPUT / name}: {(OUTPUT / name).stat().st_size} bytes")


if __name__ == "__main__":
    main()
