"""What a failure of the machine means to somebody who typed a make command: one sentence with the remedy."""

import errno
import http.client
import shlex
import subprocess
import urllib.error

from umbra_images.cachefolder import CacheError
from umbra_images.errors import ImageError

from .errors import ClusterError

_OTHER_DISK = "free some, or point UMBRA_CACHE at another disk"
_OTHER_FOLDER = "run this as the owner, or point UMBRA_CACHE at a folder of yours"
_REMEDIES = {
    errno.ENOSPC: f"the disk is full: {_OTHER_DISK}",
    errno.EDQUOT: f"your share of the disk is used up: {_OTHER_DISK}",
    errno.EROFS: "the disk is read-only: point UMBRA_CACHE at another one",
    errno.EACCES: f"this is not permitted: {_OTHER_FOLDER}",
    errno.EPERM: f"this is not permitted: {_OTHER_FOLDER}",
    errno.ENOMEM: "memory ran out: end what uses much of it",
    errno.EMFILE: "too many files are open: raise `ulimit -n`",
    errno.ENOENT: "it is not there: install it, or try again if something removed it meanwhile",
}
# How tools that we run say the same, Go's in lower case; what they were asked to do is then beside the point.
_FULL = ("no space left on device", "disk quota exceeded")


def sentence(problem: BaseException) -> str | None:
    """What is wrong and what to do about it; None when it can only be a mistake in the code, which needs its trace."""
    if isinstance(problem, ClusterError | CacheError | ImageError):
        return about(" ".join([str(problem), *getattr(problem, "__notes__", [])]))
    if isinstance(problem, subprocess.TimeoutExpired):
        argv = problem.cmd if isinstance(problem.cmd, str) else shlex.join(map(str, problem.cmd))
        bound = f"{problem.timeout:.0f} s"
        return f"`{argv[:200]}` did not end within {bound}: see whether the machine or its network is busy."
    if isinstance(problem, urllib.error.HTTPError):
        return f"{problem.url} answered {problem.code} ({problem.reason}): its log says why."
    if isinstance(problem, urllib.error.URLError | http.client.HTTPException | ConnectionError | TimeoutError):
        reason = getattr(problem, "reason", None) or str(problem) or type(problem).__name__
        return f"A server cannot be reached or hung up ({reason}): its log says why."
    if isinstance(problem, OSError):
        place = problem.filename2 or problem.filename or "The machine refuses"
        remedy = _REMEDIES.get(problem.errno or 0, f"{problem.strerror or problem}")
        return f"{place}: {remedy}."
    return None


def about(text: str) -> str:
    """The text, with the remedy when it tells of a full disk."""
    full = any(sign in text.lower() for sign in _FULL)
    return f"{text.rstrip('.')}; the disk is full: {_OTHER_DISK}." if full else text
