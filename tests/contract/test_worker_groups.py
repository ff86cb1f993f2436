"""`pytest -n 2`: what is started once for many tests is started in one worker, and no test is lost on the way."""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from worker_groups import groups

ROOT = Path(__file__).resolve().parents[2]

_CONFTEST = """
import json, os, pathlib, pytest
pytest_plugins = ["parts", "group_times", "worker_groups"]

def write(line):
    with (pathlib.Path(__file__).parent / "log").open("a") as log:
        log.write(json.dumps([os.getpid(), line]) + "\\n")

@pytest.fixture(scope="session")
def rank_lab():
    write("start")
    yield
    write("end")

@pytest.fixture(autouse=True)
def written(request):
    yield
    write(request.node.nodeid)
"""
_PLAIN = "def test_one(): pass\ndef test_two(): pass\n"
_SHARING = "def test_one(rank_lab): pass\ndef test_two(): pass\ndef test_three(rank_lab): pass\n"
_FILES = {
    "conftest.py": _CONFTEST,
    "test_a.py": _PLAIN,
    "test_b.py": _SHARING,
    "test_c.py": _PLAIN,
    "test_d.py": _SHARING,
    "test_e.py": _PLAIN,
}


def test_a_file_is_of_the_first_group_that_it_needs_and_the_long_groups_begin() -> None:
    needs = [
        ("plain.py", {"slow"}),
        ("ranks.py", set()),
        ("ranks.py", {"rank_lab", "engine"}),
        ("up.py", {"engine", "kubelet"}),
    ]
    found = groups(needs)
    assert list(found.items()) == [("up.py", "node"), ("ranks.py", "ranks"), ("plain.py", "plain.py")]


def test_what_is_shared_starts_once_and_every_test_runs_once_in_the_order_of_its_file(tmp_path: Path) -> None:
    for name, text in _FILES.items():
        (tmp_path / name).write_text(text)
    argv = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "--import-mode=importlib", "."]
    paths = [ROOT / each for each in os.environ["PYTHONPATH"].split(":")]
    environment = os.environ | {"PYTHONPATH": ":".join(map(str, paths))}
    result = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    by_worker: defaultdict[int, list[str]] = defaultdict(list)
    for line in (tmp_path / "log").read_text().splitlines():
        worker, event = json.loads(line)
        by_worker[worker].append(event)
    assert len(by_worker) == 2
    (sharing,) = (events for events in by_worker.values() if "start" in events)
    assert sharing.count("start") == sharing.count("end") == 1
    of_group = [f"test_{file}.py::test_{name}" for file in "bd" for name in ("one", "two", "three")]
    # It begins before all that needs nothing.
    assert sharing[: len(of_group) + 1] == ["start", *of_group]
    every = [event for events in by_worker.values() for event in events if "::" in event]
    assert len(every) == len(set(every)) == 12
    for file in "ace":
        (ran,) = filter(None, ([e for e in events if f"test_{file}.py" in e] for events in by_worker.values()))
        assert ran == [f"test_{file}.py::test_one", f"test_{file}.py::test_two"]
    assert "12 passed" in result.stdout
    assert sum(map(int, re.findall(r"(\d+) tests ", result.stdout.split("seconds per group")[1]))) == 12
