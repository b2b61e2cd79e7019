"""Fixtures: a tiny model, and `shoal serve` on it. SHOAL_BINARY names the binary (default: build/shoal)."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

sys.path.insert(0, str(Path(__file__).parent))

import make_tiny_model  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("SHOAL_BINARY", ROOT / "build" / "shoal"))
ADAPTERS = [f"tenant-{i}" if i < 6 else f"org/tenant-{i}" for i in range(8)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A running `shoal serve`; with `verify`, what requests takes for it, over TLS."""

    def __init__(self, folder: Path, *flags: str, env: dict | None = None, adapter_dir: bool = True,
                 verify: str | None = None, cert=None):
        self.port = free_port()
        self.url = f"{'http' if verify is None else 'https'}://127.0.0.1:{self.port}"
        self.tls = {"verify": True if verify is None else verify, "cert": cert}
        adapters = ["--adapter-dir", str(folder / "adapters")] if adapter_dir else []
        command = [str(BINARY), "serve", "--model-id", str(folder / "model"), *adapters, "--hostname", "127.0.0.1",
                   "--port", str(self.port), *flags]
        self.log = open(folder / f"server-{self.port}.log", "w+")
        self.process = subprocess.Popen(command, stderr=self.log, stdout=self.log, env={**os.environ, **(env or {})})
        self.wait_ready()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"shoal serve ended with {self.process.returncode}:\n{self.logged()}")
            try:
                if requests.get(self.url + "/health", timeout=1, **self.tls).status_code == 200:
                    return
            except requests.RequestException:
                pass
            time.sleep(0.05)
        raise RuntimeError("shoal serve is not ready after a minute:\n" + self.logged())

    def logged(self) -> str:
        self.log.flush()
        return Path(self.log.name).read_text()

    def metric(self, name: str) -> float:
        text = requests.get(self.url + "/metrics", timeout=60, **self.tls).text
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert found, f"no metric {name} in:\n{text}"
        return float(found.group(1))

    def status(self, key: str) -> int:
        """A number of /proc/PID/status."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{key}:\s+(\d+)", text, re.MULTILINE).group(1))

    def wait_idle(self, seconds: float = 10) -> None:
        deadline = time.monotonic() + seconds
        busy = {}
        while time.monotonic() < deadline:
            busy = {name: self.metric(name) for name in ("shoal_queued", "shoal_running", "shoal_used_blocks")}
            if not any(busy.values()):
                return
            time.sleep(0.05)
        raise AssertionError(f"still busy: {busy}")

    def generate(self, inputs: str, **parameters) -> dict:
        body = {"inputs": inputs, "parameters": {"details": True, **parameters}}
        response = requests.post(self.url + "/generate", json=body, timeout=60, **self.tls)
        assert response.status_code == 200, response.text
        return response.json()

    def token_ids(self, inputs: str, **parameters) -> list[int]:
        return [token["id"] for token in self.generate(inputs, **parameters)["details"]["tokens"]]

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        return self.process.returncode


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory) -> Path:
    if not BINARY.exists():
        pytest.fail(f"{BINARY} is not built")
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny_model.main(folder)
    return folder


FAMILIES = ["falcon", "cohere", "solar", "santacoder"]


def trained_folder(family: str, tmp_path_factory) -> tuple[Path, Path]:
    """What a Server takes for the small trained model of one family, and the model's own folder."""
    folder = ROOT / "models" / family
    served = tmp_path_factory.mktemp(family)
    (served / "model").symlink_to(folder)
    (served / "adapters").symlink_to(folder / "adapters")
    return served, folder


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request, tmp_path_factory):
    """A server in float32 on the small trained model of one family, and the model's folder."""
    served, folder = trained_folder(request.param, tmp_path_factory)
    running = Server(served, "--dtype", "float32")
    yield running, folder
    assert running.stop() == 0


def paced_copy(tiny_folder: Path, folder: Path, **config) -> Path:
    """The tiny model without its weights, of a size that takes some milliseconds a token."""
    shutil.copytree(tiny_folder / "model", folder / "model")
    (folder / "model" / "model.safetensors").unlink()
    path = folder / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


@pytest.fixture
def paced_model(tiny_folder, tmp_path) -> Path:
    """So that tokens can be told apart in time."""
    (tmp_path / "adapters").mkdir()
    return paced_copy(tiny_folder, tmp_path, hidden_size=512, intermediate_size=2048, num_hidden_layers=8, head_dim=128)


def warm(server: Server) -> Server:
    """After a first answer: the first step touches memory of all layers' caches, which a busy host takes a second to find."""
    assert server.token_ids("x", max_new_tokens=2)
    return server


@pytest.fixture
def paced_server(paced_model):
    running = warm(Server(paced_model, "--load-format", "dummy"))
    yield running
    assert running.stop() == 0


@pytest.fixture
def deep_server(tiny_folder, tmp_path):
    """Many layers, which the tiny model's adapters change the first two of."""
    (tmp_path / "adapters").symlink_to(tiny_folder / "adapters")
    running = warm(Server(paced_copy(tiny_folder, tmp_path, num_hidden_layers=32), "--load-format", "dummy"))
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def server(tiny_folder):
    running = Server(tiny_folder)
    yield running
    assert running.process.poll() is None, "the server died during the tests:\n" + running.logged()
    assert running.stop() == 0


@pytest.fixture
def own_server(tiny_folder):
    """Starts servers that the test may harm: `own_server("--flag", ...)`."""
    started = []

    def start(*flags: str, **options) -> Server:
        started.append(Server(tiny_folder, *flags, **options))
        return started[-1]

    yield start
    for running in started:
        running.stop()


def event_json(line: bytes) -> dict:
    assert line.startswith(b"data: "), line
    return json.loads(line[len(b"data: "):])
