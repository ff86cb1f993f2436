"""Small files on the pod's disk, in /run/umbra: written whole or not at all, and never worth an engine."""

import json
import os
from pathlib import Path
from typing import Any

from umbra_agent.report import say


def write_atomically(path: Path, text: str, mode: int) -> bool:
    """Replace `path` by rename; False (and a log line) when that fails: a full disk must not stop an agent."""
    staging = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staging.write_text(text, encoding="utf-8")
        staging.chmod(mode)
        staging.replace(path)
    except OSError as error:
        say(f"{path} could not be written ({error.strerror}): look at the pod's disk.")
        return False
    return True


def write_json(path: Path, document: dict[str, Any], mode: int = 0o600) -> bool:
    """`write_atomically` of a JSON object. The default mode is for documents that hold argv and environment values."""
    return write_atomically(path, json.dumps(document, separators=(",", ":")) + os.linesep, mode)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`, or None when there is none (absent, cut short, another kind of value)."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
