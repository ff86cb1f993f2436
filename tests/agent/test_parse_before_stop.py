"""A new command line is judged by the engine's own parser while the old engine serves."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import sglang_tree
from agent_process import EngineAgent, StoreReadiness, is_gone, wait_for

from umbra_agent.arguments import can_be_parsed, redacted, values
from umbra_agent.launch import compact_document, parse
from umbra_agent.trial import ACCEPTED, Trial


class Parsing:
    """An engine agent whose engine is `-m sglang.launch_server` of a small tree."""

    def __init__(self, agent: EngineAgent, folder: Path) -> None:
        self.agent = agent
        self.log = folder / "parser.log"
        self._path = str(sglang_tree.make(folder / "tree"))

    def launch(self, revision: str, *arguments: str, **env: str) -> dict[str, Any]:
        argv = [sys.executable, "-m", "sglang.launch_server", "--port", str(self.agent.engine_port), *arguments]
        environment = {"PYTHONPATH": self._path, "PARSER_LOG": str(self.log), **env}
        return self.agent.launch(revision, argv=argv, env=environment)

    def serve(self, revision: str, *arguments: str) -> int:
        self.agent.add_kit()
        self.agent.write(self.launch(revision, *arguments))
        wait_for(lambda: self.agent.ready() and self.agent.status()["revision"] == revision * 12, "it serves", 20)
        return self.agent.child_pids()[0]

    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture
def parsing(engine_agent: EngineAgent, tmp_path: Path) -> Parsing:
    return Parsing(engine_agent, tmp_path)


def test_the_old_engine_serves_while_the_new_arguments_are_judged(parsing: Parsing) -> None:
    agent = parsing.agent
    pid = parsing.serve("a")
    assert parsing.calls() == [], "nothing runs that would have to be stopped: the engine itself will judge"
    agent.write(parsing.launch("b", "--tp-size", "8", PARSER_SECONDS="1"))
    wait_for(parsing.calls, "the parser runs")
    assert agent.ready()
    assert not agent.drain_flag.exists()
    assert not is_gone(pid)
    wait_for(lambda: agent.status()["revision"] == "b" * 12 and agent.ready(), "the accepted revision serves", 20)
    [call] = parsing.calls()
    assert call["argv"] == ["--port", str(agent.engine_port), "--tp-size", "8"]
    assert call["nice"] == 19
    assert int(call["oom"]) == 1000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--no-such-flag", "hunter"), "(sglang serve: error: unrecognized arguments: --no-such-flag ...)"),
        (("--tp-size", "hunter"), "argument --tp-size: invalid int value: '...'"),
        (("--tp-size", "3"), "(it is ...)"),
    ],
)
def test_refused_arguments_leave_the_engine_untouched(
    parsing: Parsing, arguments: tuple[str, ...], sentence: str
) -> None:
    agent = parsing.agent
    pid = parsing.serve("a")
    agent.write(parsing.launch("b", *arguments))
    status = agent.status_when(lambda status: status["problem"], "the refusal is said", 20)
    assert sentence in status["problem"]
    assert status["problem"].startswith(f"Revision {'b' * 12} is refused by the engine's own parser")
    assert "hunter" not in json.dumps(status)
    assert (status["revision"], status["wantedRevision"], status["state"]) == ("a" * 12, "b" * 12, "serving")
    assert agent.ready()
    time.sleep(0.5)
    assert agent.child_pids() == [pid]
    assert len(parsing.calls()) == 1, "it is not judged again until the document changes"
    assert b"launch_documents_refused_total 1.0" in agent.get("/metrics")[1]

    os.kill(pid, 9)
    agent.status_when(lambda status: status["restarts"] == 1, "it restarts", 20)
    wait_for(lambda: agent.ready() and agent.status()["revision"] == "a" * 12, "with the revision that ran", 20)
    agent.write(parsing.launch("c"))
    wait_for(lambda: agent.status()["revision"] == "c" * 12 and agent.ready(), "a corrected document serves", 20)
    assert agent.status()["problem"] is None


def test_a_revision_taken_back_while_it_is_judged_costs_nothing(parsing: Parsing) -> None:
    agent = parsing.agent
    pid = parsing.serve("a")
    agent.write(parsing.launch("b", PARSER_SECONDS="30"))
    wait_for(parsing.calls, "the parser runs")
    agent.write(parsing.launch("a"))
    wait_for(lambda: agent.child_pids() == [pid], "the parser is ended and collected", 5)
    assert agent.ready()


def test_a_parser_that_dies_holds_nothing_back(parsing: Parsing) -> None:
    parsing.serve("a")
    parsing.agent.write(parsing.launch("b", PARSER_DIES="1"))
    wait_for(lambda: parsing.agent.status()["revision"] == "b" * 12, "the revision is taken as it is", 20)


def test_sigterm_while_arguments_are_judged_ends_everything(parsing: Parsing) -> None:
    parsing.serve("a")
    parsing.agent.write(parsing.launch("b", PARSER_SECONDS="30"))
    wait_for(parsing.calls, "the parser runs")
    children = parsing.agent.child_pids()
    assert len(children) == 2
    parsing.agent.terminate()
    assert parsing.agent.wait(10) == 0
    assert all(map(is_gone, children))


def test_only_the_engines_own_server_is_parsed(store_readiness: StoreReadiness, tmp_path: Path) -> None:
    agent = EngineAgent(tmp_path, store_readiness.port)
    known = agent.launch("a", argv=["python3", "-m", "sglang.launch_server", "--x"])
    assert can_be_parsed(parse(compact_document(known)))
    assert not can_be_parsed(parse(compact_document(agent.launch("a"))))


def test_a_trial_is_bounded_in_time_and_output() -> None:
    began = time.monotonic()
    trial = Trial([sys.executable, "-c", "import time\nprint('x' * 10**6, flush=True)\ntime.sleep(60)"], os.environ, 1)
    verdict = wait_for(trial.poll, "the trial is given up")
    assert time.monotonic() - began < 5
    assert verdict.accepted is None
    assert sum(map(len, verdict.lines)) <= 32 * 1024
    os.waitpid(-1, 0)


def test_a_trial_whose_grandchild_holds_the_output_is_over_with_its_answer() -> None:
    script = f"import os, time\nif os.fork() == 0: time.sleep(60)\nprint({ACCEPTED!r}, flush=True)"
    trial = Trial([sys.executable, "-c", script], os.environ, 30)
    assert wait_for(trial.poll, "the answer", 20).accepted is True
    os.waitpid(-1, 0)


def test_values_and_not_numbers_or_names_are_taken_out() -> None:
    launch = parse(
        compact_document(
            {
                "revision": "a" * 12,
                "kit": "1",
                "argv": ["python3", "-m", "x", "--token", "hunter2", "--size=8", "--path=/models/secret", "--flag"],
                "env": {"KEY": "s3cret"},
                "port": 1,
                "drainTimeoutSeconds": 1,
            }
        )
    )
    assert {"hunter2", "8", "/models/secret", "s3cret"} <= values(launch)
    text = "--token 'hunter2' of /models/secret s3cret: 8 of 18 with --flag"
    assert redacted(text, values(launch), 1) == "--token '...' of ... ...: ... of 18 with --flag"
    assert redacted(text, values(launch)).endswith("8 of 18 with --flag"), "in a log line short values may stay"
