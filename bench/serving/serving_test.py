"""The load generator's own arithmetic: traces, percentiles, and latencies that count from when a request was due."""

import asyncio
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import dummies  # noqa: E402  (the path above comes first)
import figures  # noqa: E402
import load  # noqa: E402
import report  # noqa: E402
import traces  # noqa: E402
from chart import chart, powers, round_steps  # noqa: E402
from chunk import overlapping_gaps  # noqa: E402
from client import CUT_OFF, Outcome, Pool, message_of  # noqa: E402
from connections import judge  # noqa: E402
from traces import Lengths, Mix, Planned  # noqa: E402

LENGTHS = Lengths((8, 16), (2, 6))


# --- traces ---


@pytest.mark.parametrize("cv", [1.0, 4.0])
def test_gaps_between_arrivals_have_the_rate_and_the_variation_asked_for(cv):
    gaps = np.diff(traces.arrival_times(5.0, 200_000, cv, seed=3))
    assert gaps.mean() == pytest.approx(1 / 5.0, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)
    assert (gaps >= 0).all()


@pytest.mark.parametrize("cv", [1.0, 4.0])
@pytest.mark.parametrize("rate, seconds", [(7.0, 100.0), (0.1, 10.0), (300.0, 3.0)])
def test_an_open_trace_fills_its_time_and_not_more(cv, rate, seconds):
    counts = [len(traces.open_trace(rate, seconds, LENGTHS, Mix(4), cv=cv, seed=seed)) for seed in range(100)]
    deviation = cv * math.sqrt(rate * seconds) + cv**2  # of one count, roughly
    assert np.mean(counts) == pytest.approx(rate * seconds, abs=5 * deviation / math.sqrt(100) + 0.5 * cv**2)
    trace = traces.open_trace(rate, seconds, LENGTHS, Mix(4), cv=cv, seed=1)
    assert all(0 <= planned.due_s < seconds for planned in trace)
    assert [planned.due_s for planned in trace] == sorted(planned.due_s for planned in trace)


@pytest.mark.parametrize("exponent", [1.0, 1.5])
def test_zipf_adapters_come_as_often_as_their_place_says(exponent):
    drawn = traces.draw_adapters(Mix(50, "zipf", exponent), 200_000, seed=2)
    shares = np.sort(np.bincount(drawn, minlength=50))[::-1] / len(drawn)
    expected = np.arange(1, 51) ** -exponent / (np.arange(1, 51) ** -exponent).sum()
    np.testing.assert_allclose(shares[:10], expected[:10], rtol=0.05)
    assert shares.sum() == pytest.approx(1.0)


def test_popularity_says_nothing_about_the_number():
    drawn = traces.draw_adapters(Mix(1000), 50_000, seed=2)
    assert np.bincount(drawn).argmax() != 0


def test_uniform_and_distinct_adapters():
    uniform = np.bincount(traces.draw_adapters(Mix(20, "uniform"), 100_000, seed=1), minlength=20)
    np.testing.assert_allclose(uniform / 100_000, 1 / 20, rtol=0.1)
    distinct = traces.draw_adapters(Mix(20, "distinct"), 60, seed=1)
    assert (np.bincount(distinct) == 3).all()
    assert len(set(distinct[:20].tolist())) == 20


def test_no_adapters_mean_the_base_model():
    assert set(traces.draw_adapters(Mix(0), 10, seed=1).tolist()) == {traces.BASE}
    with pytest.raises(ValueError, match="unknown distribution"):
        traces.draw_adapters(Mix(3, "normal"), 1, seed=1)


def test_a_seed_gives_one_trace_and_adapters_change_nothing_else():
    few = traces.open_trace(10.0, 30.0, LENGTHS, Mix(16), seed=4)
    assert few == traces.open_trace(10.0, 30.0, LENGTHS, Mix(16), seed=4)
    assert few != traces.open_trace(10.0, 30.0, LENGTHS, Mix(16), seed=5)
    many = traces.open_trace(10.0, 30.0, LENGTHS, Mix(2000), seed=4)
    work = [(each.due_s, each.prompt_tokens, each.output_tokens) for each in few]
    assert work == [(each.due_s, each.prompt_tokens, each.output_tokens) for each in many]
    assert {each.adapter for each in many} - set(range(16))


def test_lengths_reach_both_ends():
    trace = traces.closed_trace(2000, LENGTHS, Mix(4), seed=1)
    assert {each.prompt_tokens for each in trace} == set(range(8, 17))
    assert {each.output_tokens for each in trace} == set(range(2, 7))


def test_a_trace_survives_its_file(tmp_path):
    trace = traces.merged(traces.open_trace(9.0, 5.0, LENGTHS, Mix(9), seed=1, tenant="a"),
                          traces.open_trace(9.0, 5.0, LENGTHS, Mix(9), seed=2, tenant="b"))
    traces.save(tmp_path / "trace", trace)
    assert traces.load(tmp_path / "trace") == trace
    assert {each.tenant for each in trace} == {"a", "b"}
    assert [each.due_s for each in trace] == sorted(each.due_s for each in trace)


# --- figures ---


def test_percentiles_are_values_that_were_measured():
    values = [float(value) for value in range(100, 0, -1)]
    assert [figures.percentile(values, percent) for percent in (0, 1, 50, 95, 99, 100)] == [1, 1, 50, 95, 99, 100]
    assert figures.percentile([7.0], 99) == 7.0
    assert figures.percentile([1.0, 2.0, 3.0], 50) == 2.0
    assert math.isnan(figures.percentile([], 50))


def answered(due: float, first: float, *, tokens: int = 3, gap: float = 0.01, sent: float | None = None) -> Outcome:
    times = [first + gap * index for index in range(tokens)]
    return Outcome(Planned(due, 8, tokens, 0), due, sent=due if sent is None else sent, event_times=times,
                   end=times[-1], status=200)


def run_of(outcomes: list[Outcome], begin: float = 0.0, end: float = 10.0) -> load.Run:
    return load.Run(outcomes, begin, end, [0.0], 1.0)


def test_latency_counts_from_when_a_request_was_due_and_not_from_when_it_was_sent():
    late = answered(due=1.0, first=4.0, sent=3.5)
    summary = figures.summary(run_of([late]), figures.Goal())
    assert summary["first_token_s"]["p50"] == 3.0
    assert summary["end_to_end_s"]["p50"] == pytest.approx(3.02)
    assert summary["client"]["sent_late_s"]["p99"] == 2.5
    assert summary["client"]["held_up"]
    assert not figures.summary(run_of([answered(1.0, 4.0)]), figures.Goal())["client"]["held_up"]


def test_a_failed_answer_is_later_than_any():
    failed = Outcome(Planned(0.0, 8, 3, 0), 5.0, sent=5.0, end=6.0, error="status 429")
    summary = figures.summary(run_of([*(answered(1.0, 1.1) for _ in range(49)), failed]), figures.Goal())
    assert summary["first_token_s"]["p95"] == pytest.approx(0.1)
    assert summary["first_token_s"]["p99"] == math.inf
    assert summary["errors"] == {"status 429": 1}
    assert summary["goodput_per_s"] == pytest.approx(4.9)


def test_requests_of_the_warm_up_count_only_by_what_is_answered_later():
    early, inside = answered(due=0.5, first=2.5), answered(due=3.0, first=3.2)
    summary = figures.summary(run_of([early, inside], begin=1.0, end=11.0), figures.Goal())
    assert summary["requests"] == 1
    assert summary["first_token_s"]["p99"] == pytest.approx(0.2)
    assert summary["requests_per_s"] == pytest.approx(0.2)
    assert summary["output_tokens_per_s"] == pytest.approx(0.6)


def test_goodput_asks_for_both_times():
    goal = figures.Goal(0.5, 0.05)
    assert figures.is_good(answered(0.0, 0.4), goal)
    assert not figures.is_good(answered(0.0, 0.6), goal)
    assert not figures.is_good(answered(0.0, 0.4, gap=0.06), goal)
    assert figures.is_good(answered(0.0, 0.4, tokens=1), goal)


def test_cpu_of_others_is_what_neither_server_nor_client_took():
    taken = {"machine_cpu_s": 20.0, "cpu_s": 12.0, "clock_s": 10.0}
    assert figures.cores_of_others(taken, 1.0) == pytest.approx(0.7)
    assert figures.cores_of_others(taken, 9.0) == 0.0


def test_gaps_that_a_prompt_touches():
    stream = answered(0.0, 1.0, tokens=5, gap=1.0)  # at 1, 2, 3, 4, 5
    assert overlapping_gaps(stream, 2.5, 3.5) == [1.0, 1.0]
    assert overlapping_gaps(stream, 6.0, 7.0) == []


# --- loops, against a server of a few lines ---

EVENT = 'data: {"token":{"id":%d},"details":%s}\n\n'


async def slow_server(delay_s: float, at_once: int) -> asyncio.Server:
    """Answers after `delay_s`, `at_once` requests at a time, with as many tokens as asked for, in uneven pieces."""
    turns = asyncio.Semaphore(at_once)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length: ")[1].split("\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                async with turns:
                    await asyncio.sleep(delay_s)
                    await answer(writer, body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def answer(writer: asyncio.StreamWriter, body: dict) -> None:
        if body["inputs"] == "":
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\n{}")
            return
        text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        count = body["parameters"]["max_new_tokens"]
        for token in range(count):
            details = {"prompt_tokens": len(body["inputs"].split())} if token == count - 1 else None
            event = (EVENT % (token, json.dumps(details))).encode()
            text += b"%x\r\n%s\r\n" % (len(event), event)
        text += b"0\r\n\r\n"
        for begin in range(0, len(text), 37):
            writer.write(text[begin : begin + 37])
            await asyncio.sleep(0)

    return await asyncio.start_server(serve, "127.0.0.1", 0)


def against_slow_server(delay_s: float, at_once: int, run, timeout_s: float = 10.0):
    async def body():
        server = await slow_server(delay_s, at_once)
        pool = Pool(server.sockets[0].getsockname()[1], timeout_s)
        try:
            done = await run(pool)
        finally:
            pool.close()
            server.close()
        for outcome in done.outcomes:
            outcome.check()
        return done

    return asyncio.run(body())


def test_an_open_loop_sends_on_time_while_the_server_falls_behind():
    trace = [Planned(0.02 * index, 8, 3, traces.BASE) for index in range(20)]
    messages = load.messages_of(trace, str)
    done = against_slow_server(0.1, 1, lambda pool: load.run_open(pool, trace, messages, seconds=0.4, warmup_s=0.0))
    assert [outcome.error for outcome in done.outcomes] == [""] * 20
    assert all(0 <= outcome.sent - outcome.due < 0.5 for outcome in done.outcomes)  # loosely: a machine may be busy
    # One at a time, 0.1 s each: the last waits for all before it, and its latency says so.
    assert figures.first_token_s(done.outcomes[-1]) > 20 * 0.1 - 19 * 0.02 - 0.05
    assert [len(outcome.event_times) for outcome in done.outcomes] == [3] * 20


def test_a_closed_loop_keeps_as_many_requests_as_it_has_clients():
    trace = traces.closed_trace(50, LENGTHS, Mix(0), seed=1)
    messages = load.messages_of(trace, str)
    done = against_slow_server(0.05, 4, lambda pool: load.run_closed(
        pool, trace, messages, num_clients=4, seconds=0.6, warmup_s=0.1))
    assert all(outcome.ok for outcome in done.outcomes)
    assert 4 * 3 <= len(done.outcomes) <= 4 * 15
    changes = sorted([(each.sent, 1) for each in done.outcomes] + [(each.end, -1) for each in done.outcomes])
    assert max(np.cumsum([change for _, change in changes])) == 4


def test_a_closed_loop_goes_on_while_it_is_told_to():
    trace = traces.closed_trace(5, LENGTHS, Mix(0), seed=1)
    asked = []

    def go_on(elapsed_s: float) -> bool:
        asked.append(elapsed_s)
        return len(asked) < 2

    done = against_slow_server(0.01, 2, lambda pool: load.run_closed(
        pool, trace, load.messages_of(trace, str), num_clients=2, seconds=0.2, warmup_s=0.0, go_on=go_on, ask_s=0.1))
    assert len(asked) == 2
    assert done.end - done.begin > 0.25


def test_refusals_and_silence_are_errors():
    refused = Planned(0.0, 0, 3, traces.BASE)
    trace = [refused, Planned(0.0, 8, 3, traces.BASE)]
    messages = load.messages_of(trace, str)
    done = against_slow_server(0.0, 2, lambda pool: load.run_open(pool, trace, messages, seconds=0.1, warmup_s=0.0))
    assert [outcome.error for outcome in done.outcomes] == ["status 429", ""]
    done = against_slow_server(5.0, 2, lambda pool: load.run_open(pool, trace, messages, seconds=0.1, warmup_s=0.0),
                               timeout_s=0.2)
    assert [outcome.error for outcome in done.outcomes] == ["no whole answer within 0.2 s"] * 2


def test_requests_that_nobody_waits_for_are_cut_off():
    trace = [Planned(0.0, 8, 3, traces.BASE, tenant) for tenant in ("loud", "loud", "loud", "quiet")]
    done = against_slow_server(0.2, 2, lambda pool: load.run_open(
        pool, trace[3:] + trace[:3], load.messages_of(trace[3:] + trace[:3], str), seconds=0.1, warmup_s=0.0,
        wait_for=lambda planned: planned.tenant == "quiet"))
    errors = [outcome.error for outcome in done.outcomes]
    assert errors[0] == ""
    assert CUT_OFF in errors[1:]


def test_an_answer_of_another_length_is_an_error():
    planned = Planned(0.0, 8, 3, traces.BASE)
    short = Outcome(planned, 0.0, event_times=[1.0], end=1.0, status=200,
                    body=bytearray((EVENT % (1, '{"prompt_tokens":8}')).encode()))
    short.check()
    assert short.error == "1 of 3 tokens"
    other = Outcome(planned, 0.0, event_times=[1.0], end=1.0, status=200,
                    body=bytearray((EVENT % (1, '{"prompt_tokens":9}')).encode()))
    other.check()
    assert other.error == "9 prompt tokens, expected 8"
    failed = Outcome(planned, 0.0, end=1.0, status=200, body=bytearray(b'data: {"error":"no such adapter"}\n\n'))
    failed.check()
    assert failed.error == "no such adapter"


def test_a_message_names_adapter_and_tenant():
    head, body = message_of(Planned(0.0, 8, 3, 5, "acme"), 7, "a00005").split(b"\r\n\r\n")
    assert b"x-shoal-tenant: acme\r\n" in head
    assert int(head.split(b"content-length: ")[1]) == len(body)
    request = json.loads(body)
    assert len(request["inputs"].split()) == 8
    assert request["parameters"]["adapter_id"] == "a00005"
    assert b"tenant" not in message_of(Planned(0.0, 8, 3, 5), 7, None)


# --- dummies ---

TINY = {"model_type": "solar", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "num_hidden_layers": 2, "vocab_size": 100}


def test_adapters_are_whole_different_and_the_same_each_time(tmp_path):
    from safetensors import safe_open

    config = tmp_path / "tiny.json"
    config.write_text(json.dumps(TINY))
    model, adapters = dummies.make(tmp_path / "one", config, 3, (4, 8))
    files = [adapters.folder / adapters.name(index) / "adapter_model.safetensors" for index in range(3)]
    assert (model / "tokenizer.json").exists()
    assert max(file.stat().st_size for file in files) == adapters.bytes_each
    with safe_open(files[1], "np") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
    assert len(shapes) == 2 * 4 * 2
    assert shapes["base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight"] == [32, 8]
    assert files[0].read_bytes() != files[2].read_bytes()
    again = dummies.make(tmp_path / "two", config, 3, (4, 8))[1]
    for index, file in enumerate(files):
        other = again.folder / again.name(index) / "adapter_model.safetensors"
        assert other.read_bytes() == file.read_bytes()


def test_random_values_are_small_and_finite():
    raw = np.frombuffer(dummies._values(10_000, 3), np.uint16).astype(np.uint32) << 16
    values = np.abs(raw.view(np.float32))
    assert values.min() >= 2**-7
    assert values.max() < 2**-5


# --- report ---


def test_ticks_of_charts_are_round():
    np.testing.assert_allclose(round_steps(0.0, 1.1), [0, 0.2, 0.4, 0.6, 0.8, 1.0])
    np.testing.assert_allclose(powers(0.03, 3.0), [0.05, 0.1, 0.2, 0.5, 1.0, 2.0])


def test_a_chart_leaves_out_what_never_ended():
    svg = chart("title", "x", "y", {"one & two": [(0.5, 0.1), (1.0, math.inf)], "none": []})
    assert "one &amp; two" in svg
    assert "inf" not in svg and "nan" not in svg
    assert "nothing to show" in chart("title", "x", "y", {"none": [(1.0, math.inf)]})


def test_a_document_keeps_what_stands_around_its_tables(tmp_path):
    about = {"name": "about", "date": "2000-01-01", "commit": "abc", "machine": "m", "load_before": 0.1, "config": "c",
             "rank": "8", "bytes_each": 1, "prompt": [8, 16], "output": [2, 6], "seed": 1, "command": "run"}
    three = {"p50": 0.1, "p95": 0.2, "p99": None}
    streams = {"name": "streams", "quiet_s": three, "busy_s": three, "quiet_gaps": 5, "busy_gaps": 6, "chunk_s": 1.0,
               "prompt_s": 8.0}
    records = [about, streams, {"name": "verdict", "line": "HELD: all"}]
    (tmp_path / "chunk.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    document = tmp_path / "serving.md"
    document.write_text("before\n<!-- chunk -->\nold\n<!-- /chunk -->\nafter\n")
    report.write(tmp_path, document)
    text = document.read_text()
    assert text.startswith("before\n<!-- chunk -->\n2000-01-01, commit abc")
    assert text.endswith("<!-- /chunk -->\nafter\n")
    assert "0.100 / 0.200 / endless" in text and "old" not in text
    report.write(tmp_path, document)
    assert document.read_text() == text
    document.write_text("no place")
    with pytest.raises(ValueError, match="0 places for chunk"):
        report.write(tmp_path, document)


def test_repeats_show_their_spread():
    assert report.spread([3.0, 1.0, 2.0]) == "2.000 (1.000 - 3.000)"
    assert report.spread([1.0]) == "1.000"
    assert report.spread([1.0, None, None]) == "endless (1.000 - endless)"


def test_runs_beside_connections_are_judged_by_those_around_them():
    def run(p99: float) -> dict:
        return {key: {"p99": p99} for key in ("first_token_s", "inter_token_s", "end_to_end_s")}

    verdict = judge([run(1.0), run(4.0), run(4.0)], [run(2.0), run(6.0)])
    assert verdict["worst"] == dict.fromkeys(run(0.0), pytest.approx(1.5))
    assert verdict["drift"] == dict.fromkeys(run(0.0), pytest.approx(4.0))
