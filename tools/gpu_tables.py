"""Runs `shoal bench` on the full-size configs on a GPU and writes docs/gpu-tables.md.

The tables say which commit and day they are of. A share is always of a rate that the same run measured.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import shutil
import statistics
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
NEW_TOKENS = 20  # decode steps of a repeat
STEPS = 200  # behind the share outside graphs
TURNS = 5  # of batches without adapters, where none and where some are loaded


def bench(shoal: str, config: str, batches: str, *options: object, repeat: int = 3) -> dict:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [shoal, "bench", "--device", "cuda", "--load-format", "dummy", "--config", CONFIGS / f"{config}.json",
                   "--context", CONTEXT, "--batch", batches, "--new-tokens", NEW_TOKENS, "--repeat", repeat,
                   "--json", file.name, *options]
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


def turns_row(shoal: str, name: str) -> str:
    """Base rows alone, without and with adapters loaded, in turns."""
    config = MODELS[name][0]
    without, beside = [], []
    for _ in range(TURNS):
        for times, options in ((without, []), (beside, ["--adapters", 8, "--base-rows"])):
            result = bench(shoal, config, str(LORA_BATCH), "--prompt-len", 0, *options)
            times.append(result["decode"][0]["median_s"])
    ratio = statistics.median(without) / statistics.median(beside)
    return (f"| {name} | {1e3 * statistics.median(without):.2f} ms | {1e3 * statistics.median(beside):.2f} ms | "
            f"{ratio:.3f} |")


def kernel_time(shoal: str, config: str) -> str:
    """The kernels of one step, each run alone under Nsight Compute, added up. They overlap in a graph."""
    if shutil.which("ncu") is None:
        return "no ncu"
    command = ["ncu", "--cache-control", "none", "--clock-control", "none", "--graph-profiling", "node", "--csv",
               "--metrics", "gpu__time_duration.sum", "--launch-skip", 2200, "-c", 800, shoal, "bench", "--device",
               "cuda", "--load-format", "dummy", "--config", CONFIGS / f"{config}.json", "--context", CONTEXT,
               "--batch", 1, "--prompt-len", 0, "--new-tokens", 8, "--repeat", 1]
    shown = subprocess.run([str(word) for word in command], cwd=ROOT, text=True, capture_output=True, check=False)
    rows = list(csv.DictReader(line for line in shown.stdout.splitlines() if line.startswith('"')))
    ends = [i for i, row in enumerate(rows) if "sample_kernel" in row["Kernel Name"]]
    if len(ends) < 2:
        return "not measured"
    step = rows[ends[0] + 1:ends[1] + 1]
    return f"{sum(float(row['Metric Value'].replace(',', '')) for row in step) / 1e6:.2f} ms of {len(step)}"


def graph_row(shoal: str, name: str) -> str:
    step = bench(shoal, MODELS[name][0], "1", "--prompt-len", 0, "--graph-time",
                 repeat=STEPS // NEW_TOKENS)["decode"][0]
    return (f"| {name} | {1e3 * step['wall_s']:.1f} ms | {1e3 * step['graphs_s']:.1f} ms | "
            f"{percent(step['share_outside_graphs'])} | {1e3 * step['graphs_s'] / STEPS:.2f} ms | "
            f"{kernel_time(shoal, MODELS[name][0])} |")


def commit_of_tree() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    shown = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    return shown.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shoal", required=True, help="the binary of make build-cuda")
    parser.add_argument("--out", type=Path, default=TABLES)
    parser.add_argument("--commit", default=commit_of_tree(), help="that the binary is of")
    arguments = parser.parse_args()
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
    turns = [turns_row(arguments.shoal, name) for name in LORA_MODELS]
    graphs = [graph_row(arguments.shoal, name) for name in ("Falcon-7B", "SantaCoder-1.1B")]
    reads, products = zip(*rates)
    lines = [
        "# GPU figures", "",
        f"`tools/gpu_check.sh bench`, {datetime.date.today()}, commit {arguments.commit}, {device}, bfloat16 weights of "
        f"random numbers, {CONTEXT} tokens of context, medians of host time. The runs' own rates: {min(reads):,.0f} to "
        f"{max(reads):,.0f} GB/s read, {min(products) / 1e3:,.0f} to {max(products) / 1e3:,.0f} TFLOP/s.", "",
        "| decode | batch | a step | of read |", "|---|---|---|---|", *decode, "",
        "| prefill | prompts | tokens/s | of product |", "|---|---|---|---|", *prefill, "",
        f"| LoRA, rank 16, batch {LORA_BATCH} | base | 8 adapters | of base | {LORA_BATCH} adapters | of base |",
        "|---|---|---|---|---|---|", *lora, "",
        f"| base rows alone, batch {LORA_BATCH}, medians of {TURNS} turns | no adapters | 8 loaded | ratio |",
        "|---|---|---|---|", *turns, "",
        f"| {STEPS} decode steps, batch 1 | wall | their graphs on the device | outside | one graph | "
        "its kernels, each alone |", "|---|---|---|---|---|---|", *graphs, "",
    ]
    arguments.out.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
