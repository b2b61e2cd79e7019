"""The trained models of models/ through the server: the reference's tokens, and its scores with all adapters in flight."""

import concurrent.futures
import json
from pathlib import Path

import lorax
import pytest
from conftest import ROOT, Server
from safetensors.numpy import load_file

PROMPTS, TOKENS = 20, 48
NEAR_TIE = 1e-4  # of the largest logit: below it two right programs may part
IN_FLIGHT = 32


def adapters_of(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "adapters").iterdir())


def end_tokens(folder: Path) -> set[int]:
    ids = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    return set(ids if isinstance(ids, list) else [ids])


def first_difference(got: list[int], expected: dict, end: set[int]) -> str:
    """The first token that the gap does not excuse, or nothing; the reference does not stop at end tokens."""
    for step, token in enumerate(expected["greedy"].tolist()):
        if step == len(got) or got[step] != token:
            near_tie = expected["gap"][step] < NEAR_TIE * expected["largest"].max()
            return "" if near_tie else f"step {step}: {got[step:step + 1]}, expected {token}"
        if token in end:
            return "" if step + 1 == len(got) else f"{len(got)} tokens, the end token is number {step + 1}"
    return ""


def test_greedy_text_is_the_references(trained):
    server, folder = trained
    expected = load_file(folder / "reference" / "expected.safetensors")
    prompts = json.loads((folder / "reference" / "prompts.json").read_text())
    jobs = [(run, i) for run in ["base", *adapters_of(folder)] for i in range(PROMPTS)]
    assert len(jobs) == 4 * PROMPTS and all(len(prompts[run]) == PROMPTS for run, _ in jobs)

    def difference(job: tuple[str, int]) -> str:
        run, i = job
        adapter = {} if run == "base" else {"adapter_id": run}
        got = server.token_ids(prompts[run][i], max_new_tokens=TOKENS, **adapter)
        reference = {key: expected[f"{run}.p{i}.{key}"] for key in ("greedy", "gap", "largest")}
        assert len(reference["greedy"]) == TOKENS
        found = first_difference(got, reference, end_tokens(folder))
        return f"{run} prompt {i}: {found}" if found else ""

    with concurrent.futures.ThreadPoolExecutor(IN_FLIGHT) as pool:
        assert [found for found in pool.map(difference, jobs) if found] == []


def test_adapters_solve_their_tasks_together(trained):
    server, folder = trained
    recorded = json.loads((folder / "reference" / "training.json").read_text())["scores"]
    client = lorax.Client(server.url, timeout=120)
    items = {task: [json.loads(line) for line in (folder / "reference/tasks" / f"{task}.jsonl").read_text().splitlines()]
             for task in adapters_of(folder)}
    assert all(len(of_task) == 200 for of_task in items.values())
    # Turn by turn, so that every step holds rows of all adapters and of the base model.
    jobs = [(task, adapter, items[task][i]) for i in range(200) for task in items for adapter in (task, None)]

    def solves(job: tuple[str, str | None, dict]) -> bool:
        _, adapter, item = job
        answer = client.generate(item["inputs"], adapter_id=adapter, max_new_tokens=TOKENS)
        return answer.generated_text.strip() == item["answer"]

    scores = {task: {"adapter": 0, "base": 0} for task in items}
    with concurrent.futures.ThreadPoolExecutor(IN_FLIGHT) as pool:
        for (task, adapter, _), solved in zip(jobs, pool.map(solves, jobs)):
            scores[task]["adapter" if adapter else "base"] += solved
    print(folder.name, scores)
    for task, score in scores.items():
        assert score["adapter"] >= 180 and abs(score["adapter"] - recorded[task]["adapter"]) <= 1, (task, score)
        assert score["base"] <= 40 and abs(score["base"] - recorded[task]["base"]) <= 1, (task, score)
