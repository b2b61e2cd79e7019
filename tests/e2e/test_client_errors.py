"""Each failure of docs/errors.md as the clients that users have tell it: by the class of what they raise."""

import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import openai
import pytest
import requests
from client_processes import OPENAI, run_calls
from conftest import ROOT, Server
from fake_hub import FakeHub
from lorax.errors import parse_error
from make_tiny_model import make_adapter
from safetensors.numpy import load_file, save_file

CLIENTS = ["lorax_client", *OPENAI]
HELD = "acme/held"  # an adapter of a hub that does not give it before the test says so

# Of lorax-client, by its rules: error_type first, then the status. The first three are not this server's alone to send.
LORAX_CLASSES = {
    "malformed_request": "BadRequestError",
    "request_timeout": "UnknownError",
    "payload_too_large": "UnknownError",
    "headers_too_large": "UnknownError",
    "http_version": "UnknownError",
    "unsupported_media_type": "UnknownError",
    "invalid_type": "ValidationError",
    "adapter_already_loaded": "ValidationError",
    "too_many_adapters": "ValidationError",
    "unknown_url": "NotFoundError",
    "method_not_allowed": "UnknownError",
    "invalid_api_key": "UnknownError",
    "model_not_found": "NotFoundError",
    "unhealthy": "UnknownError",
    "too_many_connections": "OverloadedError",
    "internal": "UnknownError",
    "invalid_value": "ValidationError",
    "adapter_not_found": "GenerationError",
    "adapter_invalid": "GenerationError",
    "overloaded": "OverloadedError",
    "generation_failed": "GenerationError",
    "incomplete_generation": "IncompleteGenerationError",
    "template_error": "UnprocessableEntityError",
    "missing_template_variable": "UnprocessableEntityError",
    "unavailable": "OverloadedError",
    "timeout": "ShardTimeoutError",
}
# Of both openai clients; other statuses are an APIStatusError in Python and an APIError on Node.
OPENAI_CLASSES = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError", 429: "RateLimitError",
                  500: "InternalServerError", 503: "InternalServerError", 504: "InternalServerError"}


def documented() -> list[dict]:
    """The rows of docs/errors.md."""
    text = (ROOT / "docs" / "errors.md").read_text()
    names = ("status", "error_type", "error_code", "v1_status", "type", "code", "when")
    rows = [dict(zip(names, (cell.strip().strip("`") for cell in line.strip("|").split(" | "))))
            for line in text.splitlines() if re.match(r"\| \d{3} ", line)]
    assert len(rows) > 20
    return rows


ROWS = {row["error_code"]: row for row in documented()}


def openai_class(client: str, status: int) -> str:
    return OPENAI_CLASSES.get(status, "APIStatusError" if client == "openai_python" else "APIError")


def expect(client: str, key: str, result: dict) -> None:
    """`key` begins with the failure's error_code."""
    row = ROWS[key.split(":")[0]]
    error = result.get("error")
    assert error is not None, f"{client} {key}: no error, but {result['answers']}"
    assert result["answers"] == []
    if client == "lorax_client":
        name = LORAX_CLASSES[row["error_code"]]
        if key == "timeout:generate_stream":
            name = "UnknownError"  # its streams have status 200, by which it does not know this one
        assert error["class"] == name, (key, error)
        return
    status = int(row["v1_status"])
    code = None if row["code"] == "null" else row["code"]
    assert (error["class"], error["status"]) == (openai_class(client, status), status), (key, error)
    assert (error["type"], error["code"]) == (row["type"], code), (key, error)


def calls_of(client: str, url: str, failures: dict[str, dict]) -> list[dict]:
    """`failures`: by key, what differs from a good request; {lorax, openai: body fields, url, options}."""
    calls = []
    for key, given in failures.items():
        side = "lorax" if client == "lorax_client" else "openai"
        if given.get(side) is None:
            continue
        call = {"url": url + given.get("path", ""), "options": given.get("options", {})}
        if side == "lorax":
            headers = {"headers": call["options"]["default_headers"]} if "default_headers" in call["options"] else {}
            body = {"prompt": "a", "max_new_tokens": 2, **given[side]}
            for method in ("generate", "generate_stream"):
                calls.append({**call, "key": f"{key}:{method}", "method": method, "body": body, "options": headers})
            continue
        method = given.get("method")
        if method == "models.retrieve":
            calls.append({**call, "key": key, "method": method, "body": given[side]})
            continue
        if client == "openai_node":
            if key == "unsupported_media_type":
                continue  # its own header of this name goes last
            call["options"] = {{"default_headers": "defaultHeaders"}.get(name, name): value
                               for name, value in call["options"].items()}
        fields = {"model": "", "max_tokens": 2, **given[side]}
        for stream in (False, True):
            calls += [
                {**call, "key": f"{key}:completions:{stream}", "method": "completions.create",
                 "body": {"prompt": "a", "stream": stream, **fields}},
                {**call, "key": f"{key}:chat:{stream}", "method": "chat.completions.create",
                 "body": {"messages": [{"role": "user", "content": "a"}], "stream": stream, **fields}}]
        if given.get("method") == "chat":
            calls = [each for each in calls if not each["key"].startswith(f"{key}:completions")]
    return calls


def each_client_tells(url: str, failures: dict[str, dict], seconds: float = 60) -> None:
    def one(client: str) -> int:
        calls = calls_of(client, url, failures)
        if not calls:
            return 0
        for key, result in run_calls(client, calls, seconds).items():
            expect(client, key, result)
        return len(calls)

    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        assert sum(pool.map(one, CLIENTS)) > 0


@pytest.fixture(scope="module")
def folder(tiny_folder, tmp_path_factory) -> Path:
    """The tiny model, with an adapter that does not fit it and one that drives its numbers out of range."""
    made = tmp_path_factory.mktemp("errors")
    (made / "model").symlink_to(tiny_folder / "model")
    (made / "adapters").mkdir()
    for name in ("misfit", "overflow"):
        make_adapter(made / "adapters" / name, 0)
        path = made / "adapters" / name / "adapter_model.safetensors"
        tensors = load_file(path)
        if name == "misfit":
            tensors = {key: value[:, :-1] if "lora_A" in key else value for key, value in tensors.items()}
        else:
            tensors = {key: value * 0 + 1e30 for key, value in tensors.items()}
        save_file({key: value.copy() for key, value in tensors.items()}, path)
    return made


@contextmanager
def serving(folder: Path, *flags: str, **options):
    running = Server(folder, *flags, **options)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def hub(tiny_folder):
    running = FakeHub()
    running.add(HELD, tiny_folder / "adapters" / "tenant-1")
    running.store.hanging.set()
    yield running
    running.close()


@contextmanager
def serving_held(folder: Path, hub: FakeHub, cache: Path, *flags: str):
    """A server with one request in it that waits for its adapter until the block ends."""
    env = {"HF_ENDPOINT": hub.url, "HUGGINGFACE_HUB_CACHE": str(cache), "HF_HUB_DOWNLOAD_TIMEOUT": "600"}
    with serving(folder, "--adapter-source", "hub", *flags, env=env) as server:
        answers = []

        def ask() -> None:
            body = {"inputs": "a", "parameters": {"max_new_tokens": 2, "adapter_id": HELD}}
            answers.append(requests.post(server.url + "/generate", json=body, timeout=120))

        asking = threading.Thread(target=ask)
        asking.start()
        while hub.store.count("GET") == 0:
            assert asking.is_alive(), answers
            hub.wait_a_little()
        try:
            yield server
        finally:
            hub.store.hanging.clear()
            asking.join()
        assert [answer.status_code for answer in answers] == [200]


def both(**fields) -> dict:
    return {"lorax": fields, "openai": fields}


def test_what_requests_do_wrong(folder):
    failures = {
        "invalid_type": {"lorax": {"max_new_tokens": 2**40}, "openai": {"max_tokens": "many"}},
        "invalid_value": {"lorax": {"max_new_tokens": 100_000}, "openai": {"max_tokens": 100_000}},
        "invalid_value:sampling": {"lorax": {"stop_sequences": ["a"] * 9}, "openai": {"top_p": 1.5}},
        "adapter_not_found": {"lorax": {"adapter_id": "nobody"}, "openai": {"model": "nobody"}},
        "adapter_invalid": {"lorax": {"adapter_id": "misfit"}, "openai": {"model": "misfit"}},
        "adapter_invalid:source": {"lorax": {"adapter_id": "overflow", "adapter_source": "s3"}},
        "generation_failed": {"lorax": {"adapter_id": "overflow"}, "openai": {"model": "overflow"}},
        "unknown_url": {"path": "/v1/nowhere", **both()},
        "method_not_allowed": {"path": "/info", "lorax": {}},
        "model_not_found": {"method": "models.retrieve", "openai": {"model": "nobody"}},
        "unsupported_media_type": {"options": {"default_headers": {"Content-Type": "text/plain"}}, **both()},
        "headers_too_large": {"options": {"default_headers": {"x-long": "x" * 5000}}, **both()},
        "payload_too_large": {"lorax": {"prompt": "x" * 70_000}, "openai": {"user": "x" * 70_000}},
    }
    with serving(folder, "--max-body-bytes", "64KiB", "--max-header-bytes", "4KiB") as server:
        each_client_tells(server.url, failures)
        assert server.generate("a", max_new_tokens=2)["generated_text"]
        assert server.process.poll() is None


def test_keys(folder):
    failures = {"invalid_api_key": both()}
    with serving(folder, "--api-key", "secret") as server:
        each_client_tells(server.url, failures)
        good = {"url": server.url, "key": "good", "body": {"prompt": "a"}}
        lorax = {**good, "method": "generate", "options": {"headers": {"Authorization": "Bearer secret"}}}
        assert "error" not in run_calls("lorax_client", [lorax])["good"]
        for client, option in (("openai_python", "api_key"), ("openai_node", "apiKey")):
            call = {**good, "method": "completions.create", "options": {option: "secret"},
                    "body": {"model": "", "prompt": "a", "max_tokens": 2}}
            assert "error" not in run_calls(client, [call])["good"]


def test_too_many_requests(folder, hub, tmp_path):
    with serving_held(folder, hub, tmp_path / "cache", "--max-concurrent-requests", "1") as server:
        each_client_tells(server.url, {"overloaded": both()})


def test_a_server_that_shuts_down(folder, hub, tmp_path):
    with serving_held(folder, hub, tmp_path / "cache") as server:
        server.terminate()
        while requests.get(server.url + "/health", timeout=60).status_code == 200:
            assert server.process.poll() is None
        each_client_tells(server.url, {"unavailable": both()})
    assert server.process.returncode == 0


def test_a_request_that_takes_too_long(folder, hub, tmp_path):
    failures = {"timeout": {"lorax": {"adapter_id": HELD, "adapter_source": "hub"}, "openai": {"model": HELD}}}
    env = {"HF_ENDPOINT": hub.url, "HUGGINGFACE_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_DOWNLOAD_TIMEOUT": "600"}
    with serving(folder, "--adapter-source", "hub", "--request-timeout", "0.3", env=env) as server:
        each_client_tells(server.url, failures)
        hub.store.hanging.clear()


def test_too_many_connections(folder):
    with serving(folder, "--max-connections", "4") as server, ExitStack() as open_ones:
        for _ in range(4):
            open_ones.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        each_client_tells(server.url, {"too_many_connections": both()})


def test_a_model_without_a_template(tmp_path):
    (tmp_path / "model").symlink_to(ROOT / "models" / "santacoder")
    (tmp_path / "adapters").mkdir()
    with serving(tmp_path) as server:
        each_client_tells(server.url, {"template_error": {"method": "chat", "openai": {}}})
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "{{ guideline }}: {{ messages[0]['content'] }}"}))
    with serving(tmp_path, "--tokenizer-config-path", str(config)) as server:
        each_client_tells(server.url, {"missing_template_variable": {"method": "chat", "openai": {}}})
        body = {"model": "", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "guideline": "be brief"}
        assert requests.post(server.url + "/v1/chat/completions", json=body, timeout=60).status_code == 200


def test_a_server_that_is_gone(folder):
    with serving(folder) as server:
        url = server.url
        server.process.kill()
        server.process.wait()
    names = {"lorax_client": "ConnectionError", "openai_python": "APIConnectionError", "openai_node": "APIConnectionError"}
    for client, name in names.items():
        calls = calls_of(client, url, {"gone": both()})
        if client == "lorax_client":
            calls = [call | {"options": {"no_retries": True}} for call in calls]
        assert {result["error"]["class"] for result in run_calls(client, calls).values()} == {name}


def test_a_server_that_dies_in_a_stream(paced_model):
    names = {"lorax_client": "ChunkedEncodingError", "openai_python": "APIConnectionError", "openai_node": "TypeError"}
    for client, name in names.items():
        with serving(paced_model, "--load-format", "dummy") as server, ThreadPoolExecutor(1) as pool:
            call = {"key": "cut", "url": server.url, "method": "completions.create",
                    "body": {"model": "", "prompt": "a", "max_tokens": 1000, "stream": True}}
            if client == "lorax_client":
                call |= {"method": "generate_stream", "body": {"prompt": "a", "max_new_tokens": 1000}}
            running = pool.submit(run_calls, client, [call])
            while server.metric("shoal_generated_tokens") < 20:
                assert not running.done(), running.result()
            server.process.kill()
            result = running.result()["cut"]
        assert 0 < len(result["answers"]) < 1000
        assert result["error"]["class"] == name, result["error"]


def raw(server: Server, request: bytes) -> requests.Response:
    """What the server answers to bytes that no client sends."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, body = answer.split(b"\r\n\r\n", 1)
    response = requests.Response()
    response.status_code = int(head.split()[1])
    response._content = body
    return response


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_what_no_client_sends(folder, path):
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n".encode()
    with serving(folder, "--header-timeout", "0.3", "--body-timeout", "0.3") as server:
        found = {
            "malformed_request": raw(server, head + b"content-type: application/json\r\ncontent-length: 1\r\n\r\n{"),
            "request_timeout": raw(server, head + b"content-type: application/json\r\ncontent-length: 9\r\n\r\n{"),
            "method_not_allowed": requests.delete(server.url + path, timeout=60),
        }
        if path == "/generate":  # of such a request no path is read
            found["http_version"] = raw(server, f"GET {path} HTTP/3.7\r\n\r\n".encode())
        for error_code, response in found.items():
            row = ROWS[error_code]
            native = path == "/generate"
            body = response.json()
            assert response.status_code == int(row["status" if native else "v1_status"]), error_code
            if native:
                assert (body["error_type"], body["error_code"]) == (row["error_type"], error_code)
                assert type(parse_error(response.status_code, body)).__name__ == LORAX_CLASSES[error_code]
            else:
                assert body["error"]["type"] == row["type"], error_code


def test_lorax_clients_class_for_each_row():
    """Those too that no test can bring about (internal, incomplete_generation): as the table says they are sent."""
    assert set(LORAX_CLASSES) == set(ROWS)
    for error_code, name in LORAX_CLASSES.items():
        row = ROWS[error_code]
        error = parse_error(int(row["status"]), {"error": "x", "error_type": row["error_type"], "error_code": error_code})
        assert type(error).__name__ == name, error_code
    for status, name in OPENAI_CLASSES.items():
        assert issubclass(getattr(openai, name), openai.APIStatusError), status
