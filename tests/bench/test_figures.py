"""The report that every bench shares."""

import json
from pathlib import Path

import pytest

from figures import Figure, page_with_table, report, table


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


def test_a_page_gets_the_table_between_its_marks_and_the_rest_stays() -> None:
    document = {
        "commit": "abc",
        "machine": {"cores": 2, "cpu": "some CPU", "memoryGiB": 24},
        "figures": [
            {"name": "load", "value": 150.0, "unit": "MiB/s", "peer": "stock", "peer_value": 100.0, "ratio": 1.5},
            {"name": "held", "value": 1.2, "unit": "MiB", "peer": None, "peer_value": None, "ratio": None},
        ],
    }
    written = page_with_table("before\n<!-- b -->\nold\n<!-- e -->\nafter\n", "<!-- b -->", "<!-- e -->", document)
    assert written.startswith("before\n<!-- b -->\nCommit `abc`") and written.endswith("\n<!-- e -->\nafter\n")
    assert "| `load` | 150 MiB/s | stock | 100 MiB/s | 1.50 |" in written
    assert "| `held` | 1.2 MiB |" in written
    assert "old" not in written
    assert page_with_table(written, "<!-- b -->", "<!-- e -->", document) == written
