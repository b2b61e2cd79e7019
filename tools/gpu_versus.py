"""Hugging Face transformers and shoal on the same GPU, one after the other: bfloat16, sdpa, prompts and outputs of the
same lengths, random weights of the same shapes. Writes docs/gpu-versus.md.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import statistics
import time
from pathlib import Path

import torch
import transformers
from gpu_tables import CONFIGS, CONTEXT, ROOT, bench, commit_of_tree, prompt_options
from transformers import AutoConfig, AutoModelForCausalLM

MODELS = {"Falcon-7B": "falcon-7b", "Solar-10.7B": "solar-10.7b"}
BATCHES = (1, 32)
PROMPT = 1024
NEW_TOKENS = 20


def make_model(config_name: str) -> torch.nn.Module:
    values = json.loads((CONFIGS / f"{config_name}.json").read_text())
    model_type = values.pop("model_type")
    # Names that only older checkpoints of the family use.
    model_type = {"RefinedWeb": "falcon", "RefinedWebModel": "falcon", "solar": "llama"}.get(model_type, model_type)
    config = AutoConfig.for_model(model_type, **values)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    return model.eval()


@torch.inference_mode()
def time_transformers(model: torch.nn.Module, batch: int) -> tuple[float, float]:
    """Seconds of a prefill of batch x PROMPT tokens and of one decode step behind it, medians."""
    ids = torch.randint(3, model.config.vocab_size, (batch, PROMPT), device="cuda")
    prefills, steps = [], []
    for repeat in range(4):
        torch.cuda.synchronize()
        began = time.perf_counter()
        out = model(ids, use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1:].argmax(-1)
        torch.cuda.synchronize()
        prefill = time.perf_counter() - began
        for step in range(NEW_TOKENS):
            began = time.perf_counter()
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
            torch.cuda.synchronize()
            if repeat > 0 and step > 2:
                steps.append(time.perf_counter() - began)
        if repeat > 0:
            prefills.append(prefill)
        del out
    return statistics.median(prefills), statistics.median(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shoal", required=True, help="the binary of make build-cuda")
    parser.add_argument("--commit", default=commit_of_tree(), help="that the binary is of")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gpu-versus.md")
    arguments = parser.parse_args()
    assert PROMPT == CONTEXT
    theirs = {}
    for name, config in MODELS.items():
        model = make_model(config)
        for batch in BATCHES:
            theirs[name, batch] = time_transformers(model, batch)
        del model
        gc.collect()
        torch.cuda.empty_cache()
    lines = ["# Beside Hugging Face transformers", "",
             f"`tools/gpu_check.sh versus`, {datetime.date.today()}, commit {arguments.commit}, "
             f"{torch.cuda.get_device_name()}, transformers {transformers.__version__}, torch {torch.__version__}: "
             f"bfloat16, sdpa, prompts of {PROMPT} tokens, random weights, medians.", "",
             "| model | batch | prefill: transformers | shoal | times | a decode step: transformers | shoal | times |",
             "|---|---|---|---|---|---|---|---|"]
    for name, config in MODELS.items():
        for batch in BATCHES:
            result = bench(arguments.shoal, config, str(batch), *prompt_options(PROMPT, batch))
            prefill_s, step_s = result["prefill"]["median_s"], result["decode"][0]["median_s"]
            their_prefill_s, their_step_s = theirs[name, batch]
            lines.append(f"| {name} | {batch} | {1e3 * their_prefill_s:.1f} ms | {1e3 * prefill_s:.1f} ms | "
                         f"{their_prefill_s / prefill_s:.2f} | {1e3 * their_step_s:.2f} ms | {1e3 * step_s:.2f} ms | "
                         f"{their_step_s / step_s:.2f} |")
    lines.append("")
    arguments.out.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
