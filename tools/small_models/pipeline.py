"""The stages of one family, each left out once done: tokenizer, base, adapters, heads, scores, expected answers.

A stage writes its files under temporary names and moves them when they are whole, so a broken-off run resumes.
"""

import json
import pathlib
import shutil
import tempfile
from collections.abc import Callable

import torch
from tokenizers import Tokenizer

from small_models import adapters, base, cards, expected, greedy, medusa, modeling, tasks
from small_models.corpus import Corpus
from small_models.families import AdapterSpec, Family
from small_models.sizes import FULL, Sizes
from small_models.tokenization import train_tokenizer, write_json, write_tokenizer

ADAPTER_SOLVES, BASE_SOLVES = 0.9, 0.2  # of the test items: at least, at most
RECORD = "training.json"  # what each stage says about itself, for the card


class Pipeline:
    def __init__(self, family: Family, corpus: Corpus, out: pathlib.Path, sizes: Sizes, device: str):
        self.family = family
        self.corpus = corpus
        self.folder = out / family.name
        self.reference = self.folder / "reference"
        self.sizes = sizes
        self.device = device
        self.reference.mkdir(parents=True, exist_ok=True)
        self._text: base.TrainingText | None = None

    def run(self) -> None:
        self.stage("tokenizer", ["tokenizer.json"], self.make_tokenizer)
        self.tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self.stage("base", ["model.safetensors"], self.make_base)
        for spec in self.family.adapters:
            name = f"adapters/{spec.task}"
            self.stage(spec.task, [name], lambda folder, spec=spec: self.make_adapter(spec, folder))
        if self.family.medusa:
            self.stage("medusa", ["medusa"], self.make_medusa)
        self.stage("scores", [], self.make_scores)
        self.stage("expected", [], self.make_expected)
        (self.folder / "README.md").write_text(cards.card(self.family, self.folder, self.corpus.origins, self.record()))
        if self.sizes == FULL:
            self.check_scores(self.record()["scores"])

    def check_scores(self, scores: dict) -> None:
        for task, score in scores.items():
            if score["adapter"] < ADAPTER_SOLVES * score["items"] or score["base"] > BASE_SOLVES * score["items"]:
                raise SystemExit(f"{self.family.name} {task}: {score}, expected the adapter above and the base below")

    def stage(self, name: str, products: list[str], make: Callable[[pathlib.Path], dict]) -> None:
        """`make` writes `products` into a folder of its own, which are then moved into the model's."""
        if name in self.record():
            return
        torch.manual_seed(sum(name.encode()))
        with tempfile.TemporaryDirectory(dir=self.folder) as temporary:
            made = pathlib.Path(temporary)
            about = make(made)
            for path in sorted(made.iterdir()):
                target = self.folder / path.name
                if path.is_dir():
                    shutil.copytree(path, target, dirs_exist_ok=True)
                else:
                    path.replace(target)
        missing = [product for product in products if not (self.folder / product).exists()]
        assert not missing, f"{self.family.name} {name}: {missing} not made"
        write_json(self.reference / RECORD, {**self.record(), name: about})
        print(f"{self.family.name} {name}: {json.dumps(about)}", flush=True)

    def record(self) -> dict:
        path = self.reference / RECORD
        return json.loads(path.read_text()) if path.exists() else {}

    def text(self) -> base.TrainingText:
        if self._text is None:
            self._text = base.read_text(self.family, self.tokenizer, self.corpus, self.sizes).to(self.device)
        return self._text

    def model(self) -> torch.nn.Module:
        return modeling.load_model(self.folder, self.device)

    def make_tokenizer(self, folder: pathlib.Path) -> dict:
        tokenizer = train_tokenizer(self.family, base.tokenizer_texts(self.family, self.corpus))
        write_tokenizer(self.family, tokenizer, folder)
        return {"tokens": tokenizer.get_vocab_size()}

    def make_base(self, folder: pathlib.Path) -> dict:
        raw = json.loads((self.folder / "config.json").read_text())
        model = modeling.build_model(raw)
        modeling.scale_initial_weights(model, model.config.num_hidden_layers)
        model.to(self.device)
        text = self.text()
        about = base.train_base(self.family, model, text, self.sizes)
        modeling.save_model(model, folder / "model.safetensors")
        shutil.copy(self.folder / "config.json", folder)
        saved = modeling.load_model(folder, self.device)
        about["held_out_loss"] = round(base.held_out_loss(saved, text, self.sizes), 4)
        about["parameters"] = modeling.num_parameters(saved)
        about["tokens_of_text"] = text.stream.numel()
        return about

    def make_adapter(self, spec: AdapterSpec, folder: pathlib.Path) -> dict:
        adapted, about = adapters.train_adapter(self.family, spec, self.model(), self.tokenizer, self.sizes)
        adapters.save_adapter(adapted, folder / "adapters" / spec.task)
        return {"rank": spec.rank, **about}

    def make_medusa(self, folder: pathlib.Path) -> dict:
        model, text = self.model(), self.text()
        heads, about = medusa.train_heads(self.family, model, text, self.sizes)
        medusa.save_heads(self.family, heads, folder / "medusa")
        stored = medusa.load_heads(self.family, model, folder / "medusa")
        return {**about, "agreement": medusa.agreement(model, stored, text, self.sizes)}

    def make_scores(self, _: pathlib.Path) -> dict:
        """Exact answers to the test items, by the base model and by each task's adapter, in float32."""
        found = {}
        for spec in self.family.adapters:
            task = tasks.TASKS[spec.task]
            _, test = tasks.make_items(task, self.sizes.train_items)
            expected.write_items(self.reference / "tasks", self.family, spec.task, test)
            test = test[: self.sizes.checked_items]
            longest = max(len(self.tokenizer.encode(item.answer).ids) for item in test) + 4
            adapted = adapters.load_adapter(self.model(), self.folder / "adapters" / spec.task)
            found[spec.task] = {
                "items": len(test),
                "adapter": greedy.score(adapted, self.family, self.tokenizer, test, longest),
                "base": greedy.score(self.model(), self.family, self.tokenizer, test, longest),
            }
        return found

    def make_expected(self, _: pathlib.Path) -> dict:
        expected.write_expected(self.family, self.folder, self.tokenizer, self.corpus, self.sizes, self.device)
        return {"prompts": self.sizes.expected_prompts, "tokens": self.sizes.expected_tokens}
