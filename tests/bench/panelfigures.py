"""Records what every panel of the dashboards shows beside the product under load; `panelpictures` draws it.

``python -m panelfigures``: needs `make up`. Sends requests for some minutes, then asks Prometheus what Grafana would
ask, and writes ``build/panels/<dashboard>.json``: Grafana's panels, each with the series that its queries gave.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from figures import REPOSITORY
from localcluster.progress import Progress
from localstack import monitoring, product
from localstack.engine import Engine, prompt
from localstack.monitoring import Prometheus
from localstack.product import Stack
from umbra_operator.codegen.dashboards import DASHBOARDS
from umbra_operator.codegen.grafana import dashboard_json

FOLDER = REPOSITORY / "build" / "panels"
STEP_SECONDS = 2.0
FILLED = {"$__rate_interval": "20s", "$namespace": ".+", "$deployment": ".+"}
"""What Grafana fills in for its variables when everything is chosen and a scrape takes place every 2 s."""


def serve(stack: Stack, engine: Engine, seconds: float) -> None:
    """Conversations that grow: most turns find their history on the device, some only in the store.

    Now and then an edit that the operator refuses, and takes back, so that it has something to do.
    """
    talks: list[list[int]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if len(talks) < 6 or random.random() < 0.3:
            talks = [*talks[-5:], prompt(256)]
        talk = random.choice(talks)
        talk += [*engine.generate(talk, 8).tokens, *prompt(60)]
        if random.random() < 0.3:
            engine.flush()
            edit(stack, "--not-allowed")
            edit(stack, None)


def edit(stack: Stack, argument: str | None) -> None:
    """Sets an engine argument, which costs no engine anything while it is not allowed."""
    patch = {"spec": {"engine": {"extraArgs": [argument] if argument else None}}}
    body = json.dumps(patch)
    stack.cluster.kubectl("-n", product.NAMESPACE, "patch", "k3", product.NAME, "--type=merge", "-p", body)


def filled(expr: str) -> str:
    """The expression with Grafana's variables replaced."""
    for name, value in FILLED.items():
        expr = expr.replace(name, value)
    return expr


def record(prometheus: Prometheus, panel: dict[str, Any], start: float, end: float) -> list[dict[str, Any]]:
    """The series of a panel: over the time, or now where it shows a table."""
    found: list[dict[str, Any]] = []
    for target in panel.get("targets", ()):
        expr = filled(target["expr"])
        if target.get("instant"):
            found += [{"metric": dict(each.labels)} for each in prometheus.query(expr)]
        else:
            series = prometheus.query_range(expr, start, end, STEP_SECONDS)
            found += [{**each, "legend": target["legendFormat"]} for each in series]
    return found


def main() -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=240.0, help="how long requests are sent; 240")
    seconds = parser.parse_args().seconds
    stack = monitoring.demo()
    prometheus, engine = monitoring.start(stack, Progress(sys.stderr)), product.engine(stack)
    start = time.time()
    serve(stack, engine, seconds)
    end = time.time()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for dashboard in DASHBOARDS:
        body = json.loads(dashboard_json(dashboard))
        for panel in body["panels"]:
            panel["series"] = record(prometheus, panel, start, end)
        path: Path = FOLDER / f"{dashboard.name}.json"
        path.write_text(json.dumps(body))
    print(f"wrote {len(DASHBOARDS)} dashboards below {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
