"""The report that every bench shares."""

import json
from pathlib import Path

import pytest

from figures import Figure, report, table


def test_a_report_is_written_with_commit_machine_and_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = [Figure("lookup_p50_ms", 1.5, "ms", "stock", 3.0), Figure("up_s", 40, "s")]
    written = json.loads(report("linker", figures, tmp_path).read_text())
    assert written["bench"] == "linker"
    assert written["commit"]
    assert written["machine"]["cores"] >= 1
    assert written["figures"][0] == {
        "name": "lookup_p50_ms",
        "value": 1.5,
        "unit": "ms",
        "peer": "stock",
        "peer_value": 3.0,
        "ratio": 0.5,
    }
    assert written["figures"][1]["ratio"] is None
    assert capsys.readouterr().out.strip() == table(figures)


def test_a_peer_that_measured_nothing_gives_no_ratio() -> None:
    assert Figure("bytes", 10, "B", "stock", 0.0).ratio is None
