"""lm-evaluation-harness' `local-completions` model against `shoal serve`, unmodified, on the small trained models.

Loglikelihoods (token ids, echo, logprobs 1, several prompts a request) are compared, number by number, with teacher-forced
logits: those of the kernels that the server runs on, and those of the reference kernels. Generated answers are compared with
the scores that training recorded.
Run by tools/lm_eval/run.sh. Exits with 1 where a number differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from lm_eval import evaluator, utils
from lm_eval.models.openai_completions import LocalCompletionsAPI
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from demo_streams import Server  # noqa: E402

FAMILIES = ["solar", "falcon", "cohere", "santacoder"]
TOLERANCE = 2e-5  # a token, same kernels: two float32 sums over a vocabulary, in other orders
ACROSS = 1e-4  # of the largest logit, a token, reference kernels: as the tests of the trained models have it
WINDOW = 48  # tokens of a rolling window, so that a text takes several
NUM_CHOICES = 4


def task(name: str, data: Path, **more) -> dict:
    return {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test",
            "doc_to_text": "context", "doc_to_target": "answer", "target_delimiter": "", **more}


def tasks_of(items: list[dict], folder: Path) -> dict[str, dict]:
    """One task a kind of request that the harness makes."""
    docs = []
    for i, item in enumerate(items):
        choices = [items[(i + step) % len(items)]["answer"] for step in range(NUM_CHOICES)]
        docs.append({"context": item["inputs"], "answer": item["answer"], "choices": choices, "gold": 0,
                     "text": item["inputs"] + item["answer"] + "\n" + items[(i + 1) % len(items)]["inputs"]})
    data = folder / "docs.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    return {
        "loglikelihood": task("shoal_likelihood", data, output_type="loglikelihood",
                              metric_list=[{"metric": "perplexity"}, {"metric": "acc"}]),
        "multiple_choice": task("shoal_choice", data, output_type="multiple_choice", metric_list=[{"metric": "acc"}])
        | {"doc_to_choice": "choices", "doc_to_target": "gold"},
        "rolling": task("shoal_rolling", data, output_type="loglikelihood_rolling",
                        metric_list=[{"metric": "bits_per_byte"}]) | {"doc_to_text": "", "doc_to_target": "text"},
        "generate": task("shoal_generate", data, output_type="generate_until", metric_list=[{"metric": "exact_match"}],
                         filter_list=[{"name": "none", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}],
                         generation_kwargs={"until": ["<never>"], "max_gen_toks": 48, "temperature": 0}),
    }


Pairs = list[tuple[list[int], list[int]]]  # token ids of contexts and continuations


class Forced:
    """Log-softmax in float64 of the logits of one set of CPU kernels; `isa` "": of those that this machine runs."""

    def __init__(self, binary: Path, model: Path, adapter: Path, isa: str, folder: Path):
        self.command = [str(binary), "logits", "--model-id", str(model), "--device", "cpu", "--dtype", "float32",
                        "--adapter-id", str(adapter)]
        self.environment = {**os.environ, **({"SHOAL_ISA": isa} if isa else {})}
        self.folder = folder
        self.largest = 0.0  # of the logits seen

    def scores(self, pairs: Pairs) -> list[tuple[float, bool]]:
        """Of each pair: the sum over the continuation, and whether greedy decoding gives it."""
        given, found = self.folder / "ids.safetensors", self.folder / "logits.safetensors"
        save_file({f"{i:06}.input_ids": np.array(context + continuation, np.int64)
                   for i, (context, continuation) in enumerate(pairs)}, given)
        subprocess.run([*self.command, "--input", str(given), "--output", str(found)], check=True, capture_output=True,
                       env=self.environment)
        logits = load_file(found)
        made = []
        for i, (context, continuation) in enumerate(pairs):
            rows = logits[f"{i:06}.logits"][len(context) - 1:-1].astype(np.float64)
            self.largest = max(self.largest, float(np.abs(rows).max()))
            top = rows.max(-1)
            logs = rows[np.arange(len(rows)), continuation] - top - np.log(np.exp(rows - top[:, None]).sum(-1))
            made.append((float(logs.sum()), bool((rows.argmax(-1) == continuation).all())))
        return made


class Both:
    """The two sets of kernels that answers are compared with."""

    def __init__(self, binary: Path, model: Path, adapter: Path, folder: Path):
        self.same = Forced(binary, model, adapter, "", folder)
        self.reference = Forced(binary, model, adapter, "reference", folder)

    def verdict(self, what: str, groups: list[tuple[float, bool | None, Pairs]]) -> tuple[bool, str]:
        """`groups`: a score, the verdict on greedy where there is one, and the pairs whose sum it is."""
        pairs = [pair for _, _, of_group in groups for pair in of_group]
        apart, wrong = [], 0
        for forced in (self.same, self.reference):
            scores = iter(forced.scores(pairs))
            furthest = 0.0
            for got, greedy, of_group in groups:
                expected = [next(scores) for _ in of_group]
                num_tokens = sum(len(continuation) for _, continuation in of_group)
                furthest = max(furthest, abs(got - sum(score for score, _ in expected)) / num_tokens)
                wrong += forced is self.same and greedy is not None and greedy != expected[0][1]
            apart.append(furthest)
        holds = apart[0] <= TOLERANCE and apart[1] <= ACROSS * self.reference.largest and wrong == 0
        return holds, (f"{what}, a token apart: {apart[0]:.1e} (same kernels), {apart[1]:.1e} (reference; largest logit "
                       f"{self.reference.largest:.0f}), {wrong} greedy verdicts differ")


def run(lm: LocalCompletionsAPI, config: dict, limit: int | None) -> tuple[dict, list[dict]]:
    found = evaluator.simple_evaluate(model=lm, tasks=[config], limit=limit, log_samples=True, bootstrap_iters=0)
    samples = sorted(found["samples"][config["task"]], key=lambda sample: sample["doc_id"])
    return found["results"][config["task"]], samples


def check_likelihoods(lm: LocalCompletionsAPI, both: Both, config: dict, limit: int) -> tuple[bool, str]:
    _, samples = run(lm, config, limit)
    groups = [(float(response[0]), bool(response[1]), [lm._encode_pair(*arguments)]) for sample in samples
              for (response,), arguments in zip(sample["resps"], sample["arguments"], strict=True)]
    return both.verdict(f"{len(groups)} requests", groups)


def check_rolling(lm: LocalCompletionsAPI, both: Both, config: dict, limit: int) -> tuple[bool, str]:
    _, samples = run(lm, config, limit)
    groups = []
    for sample in samples:
        windows = utils.get_rolling_token_windows(token_list=lm.tok_encode(sample["arguments"][0][0]),
                                                  prefix_token=lm.prefix_token_id, max_seq_len=lm.max_length - 1,
                                                  context_len=1)
        groups.append((float(sample["resps"][0][0]), None, list(map(utils.make_disjoint_window, windows))))
    num_windows = sum(len(pairs) for _, _, pairs in groups)
    return both.verdict(f"{len(groups)} texts in {num_windows} windows", groups)


def check_answers(lm: LocalCompletionsAPI, config: dict, recorded: dict) -> tuple[bool, str]:
    results, samples = run(lm, config, None)
    solved = round(results["exact_match,none"] * len(samples))
    return abs(solved - recorded["adapter"]) <= 1, f"{solved} of {len(samples)} answers, {recorded['adapter']} recorded"


def evaluate(server: Server, binary: Path, family: str, adapter: str, limit: int, folder: Path) -> bool:
    model = ROOT / "models" / family
    items = [json.loads(line) for line in (model / "reference" / "tasks" / f"{adapter}.jsonl").read_text().splitlines()]
    recorded = json.loads((model / "reference" / "training.json").read_text())["scores"][adapter]
    both = Both(binary, model, model / "adapters" / adapter, folder)
    # add_bos_token adds what the tokenizer adds, if anything: the models were trained so.
    lm, windowed = (LocalCompletionsAPI(model=adapter, tokenizer=str(model), tokenizer_backend="huggingface",
                                        base_url=f"http://127.0.0.1:{server.port}/v1/completions", num_concurrent=4, batch_size=batch,
                                        add_bos_token=True, max_length=length, max_retries=1)
                    for batch, length in ((3, 1024), (2, WINDOW)))
    configs = tasks_of(items, folder)
    checks = {
        "loglikelihood": lambda: check_likelihoods(lm, both, configs["loglikelihood"], limit),
        "multiple_choice": lambda: check_likelihoods(lm, both, configs["multiple_choice"], limit),
        "loglikelihood_rolling": lambda: check_rolling(windowed, both, configs["rolling"], min(limit, 5)),
        "generate_until": lambda: check_answers(lm, configs["generate"], recorded),
    }
    fine = True
    for name, check in checks.items():
        holds, what = check()
        fine = fine and holds
        print(f"{'ok' if holds else 'DIFFERS':8} {family:11} {adapter:16} {name:22} {what}", flush=True)
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--family", choices=FAMILIES, action="append", help="may be repeated; default: all")
    parser.add_argument("--limit", type=int, default=25, help="documents of a loglikelihood task")
    options = parser.parse_args()
    fine = True
    for family in options.family or FAMILIES:
        model = ROOT / "models" / family
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            os.environ["HF_HOME"] = str(folder / "hf")
            server = Server(options.binary, model, folder, "--adapter-dir", str(model / "adapters"), "--dtype", "float32")
            try:
                server.wait_until_healthy()
                for adapter in sorted(path.name for path in (model / "adapters").iterdir()):
                    fine = evaluate(server, options.binary, family, adapter, options.limit, folder) and fine
            finally:
                server.stop()
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
