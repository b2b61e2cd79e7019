"""What answers must be: one native answer a prompt, adapter and seed, cut by stop rules in plain Python."""

import json
from dataclasses import dataclass, field
from functools import cached_property

import requests

MAX_TOKENS = 12
TOP = 5


@dataclass(frozen=True)
class Stop:
    """Rules that end an answer: strings, or (on /v1 alone) token ids."""

    strings: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Expected:
    native_text: str  # with the stop string
    text: str  # without it
    tokens: list[dict] = field(hash=False)  # native details
    native_reason: str

    @property
    def reason(self) -> str:
        return "length" if self.native_reason == "length" else "stop"

    @property
    def mean_logprob(self) -> float:
        return sum(token["logprob"] for token in self.tokens) / len(self.tokens)


@dataclass(frozen=True)
class Answer:
    """A native answer that no stop rule ended."""

    text: str
    tokens: list[dict]
    reason: str
    prompt_tokens: int

    @cached_property
    def texts(self) -> list[str]:
        """Of the answer that each token has made final."""
        texts = ["" if token["special"] else token["text"] for token in self.tokens]
        assert self.text.startswith("".join(texts)), (self.text, texts)
        return texts

    def stopped(self, stop: Stop) -> Expected:
        shown = ""
        for i, token in enumerate(self.tokens):
            reason = "length" if i + 1 == MAX_TOKENS else "stop_sequence"
            tokens = self.tokens[:i + 1]
            if token["id"] in stop.ids:
                return Expected(shown, shown, tokens, reason)
            shown += self.texts[i]
            ends = [(shown.index(each) + len(each), -len(each)) for each in stop.strings if each in shown]
            if ends:  # complete first; of those that end together, the longest
                end, minus_length = min(ends)
                return Expected(shown[:end], shown[:end + minus_length], tokens, reason)
        return Expected(self.text, self.text, self.tokens, self.reason)


class References:
    """Asks the server once for each answer."""

    def __init__(self, url: str, inputs: str):
        self.url = url
        self.inputs = inputs
        self.known: dict[str, Answer] = {}

    def answer(self, adapter: dict, seed: int | None) -> Answer:
        """`adapter`: native parameters that name it. Without a seed: greedy."""
        parameters = {**adapter, "max_new_tokens": MAX_TOKENS, "details": True, "return_k_alternatives": TOP}
        if seed is not None:
            parameters |= {"do_sample": True, "temperature": 1.0, "seed": seed}
        key = json.dumps(parameters, sort_keys=True)
        if key not in self.known:
            response = requests.post(self.url + "/generate", json={"inputs": self.inputs, "parameters": parameters},
                                     timeout=60)
            assert response.status_code == 200, response.text
            made = response.json()
            details = made["details"]
            self.known[key] = Answer(made["generated_text"], details["tokens"], details["finish_reason"],
                                     details["prompt_tokens"])
        return self.known[key]
