"""The figures of a run: percentiles, rates, goodput, and what held the client up."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable

from client import Outcome
from load import Run

PERCENTILES = (50, 90, 95, 99)


@dataclasses.dataclass(frozen=True)
class Goal:
    """A request is good when its first token and the mean time between its tokens are within these."""

    first_token_s: float = 0.5
    inter_token_s: float = 0.05


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that at least `percent` of all are not above (nearest rank). NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def percentiles(values: Iterable[float]) -> dict[str, float]:
    values = list(values)
    return {f"p{percent}": percentile(values, percent) for percent in PERCENTILES}


def first_token_s(outcome: Outcome) -> float:
    """From when it was due. An answer that failed is later than any."""
    return outcome.event_times[0] - outcome.due if outcome.ok else math.inf


def end_to_end_s(outcome: Outcome) -> float:
    return outcome.end - outcome.due if outcome.ok else math.inf


def gaps_s(outcome: Outcome) -> list[float]:
    times = outcome.event_times
    return [after - before for before, after in zip(times, times[1:])]


def is_good(outcome: Outcome, goal: Goal) -> bool:
    gaps = gaps_s(outcome)
    mean_gap = sum(gaps) / len(gaps) if gaps else 0.0
    return outcome.ok and first_token_s(outcome) <= goal.first_token_s and mean_gap <= goal.inter_token_s


def curve(run: Run, percents: Iterable[int]) -> list[list[float]]:
    """[[percent, seconds]] of the first tokens: what share came within which time."""
    firsts = [first_token_s(outcome) for outcome in run.outcomes if run.begin <= outcome.due < run.end]
    return [[percent, percentile(firsts, percent)] for percent in percents] if firsts else []


def summary(run: Run, goal: Goal) -> dict:
    """Latencies are those of the requests that were due within the window, rates those of what was answered in it."""
    window_s = run.end - run.begin
    due = [outcome for outcome in run.outcomes if run.begin <= outcome.due < run.end]
    answered = [outcome for outcome in run.outcomes if outcome.ok and run.begin <= outcome.end < run.end]
    errors = collections.Counter(outcome.error for outcome in run.outcomes if outcome.error)
    tokens = sum(run.begin <= time < run.end for outcome in run.outcomes for time in outcome.event_times)
    return {
        "window_s": window_s,
        "requests": len(due),
        "offered_per_s": len(due) / window_s,
        "requests_per_s": len(answered) / window_s,
        "output_tokens_per_s": tokens / window_s,
        "goodput_per_s": sum(is_good(outcome, goal) for outcome in due) / window_s,
        "goal": dataclasses.asdict(goal),
        "first_token_s": percentiles(first_token_s(outcome) for outcome in due),
        "inter_token_s": percentiles(gap for outcome in due if outcome.ok for gap in gaps_s(outcome)),
        "end_to_end_s": percentiles(end_to_end_s(outcome) for outcome in due),
        "errors": dict(errors),
        "client": client_lag(run, due),
    }


def cores_of_others(taken: dict[str, float], client_cpu_s: float) -> float:
    """How many cores were busy with something else than the server and its client: near 0 where figures count."""
    others_s = taken["machine_cpu_s"] - taken["cpu_s"] - client_cpu_s
    return max(0.0, others_s) / max(taken["clock_s"], 1e-9)


def client_lag(run: Run, due: list[Outcome]) -> dict:
    """`held_up`: the client, not the server, may be what was measured."""
    sent_late = percentiles(outcome.sent - outcome.due for outcome in due if outcome.sent > 0)
    rang_late = percentiles(run.probe_lags)
    first = percentile([first_token_s(outcome) for outcome in due], 50)
    return {
        "sent_late_s": sent_late,
        "timer_late_s": rang_late,
        "timer_latest_s": max(run.probe_lags, default=0.0),
        "cpu_share": run.client_cpu_s / max(run.end - run.begin, 1e-9),
        "held_up": bool(max(sent_late["p99"], rang_late["p99"]) > max(0.005, 0.1 * first)),
    }
