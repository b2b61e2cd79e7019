"""Runs `shoal bench` on the full-size configs on a GPU and writes docs/gpu-tables.md.

The tables say which commit and day they are of. A share is always of a rate that the same run measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "bench" / "configs" / "full"
TABLES = ROOT / "docs" / "gpu-tables.md"

# name: (config, batches, tokens of a prompt)
MODELS = {
    "Falcon-7B": ("falcon-7b", "1,32,64", 4096),
    "Solar-10.7B": ("solar-10.7b", "1,32", 4096),
    "StarCoder-15.5B": ("starcoder-15.5b", "1", 2040),
    "SantaCoder-1.1B": ("santacoder-1.1b", "1", 2040),
    "Command-R-35B": ("command-r-35b", "1", 0),
}
FOUR_PROMPTS = ("Falcon-7B", "Solar-10.7B", "StarCoder-15.5B")
LORA_MODELS = ("Falcon-7B", "Solar-10.7B")
LORA_BATCH = 32
CONTEXT = 1024


def bench(shoal: str, config: str, batches: str, *options: object) -> dict:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [shoal, "bench", "--device", "cuda", "--load-format", "dummy", "--config", CONFIGS / f"{config}.json",
                   "--context", CONTEXT, "--batch", batches, "--new-tokens", 20, "--repeat", 3, "--json", file.name,
                   *options]
        subprocess.run([str(word) for word in command], check=True, cwd=ROOT)
        return json.loads(Path(file.name).read_text())


def prompt_options(length: int, prompts: int = 1) -> list[object]:
    return ["--prompt-len", length, "--chunk", max(length, 1), "--prompts", prompts]


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def decode_row(name: str, result: dict) -> list[str]:
    return [f"| {name} | {step['batch']} | {1e3 * step['median_s']:.2f} ms | {percent(step['share_of_read'])} |"
            for step in result["decode"]]


def prefill_row(name: str, prefill: dict) -> str:
    return (f"| {name} | {prefill['prompts']} x {prefill['prompt_len']} | {prefill['tokens_per_s']:,.0f} | "
            f"{percent(prefill['share_of_matrix_rate'])} |")


def lora_rows(shoal: str, name: str) -> list[str]:
    config = MODELS[name][0]

    def step_s(adapters: int) -> float:
        result = bench(shoal, config, str(LORA_BATCH), "--prompt-len", 0, "--adapters", adapters)
        return result["decode"][0]["median_s"]

    base, few, many = (step_s(adapters) for adapters in (0, 8, LORA_BATCH))
    return [f"| {name} | {1e3 * base:.2f} ms | {1e3 * few:.2f} ms | {base / few:.2f} | {1e3 * many:.2f} ms | "
            f"{base / many:.2f} |"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shoal", required=True, help="the binary of make build-cuda")
    parser.add_argument("--out", type=Path, default=TABLES)
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True, capture_output=True,
                            check=False).stdout.strip() or "no commit known"
    decode, prefill, rates = [], [], []
    device = ""
    for name, (config, batches, length) in MODELS.items():
        result = bench(arguments.shoal, config, batches, *prompt_options(length))
        device = result["device"]
        rates.append((result["read_gb_per_s"], result["matrix_gflop_per_s"]))
        decode += decode_row(name, result)
        if length > 0:
            prefill.append(prefill_row(name, result["prefill"]))
        if name in FOUR_PROMPTS:
            four = bench(arguments.shoal, config, "1", *prompt_options(1024, 4))
            prefill.append(prefill_row(name, four["prefill"]))
    lora = [row for name in LORA_MODELS for row in lora_rows(arguments.shoal, name)]
    reads, products = zip(*rates)
    lines = [
        "# GPU figures", "",
        f"`tools/gpu_check.sh bench`, {datetime.date.today()}, commit {commit}, {device}, bfloat16 weights of random "
        f"numbers, {CONTEXT} tokens of context, medians of host time. The runs' own rates: {min(reads):,.0f} to "
        f"{max(reads):,.0f} GB/s read, {min(products) / 1e3:,.0f} to {max(products) / 1e3:,.0f} TFLOP/s.", "",
        "| decode | batch | a step | of read |", "|---|---|---|---|", *decode, "",
        "| prefill | prompts | tokens/s | of product |", "|---|---|---|---|", *prefill, "",
        f"| LoRA, rank 16, batch {LORA_BATCH} | base | 8 adapters | of base | {LORA_BATCH} adapters | of base |",
        "|---|---|---|---|---|---|", *lora, "",
    ]
    arguments.out.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
