"""Endpoint x stream x adapter form x n x logprobs x stop through the clients that users have: one answer in all forms.

Each cell's tokens are those of one plain native answer for its prompt, adapter, seed and stop rules (reference_answers.py).
"""

import itertools
import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import requests
from client_processes import OPENAI, environment, run_calls
from conftest import Server, trained_folder
from reference_answers import MAX_TOKENS, TOP, Expected, References, Stop

# Of its trained adapters; the vocabulary is the tokenizer's, so that both protocols' logprobs are of one distribution.
FAMILY, ADAPTER, OTHER = "solar", "sql-table", "reverse-list"
MESSAGE = "Return the first words of this: Zwölf 鳥, 12 olives"
INPUTS = f"<|im_start|>user\n{MESSAGE}<|im_end|>\n<|im_start|>assistant\n"  # as the model's template writes it
SEED = 20
LOGPROB_TOLERANCE = 1e-5

STOPS = ["none", "string", "several", "several kept", "ids"]
SAMPLINGS = {  # seed, n, best_of
    "greedy": (None, 1, None),
    "seeded": (SEED, 1, None),
    "n=3": (SEED, 3, None),
    "best_of=3": (SEED, 1, 3),
}
MERGED = {"ids": [ADAPTER, OTHER], "weights": [0.75, 0.5], "merge_strategy": "linear", "density": 1.0,
          "majority_sign_method": None}
LORAX_ADAPTERS = {
    "none": {},
    "empty": {"adapter_id": ""},
    "adapter_id": {"adapter_id": ADAPTER},
    "adapter_id and source": {"adapter_id": ADAPTER, "adapter_source": "local"},
    "merged": {"merged_adapters": MERGED},
}
OPENAI_ADAPTERS = ["empty model", "base model", "model", "model and source", "adapter_id"]


@dataclass(frozen=True)
class Cell:
    endpoint: str
    stream: bool
    adapter: str
    sampling: str
    logprobs: str | int | None
    stop: str

    @property
    def key(self) -> str:
        return " | ".join(f"{name}={value}" for name, value in vars(self).items())


def openai_cells() -> Iterable[Cell]:
    for axes in itertools.product(["completions", "chat"], [False, True], OPENAI_ADAPTERS, SAMPLINGS, [None, 0, TOP], STOPS):
        cell = Cell(*axes)
        # best_of is no field of chats and, with fewer given back, of no stream.
        if cell.sampling != "best_of=3" or (cell.endpoint == "completions" and not cell.stream):
            yield cell


def lorax_cells() -> Iterable[Cell]:
    for axes in itertools.product(["/", "/invocations"], [False, True], LORAX_ADAPTERS, ["greedy", "seeded", "best_of=2"],
                                  ["no details", "details", "alternatives", "prefill"], ["none", "string", "several"]):
        cell = Cell(*axes)
        # What the client's streams have no argument for.
        if not cell.stream or (cell.sampling != "best_of=2" and cell.logprobs in ("no details", "details")):
            yield cell


class Matrix:
    """The server, its plain answers, and what each client made of each cell."""

    def __init__(self, server: Server):
        self.server = server
        self.references = References(server.url, INPUTS)
        self.model_id = requests.get(server.url + "/info", timeout=60).json()["model_id"]
        self.prompt = requests.post(server.url + "/tokenize", json={"inputs": INPUTS}, timeout=60).json()
        self.results: dict[str, dict[str, dict]] = {}

    def parameters(self, cell: Cell) -> dict:
        """Native parameters that name the cell's adapter."""
        if cell.adapter in LORAX_ADAPTERS and cell.adapter != "adapter_id":
            return LORAX_ADAPTERS[cell.adapter]
        return {} if cell.adapter in ("empty model", "base model") else {"adapter_id": ADAPTER}

    def stop(self, cell: Cell) -> Stop:
        """Rules that the first answer of the cell meets in its middle: across tokens, and as a token."""
        seed = SAMPLINGS.get(cell.sampling, (SEED,))[0]
        answer = self.references.answer(self.parameters(cell), seed)
        middle = len("".join(answer.texts[:6]))
        across = answer.text[middle - 1:middle + 1]
        assert len(across) == 2
        return {
            "none": Stop(),
            "string": Stop(strings=(across,)),
            # One that is never whole, one that ends later, one that ends with another.
            "several": Stop(strings=(across + "\0", across + answer.text[middle + 1:middle + 3], across, across[1:])),
            "several kept": Stop(strings=(across[1:], across + "\0", across)),
            "ids": Stop(ids=(answer.tokens[5]["id"], 2000)),
        }[cell.stop]

    def expected(self, cell: Cell, seed: int | None) -> Expected:
        return self.references.answer(self.parameters(cell), seed).stopped(self.stop(cell))

    def openai_call(self, cell: Cell) -> dict:
        seed, n, best_of = SAMPLINGS[cell.sampling]
        body = {"model": {"empty model": "", "base model": self.model_id, "adapter_id": ""}.get(cell.adapter, ADAPTER),
                "max_tokens": MAX_TOKENS, "temperature": 0 if seed is None else 1, "n": n, "stream": cell.stream}
        extra = {}
        if seed is not None:
            body["seed"] = seed
        if cell.adapter == "model and source":
            extra["adapter_source"] = "local"
        if cell.adapter == "adapter_id":
            extra["adapter_id"] = ADAPTER
        stop = self.stop(cell)
        if cell.stop == "string":
            body["stop"] = stop.strings[0]
        elif cell.stop in ("several", "several kept"):
            body["stop"] = list(stop.strings)
            extra |= {} if cell.stop == "several" else {"include_stop_str_in_output": True}
        elif cell.stop == "ids":
            extra["stop_token_ids"] = list(stop.ids)
        if cell.stream and self.wants_usage_chunk(cell):
            body["stream_options"] = {"include_usage": True}
        if cell.endpoint == "completions":
            # Text or token ids, turn by turn.
            body["prompt"] = INPUTS if n == 1 else [token["id"] for token in self.prompt]
            body |= {} if cell.logprobs is None else {"logprobs": cell.logprobs}
            body |= {} if best_of is None else {"best_of": best_of}
        else:
            body["messages"] = [{"role": "user", "content": MESSAGE}]
            body |= {} if cell.logprobs is None else {"logprobs": True, "top_logprobs": cell.logprobs}
        method = "completions.create" if cell.endpoint == "completions" else "chat.completions.create"
        return {"key": cell.key, "url": self.server.url, "method": method, "body": body, "extra": extra}

    @staticmethod
    def wants_usage_chunk(cell: Cell) -> bool:
        return cell.logprobs != 0

    def lorax_call(self, cell: Cell) -> dict:
        body = {"prompt": INPUTS, "max_new_tokens": MAX_TOKENS, "details": cell.logprobs != "no details",
                **LORAX_ADAPTERS[cell.adapter]}
        if cell.sampling != "greedy":
            body |= {"do_sample": True, "temperature": 1.0}
        if cell.sampling == "seeded":
            body["seed"] = SEED
        if cell.sampling == "best_of=2":
            body["best_of"] = 2
        if cell.stop != "none":
            body["stop_sequences"] = list(self.stop(cell).strings)
        if cell.logprobs == "alternatives":
            body["return_k_alternatives"] = TOP
        if cell.logprobs == "prefill":
            body["decoder_input_details"] = True
        return {"key": cell.key, "url": self.server.url + cell.endpoint.rstrip("/"),
                "method": "generate_stream" if cell.stream else "generate", "body": body}

    def result(self, client: str, cell: Cell) -> dict:
        """All cells of a client are sent at once."""
        if client not in self.results:
            calls = [self.lorax_call(each) for each in lorax_cells()] if client == "lorax_client" else \
                [self.openai_call(each) for each in openai_cells()]
            self.results[client] = run_calls(client, calls)
        return self.results[client][cell.key]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory):
    served, _ = trained_folder(FAMILY, tmp_path_factory)
    running = Server(served, "--dtype", "float32", "--max-stop-sequences", "5")
    yield Matrix(running)
    assert running.stop() == 0


def each_holds(cells: Iterable[Cell], check) -> None:
    count = 0
    for cell in cells:
        try:
            check(cell)
        except AssertionError as error:
            error.add_note(f"cell: {cell.key}")
            raise
        count += 1
    assert count > 0


# --- lorax-client ---


def same_tokens(got: list[dict], expected: list[dict], alternatives: bool) -> None:
    assert [token["id"] for token in got] == [token["id"] for token in expected]
    assert [token["text"] for token in got] == [token["text"] for token in expected]
    assert [token["special"] for token in got] == [token["special"] for token in expected]
    assert [token["logprob"] for token in got] == pytest.approx([token["logprob"] for token in expected],
                                                                abs=LOGPROB_TOLERANCE)
    for one, other in zip(got, expected):
        if not alternatives:
            assert one["alternative_tokens"] is None
            continue
        assert [each["id"] for each in one["alternative_tokens"]] == [each["id"] for each in other["alternative_tokens"]]
        assert [each["logprob"] for each in one["alternative_tokens"]] == pytest.approx(
            [each["logprob"] for each in other["alternative_tokens"]], abs=LOGPROB_TOLERANCE)


def check_lorax_stream(matrix: Matrix, cell: Cell, events: list[dict]) -> None:
    expected = matrix.expected(cell, SAMPLINGS[cell.sampling][0])
    same_tokens([event["token"] for event in events], expected.tokens, alternatives=False)
    assert all(event["generated_text"] is None and event["details"] is None for event in events[:-1])
    assert events[-1]["generated_text"] == expected.native_text
    if cell.logprobs == "no details":
        assert events[-1]["details"] is None
        return
    assert events[-1]["details"] == {"finish_reason": expected.native_reason, "prompt_tokens": len(matrix.prompt),
                                     "generated_tokens": len(expected.tokens), "seed": SAMPLINGS[cell.sampling][0]}


def check_lorax_whole(matrix: Matrix, cell: Cell, answer: dict) -> None:
    details = answer["details"]
    if cell.logprobs == "no details":
        assert details is None
        if cell.sampling != "best_of=2":  # its seeds are told by the details alone
            assert answer["generated_text"] == matrix.expected(cell, SAMPLINGS[cell.sampling][0]).native_text
        return
    parts = [{**details, "generated_text": answer["generated_text"]}, *(details["best_of_sequences"] or [])]
    assert len(parts) == (2 if cell.sampling == "best_of=2" else 1)
    assert details["prompt_tokens"] == len(matrix.prompt)
    means = []
    for part in parts:
        if cell.sampling == "greedy":
            assert part["seed"] is None
        if cell.sampling == "seeded":
            assert part["seed"] == SEED
        expected = matrix.expected(cell, part["seed"])
        same_tokens(part["tokens"], expected.tokens, alternatives=cell.logprobs == "alternatives")
        assert part["generated_text"] == expected.native_text
        assert part["finish_reason"] == expected.native_reason
        assert part["generated_tokens"] == len(expected.tokens)
        prefill = [(token["id"], token["logprob"] is None) for token in part["prefill"]]
        asked = cell.logprobs == "prefill"
        assert prefill == [(token["id"], i == 0) for i, token in enumerate(matrix.prompt) if asked]
        means.append(expected.mean_logprob)
    assert means == sorted(means, reverse=True)


@pytest.mark.parametrize("adapter", LORAX_ADAPTERS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("endpoint", ["/", "/invocations"])
def test_lorax_client(matrix, endpoint, stream, adapter):
    def check(cell: Cell) -> None:
        result = matrix.result("lorax_client", cell)
        assert "error" not in result
        if stream:
            check_lorax_stream(matrix, cell, result["answers"])
        else:
            check_lorax_whole(matrix, cell, *result["answers"])

    each_holds((cell for cell in lorax_cells()
                if (cell.endpoint, cell.stream, cell.adapter) == (endpoint, stream, adapter)), check)


# --- openai, in Python and on Node ---


@dataclass
class Choice:
    text: str
    reason: str | None
    logprobs: dict | None


def whole_choices(cell: Cell, answer: dict) -> list[Choice]:
    choices = []
    for index, choice in enumerate(answer["choices"]):
        assert choice["index"] == index
        if cell.endpoint == "chat":
            assert choice["message"]["role"] == "assistant"
            assert not choice["message"].get("tool_calls")
        text = choice["text"] if cell.endpoint == "completions" else choice["message"]["content"]
        choices.append(Choice(text, choice["finish_reason"], choice.get("logprobs")))
    return choices


def joined(logprobs: dict | None, more: dict | None) -> dict | None:
    """Lists of a chunk's logprobs behind those before."""
    if logprobs is None or more is None:
        return logprobs or more
    return {name: value + more[name] if isinstance(value, list) else value for name, value in logprobs.items()}


def streamed_choices(cell: Cell, chunks: list[dict]) -> list[Choice]:
    by_index: dict[int, Choice] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            first = choice["index"] not in by_index
            so_far = by_index.setdefault(choice["index"], Choice("", None, None))
            assert so_far.reason is None, "a chunk after the last one"
            if cell.endpoint == "chat":
                assert choice["delta"].get("role") == ("assistant" if first else None)
            text = choice["text"] if cell.endpoint == "completions" else choice["delta"].get("content") or ""
            so_far.text += text
            so_far.reason = choice["finish_reason"]
            so_far.logprobs = joined(so_far.logprobs, choice.get("logprobs"))
    assert sorted(by_index) == list(range(len(by_index)))
    return [by_index[index] for index in sorted(by_index)]


def check_completion_logprobs(logprobs: dict, top: int, choice: Choice, expected: Expected) -> None:
    close = [token["logprob"] for token in expected.tokens]
    assert logprobs["token_logprobs"] == pytest.approx(close, abs=LOGPROB_TOLERANCE)
    assert len(logprobs["tokens"]) == len(logprobs["text_offset"]) == len(logprobs["top_logprobs"]) == len(close)
    for text, token, values in zip(logprobs["tokens"], expected.tokens, logprobs["top_logprobs"]):
        if not text.startswith("bytes:"):
            assert text == token["text"]
        likeliest = [each["logprob"] for each in token["alternative_tokens"]][:top]
        for each in [*likeliest, token["logprob"]]:
            assert any(abs(each - value) <= LOGPROB_TOLERANCE for value in values.values())
        assert len(values) <= top + 1
        assert text in values
    for text, offset, token in zip(logprobs["tokens"], logprobs["text_offset"], expected.tokens):
        if not text.startswith("bytes:") and not token["special"] and offset + len(text) <= len(choice.text):
            assert choice.text[offset:offset + len(text)] == text


def check_chat_logprobs(content: list[dict], top: int, expected: Expected) -> None:
    assert [token["logprob"] for token in content] == pytest.approx([token["logprob"] for token in expected.tokens],
                                                                    abs=LOGPROB_TOLERANCE)
    for got, token in zip(content, expected.tokens):
        assert bytes(got["bytes"]).decode(errors="replace") == got["token"]
        likeliest = token["alternative_tokens"][:top]
        assert [each["logprob"] for each in got["top_logprobs"]] == pytest.approx(
            [each["logprob"] for each in likeliest], abs=LOGPROB_TOLERANCE)
        assert [each["token"] for each in got["top_logprobs"]] == [each["text"] for each in likeliest]


def check_openai(matrix: Matrix, cell: Cell, answers: list[dict]) -> None:
    seed, n, best_of = SAMPLINGS[cell.sampling]
    candidates = [matrix.expected(cell, None if seed is None else seed + i) for i in range(best_of or n)]
    expected = sorted(candidates, key=lambda each: -each.mean_logprob)[:1] if best_of else candidates
    choices = streamed_choices(cell, answers) if cell.stream else whole_choices(cell, *answers)
    kept = cell.stop == "several kept"
    assert [choice.text for choice in choices] == [each.native_text if kept else each.text for each in expected]
    assert [choice.reason for choice in choices] == [each.reason for each in expected]
    for choice, each in zip(choices, expected):
        if cell.logprobs is None:
            assert choice.logprobs is None
        elif cell.endpoint == "completions":
            check_completion_logprobs(choice.logprobs, cell.logprobs, choice, each)
        else:
            check_chat_logprobs(choice.logprobs["content"], cell.logprobs, each)

    kind = {"completions": "text_completion", "chat": "chat.completion" + (".chunk" if cell.stream else "")}
    model = matrix.model_id if cell.adapter in ("empty model", "base model") else ADAPTER
    assert {(answer["object"], answer["model"]) for answer in answers} == {(kind[cell.endpoint], model)}
    assert len({(answer["id"], answer["created"]) for answer in answers}) == 1
    assert answers[0]["id"].startswith("cmpl-" if cell.endpoint == "completions" else "chatcmpl-")
    usages = [answer["usage"] for answer in answers if answer.get("usage")]
    num_tokens = sum(len(each.tokens) for each in candidates)
    assert [{name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")} for usage in usages] == \
        [{"prompt_tokens": len(matrix.prompt), "completion_tokens": num_tokens,
          "total_tokens": len(matrix.prompt) + num_tokens}]
    if cell.stream:
        assert answers[-1].get("usage")
        assert (answers[-1]["choices"] == []) == matrix.wants_usage_chunk(cell)


@pytest.mark.parametrize("adapter", OPENAI_ADAPTERS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("client", OPENAI)
def test_openai_clients(matrix, client, endpoint, stream, adapter):
    def check(cell: Cell) -> None:
        result = matrix.result(client, cell)
        assert "error" not in result
        check_openai(matrix, cell, result["answers"])

    each_holds((cell for cell in openai_cells()
                if (cell.endpoint, cell.stream, cell.adapter) == (endpoint, stream, adapter)), check)


@pytest.mark.parametrize("client", OPENAI)
def test_no_two_answers_share_an_id(matrix, client):
    ids = [matrix.result(client, cell)["answers"][0]["id"] for cell in openai_cells()]
    assert len(set(ids)) == len(ids)


TYPES = {"text_completion": "OpenAI.Completion", "chat.completion": "OpenAI.ChatCompletion",
         "chat.completion.chunk": "OpenAI.ChatCompletionChunk"}


def shape(value, name: str = ""):
    """Equal for answers that a type cannot tell apart."""
    if isinstance(value, dict):
        if name == "top_logprobs" and "token" not in value:
            return "numbers by token"
        return tuple((key, shape(each, key)) for key, each in value.items())
    if isinstance(value, list):
        return frozenset(shape(each, name) for each in value)
    return value if name in ("object", "role", "finish_reason") else type(value).__name__


def test_answers_are_what_the_types_of_the_node_client_say(matrix, tmp_path):
    """JavaScript checks nothing, so an answer of each shape becomes a constant of the client's type."""
    by_shape = {}
    for cell in openai_cells():
        for answer in matrix.result("openai_node", cell)["answers"]:
            by_shape.setdefault(shape(answer), answer)
    assert {answer["object"] for answer in by_shape.values()} == set(TYPES)
    lines = ['import OpenAI from "openai";']
    for i, answer in enumerate(by_shape.values()):
        if answer["object"] == "text_completion":
            # Its one type for chunks and whole answers has no null here, which OpenAI sends in each chunk but the last.
            answer = answer | {"choices": [choice | {"finish_reason": choice["finish_reason"] or "stop"}
                                           for choice in answer["choices"]]}
        lines.append(f"export const answer{i}: {TYPES[answer['object']]} = {json.dumps(answer)};")
    (tmp_path / "answers.ts").write_text("\n".join(lines))
    node = environment("openai_node")
    for name in ("package.json", "tsconfig.json", "node_modules"):
        (tmp_path / name).symlink_to(node / name)
    checked = subprocess.run([node / "bin" / "node", node / "node_modules" / "typescript" / "bin" / "tsc", "--noEmit",
                              "--project", tmp_path, "--typeRoots", node / "node_modules" / "@types"],
                             capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_stop_rules_of_the_matrix_end_answers_in_all_ways(matrix):
    """So that the cells above say something."""
    ends = {(cell.stop, matrix.expected(cell, seed).native_reason)
            for cell in openai_cells() for seed in ([None] if cell.sampling == "greedy" else range(SEED, SEED + 3))}
    assert ends >= {("none", "length"), *((stop, "stop_sequence") for stop in STOPS[1:])}
    answers = {matrix.references.answer(parameters, seed).text
               for parameters in ({}, {"adapter_id": ADAPTER}, {"merged_adapters": MERGED})
               for seed in (None, *range(SEED, SEED + 3))}
    assert len(answers) >= 8
