"""A revision that never becomes ready gives way to the last good one, once."""

import json
import time

from agent_process import EngineAgent, wait_for

BAD = ("--exit-after", "0", "--code", "7")


def test_three_exits_before_ready_return_to_the_last_good_revision(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    agent.serve("a")
    agent.write(agent.launch("b", *BAD))
    status = agent.status_when(lambda status: "runs again" in (status["problem"] or ""), "it gives up", 15)
    assert status["problem"].startswith(f"Revision {'b' * 12} ended 3 times in a row before it was ready")
    agent.wait_ready()
    status = agent.status()
    assert (status["revision"], status["wantedRevision"], status["state"]) == ("a" * 12, "b" * 12, "serving")
    assert status["lastExit"]["code"] == 7
    starts = agent.stderr.read_text().count("Engine revision bbbbbbbbbbbb started")
    assert starts == 3
    pid = agent.child_pid()
    time.sleep(1)
    assert agent.child_pid() == pid, "it stays there until the document changes"
    agent.serve("c")
    assert agent.status()["problem"] is None


def test_an_agent_that_starts_again_knows_the_last_good_revision(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    agent.serve("a", env={"SECRET": "hunter"})
    memory = agent.run_dir / "last-good.json"
    assert json.loads(memory.read_text())["good"]["revision"] == "a" * 12
    assert memory.stat().st_mode & 0o777 == 0o600, "it holds argv and environment values"
    agent.write(agent.launch("b", *BAD))
    agent.status_when(lambda status: "runs again" in (status["problem"] or ""), "it gives up", 15)
    agent.terminate()
    agent.wait()
    agent.stderr.unlink()
    agent.start()
    agent.wait_ready()
    assert agent.status()["revision"] == "a" * 12
    assert "runs again" in agent.status()["problem"]
    assert "bbbbbbbbbbbb started" not in agent.stderr.read_text(), "the bad revision is not tried again"


def test_a_bad_revision_without_a_good_one_is_tried_again_and_again(engine_agent: EngineAgent) -> None:
    engine_agent.add_kit()
    engine_agent.write(engine_agent.launch("b", *BAD))
    engine_agent.status_when(lambda status: "4 times in a row" in (status["problem"] or ""), "four exits", 20)


def test_a_revision_that_was_ready_is_the_good_one_however_often_it_ends(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    agent.serve("a")
    agent.serve("b", "--exit-after", "0.5")
    agent.status_when(lambda status: status["restarts"] >= 3, "it ends and starts again", 20)
    assert agent.status()["wantedRevision"] == "b" * 12
    assert "aaaaaaaaaaaa" not in (agent.status()["problem"] or "")
    assert json.loads((agent.run_dir / "last-good.json").read_text())["good"]["revision"] == "b" * 12


def test_a_good_revision_that_fails_later_is_not_given_up_for_the_bad_one(engine_agent: EngineAgent) -> None:
    """Once means once: after the return there is nowhere else to go."""
    agent = engine_agent
    marker = agent.folder / "broken"
    agent.serve("a", "--exit-if", str(marker))
    marker.touch()
    agent.write(agent.launch("b", *BAD))
    agent.status_when(lambda status: "runs again" in (status["problem"] or ""), "it gives up", 15)
    agent.status_when(lambda status: "2 times in a row" in (status["problem"] or ""), "the good one fails too", 15)
    marker.unlink()
    wait_for(lambda: agent.ready() and agent.status()["revision"] == "a" * 12, "the good one serves", 15)


def test_a_damaged_memory_is_no_memory(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    agent.run_dir.mkdir(exist_ok=True)
    (agent.run_dir / "last-good.json").write_text('{"good": {"revision": 5')
    agent.terminate()
    agent.wait()
    agent.start()
    agent.serve("a")
