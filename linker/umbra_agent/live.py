"""Live settings: what the linker inside a running engine may follow without a restart.

/run/umbra/live.json holds `{"revision": <of the running engine>, "live": <the launch document's live object>}`.
It is replaced by rename, so a reader sees one whole document or the other; the operator gives a document that
differs in `live` alone the same revision, which changes this file and nothing else.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from umbra_agent.disk import write_json
from umbra_agent.launch import Launch


class LiveFile:
    """Writes the file when its content changes. A failure is logged once per content and costs no engine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: tuple[str, Mapping[str, Any]] | None = None

    def write(self, launch: Launch) -> None:
        """Publish the live settings of `launch`, the document of the engine that runs or is about to."""
        content = (launch.revision, launch.live)
        if content == self._written:
            return
        self._written = content
        # Readable by all: it holds no argv and no environment, and the engine may run as another user.
        write_json(self._path, {"revision": launch.revision, "live": dict(launch.live)}, mode=0o644)
