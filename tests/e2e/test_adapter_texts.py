"""Adapters that bring a tokenizer or a chat template: their requests are read and answered by it, and no others."""

import concurrent.futures
import json
import shutil
import subprocess

import pytest
import requests
from conftest import BINARY, Server, event_json
from openai import OpenAI
from tokenizers import AddedToken, Tokenizer

PROMPT = "Many small fish swim as one shoal."
TEMPLATE = "{% for m in messages %}<|own|>{{ m['content'] }}{% endfor %}{{ eos_token }}"


def own_tokenizer(model) -> Tokenizer:
    """The model's own, but for twenty letters that trade their ids, and a special token with another name."""
    content = json.loads((model / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    letters = [chr(ord("a") + i) for i in range(20)]
    ids = [vocab[letter] for letter in letters]
    vocab.update(zip(letters, ids[1:] + ids[:1]))
    content["model"]["merges"] = []
    merged = {piece for piece in vocab if len(piece) > 1}
    renamed = {"<|im_start|>": "<|own|>"}
    for token in content["added_tokens"]:
        merged.discard(token["content"])
        token["content"] = renamed.get(token["content"], token["content"])
    if "<|im_start|>" in vocab:
        vocab["<|own|>"] = vocab.pop("<|im_start|>")
    # Pieces that are never made keep their ids.
    assert len(set(vocab.values())) == len(vocab)
    return Tokenizer.from_str(json.dumps(content))


@pytest.fixture(scope="module")
def folder(tiny_folder, tmp_path_factory):
    own = tmp_path_factory.mktemp("texts")
    (own / "model").symlink_to(tiny_folder / "model")
    shutil.copytree(tiny_folder / "adapters", own / "adapters")
    adapters = own / "adapters"
    own_tokenizer(tiny_folder / "model").save(str(adapters / "tenant-1" / "tokenizer.json"))
    (adapters / "tenant-1" / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "</s>", "chat_template": TEMPLATE}))
    (adapters / "tenant-2" / "chat_template.jinja").write_text("{% for m in messages %}# {{ m['content'] }}{% endfor %}")
    return own


@pytest.fixture(scope="module")
def running(folder):
    server = Server(folder, "--prefix-caching")
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def plain(tiny_folder):
    """The same adapters without files of their own."""
    server = Server(tiny_folder)
    yield server
    assert server.stop() == 0


def completion(server, **body) -> dict:
    answer = requests.post(server.url + "/v1/completions", timeout=60,
                           json={"temperature": 0, "max_tokens": 24, "ignore_eos_token": True, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_prompts_and_answers_go_by_the_adapters_tokenizer(running, plain, folder):
    own = Tokenizer.from_file(str(folder / "adapters" / "tenant-1" / "tokenizer.json"))
    base = Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
    ids = own.encode(PROMPT).ids
    assert ids != base.encode(PROMPT).ids
    listed = requests.post(running.url + "/tokenize", timeout=60, json={"inputs": PROMPT, "model": "tenant-1"}).json()
    assert [token["id"] for token in listed] == ids
    text = requests.post(running.url + "/detokenize", timeout=60, json={"tokens": ids, "model": "tenant-1"}).json()
    assert text["prompt"] == PROMPT
    answer = running.generate(PROMPT, max_new_tokens=24, ignore_eos_token=True, adapter_id="tenant-1",
                              decoder_input_details=True)
    details = answer["details"]
    assert [token["id"] for token in details["prefill"]] == ids
    assert "".join(token["text"] for token in details["prefill"]) == PROMPT
    answer_ids = [token["id"] for token in details["tokens"]]
    # The other server takes the prompt's ids as they are, and tells the same answer in the model's own tokens.
    expected = completion(plain, model="tenant-1", prompt=ids, skip_special_tokens=False)["choices"][0]["text"]
    read = requests.post(plain.url + "/detokenize", timeout=60, json={"tokens": answer_ids}).json()["prompt"]
    assert read == expected
    assert answer["generated_text"] == own.decode(answer_ids)
    assert answer["generated_text"] != expected
    events = []
    with requests.post(running.url + "/generate_stream", stream=True, timeout=60, json={
            "inputs": PROMPT, "parameters": {"max_new_tokens": 24, "ignore_eos_token": True,
                                             "adapter_id": "tenant-1"}}) as stream:
        events = [event_json(line) for line in stream.iter_lines() if line.startswith(b"data: ")]
    assert [event["token"]["id"] for event in events] == answer_ids
    assert events[-1]["generated_text"] == own.decode(answer_ids)
    scored = completion(running, model="tenant-1", prompt=PROMPT, logprobs=1, echo=True)["choices"][0]
    assert scored["text"] == PROMPT + own.decode(answer_ids)
    assert "".join(scored["logprobs"]["tokens"][: len(ids)]) == PROMPT


def test_base_model_and_other_adapters_are_as_ever(running, plain):
    for adapter in (None, "tenant-0", "tenant-2", "org/tenant-6"):
        assert (running.generate(PROMPT, max_new_tokens=24, adapter_id=adapter)["generated_text"]
                == plain.generate(PROMPT, max_new_tokens=24, adapter_id=adapter)["generated_text"])


def test_chats_are_rendered_with_the_adapters_template(running, plain, folder):
    own = Tokenizer.from_file(str(folder / "adapters" / "tenant-1" / "tokenizer.json"))
    base = Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
    client = OpenAI(base_url=running.url + "/v1", api_key="none")

    def chat(model: str, text: str):
        return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], temperature=0,
                                              max_tokens=16, extra_body={"ignore_eos_token": True})

    answer = chat("tenant-1", PROMPT)
    prompt = own.encode("<|own|>" + PROMPT + "</s>", add_special_tokens=False).ids
    assert answer.usage.prompt_tokens == len(prompt)
    as_ids = completion(running, model="tenant-1", prompt=prompt, max_tokens=16)
    assert answer.choices[0].message.content == as_ids["choices"][0]["text"]
    # What a message spells is text.
    assert chat("tenant-1", "<|own|>").usage.prompt_tokens > 3
    only_template = chat("tenant-2", PROMPT)
    as_text = completion(plain, model="tenant-2", max_tokens=16,
                         prompt=base.encode("# " + PROMPT, add_special_tokens=False).ids)
    assert only_template.choices[0].message.content == as_text["choices"][0]["text"]
    unchanged = chat("tenant-0", PROMPT)
    other = OpenAI(base_url=plain.url + "/v1", api_key="none")
    expected = other.chat.completions.create(model="tenant-0", messages=[{"role": "user", "content": PROMPT}],
                                             temperature=0, max_tokens=16, extra_body={"ignore_eos_token": True})
    assert unchanged.choices[0].message.content == expected.choices[0].message.content
    assert unchanged.usage.prompt_tokens == expected.usage.prompt_tokens


def test_grammars_and_stop_strings_go_by_it(running):
    for model in ("tenant-1", "tenant-0", "tenant-1"):
        answer = completion(running, model=model, prompt=PROMPT, guided_choice=["badge", "cabbage"])
        assert answer["choices"][0]["text"] in ("badge", "cabbage")
        json_answer = completion(running, model=model, prompt=PROMPT, max_tokens=60, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": {
                "type": "object", "properties": {"d": {"enum": ["abc", "cab"]}}, "required": ["d"],
                "additionalProperties": False}}})
        assert json.loads(json_answer["choices"][0]["text"])["d"] in ("abc", "cab")
    whole = running.generate(PROMPT, max_new_tokens=24, ignore_eos_token=True, adapter_id="tenant-1")["generated_text"]
    stop = next(letter for letter in whole[1:] if letter.isascii() and letter.isalnum())
    answer = running.generate(PROMPT, max_new_tokens=24, ignore_eos_token=True, adapter_id="tenant-1", stop=[stop])
    assert answer["generated_text"] == whole[: whole.index(stop) + 1]
    assert answer["details"]["finish_reason"] == "stop_sequence"


def test_the_command_line_reads_them_too(running, folder):
    expected = running.generate(PROMPT, max_new_tokens=24, ignore_eos_token=True, adapter_id="tenant-1")
    ended = subprocess.run([BINARY, "generate", "--model-id", folder / "model", "--adapter-dir", folder / "adapters",
                            "--adapter-id", "tenant-1", "--prompt", PROMPT, "--max-new-tokens", "24", "--ignore-eos"],
                           capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.rstrip("\n") == expected["generated_text"].rstrip("\n")


def test_both_kinds_at_once_answer_as_alone(running):
    jobs = [(f"{PROMPT} {i}", adapter) for i in range(6) for adapter in (None, "tenant-0", "tenant-1", "tenant-2")]
    alone = [running.generate(text, max_new_tokens=24, adapter_id=adapter)["generated_text"] for text, adapter in jobs]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda job: running.generate(job[0], max_new_tokens=24, adapter_id=job[1])["generated_text"],
                              jobs))
    assert texts == alone


def test_what_does_not_fit_or_cannot_be_read(folder, running):
    adapters = folder / "adapters"
    for name in ("larger", "broken"):
        shutil.copytree(adapters / "tenant-0", adapters / name)
    larger = Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
    larger.add_special_tokens([AddedToken("<pad>", special=True)])
    larger.save(str(adapters / "larger" / "tokenizer.json"))
    (adapters / "broken" / "tokenizer.json").write_text("{")
    expected = running.generate(PROMPT, max_new_tokens=24, adapter_id="tenant-0")["generated_text"]
    assert running.generate(PROMPT, max_new_tokens=24, adapter_id="larger")["generated_text"] == expected
    assert "adapter larger: its tokenizer has" in running.logged()
    refused = requests.post(running.url + "/v1/completions", timeout=60, json={"model": "broken", "prompt": PROMPT})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["code"] == "adapter_invalid"
    assert error["message"].startswith("adapter 'broken': tokenizer.json: ")
    assert str(folder) not in error["message"]
    load = requests.post(running.url + "/v1/load_lora_adapter", timeout=60,
                         json={"lora_name": "x", "lora_path": "broken"})
    assert load.status_code == 400
    # Mended, it serves the next request.
    (adapters / "broken" / "tokenizer.json").unlink()
    assert running.generate(PROMPT, max_new_tokens=24, adapter_id="broken")["generated_text"] == expected
