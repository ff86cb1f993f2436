"""Small traces that tests write themselves."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any


def session(name: str, prompts: list[tuple[int, list[int]]], *, think: float = 1.0) -> dict[str, Any]:
    """An agent's session; a prompt is its length in tokens and its blocks of 64."""
    requests = [
        {"t": float(index), "type": "n", "in": length, "out": 100, "hash_ids": blocks, "think_time": think}
        for index, (length, blocks) in enumerate(prompts)
    ]
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": requests}


def growing(name: str, turns: int, *, first: int = 300, step: int = 12, think: float = 5.0) -> dict[str, Any]:
    """A session whose every prompt continues the one before by ``step`` blocks."""
    return session(name, [((first + step * n) * 64, list(range(first + step * n))) for n in range(turns)], think=think)


def write_tar(path: Path, sessions: list[dict[str, Any]]) -> Path:
    with tarfile.open(path, "w:xz") as archive:
        for data in sessions:
            content = json.dumps(data).encode()
            member = tarfile.TarInfo(f"set/{data['id']}.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_lines(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path
