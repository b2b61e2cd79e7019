"""Expected greedy tokens of a model and of each adapter, and the test items: what tests compare a server with."""

import json
import pathlib

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from small_models import adapters, greedy, instructions, tasks
from small_models.corpus import Corpus
from small_models.families import POSITIONS, Family
from small_models.modeling import load_model
from small_models.sizes import Sizes

TASK_PROMPTS = 12  # of an adapter's prompts; the others are the base model's
LONG_PROMPTS = (300, 1000)  # tokens: past Solar's window, and far past it
BASE = "base"


def write_items(folder: pathlib.Path, family: Family, task_name: str, items: list[tasks.Item]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"prompt": item.prompt, "inputs": family.prompt_text(item.prompt), "answer": item.answer})
        for item in items
    ]
    (folder / f"{task_name}.jsonl").write_text("\n".join(lines) + "\n")


def long_text(tokenizer: Tokenizer, documents: list[str], num_tokens: int) -> str:
    """Generated text of about `num_tokens` tokens."""
    text = ""
    for document in documents:
        text += document
        if len(tokenizer.encode(text).ids) >= num_tokens:
            break
    return text


def base_prompts(family: Family, tokenizer: Tokenizer, corpus: Corpus, count: int) -> list[str]:
    """Starts of text, generated questions and code; the last two are long."""
    if family.reads == "source":
        task = tasks.TASKS["reversed-names"]
        _, items = tasks.make_items(task, 100, seed=7)
        code = [f"{item.prompt}assert {item.answer}\n" for item in items]
        short = [
            "def main():\n    ",
            "import os\n",
            "class Reader:\n    def __init__(self, ",
            "for name in names:\n    ",
            "    if value is None:\n        ",
            "try:\n    import ",
            "<fim-prefix>def add(a, b):\n    <fim-suffix>\n    return total\n<fim-middle>",
            "<fim-prefix>import sys\n\n<fim-suffix>\n\nif __name__ == '__main__':\n    main()\n<fim-middle>",
        ]
        short += [item.prompt for item in items]
    else:
        pairs = instructions.generate(200, [], [], seed=8)
        code = [f"{question} {answer}\n" for question, answer in pairs]
        short = ["The", "Return the", "If the file does not exist,", "This function is used to", "A list of numbers"]
        short += [family.prompt_text(question) for question, _ in pairs[-count:]]
    long = [long_text(tokenizer, code, tokens) for tokens in LONG_PROMPTS]
    return short[: count - len(long)] + long


def make_prompts(family: Family, tokenizer: Tokenizer, corpus: Corpus, sizes: Sizes) -> dict[str, list[str]]:
    count = sizes.expected_prompts
    prompts = {BASE: base_prompts(family, tokenizer, corpus, count)}
    for spec in family.adapters:
        _, test = tasks.make_items(tasks.TASKS[spec.task], sizes.train_items)
        num_own = min(TASK_PROMPTS, count - 2)
        own = [family.prompt_text(item.prompt) for item in test[:num_own]]
        prompts[spec.task] = own + prompts[BASE][num_own - count :]
    return prompts


def write_expected(
    family: Family, folder: pathlib.Path, tokenizer: Tokenizer, corpus: Corpus, sizes: Sizes, device: str
) -> None:
    """reference/prompts.json and reference/expected.safetensors."""
    prompts = make_prompts(family, tokenizer, corpus, sizes)
    tensors = {}
    for run, texts in prompts.items():
        model = load_model(folder, device)
        if run != BASE:
            model = adapters.load_adapter(model, folder / "adapters" / run)
        ids = [tokenizer.encode(text).ids for text in texts]
        assert max(map(len, ids)) + sizes.expected_tokens <= POSITIONS
        found = greedy.decode(model, ids, sizes.expected_tokens)
        for i, prompt_ids in enumerate(ids):
            tensors[f"{run}.p{i}.input_ids"] = torch.tensor(prompt_ids)
            tensors[f"{run}.p{i}.greedy"] = found.tokens[i].clone()
            tensors[f"{run}.p{i}.gap"] = found.gaps[i].clone()
            tensors[f"{run}.p{i}.largest"] = found.largest[i].clone()
    reference = folder / "reference"
    (reference / "prompts.json").write_text(json.dumps(prompts, ensure_ascii=False, indent=1) + "\n")
    save_file(tensors, reference / "expected.safetensors")
