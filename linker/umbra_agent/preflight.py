"""Preflight mode: judge the node and the image before hours of loading are spent on them."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from umbra_agent.host import Host, Memlock, observe
from umbra_agent.report import TERMINATION_LIMIT_BYTES, bounded, compact, write_termination

Mode = Literal["Require", "Warn"]
Verdict = Literal[True, False, "unknown"]
FIELD_LIMIT_BYTES = 160


class NeedsError(Exception):
    """UMBRA_PREFLIGHT cannot be used; the message names the field."""


@dataclass(frozen=True)
class Needs:
    """What the pod needs, from UMBRA_PREFLIGHT; sizes in bytes, None: nothing is asked."""

    memlock_bytes: int | None = None
    memory_bytes: int | None = None
    versions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    modes: Mapping[str, Mode] = field(default_factory=dict)

    def mode(self, name: str) -> Mode:
        """Require unless the input says Warn."""
        return self.modes.get(name, "Require")


@dataclass(frozen=True)
class Check:
    """One judged fact. `ok` is never True when the fact could not be found out."""

    name: str
    ok: Verdict
    mode: Mode
    found: str
    needed: str
    remedy: str = ""

    @property
    def fails(self) -> bool:
        """Whether the pod must not start. An unknown fact does not stop it, but is reported."""
        return self.ok is False and self.mode == "Require"


def parse_needs(text: str) -> Needs:
    """Return the needs in the JSON `text`, or raise NeedsError."""
    try:
        document = json.loads(text)
    except ValueError:
        raise NeedsError("UMBRA_PREFLIGHT is not JSON.") from None
    if not isinstance(document, dict):
        raise NeedsError("UMBRA_PREFLIGHT must be a JSON object.")
    versions, modes = document.get("versions", {}), document.get("modes", {})
    if not isinstance(versions, dict) or not all(_is_strings(accepted) for accepted in versions.values()):
        raise NeedsError("UMBRA_PREFLIGHT's versions must map each distribution to a list of versions.")
    if not isinstance(modes, dict) or not all(mode in ("Require", "Warn") for mode in modes.values()):
        raise NeedsError("UMBRA_PREFLIGHT's modes must be Require or Warn.")
    return Needs(_size(document, "memlockBytes"), _size(document, "memoryBytes"), versions, modes)


def judge(needs: Needs, host: Host) -> list[Check]:
    """All checks, most important first. Pure."""
    checks = []
    if needs.memlock_bytes:
        checks.append(judge_memlock(needs.memlock_bytes, host.memlock, needs.mode("memlock")))
    if needs.memory_bytes:
        checks.append(judge_memory(needs.memory_bytes, host, needs.mode("memory")))
    for name, accepted in sorted(needs.versions.items()):
        checks.append(judge_version(name, accepted, host.versions, needs.mode("versions")))
    return [*checks, judge_hugepages(host.transparent_hugepages), judge_numa_balancing(host.numa_balancing)]


def judge_memlock(needed_bytes: int, memlock: Memlock | None, mode: Mode) -> Check:
    """Whether `needed_bytes` can be locked, by the limit or in spite of it."""
    ok: Verdict
    if memlock is None:
        ok, found = "unknown", "not observed"
    elif memlock.limit is None:
        ok, found = True, "no limit"
    elif memlock.limit >= needed_bytes:
        ok, found = True, f"limit {size(memlock.limit)}"
    elif memlock.succeeded is None:
        ok, found = "unknown", f"limit {size(memlock.limit)}, no trial possible"
    else:
        outcome = "locked in spite of it" if memlock.succeeded else "refused"
        ok, found = memlock.succeeded, f"limit {size(memlock.limit)}, {size(memlock.attempted or 0)} {outcome}"
    remedy = "Run as root with capability IPC_LOCK, or set LimitMEMLOCK=infinity for the container runtime."
    return Check("memlock", ok, mode, found, size(needed_bytes), "" if ok is True else remedy)


def judge_memory(needed_bytes: int, host: Host, mode: Mode) -> Check:
    """Whether the node holds `needed_bytes`. The limit of this container is told, but says nothing of the store's."""
    if host.memory_total is None:
        return Check("memory", "unknown", mode, "MemTotal not readable", size(needed_bytes), "Look at /proc/meminfo.")
    limit = host.cgroup_limit
    found = f"MemTotal {size(host.memory_total)}, container limit {'none' if limit is None else size(limit)}"
    if host.memory_total < needed_bytes:
        remedy = "Lower spec.cache.dram.size or choose nodes with more memory."
        return Check("memory", False, mode, found, size(needed_bytes), remedy)
    return Check("memory", True, mode, found, size(needed_bytes))


def judge_version(name: str, accepted: Sequence[str], versions: Mapping[str, str | None], mode: Mode) -> Check:
    """Whether the installed version is one of `accepted`; a local part (`+rocm7`) is ignored unless it is asked for."""
    needed = " or ".join(accepted) or "none"
    if name not in versions:
        return Check(
            name, "unknown", mode, "metadata not readable", needed, "Repair the engine image's package metadata."
        )
    found = versions[name]
    if found is None:
        return Check(name, False, mode, "not installed", needed, "Use an engine image that holds it.")
    if found in accepted or found.partition("+")[0] in accepted:
        return Check(name, True, mode, found, needed)
    return Check(name, False, mode, found, needed, "Use an engine image with a version that the profile accepts.")


def judge_hugepages(selected: str | None) -> Check:
    """khugepaged moves registered pages and the driver then stops all queues of the process for a while."""
    ok: Verdict = "unknown" if selected is None else selected != "always"
    remedy = "" if ok is True else "Set transparent_hugepage to madvise or never on the node."
    return Check("transparent-hugepages", ok, "Warn", selected or "not readable", "madvise or never", remedy)


def judge_numa_balancing(value: str | None) -> Check:
    """Automatic NUMA balancing unmaps registered pages in the same way."""
    ok: Verdict = "unknown" if value is None else value == "0"
    remedy = "" if ok is True else "Set kernel.numa_balancing=0 on the node."
    return Check("numa-balancing", ok, "Warn", value or "not readable", "0", remedy)


def message(checks: Iterable[Check], limit_bytes: int = TERMINATION_LIMIT_BYTES) -> str:
    """The termination message: valid JSON of at most `limit_bytes`; the least important checks give way.

    Order: failed requirements, unknown requirements, failed warnings, unknown warnings.
    """
    checks = list(checks)
    shown = sorted((check for check in checks if check.ok is not True), key=_unimportance)
    document: dict[str, Any] = {
        "passed": not any(check.fails for check in checks),
        "checks": [_entry(check) for check in shown],
    }
    text = compact(document)
    while len(text.encode("utf-8")) > limit_bytes and document["checks"]:
        document["checks"].pop()
        document["dropped"] = len(shown) - len(document["checks"])
        text = compact(document)
    return text


def table(checks: Iterable[Check]) -> str:
    """All checks for a reader of the container's log."""
    words = {True: "ok", False: "FAILED", "unknown": "unknown"}
    rows = [("CHECK", "RESULT", "MODE", "FOUND", "NEEDED", "REMEDY")]
    rows += [(c.name, words[c.ok], c.mode, c.found, c.needed, c.remedy or "-") for c in checks]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def run(needs_text: str, termination_log: Path) -> int:
    """Check once. Returns 0, 1 when a required check failed, 2 when UMBRA_PREFLIGHT is unusable."""
    try:
        needs = parse_needs(needs_text)
    except NeedsError as error:
        check = Check(
            "input", False, "Require", str(error), "valid JSON", "Report this: the operator writes the variable."
        )
        write_termination(termination_log, message([check]))
        print(f"umbra-agent: {error}", file=sys.stderr)
        return 2
    checks = judge(needs, observe(needs.memlock_bytes, needs.versions))
    print(table(checks), flush=True)
    write_termination(termination_log, message(checks))
    return 1 if any(check.fails for check in checks) else 0


def size(value: int) -> str:
    """Bytes for a reader, in the largest binary unit that keeps three digits."""
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if value >= 1 << shift:
            return f"{value / (1 << shift):.4g} {unit}"
    return f"{value} B"


def _unimportance(check: Check) -> tuple[bool, bool]:
    return (check.mode == "Warn", check.ok == "unknown")


def _entry(check: Check) -> dict[str, Any]:
    texts = {"found": check.found, "needed": check.needed, "remedy": check.remedy}
    shortened = {key: bounded(text, FIELD_LIMIT_BYTES) for key, text in texts.items()}
    return {"name": bounded(check.name, 64), "ok": check.ok, "mode": check.mode, **shortened}


def _is_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _size(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise NeedsError(f"UMBRA_PREFLIGHT's {name} must be a number of bytes or null.")
    return value
