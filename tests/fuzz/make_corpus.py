"""Writes the inputs that each harness starts from, made of the goldens and test data: make_corpus.py FOLDER."""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LARGEST_ADAPTER_BYTES = 32 << 10


def adapters():
    """The two files of every small adapter among the goldens."""
    for config in sorted(ROOT.glob("tests/goldens/*/*/adapter_config.json")):
        tensors = config.with_name("adapter_model.safetensors").read_bytes()
        if len(tensors) <= LARGEST_ADAPTER_BYTES:
            settings = {key: value for key, value in json.loads(config.read_text()).items() if value not in (None, False)}
            yield json.dumps(settings).encode(), tensors


def tokenizer_inputs():
    fixtures = json.loads((ROOT / "tests/data/tokenizers/fixtures.json").read_text()).values()
    for style, fixture in enumerate(fixtures):
        yield b"j" + json.dumps(fixture["tokenizer"], ensure_ascii=False).encode()
        # The harness takes its numbers from the end backwards: style, length of the prompt, then what follows.
        for case in fixture["encode"]:
            yield b"t" + case["text"].encode() + bytes([4, 1, 0, 3, style])
            yield b"i" + b"".join((16 * id + 17).to_bytes(2, "little") for id in reversed(case["ids"])) + bytes([3, style])
    for change in range(16):
        yield b"c" + bytes(range(change, change + 40)) + bytes(range(12 * change, 12 * change + 20))


def template_inputs():
    for case in json.loads((ROOT / "tests/data/templates/fixtures.json").read_text()):
        parts = [case["template"], json.dumps(case["messages"])]
        if case["tools"] is not None:
            parts.append(json.dumps(case["tools"]))
        yield "\0".join(parts).encode()


def corpora():
    files = list(adapters())
    return {
        "fuzz_safetensors": [tensors for _, tensors in files],
        "fuzz_config": [path.read_bytes() for path in sorted(ROOT.glob("tests/goldens/*/config.json"))],
        "fuzz_adapter": [b"r" + config + b"\0" + tensors for config, tensors in files]
        + [b"b" + bytes(range(start, start + 64)) + bytes([start] * 64) for start in range(0, 160, 10)],
        "fuzz_template": list(template_inputs()),
        "fuzz_tokenizer": list(tokenizer_inputs()),
    }


def main() -> None:
    target = pathlib.Path(sys.argv[1])
    for harness, inputs in corpora().items():
        folder = target / harness
        folder.mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(inputs):
            (folder / f"seed-{number:03d}").write_bytes(content)


if __name__ == "__main__":
    main()
