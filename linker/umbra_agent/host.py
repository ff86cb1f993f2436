"""Observes the node and the image for the preflight. None always means: could not be found out."""

import ctypes
import errno
import mmap
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from umbra_agent.kernel import cgroup_files, read_text

# From <linux/mman.h>: lock pages as they are touched, and reserve no memory for a mapping (not in Python 3.11's mmap).
MLOCK_ONFAULT = 1
MAP_NORESERVE = 0x4000
# cgroup v1 says "no limit" with the largest multiple of the page size; no machine has a quarter of it.
CGROUP_V1_UNLIMITED_BYTES = 1 << 61


@dataclass(frozen=True)
class Memlock:
    """What locking memory is allowed to this process; sizes in bytes."""

    limit: int | None
    """Soft RLIMIT_MEMLOCK; None: no limit."""
    attempted: int | None = None
    """Size of the real lock that was tried; None: none was needed."""
    succeeded: bool | None = None
    """None: it could not be tried (no address space, or a kernel without mlock2)."""


@dataclass(frozen=True)
class Host:
    """Everything that the checks judge."""

    memlock: Memlock | None = None
    memory_total: int | None = None
    cgroup_limit: int | None = None
    """Memory limit of this container in bytes; None: no limit or unknown, then `memory_total` decides."""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    """Installed version by distribution; None: not installed. A name that is absent could not be looked up."""
    transparent_hugepages: str | None = None
    numa_balancing: str | None = None


def observe(memlock_bytes: int | None, distributions: Iterable[str]) -> Host:
    """Look once at everything. `memlock_bytes` is what will have to be locked (None: nothing)."""
    return Host(
        memlock=observe_memlock(memlock_bytes) if memlock_bytes else None,
        memory_total=memory_total(Path("/proc/meminfo")),
        cgroup_limit=cgroup_limit(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")),
        versions=installed(distributions),
        transparent_hugepages=selected(read_text(Path("/sys/kernel/mm/transparent_hugepage/enabled"))),
        numa_balancing=read_text(Path("/proc/sys/kernel/numa_balancing")),
    )


def observe_memlock(needed_bytes: int) -> Memlock:
    """Try to lock what is needed where the limit is lower: with IPC_LOCK as root the limit does not count."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        return Memlock(None)
    if limit >= needed_bytes:
        return Memlock(limit)
    return Memlock(limit, needed_bytes, try_mlock(needed_bytes))


def try_mlock(size_bytes: int) -> bool | None:
    """Map and lock `size_bytes`, touch none of it and give it back; None when that cannot be tried.

    MLOCK_ONFAULT counts the whole size against the limit at once but takes no memory, so a tier of terabytes is tried
    in microseconds.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        libc.mlock2.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        region = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    except (AttributeError, OSError, ValueError, OverflowError):
        return None
    view = ctypes.c_char.from_buffer(region)
    locked = libc.mlock2(ctypes.addressof(view), size_bytes, MLOCK_ONFAULT) == 0
    number = ctypes.get_errno()
    del view
    region.close()
    return True if locked else False if number in (errno.ENOMEM, errno.EPERM) else None


def memory_total(meminfo: Path) -> int | None:
    """MemTotal in bytes."""
    for line in (read_text(meminfo) or "").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal" and rest.split()[:1] and rest.split()[0].isdecimal():
            return int(rest.split()[0]) * 1024
    return None


def cgroup_limit(root: Path, membership: Path) -> int | None:
    """Lowest memory limit in bytes that applies to this process: cgroup v2 `memory.max`, v1 `memory.limit_in_bytes`."""
    paths = cgroup_files(root, membership, v2="memory.max", v1="memory.limit_in_bytes")
    found = [int(text) for text in map(read_text, paths) if text is not None and text.isdecimal()]
    limits = [limit for limit in found if 0 < limit < CGROUP_V1_UNLIMITED_BYTES]
    return min(limits, default=None)


def installed(distributions: Iterable[str]) -> dict[str, str | None]:
    """Versions by distribution name; a distribution with broken metadata is left out (unknown)."""
    found: dict[str, str | None] = {}
    for name in distributions:
        try:
            version: str | None = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
            continue
        except Exception:  # noqa: S112 - metadata is whatever somebody installed
            continue
        if version:
            found[name] = version
    return found


def selected(choices: str | None) -> str | None:
    """The word in brackets of a sysfs choice such as "always [madvise] never"."""
    if choices is None:
        return None
    words = [word[1:-1] for word in choices.split() if word.startswith("[") and word.endswith("]")]
    return words[0] if len(words) == 1 else None
