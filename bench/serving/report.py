"""Writes the records of the parts as tables and charts: a page of their own, and the marked tables of a document."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path

from chart import chart

PARTS = ("exchange", "chunk", "fairness", "connections", "sweep")
Records = dict[str, dict]  # by name


def read(path: Path) -> Records:
    return {record["name"]: record for record in map(json.loads, path.read_text().splitlines())}


def write(out: Path, document: Path | None) -> list[Path]:
    """`out`/report.md and its charts of all parts whose records lie in `out`; and in `document` what stands between
    `<!-- PART -->` and `<!-- /PART -->`. The pages written."""
    sections, charts = {}, {}
    for part in PARTS:
        path = out / f"{part}.jsonl"
        if not path.exists() or "verdict" not in (records := read(path)):
            continue
        body, drawn = SECTIONS[part](records)
        sections[part] = f"{_about(records['about'])}\n\n**{records['verdict']['line']}**\n\n{body}"
        charts |= drawn
    page = out / "report.md"
    page.write_text("# Serving under load\n" + "".join(f"\n## {part}\n\n{text}\n" for part, text in sections.items()))
    for name, text in charts.items():
        (out / name).write_text(text)
    if document is None:
        return [page]
    text = document.read_text()
    for part, section in sections.items():
        text, count = re.subn(rf"(<!-- {part} -->\n).*?(<!-- /{part} -->)",
                              lambda found, section=section: f"{found[1]}{section}\n{found[2]}", text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{document} has {count} places for {part}, expected one")
    document.write_text(text)
    for name, svg in charts.items():
        (document.parent / name).write_text(svg)
    return [page, document]


def _about(about: dict) -> str:
    return (f"{about['date']}, commit {about['commit']}, {about['machine']} (load before the start "
            f"{about['load_before']:.2f}); dummy like {about['config']}, adapters of rank {about['rank']}, "
            f"{about['bytes_each'] / 1e6:.2f} MB each; prompts of {_span(about['prompt'])} tokens, answers of "
            f"{_span(about['output'])}; seed {about['seed']}.\n`{about['command']}`")


def _span(ends: list[int]) -> str:
    return f"{ends[0]} to {ends[1]}"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float | None, digits: int = 2) -> str:
    """Null is what JSON has for an endless wait."""
    return "endless" if value is None else f"{value:.{digits}f}"


def _three(figure: dict) -> str:
    return " / ".join(number(figure[name], 3) for name in ("p50", "p95", "p99"))


RUN_HEAD = ["run", "adapters", "offered/s", "requests/s", "tokens/s", "first token p50 / p95 / p99, s",
            "between tokens, s", "end to end, s", "goodput/s", "errors", "loads", "disk MB", "checked",
            "client late p99, ms", "cores of others"]


def _run_row(record: dict) -> list[str]:
    server, client = record["server"], record["client"]
    late = max(client["sent_late_s"]["p99"] or 0.0, client["timer_late_s"]["p99"] or 0.0)
    disk = server.get("disk_read_bytes")
    return [record["name"], f"{record['adapters']}, {record['mix']}",
            number(record["offered_per_s"]) if record["loop"] == "open" else f"{record['clients']} clients",
            number(record["requests_per_s"]), number(record["output_tokens_per_s"], 1), _three(record["first_token_s"]),
            _three(record["inter_token_s"]), _three(record["end_to_end_s"]), number(record["goodput_per_s"]),
            str(sum(record["errors"].values())), f"{server.get('shoal_adapter_loads', 0):.0f}",
            "unknown" if disk is None else f"{disk / 1e6:.0f}",
            f"{record['checked']['same']} of {record['checked']['answers']}",
            f"{1e3 * late:.1f}{' (held up)' if client['held_up'] else ''}", number(record["cores_of_others"])]


def _runs(records: Records) -> list[dict]:
    return [record for record in records.values() if "loop" in record]


def _run_table(records: Records) -> str:
    return table(RUN_HEAD, [_run_row(record) for record in _runs(records)])


def _curves(records: Records, names: dict[str, str]) -> dict[str, list[tuple[float, float]]]:
    """Of each run the curve of its first tokens, under a label."""
    return {label: [(percent, math.inf if seconds is None else seconds)
                    for percent, seconds in records[name]["first_token_curve_s"]]
            for name, label in names.items()}


def _exchange(records: Records) -> tuple[str, dict[str, str]]:
    few, many = records["open-few"], records["open-many"]
    curves = _curves(records, {"open-few": f"{few['adapters']} adapters", "open-many": f"{many['adapters']} adapters"})
    svg = chart(f"First token at {many['rate']:.2f} requests/s", "share of the requests, %", "within, s", curves)
    body = f"{_run_table(records)}\n\n![first tokens](serving-exchange.svg)"
    return body, {"serving-exchange.svg": svg}


def _chunk(records: Records) -> tuple[str, dict[str, str]]:
    streams = records["streams"]
    rows = [["8 streams alone", _three(streams["quiet_s"]), str(streams["quiet_gaps"])],
            ["the same while a prompt of 2,000 tokens runs", _three(streams["busy_s"]), str(streams["busy_gaps"])],
            ["a prompt of 256 tokens alone", number(streams["chunk_s"], 3), ""],
            ["a prompt of 2,000 tokens alone", number(streams["prompt_s"], 3), ""]]
    return table(["", "between tokens p50 / p95 / p99, s", "gaps"], rows), {}


def _fairness(records: Records) -> tuple[str, dict[str, str]]:
    verdict = records["verdict"]
    curves = _curves(records, {"quiet-alone": "alone", "quiet-beside-loud": "beside a loud tenant"})
    svg = chart("First token of the quiet tenant", "share of its requests, %", "within, s", curves)
    loud = (f"The loud tenant sent {verdict['loud_sent']} requests, {verdict['loud_answered']} of which were answered "
            "before the last of the quiet one.")
    return f"{_run_table(records)}\n\n{loud}\n\n![first tokens](serving-fairness.svg)", {"serving-fairness.svg": svg}


def _connections(records: Records) -> tuple[str, dict[str, str]]:
    return _run_table(records), {}


def _median(values: list[float | None]) -> float:
    return statistics.median(math.inf if value is None else value for value in values)


def spread(values: list[float | None]) -> str:
    """The median of repeats, and the least and the most."""
    ordered = sorted(math.inf if value is None else value for value in values)
    shown = [number(value if math.isfinite(value) else None, 3) for value in (_median(values), ordered[0], ordered[-1])]
    return shown[0] if len(values) == 1 else f"{shown[0]} ({shown[1]} - {shown[2]})"


def _sweep(records: Records) -> tuple[str, dict[str, str]]:
    groups: dict[str, list[dict]] = {}
    for record in _runs(records):
        if record["loop"] == "open":
            groups.setdefault(record["name"].rsplit("-", 1)[0], []).append(record)
    saturation = records["verdict"]["saturation_per_s"]
    rows, lines = [], {}
    for name, group in groups.items():
        first = group[0]
        arrivals = "Poisson" if first["cv"] == 1 else f"bursts, cv {first['cv']:g}"
        figures = [[record[kind][percent] for record in group]
                   for kind in ("first_token_s", "inter_token_s", "end_to_end_s") for percent in ("p50", "p90", "p99")]
        rows.append([f"{first['adapters']}, {first['mix']}", arrivals, number(first["rate"] / saturation),
                     number(_median([record["requests_per_s"] for record in group])),
                     number(_median([record["goodput_per_s"] for record in group])), *map(spread, figures),
                     str(sum(sum(record["errors"].values()) for record in group))])
        if name.startswith("load-"):
            for percent in ("p50", "p99"):
                seconds = _median([record["first_token_s"][percent] for record in group])
                line = lines.setdefault(f"{first['adapters']} adapters, {arrivals}, {percent}", [])
                line.append((first["rate"] / saturation, seconds))
    head = ["adapters", "arrivals", "load", "requests/s", "goodput/s",
            *(f"{kind} {percent}, s" for kind in ("first token", "between tokens", "end to end")
              for percent in ("p50", "p90", "p99")), "errors"]
    svg = chart("First token against load", f"share of saturation ({saturation:.2f} requests/s)", "first token, s",
                lines)
    return f"![latency against load](serving-load.svg)\n\n{table(head, rows)}", {"serving-load.svg": svg}


SECTIONS = {"exchange": _exchange, "chunk": _chunk, "fairness": _fairness, "connections": _connections,
            "sweep": _sweep}
