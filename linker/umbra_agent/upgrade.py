"""Replaces the running agent by another kit's agent with exec: same process, child, pipes and listening socket.

What exec does not keep (counters, the child's pid, the running document) goes through a memfd that only this process
can inherit. Before that the new agent is rehearsed in a process of its own: one that does not start, or does not
know this form of handover, is never exec'ed.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from umbra_agent.launch import on_kit_path
from umbra_agent.report import say
from umbra_agent.trial import Trial

FORMAT = 1
"""Form of the handover; another number means that the two agents cannot take each other's place."""
REHEARSAL_SECONDS = 60.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Upgrade:
    """Decides whether to become the agent of another kit. `mode` and `rest` are our own command line."""

    def __init__(self, kit_root: Path, mode: str, rest: Sequence[str]) -> None:
        self._kit_root = kit_root
        self._mode = mode
        self._rest = tuple(rest)
        self._own = Path(__file__).resolve().parents[1]
        self._trial: Trial | None = None
        self._asked: Path | None = None
        self.accepted: Path | None = None
        """Folder of the kit to become, once its rehearsal was passed."""

    def pending(self, kit: str) -> bool:
        """Whether we are to become the agent of `kit`: True while it is rehearsed and when it passed."""
        target = (self._kit_root / kit).resolve()
        if target == self._own or not (target / "umbra_agent").is_dir():
            return False
        if self._asked != target:
            self.cancel()
            self._asked = target
            self._rehearse(target)
        if self._trial is not None:
            verdict = self._trial.poll()
            if verdict is None:
                return True
            self._trial = None
            if verdict.accepted:
                self.accepted = target
            else:
                say(f"The agent of kit {kit} does not start here ({verdict.last_line[:200]}): this one stays.")
        return self.accepted == target

    def cancel(self) -> None:
        """Forget a rehearsal that is under way or was passed; it is made again when it is asked for again."""
        if self._trial is not None:
            self._trial.cancel()
            self._trial, self._asked = None, None
        self.accepted = None

    def become(self, state: dict[str, Any], keep: Sequence[int], listener: int) -> None:
        """Exec the accepted kit's agent with `state`; `keep` and the HTTP server's `listener` are inherited.

        Returns only when that failed; then nothing has changed.
        """
        target = self.accepted
        if target is None:
            return
        memory = os.memfd_create("umbra-handover")
        os.write(memory, json.dumps({"listener": listener, **state}).encode())
        argv = [sys.executable, "-m", "umbra_agent", self._mode, "--handover", str(memory), *self._rest]
        for descriptor in (memory, listener, *keep):
            os.set_inheritable(descriptor, True)
        # A stop request that comes while the new agent loads must wait for its handler, not kill it.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        say(f"The agent replaces itself by the one in {target} and keeps its child.")
        try:
            os.execve(sys.executable, argv, on_kit_path(os.environ, target))  # noqa: S606 - no shell is wanted
        except OSError as error:
            say(f"The agent could not replace itself ({error.strerror}).")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        for descriptor in (listener, *keep):
            os.set_inheritable(descriptor, False)
        os.close(memory)
        self.accepted = None

    def _rehearse(self, target: Path) -> None:
        argv = [sys.executable, "-m", "umbra_agent", self._mode, "--rehearse", str(FORMAT), *self._rest]
        try:
            self._trial = Trial(argv, on_kit_path(os.environ, target), REHEARSAL_SECONDS)
        except OSError as error:
            say(f"The agent of the kit in {target} could not be rehearsed ({error.strerror}): this one stays.")


def received(descriptor: int | None) -> dict[str, Any] | None:
    """What an earlier agent handed over through `descriptor`, or None when there was none."""
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as memory:
        memory.seek(0)
        state: dict[str, Any] = json.loads(memory.read())
    return state
