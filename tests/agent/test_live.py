"""Live settings reach the linker without a restart."""

import json
import time
from pathlib import Path
from typing import Any

from agent_process import EngineAgent, wait_for


def live(agent: EngineAgent) -> Any:
    return json.loads((agent.run_dir / "live.json").read_text())


def test_live_settings_change_without_a_restart(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    pid = agent.serve("a", live={"touch": "Off"})
    assert live(agent) == {"revision": "a" * 12, "live": {"touch": "Off"}}
    assert (agent.run_dir / "live.json").stat().st_mode & 0o777 == 0o644
    agent.write(agent.launch("a", live={"touch": "Auto", "intervalSeconds": 5}))
    wait_for(lambda: live(agent)["live"] == {"touch": "Auto", "intervalSeconds": 5}, "the file follows", 2)
    time.sleep(0.3)
    assert agent.child_pid() == pid
    assert agent.ready()
    assert agent.status()["restarts"] == 0


def test_the_file_is_there_before_the_engine_and_never_half_written(engine_agent: EngineAgent, tmp_path: Path) -> None:
    agent = engine_agent
    agent.serve("a", live={"n": 0})
    inodes = set()
    for number in range(50):
        agent.write(agent.launch("a", live={"n": number, "filler": "x" * 5000}))
        inodes.add((agent.run_dir / "live.json").stat().st_ino)
        assert live(agent)["revision"] == "a" * 12
        time.sleep(0.02)
    assert len(inodes) > 1, "it is replaced, not rewritten"


def test_a_running_engine_never_sees_the_settings_of_a_revision_to_come(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    agent.serve("a", "--drain", "1", live={"n": 1})
    agent.write(agent.launch("b", live={"n": 2}))
    wait_for(lambda: agent.status()["state"] == "draining", "it drains")
    assert live(agent) == {"revision": "a" * 12, "live": {"n": 1}}
    wait_for(lambda: agent.status()["revision"] == "b" * 12, "the new engine starts")
    assert live(agent) == {"revision": "b" * 12, "live": {"n": 2}}


def test_the_last_good_document_keeps_its_newest_live_settings(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    agent.serve("a", live={"n": 1})
    agent.write(agent.launch("a", live={"n": 2}))
    good = agent.run_dir / "last-good.json"
    wait_for(lambda: json.loads(good.read_text())["good"]["live"] == {"n": 2}, "it is remembered", 2)


def test_an_unwritable_folder_costs_no_engine(engine_agent: EngineAgent) -> None:
    engine_agent.run_dir.write_text("a file where the folder should be")
    engine_agent.serve("a")
    assert "could not be written" in engine_agent.stderr.read_text()
