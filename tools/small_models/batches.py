"""Token rows for training: windows of running text, packed documents, and single items with masked prompts."""

import random

import torch
from tokenizers import Tokenizer

from small_models.families import Family
from small_models.tasks import Item

IGNORED = -100  # label of a token that is not learnt
FIM_SHARE = 0.5  # of the source excerpts are rearranged
EXCERPT_CHARACTERS = 1200


def encode_documents(tokenizer: Tokenizer, documents: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(documents)]


def dialogue_text(family: Family, question: str, answer: str) -> str:
    space = " " if family.name == "falcon" else ""  # its turns end with a colon
    return family.prompt_text(question) + space + answer + family.eos + family.after_answer


def fim_text(excerpt: str, rng: random.Random) -> str:
    """An excerpt with its middle moved to the end, behind the markers."""
    first, second = sorted(rng.sample(range(len(excerpt) + 1), 2))
    prefix, middle, suffix = excerpt[:first], excerpt[first:second], excerpt[second:]
    return f"<fim-prefix>{prefix}<fim-suffix>{suffix}<fim-middle>{middle}"


def source_excerpts(sources: list[str], seed: int) -> list[str]:
    """Pieces of whole lines; half of them rearranged to fill in the middle."""
    rng = random.Random(seed)
    excerpts = []
    for source in sources:
        piece: list[str] = []
        length = 0
        for line in source.splitlines(keepends=True):
            piece.append(line)
            length += len(line)
            if length >= EXCERPT_CHARACTERS:
                excerpts.append("".join(piece))
                piece, length = [], 0
    return [fim_text(text, rng) if rng.random() < FIM_SHARE else text for text in excerpts]


def running_text(documents: list[list[int]], separator: int) -> torch.Tensor:
    """[tokens] i64, each document ended by `separator`."""
    return torch.tensor([token for document in documents for token in (*document, separator)], dtype=torch.int64)


def packed_rows(documents: list[list[int]], row_tokens: int) -> torch.Tensor:
    """[rows, row_tokens] i64: whole documents one after another, each row from the start of one; the last is cut."""
    rows, row = [], []
    for document in documents:
        row += document
        if len(row) >= row_tokens:
            rows.append(row[:row_tokens])
            row = []
    return torch.tensor(rows, dtype=torch.int64)


def windows(text: torch.Tensor, num_rows: int, row_tokens: int, generator: torch.Generator) -> torch.Tensor:
    """[num_rows, row_tokens] i64 from anywhere in the text."""
    starts = torch.randint(text.numel() - row_tokens, (num_rows, 1), generator=generator, device=text.device)
    return text[starts + torch.arange(row_tokens, device=text.device)]


def item_rows(family: Family, tokenizer: Tokenizer, items: list[Item]) -> tuple[torch.Tensor, torch.Tensor]:
    """input_ids and labels, both [items, longest] i64: one item a row, labels on the answer and the end token."""
    prompts = encode_documents(tokenizer, [family.prompt_text(item.prompt) for item in items])
    texts = [dialogue_text(family, item.prompt, item.answer).removesuffix(family.after_answer) for item in items]
    wholes = encode_documents(tokenizer, texts)
    longest = max(len(whole) for whole in wholes)
    input_ids = torch.full((len(items), longest), tokenizer.token_to_id(family.pad))
    labels = torch.full((len(items), longest), IGNORED)
    for row, (prompt, whole) in enumerate(zip(prompts, wholes, strict=True)):
        assert whole[: len(prompt)] == prompt, f"{family.name}: the answer changes the prompt's tokens"
        tokens = torch.tensor(whole)
        input_ids[row, : len(whole)] = tokens
        labels[row, len(prompt) : len(whole)] = tokens[len(prompt) :]
    return input_ids, labels
