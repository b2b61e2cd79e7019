"""The demo behind `make demo`: the four model families, each with its base model and three adapters in one batch.

Serves the trained models of models/ one after the other and sends the same prompt to the base and to every adapter at
once. Fails unless each adapter that was trained for the prompt answers it exactly and the streams shared their steps.
"""

import argparse
import json
import pathlib
import sys

from demo_streams import MAX_TOKENS, ROOT, Round, Stream, report, run_server

# One alone makes one a step at most; answers of 10 to 40 tokens at a millisecond each start and end apart.
FEWEST_TOKENS_A_STEP = 1.2
FAMILIES = ["falcon", "santacoder", "solar", "cohere"]


def read_tasks(model: pathlib.Path) -> dict[str, dict[str, str]]:
    """For each adapter the answers of its test items, by prompt."""
    tasks = {}
    for adapter in sorted(path.name for path in (model / "adapters").iterdir()):
        lines = (model / "reference/tasks" / f"{adapter}.jsonl").read_text(encoding="utf-8").splitlines()
        tasks[adapter] = {item["inputs"]: item["answer"] for item in map(json.loads, lines)}
    return tasks


def ask(adapter: str, inputs: str, answer: str | None) -> Stream:
    parameters = {"max_new_tokens": MAX_TOKENS} | ({"adapter_id": adapter} if adapter else {})
    return Stream(
        title=(adapter or "base model") + (" (its task)" if answer is not None else ""),
        path="/generate_stream",
        body={"inputs": inputs, "parameters": parameters},
        text_of=lambda event: "" if event["token"]["special"] else event["token"]["text"],
        is_right=lambda got: answer is None or got.strip() == answer,
        expected=repr(answer),
    )


def rounds_of(tasks: dict[str, dict[str, str]]) -> list[Round]:
    """Prompts until every adapter had one of its own task; two adapters of a family answer the same prompts."""
    rounds = []
    left = set(tasks)
    while left:
        first = min(left)
        # The prompt that most of the adapters know.
        inputs = max(tasks[first], key=lambda prompt: sum(prompt in task for task in tasks.values()))
        streams = [ask("", inputs, None)] + [ask(adapter, inputs, task.get(inputs)) for adapter, task in tasks.items()]
        rounds.append(Round(inputs.strip(), streams, FEWEST_TOKENS_A_STEP))
        left -= {adapter for adapter, task in tasks.items() if inputs in task}
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/shoal")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "models")
    arguments = parser.parse_args()
    found = []
    for family in FAMILIES:
        model = arguments.models / family
        tasks = read_tasks(model)
        flags = ["--adapter-dir", str(model / "adapters")]
        # An answer takes less time than the load of its adapter.
        for adapter in tasks:
            flags += ["--preloaded-adapter-ids", adapter]
        found += run_server(arguments.binary, model, rounds_of(tasks), *flags)
    return report(found, "every adapter solved its task, and base and adapters shared one batch in four families")


if __name__ == "__main__":
    sys.exit(main())
