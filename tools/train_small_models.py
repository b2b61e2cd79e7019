"""Trains the small models of models/, their tokenizers, adapters and speculation heads, with transformers and PEFT.

  python tools/train_small_models.py train                    all four, in parallel on one GPU (make models)
  python tools/train_small_models.py train --family falcon    one of them
  python tools/train_small_models.py train --smoke --out /tmp/smoke    the same path in small on a CPU
  python tools/train_small_models.py collect                  only the text that they read

Every stage that is done is left out, so a run that was broken off goes on; to make a model anew, delete its folder.
Needs tools/goldens-requirements.txt.
"""

import argparse
import os
import pathlib
import subprocess
import sys

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import torch  # noqa: E402
import transformers  # noqa: E402
from small_models import corpus, pipeline  # noqa: E402
from small_models.families import FAMILIES  # noqa: E402
from small_models.sizes import FULL, SMOKE  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMOKE_TEXTS = 400


def read_corpus(path: pathlib.Path) -> corpus.Corpus:
    if not path.exists():
        print(f"collecting text into {path}", flush=True)
        corpus.collect().save(path)
    return corpus.Corpus.load(path)


def train_family(arguments: argparse.Namespace) -> None:
    transformers.logging.set_verbosity_error()
    text = read_corpus(arguments.corpus)
    if arguments.smoke:
        text.paragraphs = text.paragraphs[:: max(1, len(text.paragraphs) // SMOKE_TEXTS)]
        text.sources = text.sources[:: max(1, len(text.sources) // 20)]
    device = "cpu" if arguments.smoke or not torch.cuda.is_available() else "cuda"
    if device == "cpu" and not arguments.smoke:
        raise SystemExit("training needs a GPU; --smoke runs the path in small on a CPU")
    sizes = SMOKE if arguments.smoke else FULL
    pipeline.Pipeline(FAMILIES[arguments.family], text, arguments.out, sizes, device).run()


def train_all(arguments: argparse.Namespace) -> int:
    """One process a family: the models are so small that one of them leaves a GPU idle."""
    read_corpus(arguments.corpus)
    command = [sys.executable, __file__, "train", "--out", str(arguments.out), "--corpus", str(arguments.corpus)]
    command += ["--smoke"] if arguments.smoke else []
    if arguments.smoke:
        return max(subprocess.run([*command, "--family", name], check=False).returncode for name in FAMILIES)
    processes = [subprocess.Popen([*command, "--family", name]) for name in FAMILIES]
    return max(abs(process.wait()) for process in processes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("collect", "train"))
    parser.add_argument("--family", choices=sorted(FAMILIES))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "models")
    parser.add_argument("--corpus", type=pathlib.Path, default=ROOT / "build-models/corpus.json")
    parser.add_argument("--smoke", action="store_true", help="tiny steps on a CPU; the results are worthless")
    arguments = parser.parse_args()
    if arguments.action == "collect":
        read_corpus(arguments.corpus)
        return 0
    if arguments.family:
        train_family(arguments)
        return 0
    return train_all(arguments)


if __name__ == "__main__":
    sys.exit(main())
