"""Operators that are forked from a process which has imported everything: a start costs milliseconds, not a second.

The process is the operator's own `main` in a process of its own; only the imports are shared. For tests that start it
a hundred times; `operatorprocess` starts it as a container does.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from product import ROOT

_SERVER = """
import ctypes, gc, json, os, sys, traceback
from umbra_operator.__main__ import main
gc.collect()
gc.freeze()
print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "wait" in request:
        _, status = os.waitpid(request["wait"], 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
        continue
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        continue
    code = 1
    try:
        ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
        os.environ.update(request["environment"])
        log = os.open(request["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, target)
        code = main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
"""


class Nursery:
    """A context manager that starts operators. Every method may be called from any thread."""

    def __enter__(self) -> "Nursery":
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'linker'}"}
        self._lock = threading.Lock()
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment,
            start_new_session=True,
        )
        assert self._answer() == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()  # its children die with it
        self._server.communicate()

    def start(self, kubeconfig: Path, log: Path, variables: Mapping[str, str] | None = None) -> "ForkedOperator":
        """A new operator; `variables` are added to its environment."""
        environment = {"KUBECONFIG": str(kubeconfig), "UMBRA_METRICS_PORT": "0", **(variables or {})}
        return ForkedOperator(self, int(self._ask({"environment": environment, "log": str(log)})), log)

    def reap(self, pid: int) -> int:
        """Waits for the end of an operator and returns its exit code, negative for a signal."""
        return int(self._ask({"wait": pid}))

    def _ask(self, request: Mapping[str, Any]) -> str:
        with self._lock:
            assert self._server.stdin is not None
            self._server.stdin.write(json.dumps(request) + "\n")
            return self._answer()

    def _answer(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline().strip()


class ForkedOperator:
    """A running operator."""

    def __init__(self, nursery: Nursery, pid: int, log: Path) -> None:
        self._nursery, self._pid, self.log = nursery, pid, log
        self._ended = False

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        if self._ended:
            return False
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0] not in "ZX"

    def kill(self) -> None:
        """Ends it by SIGKILL, and returns when it has ended; nothing happens when it was killed before."""
        if not self._ended:
            self._ended = True
            os.kill(self._pid, signal.SIGKILL)
            self._nursery.reap(self._pid)
