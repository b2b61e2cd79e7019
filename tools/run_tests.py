"""Runs ctest, then lists every skipped test; a skip that this machine does not excuse is a failure.

Excused are `cuda` tests where there is no GPU and `per_isa` tests of instructions that the CPU lacks.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

ISA_FLAGS = {
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "avx512bf16": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"},
}
GTEST_SKIP = re.compile(r"^\[  SKIPPED \] (\S+) \(\d+ ms\)$", re.MULTILINE)
PYTEST_SKIP = re.compile(r"^SKIPPED \[\d+\] (.*)$", re.MULTILINE)


@dataclasses.dataclass
class Skip:
    test: str  # name in ctest
    labels: set[str]
    detail: str  # the case inside the test, with its reason where the runner gives one


def cpu_flags() -> set[str]:
    match = re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return set(match.group(1).split()) if match else set()


def has_gpu() -> bool:
    return os.path.exists("/dev/nvidia0")


def is_excused(skip: Skip, flags: set[str], gpu: bool) -> bool:
    if "cuda" in skip.labels and not gpu:
        return True
    named = re.findall(r"avx512bf16|avx512|avx2", f"{skip.test} {skip.detail}".lower())
    return "per_isa" in skip.labels and any(not ISA_FLAGS[isa] <= flags for isa in named)


def labels_by_test(build_dir: str) -> dict[str, set[str]]:
    shown = subprocess.run(["ctest", "--test-dir", build_dir, "--show-only=json-v1"], check=True, capture_output=True)
    labels = {}
    for test in json.loads(shown.stdout)["tests"]:
        properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        labels[test["name"]] = set(properties.get("LABELS", []))
    return labels


def skips_in_report(report: str, labels: dict[str, set[str]]) -> list[Skip]:
    skips = []
    for case in xml.etree.ElementTree.fromstring(report).iter("testcase"):
        name = case.attrib["name"]
        output = case.findtext("system-out") or ""
        whole = case.find("skipped") is not None or case.attrib.get("status") in ("notrun", "disabled")
        details = ["all of it"] if whole else GTEST_SKIP.findall(output) + PYTEST_SKIP.findall(output)
        skips += [Skip(name, labels.get(name, set()), detail) for detail in details]
    return skips


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-dir", required=True)
    parser.add_argument("--labels", help="regular expression; all tests when left out")
    parser.add_argument("--names", help="space-separated names of ctest tests; all tests when left out")
    parser.add_argument("--jobs", default="2")
    arguments = parser.parse_args()

    report = pathlib.Path(arguments.build_dir, "test-results.xml")
    report.unlink(missing_ok=True)
    command = [
        "ctest",
        "--test-dir",
        arguments.build_dir,
        "--output-on-failure",
        "-j",
        arguments.jobs,
        "--no-tests=error",
        "--output-junit",
        str(report.resolve()),
        "--test-output-size-passed",
        "100000000",
    ]
    if arguments.labels:
        command += ["--label-regex", f"^({arguments.labels})$"]
    if arguments.names:
        command += ["--tests-regex", f"^({'|'.join(arguments.names.split())})$"]
    status = subprocess.run(command, check=False).returncode
    if not report.exists():
        return status or 1

    flags, gpu = cpu_flags(), has_gpu()
    skips = skips_in_report(report.read_text(encoding="utf-8", errors="replace"), labels_by_test(arguments.build_dir))
    refused = [skip for skip in skips if not is_excused(skip, flags, gpu)]
    for skip in skips:
        verdict = "NOT EXCUSED" if skip in refused else "excused"
        print(f"skipped ({verdict}): {skip.test}: {skip.detail}")
    print(f"skipped: {len(skips)}, not excused: {len(refused)}", flush=True)
    return status or (1 if refused else 0)


if __name__ == "__main__":
    sys.exit(main())
