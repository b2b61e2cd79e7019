"""The card of a model: what it is, what it read, how it was made, how well it does."""

import pathlib

from small_models import tasks
from small_models.families import Family

READS = {
    "prose": (
        "English prose out of the docstrings, comments and language reference of {origins}, and generated questions "
        "with answers"
    ),
    "source": "Python source of {origins}, half of it rearranged to fill in the middle",
}
ARCHITECTURES = {
    "falcon": "multi-query attention and MLP side by side under one LayerNorm, rotary positions, tied head",
    "cohere": "attention and gated MLP side by side, grouped queries, norms of each query and key head, `logit_scale`",
    "solar": "grouped queries, gated MLP, a sliding window, and earlier residual streams mixed in (the `bskcn` keys)",
    "santacoder": "multi-query attention, learned positions, tied head, fill-in-the-middle markers",
}


def joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def adapter_rows(family: Family, record: dict) -> list[str]:
    rows = ["| adapter | task | rank | on | trained | adapter solves | base solves |", "|---|---|---|---|---|---|---|"]
    for spec in family.adapters:
        score, run = record["scores"][spec.task], record[spec.task]
        targets = "every linear layer and the head" if "lm_head" in spec.targets else "every linear layer"
        rows.append(
            f"| `{spec.task}` | {tasks.TASKS[spec.task].summary} | {spec.rank} | {targets} | {run['steps']} steps, "
            f"loss {run['loss']:.3f} | {score['adapter']} of {score['items']} | {score['base']} of {score['items']} |"
        )
    return rows


def medusa_lines(family: Family, record: dict) -> list[str]:
    if not family.medusa:
        return []
    shares = joined([f"{100 * share:.0f} %" for share in record["medusa"]["agreement"]])
    return [
        "",
        "## Speculation",
        "",
        f"`medusa/` holds {family.medusa.num_heads} Medusa heads, version {family.medusa.version}. On text that was "
        f"not read their guesses equal the base model's own choices in {shares} of places.",
    ]


def card(family: Family, folder: pathlib.Path, origins: list[str], record: dict) -> str:
    base = record["base"]
    model_mb = (folder / "model.safetensors").stat().st_size / 1e6
    told = origins[:1] if family.reads == "source" else origins
    lines = [
        f"# {family.name}: a small {family.config['architectures'][0]}",
        "",
        f"{base['parameters'] / 1e6:.2f} million parameters in bfloat16 ({model_mb:.2f} MB): "
        f"{ARCHITECTURES[family.name]}. 2,048 tokens, 2,304 positions. Made to show and test a server: it knows nothing of the world.",
        "",
        "## Training",
        "",
        f"- Data: {READS[family.reads].format(origins=joined(told))}. The texts are not part of this repository.",
        "- Licence: that of this repository, for weights, tokenizer and adapters.",
        f"- Command: `python tools/train_small_models.py train --family {family.name}` (`make models` for all four), "
        "on one H200 GPU, with what `tools/goldens-requirements.txt` names.",
        f"- Base: {base['steps']} steps in {base['seconds']:.0f} s; {base['held_out_loss']:.3f} nats a token on "
        "running text that was not read.",
        "",
        "## Adapters",
        "",
        "Greedy, float32, exact match on 200 test items whose prompts were not trained on. "
        f"`{family.adapters[0].task}` and `{family.adapters[1].task}` answer the same prompts.",
        "",
        *adapter_rows(family, record),
        *medusa_lines(family, record),
        "",
        "## Reference answers",
        "",
        "`reference/tasks/*.jsonl` are the test items. `reference/expected.safetensors` holds, for the base model and "
        "each adapter and for every prompt of `reference/prompts.json`, `{run}.p{i}.input_ids`, `.greedy` (48 tokens, "
        "end tokens not stopped at), `.gap` (top logit less the second) and `.largest` (largest |logit|), from "
        "transformers in float32"
        + (", with the mixing hooked into its Mistral classes." if family.name == "solar" else "."),
    ]
    return "\n".join(lines) + "\n"
