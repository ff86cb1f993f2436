"""The API server is away for ten minutes, or every right for one: engines go on, and afterwards the operator too."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localcluster.controlplane import ControlPlane
from nodeagent import NodeAgent
from operatorprocess import OperatorProcess, grant, kubeconfig, revoke
from product import install_crds
from stack import Stack, eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.nightly, pytest.mark.timeout(1200)]

OUTAGE_SECONDS = 600.0
REVOKED_SECONDS = 60.0
RETURN_SECONDS = 60.0
"""From the API server's return to an edit that is carried out: the longest pause between two attempts is 16 s."""
LOG_LINES = 400
"""Of an operator that finds nobody for ten minutes: more would fill a disk while nobody reads it."""


class Supervised:
    """An operator that is started anew whenever it has ended or says that it is dead, as a kubelet does."""

    def __init__(self, config: Path, folder: Path) -> None:
        self._config, self._folder = config, folder
        self.runs = 0
        self.dead = 0
        self.running = self._start()

    def keep(self, seconds: float) -> None:
        """Looks after it for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.running.alive and self.running.answers("/healthz") == 503:
                self.dead += 1
                self.running.kill(signal.SIGKILL)
                self.running.ended(5)
            if not self.running.alive:
                self.running = self._start()
            time.sleep(1)

    def restart(self) -> None:
        self.running.stop()
        self.running = self._start()

    def _start(self) -> OperatorProcess:
        self.runs += 1
        log = self._folder / f"operator-{self.runs}.log"
        return OperatorProcess(self._config, log, {"UMBRA_RESYNC_SECONDS": "10"})


@pytest.fixture
def own() -> Iterator[ControlPlane]:
    """A control plane of the test's own, since others need theirs."""
    with ControlPlane(controllers=True) as running:
        install_crds(running)
        yield running


@contextmanager
def serving(control_plane: ControlPlane, folder: Path) -> Iterator[tuple[Stack, NodeAgent, Supervised]]:
    """Two replicas that serve, in the default namespace."""
    grant(control_plane)
    stack = Stack(control_plane, "default")
    with NodeAgent(control_plane) as node:
        operator = Supervised(kubeconfig(control_plane, folder / "kubeconfig"), folder)
        try:
            stack.add_profile()
            stack.add(replicas=2)
            eventually(stack.ready, "both replicas are ready", 60)
            yield stack, node, operator
        finally:
            operator.running.kill(signal.SIGKILL)


@pytest.mark.parametrize("how", ["gone", "hanging"])
def test_an_api_server_that_is_away_for_ten_minutes(how: str, own: ControlPlane, tmp_path: Path) -> None:
    with serving(own, tmp_path) as (stack, node, operator):
        before, starts = stack.versions(), dict(node.engine_starts)
        if how == "gone":
            own.kill("apiserver")
        else:
            os.kill(own.pids["apiserver"], signal.SIGSTOP)
        operator.keep(OUTAGE_SECONDS)
        if how == "gone":
            own.revive("apiserver")
        else:
            os.kill(own.pids["apiserver"], signal.SIGCONT)
        # The one that led ends when its lease does; the one after it waits.
        assert (operator.runs, operator.dead) == (2, 0)
        assert len(operator.running.log.read_text().splitlines()) < LOG_LINES
        eventually(operator.running.leads, "it leads", RETURN_SECONDS)
        # Nodes come back on their own time, and with them what is told of pods.
        eventually(stack.ready, "both replicas are as they were", RETURN_SECONDS)
        assert set(stack.versions()) == set(before)
        stack.edit({"engine.contextLength": 8192})
        eventually(stack.ready, "an edit is carried out", RETURN_SECONDS)
        assert dict(node.engine_starts) == {replica: number + 1 for replica, number in starts.items()}
        assert set(stack.versions()) == set(before)
        assert operator.runs == 2
        assert "unexpected; trying again" not in operator.running.log.read_text()


def test_rights_that_are_away_for_a_minute(own: ControlPlane, tmp_path: Path) -> None:
    """First under a running operator, whose watches stay, and then under one that starts without any right."""
    with serving(own, tmp_path) as (stack, node, operator):
        for attempt in (1, 2):
            before, starts = stack.versions(), dict(node.engine_starts)
            revoke(own)
            if attempt == 2:
                operator.restart()
            stack.edit({"engine.contextLength": 8192 * attempt})
            operator.keep(REVOKED_SECONDS)
            assert (operator.runs, operator.dead) == (attempt, 0)
            assert dict(node.engine_starts) == starts
            grant(own)
            eventually(stack.ready, "the edit is carried out", RETURN_SECONDS)
            assert dict(node.engine_starts) == {replica: number + 1 for replica, number in starts.items()}
            assert set(stack.versions()) == set(before)
            assert "unexpected; trying again" not in operator.running.log.read_text()
