"""What happens when a fault of the store meets an operation of the linker, and the page that tells it.

``make linker-faults-page`` runs ``test_fault_matrix.py`` and prints what its tests saw.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from figures import REPOSITORY, written_between

OPERATIONS = ("lookup", "load", "offload", "flush", "close")
RANKS = (1, 2)
FAULTS = {
    "killed": "ended, and none follows",
    "frozen": "frozen",
    "replaced": "replaced by an empty one",
    "full": "full",
    "slow": "slow",
    "unregistered": "replaced, and refuses the buffers",
    "wrong": "gives an answer too few",
}
_ENDS = "that request ends with 503"
_LOST = "not stored, lock released"
EXPECTED = {
    "killed": ("miss (`evicted_recently`)", _ENDS, _LOST, "empties the device", "ends"),
    "frozen": (
        "miss (`deadline`)",
        f"{_ENDS}, the store is killed",
        "waits with its lock, then stored",
        "refused until the store answers",
        "ends",
    ),
    "replaced": ("miss (`evicted_recently`)", _ENDS, "stored", "empties the device", "ends"),
    "full": ("miss (`evicted_recently`)", _ENDS, "stored", "empties the device", "ends"),
    "slow": ("hit", "restored", "stored", "empties the device", "ends"),
    "unregistered": ("miss (`evicted_recently`)", _ENDS, _LOST, "empties the device", "ends"),
    "wrong": ("miss (`error`)", _ENDS, _LOST, "empties the device", "ends"),
}
"""In the order of ``OPERATIONS``; the same on every rank, for one as for two."""

Happened = Mapping[tuple[str, int], Mapping[str, str]]
"""By fault and number of ranks: by operation, what happened."""

PAGE = REPOSITORY / "docs" / "explanation" / "linker-faults.md"
BEGIN, END = "<!-- make linker-faults-page writes this table -->", "<!-- until here -->"


def results(junit: str) -> dict[tuple[str, int], dict[str, str]]:
    """Read what the tests saw from pytest's report in JUnit's XML."""
    happened = {}
    for case in ElementTree.fromstring(junit).iter("testcase"):
        said = {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
        if "happened" in said:
            happened[said["fault"], int(said["ranks"])] = json.loads(said["happened"])
    return happened


def page(text: str, happened: Happened) -> str:
    """The page `text` with a table of what happened; what stands around it stays.

    Raises:
        KeyError: for a cell that no test filled.
    """
    rows = [f"| the store is or does | ranks | {' | '.join(OPERATIONS)} |", "|" + "---|" * (2 + len(OPERATIONS))]
    for fault, told in FAULTS.items():
        for ranks in RANKS:
            cells = [happened[fault, ranks][operation] for operation in OPERATIONS]
            rows.append(f"| {told} | {ranks} | {' | '.join(cells)} |")
    return written_between(text, BEGIN, END, rows)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("junit", type=Path, help="pytest's report of test_fault_matrix.py")
    happened = results(parser.parse_args().junit.read_text())
    PAGE.write_text(page(PAGE.read_text(), happened))


if __name__ == "__main__":
    main()
