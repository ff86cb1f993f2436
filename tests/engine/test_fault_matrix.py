"""Every fault of the store meets every operation of the linker, on the real tree and store, without an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cpuengine import Environment
from cpuengine.store import running_store, started_again
from faultmatrix import EXPECTED, FAULTS, OPERATIONS, PAGE, RANKS, page, results
from ranklab import RankLab

STORE_BYTES = 8 << 20
"""Some prompts fill it."""


@pytest.mark.engine
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_meets_every_operation(
    rank_lab: RankLab, engine_env: Environment, tmp_path: Path, record_property: Any, fault: str, ranks: int
) -> None:
    """After each, nothing is locked or lost, bytes are right, and every rank has reduced as often as the others."""
    hold = tmp_path / "hold"
    with running_store(engine_env, capacity_bytes=STORE_BYTES) as store, started_again(store, hold):
        first, *others = rank_lab.run(
            "faultcells.cells", ranks=ranks, seconds=120.0, address=store.address, hold=str(hold), fault=fault
        )
    record_property("fault", fault)
    record_property("ranks", ranks)
    record_property("happened", json.dumps(first["happened"]))
    assert first["happened"] == dict(zip(OPERATIONS, EXPECTED[fault], strict=True))
    assert others == [first] * (ranks - 1)


def test_the_page_tells_what_the_tests_saw() -> None:
    happened = {
        (fault, ranks): dict(zip(OPERATIONS, cells, strict=True))
        for fault, cells in EXPECTED.items()
        for ranks in RANKS
    }
    assert page(PAGE.read_text(), happened) == PAGE.read_text(), "make linker-faults-page was not run"
    with pytest.raises(KeyError):
        page(PAGE.read_text(), {key: cells for key, cells in happened.items() if key != ("slow", 2)})


def test_what_a_test_saw_is_read_from_pytests_report() -> None:
    saw = json.dumps({"lookup": "hit"}).replace('"', "&quot;")
    properties = '<property name="fault" value="slow"/><property name="ranks" value="2"/>'
    properties += f'<property name="happened" value="{saw}"/>'
    report = f"<testsuites><testsuite><testcase><properties>{properties}</properties></testcase><testcase/></testsuite>"
    assert results(f"{report}</testsuites>") == {("slow", 2): {"lookup": "hit"}}
