"""pip, whichever interpreter on this machine has one."""

import functools
import shutil
import subprocess
import sys
from collections.abc import Sequence

from .errors import ClusterError


def pip(arguments: Sequence[str]) -> None:
    """Run pip with these arguments; raise ClusterError with the reason when it fails."""
    command = [interpreter(), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if result.returncode == 0:
        return
    lines = [line for line in result.stderr.splitlines() if line.strip()] or ["no message"]
    network = ("Connection", "Temporary failure", "No matching distribution", "timed out")
    if any(word in result.stderr for word in network):
        raise ClusterError(f"The Python package index cannot be reached or lacks a pinned package: {lines[-1]}")
    raise ClusterError(f"pip failed: {lines[-1]}")


@functools.cache
def interpreter() -> str:
    """The first interpreter that can import pip: ours, then the system's. Raises ClusterError when there is none."""
    candidates = [sys.executable, shutil.which("python3"), "/usr/bin/python3"]
    for candidate in filter(None, candidates):
        tried = subprocess.run([candidate, "-c", "import pip"], capture_output=True, check=False, timeout=60)
        if tried.returncode == 0:
            return candidate
    raise ClusterError("No Python here has pip: install it (Debian: apt-get install python3-pip).")
