"""What is kept on the pod's disk before a session is killed."""

import itertools
import os
import stat
from pathlib import Path

import pytest
from agent_process import EngineAgent, wait_for

from umbra_agent import evidence


def files(agent: EngineAgent) -> list[Path]:
    return sorted((agent.run_dir / "evidence").glob("*.txt"))


def test_a_drain_that_is_cut_short_leaves_evidence(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    pid = agent.serve("a", "--ignore-term", "--say", "the last words\n", "--token", "hunter2", drainTimeoutSeconds=0)
    agent.terminate()
    assert agent.wait() == 0
    [path] = files(agent)
    text = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "the drain took too long" in text
    assert f"\n{pid} python" in text
    assert "wchan " in text
    assert "the last words" in text
    assert "hunter2" not in text


def test_what_an_engine_leaves_behind_is_recorded_once_before_it_is_killed(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    agent.serve("a", "--descendants", "2")
    agent.serve("b")
    [path] = files(agent)
    assert "4 processes" in path.read_text()
    agent.serve("c")
    assert len(files(agent)) == 1, "a session that ends by itself leaves none"


def test_at_most_five_files_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = itertools.count()
    monkeypatch.setattr(evidence.time, "time", lambda: 1.8e9 + next(moments))
    for number in range(7):
        path = evidence.record(tmp_path, f"kill {number}", [os.getpid()] * 300, ["ü" * 900] * 400)
        assert path is not None
        assert path.stat().st_size <= evidence.FILE_LIMIT_BYTES + 10
    kept = sorted(tmp_path.iterdir())
    assert [file.read_text().split("\n", 1)[0].partition(" ")[2] for file in kept] == [f"kill {n}" for n in range(2, 7)]


def test_a_full_disk_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert evidence.record(tmp_path / "file", "why", [], []) is None


def test_a_process_that_is_gone_is_said_to_be() -> None:
    assert "state gone" in evidence.describe(2**22 + 1)


def test_python_stacks_when_py_spy_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "py-spy"
    program.write_text('#!/bin/sh\necho "stack of $@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert evidence.python_stacks([7]) == ["\nPython stacks of 7:\nstack of dump --nonblocking --pid 7\n"]
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(evidence, "PY_SPY_SECONDS", 0.2)
    monkeypatch.setattr(evidence, "PY_SPY_TOTAL_SECONDS", 0.5)
    text = "".join(evidence.python_stacks(range(100)))
    assert "gave no answer" in text
    assert "out of time" in text


def test_evidence_is_said_in_the_log(engine_agent: EngineAgent) -> None:
    engine_agent.serve("a", "--ignore-term", drainTimeoutSeconds=0)
    # The bound of the newest document counts, also for a drain that it causes.
    engine_agent.serve("b", drainTimeoutSeconds=0)
    wait_for(lambda: str(engine_agent.run_dir / "evidence") in engine_agent.stderr.read_text(), "the path is logged")
