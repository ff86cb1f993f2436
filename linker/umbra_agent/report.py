"""What the agent says: log lines on stderr and the container's termination message."""

import json
import sys
import time
from pathlib import Path
from typing import Any

# A pod of six containers has 2,048 bytes of termination message for each, cut silently: we stay well below.
TERMINATION_LIMIT_BYTES = 1536
SENTENCE_LIMIT_BYTES = 400


def say(sentence: str) -> None:
    """Write one line to stderr, with the time in UTC. Stdout belongs to the engine and the store."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    print(f"{stamp}.{int(now * 1000) % 1000:03d}Z umbra-agent: {sentence}", file=sys.stderr, flush=True)


def bounded(text: str, limit_bytes: int = SENTENCE_LIMIT_BYTES) -> str:
    """Return `text` on one printable line of at most `limit_bytes` bytes of UTF-8, with an ellipsis when it was cut."""
    line = "".join(character if character.isprintable() else " " for character in text).strip()
    # Quotes and backslashes double in JSON: replaced, so that a bounded sentence stays bounded when it is encoded.
    line = line.replace("\\", "/").replace('"', "'")
    raw = line.encode("utf-8", errors="replace")
    if len(raw) <= limit_bytes:
        return raw.decode("utf-8")
    return raw[: limit_bytes - 3].decode("utf-8", errors="ignore") + "..."


def compact(document: dict[str, Any]) -> str:
    """Return `document` as JSON without blanks; non-ASCII text stays as it is (an escape would need six bytes)."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def write_termination(path: Path, text: str) -> None:
    """Write the container's termination message. A failure is logged: it must not hide the exit code."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        say(f"The termination message could not be written to {path}: {error.strerror}")
