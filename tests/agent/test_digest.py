"""The digest of what eight ranks say: small enough for /status, with what differs and which rank it is."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from agent_process import EngineAgent

from umbra_agent.child import Exit
from umbra_agent.digest import Digest, digest
from umbra_agent.engine_view import EngineSnapshot, LastExit, status
from umbra_agent.exit_cause import Explanation
from umbra_agent.scrape import Reading, ScrapeError, read
from umbra_agent.serving import encode_status
from umbra_linker.metrics import LinkerMetrics
from umbra_linker.planning import CanaryResult, MissReason, SkipReason
from umbra_linker.store import Operation
from umbra_linker.tree_core import PYTHON, RUST, Agreement, TreeCore

RANKS = 8
MUCH = 10**13
"""Tokens and bytes of months."""

SGLANG = "\n".join(
    [
        'sglang:num_running_reqs{model_name="a,b=\\"c\\"",tp_rank="0"} 22.0',
        'sglang:prefill_effective_tokens_total{mode="input",tp_rank="0"} 33.0',
        'sglang:prefill_effective_tokens_total{mode="device_hit",tp_rank="0"} 900.0',
        'sglang:prefill_effective_tokens_total{mode="host_hit",tp_rank="0"} 67.0',
        'sglang:realtime_tokens_total{mode="decode",tp_rank="0"} 5.0',
        'sglang:realtime_tokens_total{mode="prefill_cache",tp_rank="0"} 7.0',
        'sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="0"} 1e1',
        "sglang:num_queue_reqs NaN",
        "sglang:num_queue_reqs{ broken",
        *(f'sglang:evicted_tokens_total{{cache_type="full",tp_rank="{rank}"}} 64.0' for rank in range(RANKS)),
    ]
)


def one_rank(rank: int, change: Callable[[LinkerMetrics], None] = lambda _: None, core: str = RUST) -> str:
    """The exposition of one rank's linker, by the linker's own definitions."""
    registry = prometheus_client.CollectorRegistry()
    metrics = LinkerMetrics(rank, registry=registry)
    metrics.lookup(seconds=0.002, pages=MUCH, hit_pages=MUCH // 2, hit_tokens=1, hit_objects={"kv": 4})
    for reason in MissReason:
        metrics.missed(MUCH, reason)
    metrics.stored("kv", objects=1, size=MUCH)
    metrics.stored("mamba", objects=1, size=MUCH)
    metrics.call(Operation.EXISTS, 0.003)
    metrics.call(Operation.EXISTS, 0.3)
    metrics.skipped(SkipReason.BACKPRESSURE)
    metrics.pools({"kv": MUCH, "mamba": 120})
    for result in (CanaryResult.EQUAL, CanaryResult.EQUAL, CanaryResult.UNMEASURED):
        metrics.canary("kv", result)
    metrics.held({"kv": 9, "mamba": 117})
    metrics.store_created(1.76e9 + 0.25)
    metrics.ages(oldest_call=0.0, oldest_offload=0.0)
    metrics.breaker(False)
    metrics.tree_core(TreeCore(core, core, Agreement.ALL_RANKS, None))
    metrics.info({"version": "0.1.0", "key_layout": "Auto", "kv_suffix": "cp0_pp0", "tag": "umbra1-once-eb72105c"})
    change(metrics)
    return prometheus_client.generate_latest(registry).decode()


def all_ranks(
    odd: int | None = None, change: Callable[[LinkerMetrics], None] = lambda _: None, core: str = RUST
) -> str:
    ranks = [one_rank(rank, change, core) if rank == odd else one_rank(rank) for rank in range(RANKS)]
    return "\n".join([*ranks, SGLANG])


def test_counters_of_all_ranks_become_one() -> None:
    found = digest(all_ranks(), 1.8e9)
    assert found.values == {
        "runningRequests": 22,
        "queuedRequests": 0,
        "promptTokens": 1000,
        "hitTokens": 967,
        "computedTokens": 15,
        "lookups": 1,
        "lookupPages": MUCH,
        "hitPages": MUCH // 2,
        "calls": 2 * RANKS,
        "fastCalls": RANKS,
        "loads": 0,
        "failedLoads": 0,
        "offloads": 0,
        "failedOffloads": 0,
        "heldBackOffloads": 1,
        "queuedOffloads": 0,
        "storedBytes": 2 * MUCH * RANKS,
        "readBytes": 0,
        "lockedCheckpoints": 117,
        "checkpointSlots": 120,
        "comparedObjects": 2 * RANKS,
    }
    assert found.missed_pages == dict.fromkeys(MissReason, MUCH)
    assert found.ranks.reporting == "0-7"
    assert found.ranks.tree_core == {"rust": "0-7"}
    assert found.ranks.keys == {"0.1.0 Auto umbra1-once-eb72105c": "0-7"}
    assert found.ranks.store == {"1760000000.250": "0-7"}
    assert found.ranks.breaker_open == ""
    assert found.ranks.hit_pages == {str(rank): MUCH // 2 for rank in range(RANKS)}
    assert found.ranks.evicted_tokens == {str(rank): 64 for rank in range(RANKS)}
    assert found.ranks.different_objects == {}


def test_the_rank_that_differs_is_named() -> None:
    def change(metrics: LinkerMetrics) -> None:
        metrics.store_created(1.76e9 + 99)
        metrics.breaker(True)
        metrics.canary("mamba", CanaryResult.DIFFERENT)
        metrics.ages(oldest_call=27 * 60.0, oldest_offload=0.0)

    found = digest(all_ranks(3, change, PYTHON), 0)
    assert found.ranks.tree_core == {"rust": "0-2,4-7", "python": "3"}
    assert found.ranks.store == {"1760000000.250": "0-2,4-7", "1760000099.000": "3"}
    assert found.ranks.breaker_open == "3"
    assert found.ranks.different_objects == {"mamba": {"3": 1}}
    assert found.oldest_call_seconds == 27 * 60


def test_the_rank_that_finds_least_counts_for_all() -> None:
    def more(metrics: LinkerMetrics) -> None:
        metrics.lookup(seconds=0.002, pages=0, hit_pages=5, hit_tokens=1, hit_objects={})
        metrics.missed(5, MissReason.DEADLINE)

    found = digest(all_ranks(6, more), 0)
    assert found.values["hitPages"] == MUCH // 2
    assert found.missed_pages["deadline"] == MUCH + 5


def test_an_engine_without_linker_is_all_zeros() -> None:
    found = digest("", 0)
    assert set(found.values.values()) == {0}
    assert (found.missed_pages, found.ranks.reporting) == ({}, "")


def said(found: Digest, text: str) -> dict[str, Any]:
    snapshot = EngineSnapshot(
        state="serving",
        kit="0.1.0",
        revision="abc",
        wanted_revision="abc",
        problem=text,
        last_exit=LastExit(Exit(255, None, 1.8e9), "Exited", Explanation("GPUError", text)),
        reading=Reading(1, found, None),
    )
    raw = encode_status(status(snapshot, "e" * 32, 1.8e9))
    assert len(raw) <= 4096
    document: dict[str, Any] = json.loads(raw)
    return document


def test_the_status_of_eight_ranks_holds_digest_and_sentences() -> None:
    document = said(digest(all_ranks(3, core=PYTHON), 1.8e9), "x" * 400)
    assert document["digest"]["ranks"]["treeCore"] == {"rust": "0-2,4-7", "python": "3"}
    assert document["digest"]["storedBytes"] == 2 * MUCH * RANKS
    assert len(document["problem"]) == 400


def test_a_digest_that_does_not_fit_gives_way_to_the_sentences() -> None:
    huge = "\n".join(f'umbra_linker_hit_pages_total{{rank="{rank}"}} 1e13' for rank in range(400))
    document = said(digest(huge, 0), "x" * 400)
    assert "digest" not in document
    assert len(document["problem"]) == 400


@contextlib.contextmanager
def engine_saying(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(OSError):
                answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server.server_port
        server.shutdown()


def endless(pause: float) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * 1024)
            time.sleep(pause)

    return answer


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda handler: handler.send_error(404), "answers 404"),
        (endless(0.0), "is longer than 100000 bytes"),
        (endless(0.02), "did not end within 0.5 s"),
        (lambda handler: time.sleep(1), "did not end within 0.5 s"),
        (lambda handler: None, r"no /metrics on port \d+ \(RemoteDisconnected\)"),
    ],
)
def test_a_bad_answer_is_a_sentence(answer: Callable[[BaseHTTPRequestHandler], None], sentence: str) -> None:
    with engine_saying(answer) as port, pytest.raises(ScrapeError, match=sentence):
        read(port, seconds=0.5, most_bytes=100_000)


def test_the_agent_shows_what_its_engine_says_and_forgets_it_with_the_engine(
    engine_agent: EngineAgent, tmp_path: Path
) -> None:
    page = tmp_path / "metrics"
    page.write_text(all_ranks())
    engine_agent.serve("a", "--metrics", str(page))
    found = engine_agent.status_when(lambda status: status["digest"], "the engine was asked")
    assert found["digest"]["ranks"]["reporting"] == "0-7"
    assert found["digestProblem"] is None
    assert found["digest"]["at"] == pytest.approx(time.time(), abs=60)
    engine_agent.write(engine_agent.launch("b", "--ready-after", "30"))
    engine_agent.status_when(lambda status: status["state"] == "starting", "the next one starts")
    assert engine_agent.status()["digest"] is None
