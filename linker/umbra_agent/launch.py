"""The launch document: what to start, as the operator wrote it into the pod's annotation."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The API server bounds all annotations of an object to 256 KiB together.
DOCUMENT_LIMIT_BYTES = 256 * 1024
# The pod's grace period is 3600 s and fixed at creation: a drain must leave room for the store to unmap its tier.
DRAIN_LIMIT_SECONDS = 3000

_REVISION = re.compile(r"[0-9a-f]{12}")
_KIT = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,62}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class LaunchError(Exception):
    """The document cannot be used. The message names the field, never an argument's or a variable's value."""


@dataclass(frozen=True)
class Launch:
    """A valid launch document."""

    revision: str
    kit: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    port: int
    drain_timeout_seconds: int
    live: Mapping[str, Any] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        """The document again, as a JSON object that `parse` reads."""
        return {
            "revision": self.revision,
            "kit": self.kit,
            "argv": list(self.argv),
            "env": dict(self.env),
            "port": self.port,
            "drainTimeoutSeconds": self.drain_timeout_seconds,
            "live": dict(self.live),
        }


def parse(text: bytes) -> Launch:
    """Return the document in `text` or raise LaunchError. Unknown fields are ignored: a newer operator may add some."""
    if not text.strip():
        raise LaunchError("The launch document is empty: the pod has no annotation umbra.dev/launch yet.")
    if len(text) > DOCUMENT_LIMIT_BYTES:
        raise LaunchError(f"The launch document has {len(text)} bytes; at most {DOCUMENT_LIMIT_BYTES} are accepted.")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LaunchError(f"The launch document is not JSON ({_where(error)}); write the annotation again.") from None
    if not isinstance(document, dict):
        raise LaunchError("The launch document must be a JSON object.")
    return Launch(
        revision=_matching(document, "revision", _REVISION, "12 hexadecimal digits"),
        kit=_matching(document, "kit", _KIT, "a kit version such as 0.1.0"),
        argv=_argv(document),
        env=_env(document),
        port=_integer(document, "port", 1, 65535),
        drain_timeout_seconds=_integer(document, "drainTimeoutSeconds", 0, DRAIN_LIMIT_SECONDS),
        live=_object(document, "live", required=False),
    )


def compact_document(document: Mapping[str, Any]) -> bytes:
    """The text of a launch document."""
    return json.dumps(document, separators=(",", ":")).encode()


def child_environment(base: Mapping[str, str], launch: Launch, kit_root: Path) -> dict[str, str]:
    """Container environment, then the document's, with the document's kit first on PYTHONPATH."""
    return on_kit_path({**base, **launch.env}, kit_root / launch.kit)


def on_kit_path(environment: Mapping[str, str], kit: Path) -> dict[str, str]:
    """`environment` with the folder `kit` first on PYTHONPATH, and no other kit of the same root.

    The agent's own entry (`current`, or the version that it replaced itself by) may be another version.
    """
    entries = environment.get("PYTHONPATH", "").split(os.pathsep)
    rest = [entry for entry in entries if entry and Path(entry).parent != kit.parent]
    return {**environment, "PYTHONPATH": os.pathsep.join([str(kit), *rest])}


def require_program(launch: Launch, base: Mapping[str, str]) -> None:
    """Raise LaunchError unless argv[0] can be executed: found out before a running engine is stopped for it."""
    if shutil.which(launch.argv[0], path={**base, **launch.env}.get("PATH", os.defpath)) is None:
        raise LaunchError("The launch document's argv[0] is not an executable file in this container.")


class LaunchFile:
    """Follows the file of a downward-API volume and keeps the last valid document.

    The kubelet replaces the volume by renaming the link `..data`, so the path leads to another inode afterwards;
    the signature of the file that the path leads to is compared, which also sees a plain rewrite.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wanted: Launch | None = None
        self.problem: str | None = None
        """Why the present file is not in use, or None."""
        self.refused = 0
        """How many contents were found invalid."""
        self._seen: tuple[int, ...] | None = None

    def follow(self, environment: Mapping[str, str]) -> None:
        """Read the file if it may have changed (one stat otherwise); an invalid one leaves `wanted` as it is."""
        try:
            content = self._changed()
        except OSError as error:
            self._seen = None
            self.problem = f"The launch document {self.path} cannot be read ({error.strerror}): mount its volume there."
            return
        if content is None:
            return
        try:
            launch = parse(content)
            require_program(launch, environment)
        except LaunchError as error:
            self.problem = str(error)
            self.refused += 1
            return
        self.problem = None
        self.wanted = launch

    def _changed(self) -> bytes | None:
        status = self.path.stat()
        signature = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if signature == self._seen:
            return None
        with self.path.open("rb") as file:
            content = file.read(DOCUMENT_LIMIT_BYTES + 1)
        self._seen = signature
        return content


def _where(error: Exception) -> str:
    """Position of a syntax error without the text around it, which may hold a secret."""
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}"
    return type(error).__name__


def _matching(document: Mapping[str, Any], name: str, pattern: re.Pattern[str], meaning: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise LaunchError(f"The launch document's {name} must be {meaning}.")
    return value


def _integer(document: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = document.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise LaunchError(f"The launch document's {name} must be a whole number from {low} to {high}.")
    return value


def _object(document: Mapping[str, Any], name: str, required: bool) -> Mapping[str, Any]:
    value = document.get(name, None if required else {})
    if not isinstance(value, dict):
        raise LaunchError(f"The launch document's {name} must be a JSON object.")
    return value


def _argv(document: Mapping[str, Any]) -> tuple[str, ...]:
    value = document.get("argv")
    if not isinstance(value, list) or not value:
        raise LaunchError("The launch document's argv must be a list that starts with the program.")
    for index, argument in enumerate(value):
        if not _is_text(argument) or (index == 0 and not argument):
            raise LaunchError(f"The launch document's argv[{index}] must be a string without NUL.")
    return tuple(value)


def _env(document: Mapping[str, Any]) -> Mapping[str, str]:
    variables = _object(document, "env", required=True)
    for name, value in variables.items():
        if not _NAME.fullmatch(name):
            raise LaunchError("The launch document's env has a name that is not letters, digits and underscores.")
        if not _is_text(value):
            raise LaunchError(f"The launch document's env value of {name} must be a string without NUL.")
    return variables


def _is_text(value: object) -> bool:
    """Whether `value` can be passed to a process: a string without NUL that has a UTF-8 form (no lone surrogate)."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
