"""The test's side: starts one process that imported SGLang, and runs scenarios in ranks forked from it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from cpuengine import Environment
from cpuengine.processes import die_with_parent, stop_session

INSIDE = Path(__file__).resolve().parent / "inside"
BESIDE = INSIDE.parents[1]
"""What tests and ranks share."""


class RankFailed(RuntimeError):
    """A scenario raised in some rank; the message is that rank's traceback."""


class RankLab:
    """A process that imported SGLang once and forks ranks. Use as a context manager."""

    def __init__(self, environment: Environment, folder: Path, path: list[Path]) -> None:
        """Start the process (about 10 s); ``path`` are import paths of the linker, logs go to ``folder``."""
        self._folder = folder
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
        own = {
            "PYTHONPATH": os.pathsep.join(map(str, [INSIDE, BESIDE, *path])),
            "RANKLAB_MODEL": str(environment.model_dir),
        }
        self._log = folder / "ranklab.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [environment.python, "-P", "-W", "ignore", INSIDE / "worker.py"],
                env=inherited | environment.engine_env | own,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )
        self._answer()

    def __enter__(self) -> RankLab:
        return self

    def __exit__(self, *unused: object) -> None:
        stop_session(self._process.pid)
        self._process.wait()

    def run(
        self,
        scenario: str,
        *,
        ranks: int = 1,
        env: list[dict[str, str]] | dict[str, str] | None = None,
        seconds: float = 60.0,
        **arguments: Any,
    ) -> list[Any]:
        """Run ``module.function`` of ``inside/`` in ``ranks`` processes and return each rank's result.

        Args:
            scenario: what to run; it gets a ``Rank`` and ``arguments``, and returns what JSON can hold.
            ranks: processes, joined by gloo.
            env: variables, for all ranks or one mapping a rank.
            seconds: after this time the ranks are killed.
            arguments: passed on.

        Raises:
            RankFailed: when a rank raised, ended or took too long.
        """
        per_rank = env if isinstance(env, list) else [env or {}] * ranks
        request = {"scenario": scenario, "env": per_rank, "seconds": seconds, "arguments": arguments}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        results = self._answer()
        for rank, result in enumerate(results):
            if "error" in result:
                raise RankFailed(f"rank {rank} of {ranks} in {scenario}: {result['error']}")
        return [result["value"] for result in results]

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RankFailed(f"the rank lab ended: {self._tail()}")
        return json.loads(line)

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-40:])
