"""Trains a base model on running text and packed documents."""

import dataclasses

import torch
from tokenizers import Tokenizer

from small_models import batches, instructions, modeling, training
from small_models.corpus import Corpus
from small_models.families import POSITIONS, Family
from small_models.sizes import Sizes

HELD_OUT_EVERY = 50  # documents
DOCUMENT_SHARE = 0.5  # of a step's rows are packed documents
LONG_EVERY = 4  # steps; that one has rows of all positions


@dataclasses.dataclass
class TrainingText:
    stream: torch.Tensor  # [tokens] i64
    documents: torch.Tensor  # [rows, row_tokens] i64: dialogues, or source rearranged to fill in the middle
    held_out: torch.Tensor  # [tokens] i64

    def to(self, device: str) -> "TrainingText":
        return TrainingText(self.stream.to(device), self.documents.to(device), self.held_out.to(device))


def tokenizer_texts(family: Family, corpus: Corpus) -> list[str]:
    if family.reads == "source":
        return corpus.sources
    pairs = instructions.generate(15000, [], [], seed=1)
    return corpus.paragraphs + [f"{question}\n{answer}" for question, answer in pairs]


def read_text(family: Family, tokenizer: Tokenizer, corpus: Corpus, sizes: Sizes) -> TrainingText:
    separator = tokenizer.token_to_id(family.eos)
    texts = corpus.sources if family.reads == "source" else corpus.paragraphs
    documents = batches.encode_documents(tokenizer, texts)
    held_out = documents[::HELD_OUT_EVERY]
    kept = [text for i, text in enumerate(texts) if i % HELD_OUT_EVERY]
    if family.reads == "source":
        packed = batches.source_excerpts(kept, seed=2) * 2
        packed = [text + family.eos for text in packed]
    else:
        pairs = instructions.generate(sizes.dialogues, kept, corpus.summaries, seed=2)
        packed = [batches.dialogue_text(family, question, answer) for question, answer in pairs]
    return TrainingText(
        stream=batches.running_text([ids for i, ids in enumerate(documents) if i % HELD_OUT_EVERY], separator),
        documents=batches.packed_rows(batches.encode_documents(tokenizer, packed), sizes.row_tokens),
        held_out=batches.running_text(held_out, separator),
    )


class BatchMaker:
    """[rows, tokens] i64 for each step: short rows of both kinds, now and then long rows of running text."""

    def __init__(self, text: TrainingText, sizes: Sizes, seed: int):
        self.text = text
        self.sizes = sizes
        self.generator = torch.Generator(text.stream.device).manual_seed(seed)

    def batch(self, step: int) -> torch.Tensor:
        if step % LONG_EVERY == LONG_EVERY - 1:
            num_rows = max(1, self.sizes.step_tokens // POSITIONS)
            return batches.windows(self.text.stream, num_rows, POSITIONS, self.generator)
        num_rows = max(2, self.sizes.step_tokens // self.sizes.row_tokens)
        num_documents = int(num_rows * DOCUMENT_SHARE)
        running = batches.windows(self.text.stream, num_rows - num_documents, self.sizes.row_tokens, self.generator)
        device = self.text.documents.device
        chosen = torch.randint(len(self.text.documents), (num_documents,), generator=self.generator, device=device)
        return torch.cat([running, self.text.documents[chosen]])


def train_base(family: Family, model: torch.nn.Module, text: TrainingText, sizes: Sizes) -> dict:
    maker = BatchMaker(text, sizes, seed=3)
    model.train()

    def loss_of_step(step: int) -> torch.Tensor:
        input_ids = maker.batch(step)
        return training.next_token_loss(model(input_ids=input_ids, use_cache=False).logits, input_ids)

    steps = min(family.base_steps, sizes.base_steps_most)
    schedule = training.Schedule(steps, peak_rate=4e-3, weight_decay=0.1)
    with modeling.causal_without_mask():
        return training.train(f"{family.name} base", model.parameters(), loss_of_step, schedule)


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, text: TrainingText, sizes: Sizes) -> float:
    """Nats a token on running text that was not read, in float32."""
    tokens = sizes.row_tokens
    num_rows = min(64, text.held_out.numel() // tokens)
    rows = text.held_out[: num_rows * tokens].reshape(num_rows, tokens)
    model.eval()
    return training.next_token_loss(model(input_ids=rows, use_cache=False).logits, rows).item()
