"""Starts `shoal serve`, and reads what it says about itself."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

START_LIMIT_S = 600
STOP_LIMIT_S = 120
COUNTERS = ("shoal_adapter_loads", "shoal_adapter_load_failures", "shoal_adapter_load_seconds", "shoal_adapter_uploads",
            'shoal_adapter_hits{tier="device"}', 'shoal_adapter_hits{tier="host"}',
            'shoal_adapter_evictions{tier="device"}', 'shoal_adapter_evictions{tier="host"}', "shoal_steps",
            "shoal_generated_tokens", "shoal_prompt_tokens", "shoal_preemptions")
IN_WORK = ("shoal_queued", "shoal_running")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A running server; used in a `with` block, which ends it."""

    def __init__(self, binary: Path, model: Path, adapters: Path, log: Path, flags: list[str]):
        self.port = _free_port()
        self.flags = ["--load-format", "dummy", *flags]
        self.command = [str(binary), "serve", "--model-id", str(model), "--adapter-dir", str(adapters), "--hostname",
                        "127.0.0.1", "--port", str(self.port), "--log-level", "warn", *self.flags]
        self.log = log

    def __enter__(self) -> "Server":
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_LIMIT_S
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError(f"`{' '.join(self.command)}` is not ready; its log is {self.log}")
            time.sleep(0.1)
        return self

    def _ready(self) -> bool:
        try:
            return self._get("/health")[0] == 200
        except OSError:
            return False

    def _get(self, path: str) -> tuple[int, str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as response:
            return response.status, response.read().decode()

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def metrics(self) -> dict[str, float]:
        """Of COUNTERS those that this server has."""
        return self._values(COUNTERS)

    def wait_until_idle(self, seconds: float = 600) -> None:
        """Until nothing is queued and nothing runs."""
        deadline = time.monotonic() + seconds
        while any((busy := self._values(IN_WORK)).values()) or len(busy) < len(IN_WORK):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server is still busy after {seconds:.0f} s: {busy}")
            time.sleep(0.5)

    def _values(self, names: tuple[str, ...]) -> dict[str, float]:
        text = self._get("/metrics")[1]
        found = {name: re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE) for name in names}
        return {name: float(match.group(1)) for name, match in found.items() if match}

    def usage(self) -> dict[str, float]:
        """Since its start: seconds of CPU, and bytes that came from a disk and not from the page cache."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        usage = {"cpu_s": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")}
        try:
            text = Path(f"/proc/{self.process.pid}/io").read_text()
            usage["disk_read_bytes"] = float(re.search(r"^read_bytes: (\d+)", text, re.MULTILINE).group(1))
        except OSError:  # not shown to everyone
            pass
        return usage

    def counters(self) -> dict[str, float]:
        return self.metrics() | self.usage() | {"machine_cpu_s": machine_cpu_s(), "stolen_cpu_s": stolen_cpu_s(),
                                                  "clock_s": time.monotonic()}


def machine_cpu_s() -> float:
    """Seconds of CPU that all processes of the machine took since it started."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def stolen_cpu_s() -> float:
    """Seconds of CPU that this machine wanted and its host gave to others, since it started."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


def machine() -> str:
    """The processor, its cores, and the memory."""
    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.*)$", info, re.MULTILINE)
    kilobytes = int(re.search(r"^MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE).group(1))
    return f"{model.group(1) if model else os.uname().machine}, {os.cpu_count()} cores, {kilobytes / 2**20:.0f} GiB"


def commit(root: Path) -> str:
    def git(*words: str) -> str:
        shown = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
        return shown.stdout.strip()

    changed = " and changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + changed
