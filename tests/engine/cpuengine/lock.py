"""Regenerating requirements/engine.txt and requirements/mori.txt; the only place where versions are resolved."""

from __future__ import annotations

from pathlib import Path

from .cache import ENGINE_LOCK, MORI_LOCK
from .packages import find_uv, run, uv_environment

_WITHOUT_DEPENDENCIES = "# Without their dependencies:"
# No host name may stand in a lock file, so uv must print neither index nor find-links.
_COMPILE = ["--generate-hashes", "--no-annotate", "--no-header", "--no-emit-index-url", "--no-emit-find-links", "-q"]


def write_locks() -> None:
    """Resolve both input files and write the lock files beside them."""
    resolved, _, bare = ENGINE_LOCK.with_suffix(".in").read_text().partition(_WITHOUT_DEPENDENCIES)
    scratch = ENGINE_LOCK.with_suffix(".part.in")
    try:
        parts = []
        for text, options in ((resolved, []), (bare.partition("\n")[2], ["--no-deps"])):
            scratch.write_text(text)
            parts.append(_compile(scratch, "--python-version", "3.11", *options))
        ENGINE_LOCK.write_text("".join(parts))
    finally:
        scratch.unlink(missing_ok=True)
    platform = ["--python-version", "3.10", "--python-platform", "x86_64-manylinux_2_35", "--no-deps"]
    MORI_LOCK.write_text(_compile(MORI_LOCK.with_suffix(".in"), *platform))


def _compile(source: Path, *options: str) -> str:
    argv: list[str | Path] = [find_uv(), "pip", "compile", *_COMPILE, *options, source]
    problem = f"cannot resolve {source.name}; is the Python package registry reachable?"
    return run([a for a in argv if a != "-q"], problem=problem, env=uv_environment())
