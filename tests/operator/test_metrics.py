"""The reference page of metrics against what a process really shows."""

import re

from prometheus_client import generate_latest

from product import ROOT
from umbra_operator import metrics


def test_the_page_names_every_series_of_the_operator_with_its_labels() -> None:
    metrics.RECONCILES.labels("a", "b")
    metrics.REQUESTS.labels("a", "b", "c")
    metrics.POLLS.labels("a", "b")
    lines = generate_latest().decode().splitlines()
    shown = dict(line.removeprefix("# TYPE ").split(" ") for line in lines if line.startswith("# TYPE "))
    own = {name for name in shown if not re.match(r"python_|process_", name) and not name.endswith("_created")}
    page = (ROOT / "docs/reference/metrics.md").read_text()
    table = page.split("## Operator")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == own
    for name, labels in re.findall(r"^\| `(\w+_total)` \| counter \| \w* \| (`[^|]+) \|", table, re.MULTILINE):
        series = next(line for line in lines if line.startswith(f"{name}{{"))
        assert set(re.findall(r"`(\w+)`", labels)) == set(re.findall(r"(\w+)=", series))
