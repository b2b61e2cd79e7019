"""Traces of requests, drawn before anything is sent: when each is due, how long it is, and which adapter it names.

The same seed and settings give the same trace on every machine. Arrival times, lengths and adapters come from random
streams of their own, so that two traces that differ in their adapters alone ask for the same work at the same times.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

BASE = -1  # in place of an adapter's number: the base model


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Tokens, drawn uniformly between both ends, which are included."""

    prompt: tuple[int, int]
    output: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Mix:
    """How the adapters of a trace are drawn: `name` is zipf, uniform or distinct (each in turn)."""

    num_adapters: int
    name: str = "zipf"
    exponent: float = 1.0

    def label(self) -> str:
        if self.num_adapters == 0:
            return "base"
        return f"{self.name} {self.exponent:g}" if self.name == "zipf" else self.name


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """One request of a trace."""

    due_s: float  # after the start; 0 in a closed loop, where a request is due when its client is free
    prompt_tokens: int
    output_tokens: int
    adapter: int
    tenant: str = ""


def _stream(seed: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng([seed, purpose])


def arrival_times(rate: float, count: int, cv: float, seed: int) -> np.ndarray:
    """[count] seconds. Gaps are gamma distributed with coefficient of variation `cv`: 1 is a Poisson process."""
    if rate <= 0 or cv <= 0:
        raise ValueError(f"rate and cv must be above 0, given {rate} and {cv}")
    shape = 1.0 / cv**2
    return np.cumsum(_stream(seed, 1).gamma(shape, 1.0 / (rate * shape), count))


def zipf_shares(num_adapters: int, exponent: float) -> np.ndarray:
    """[num_adapters] share of the requests that each gets, the first the most."""
    weights = np.arange(1, num_adapters + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def draw_adapters(mix: Mix, count: int, seed: int) -> np.ndarray:
    """[count] numbers of adapters. Which number is how popular is shuffled: it says nothing about its place on disk."""
    if mix.num_adapters == 0:
        return np.full(count, BASE)
    drawn = _stream(seed, 2)
    names = drawn.permutation(mix.num_adapters)
    if mix.name == "distinct":
        return names[np.arange(count) % mix.num_adapters]
    if mix.name == "uniform":
        return names[drawn.integers(0, mix.num_adapters, count)]
    if mix.name != "zipf":
        raise ValueError(f"unknown distribution of adapters {mix.name!r}")
    return names[drawn.choice(mix.num_adapters, count, p=zipf_shares(mix.num_adapters, mix.exponent))]


def _planned(due: np.ndarray, lengths: Lengths, mix: Mix, seed: int, tenant: str) -> list[Planned]:
    count = len(due)
    drawn = _stream(seed, 3)
    prompts = drawn.integers(lengths.prompt[0], lengths.prompt[1], count, endpoint=True)
    outputs = drawn.integers(lengths.output[0], lengths.output[1], count, endpoint=True)
    adapters = draw_adapters(mix, count, seed)
    rows = zip(due.tolist(), prompts.tolist(), outputs.tolist(), adapters.tolist())
    return [Planned(*row, tenant=tenant) for row in rows]


def open_trace(rate: float, seconds: float, lengths: Lengths, mix: Mix, *, cv: float = 1.0, seed: int,
               tenant: str = "") -> list[Planned]:
    """All requests that are due within `seconds`."""
    count = int(rate * seconds)
    due = arrival_times(rate, max(16, count + 8 * int(count**0.5 * max(cv, 1.0))), cv, seed)
    while due[-1] < seconds:
        due = arrival_times(rate, 2 * len(due), cv, seed)
    return _planned(due[due < seconds], lengths, mix, seed, tenant)


def closed_trace(count: int, lengths: Lengths, mix: Mix, *, seed: int) -> list[Planned]:
    """Requests that the clients of a closed loop take in this order."""
    return _planned(np.zeros(count), lengths, mix, seed, "")


def merged(*traces: list[Planned]) -> list[Planned]:
    return sorted((planned for trace in traces for planned in trace), key=lambda planned: planned.due_s)


def save(path: Path, trace: list[Planned]) -> None:
    """A line a request: [due_s, prompt_tokens, output_tokens, adapter, tenant]."""
    path.write_text("".join(json.dumps(dataclasses.astuple(planned)) + "\n" for planned in trace))


def load(path: Path) -> list[Planned]:
    return [Planned(*json.loads(line)) for line in path.read_text().splitlines()]
