"""The one way in which a bench reports: a table on the terminal and ``build/bench/<name>.json``."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Figure:
    """One measured value, and the peer's value from the same run where there is a peer."""

    name: str
    value: float
    unit: str
    peer: str | None = None
    """Name of what it is compared with."""
    peer_value: float | None = None

    @property
    def ratio(self) -> float | None:
        """Value over the peer's; None without a peer or when the peer's is 0."""
        return self.value / self.peer_value if self.peer_value else None


def report(bench: str, figures: Sequence[Figure], folder: Path = REPOSITORY / "build" / "bench") -> Path:
    """Prints the table and writes the file; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{bench}.json"
    entries = [{**asdict(figure), "ratio": figure.ratio} for figure in figures]
    document: dict[str, Any] = {"bench": bench, "commit": _commit(), "machine": _machine(), "figures": entries}
    path.write_text(json.dumps(document, indent=2) + "\n")
    print(table(figures))
    return path


def table(figures: Sequence[Figure]) -> str:
    """The figures as a Markdown table."""
    rows = ["| figure | value | peer | peer's value | ratio |", "|---|---|---|---|---|"]
    for figure in figures:
        peer_value = "" if figure.peer_value is None else f"{figure.peer_value:g} {figure.unit}"
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        rows.append(
            f"| `{figure.name}` | {figure.value:g} {figure.unit} | {figure.peer or ''} | {peer_value} | {ratio} |"
        )
    return "\n".join(rows)


def machine_line(document: Mapping[str, Any]) -> str:
    """What a report, read from its file, was measured with."""
    machine = document["machine"]
    return f"Commit `{document['commit']}`, {machine['cores']} cores ({machine['cpu']}), {machine['memoryGiB']} GiB:"


def written_between(text: str, begin: str, end: str, lines: Sequence[str]) -> str:
    """The page `text` with `lines` between two marks; what stands around them stays."""
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return "\n".join([before + begin, *lines, end + after])


def page_with_table(text: str, begin: str, end: str, document: Mapping[str, Any]) -> str:
    """The page `text` with a report's table, read from its file, between two marks; what stands around it stays."""
    figures = [Figure(**{k: v for k, v in one.items() if k != "ratio"}) for one in document["figures"]]
    return written_between(text, begin, end, [machine_line(document), "", *table(figures).splitlines()])


def _commit() -> str:
    argv = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return found.stdout.strip() or "unknown"


def _machine() -> dict[str, Any]:
    """What the figures depend on, without a name that would identify the machine."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")), platform.machine()
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": model, "cores": os.cpu_count(), "memoryGiB": round(memory / 1024**3)}
