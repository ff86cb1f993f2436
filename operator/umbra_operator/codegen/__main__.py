"""``python -m umbra_operator.codegen [--check]``: writes every generated file, or says which ones are stale."""

import sys
from pathlib import Path

from umbra_operator.api.base import GROUP
from umbra_operator.api.v1alpha1 import KINDS
from umbra_operator.codegen.alertspage import alerts_page
from umbra_operator.codegen.chartvalues import readme, values_schema, values_yaml
from umbra_operator.codegen.crd import crd, to_yaml
from umbra_operator.codegen.dashboards import DASHBOARDS
from umbra_operator.codegen.grafana import dashboard_json
from umbra_operator.codegen.metricspage import metrics_page
from umbra_operator.codegen.reference import api_page, conditions_page
from umbra_operator.codegen.restarts import restarts_page

ROOT = Path(__file__).parents[3]
EXAMPLE = "mi355x-tp8-v1.yaml"
"""The profile that the chart ships."""


def generated() -> dict[Path, str]:
    """Every generated file with its text."""
    files = {
        ROOT / "docs/reference/api.md": api_page(),
        ROOT / "docs/reference/conditions.md": conditions_page(),
        ROOT / "docs/reference/metrics.md": metrics_page(),
        ROOT / "docs/reference/alerts.md": alerts_page((ROOT / "charts/umbra/files/alerts.yaml").read_text()),
        ROOT / "docs/explanation/what-restarts.md": restarts_page(),
        ROOT / "charts/umbra/values.yaml": values_yaml(),
        ROOT / "charts/umbra/values.schema.json": values_schema(),
        ROOT / "charts/umbra/README.md": readme(),
        ROOT / f"charts/umbra/files/profiles/{EXAMPLE}": (ROOT / "examples" / EXAMPLE).read_text(),
    }
    for each in DASHBOARDS:
        files[ROOT / f"charts/umbra/files/dashboards/{each.name}.json"] = dashboard_json(each)
    for kind in KINDS:
        text = to_yaml(crd(kind))
        files[ROOT / f"crds/{GROUP}_{kind.plural}.yaml"] = text
        files[ROOT / f"charts/umbra/files/crds/{GROUP}_{kind.plural}.yaml"] = text
    return files


def main() -> int:
    """Entry point; returns the exit code."""
    stale = [path for path, text in generated().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run `make generate` and commit the result", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(generated()[path])
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
