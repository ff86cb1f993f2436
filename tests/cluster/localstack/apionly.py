"""The product without a node: what needs neither root nor containers, and what is then not real."""

import json
import sys
from pathlib import Path

from localcluster import cluster, images
from localcluster.cluster import Cluster
from localcluster.errors import ClusterError
from localcluster.progress import Progress

from . import exposition, product

OPERATOR = "operator"
PLACEHOLDER = "REPLACE-WITH-DIGEST"
"""What the examples have where a user writes the digest of an image; the API server refuses it."""
# Without a node nothing pulls an image.
_NO_DIGEST = "0" * 64
_EXAMPLES = ("mi355x-tp8-v1.yaml", "k3-mi355x.yaml")


def up(progress: Progress) -> None:
    """A control plane on the loopback address, the CRDs, the operator as a process, and the example applied."""
    running = cluster.up(progress, api_only=True)
    root = images.REPOSITORY
    for path in sorted((root / "crds").glob("*.yaml")):
        running.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
    running.kubectl("wait", "--for=condition=Established", "crd/k3deployments.umbra.dev", "crd/k3profiles.umbra.dev")
    for example in _EXAMPLES:
        body = (root / "examples" / example).read_text().replace(PLACEHOLDER, _NO_DIGEST)
        running.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=body)
    operator = start_operator(running, root)
    with progress.step("api-only", "waiting for the operator to make the example's pod"):
        wait_planned(running, operator)
    print(
        f"""
  Real: API server, admission, rules of the CRDs, controllers, scheduler, operator.
  Not real: there is no node, so pods stay Pending, no container runs and Services lead nowhere.
  With root, Linux and containers `{running.layout.command("up")}` runs the whole product.

  metrics of the operator: {operator}/metrics

  export KUBECONFIG={running.kubeconfig}
  alias kubectl={running.kubectl_path}
  kubectl get k3,pods
  kubectl explain k3.spec.cache
  {running.layout.command("status")}
  {running.layout.command("down")}
""",
        flush=True,
    )


def start_operator(running: Cluster, root: Path) -> str:
    """The operator of the repository at ``root``, started anew if its code changed since; returns its HTTP address."""
    port = running.port(OPERATOR)
    environment = [
        f"KUBECONFIG={running.kubeconfig}",
        "UMBRA_BIND=127.0.0.1",
        f"UMBRA_METRICS_PORT={port}",
        f"PYTHONPATH={root}/operator:{root}/linker",
    ]
    sources = [path for folder in ("operator", "linker/umbra_linker") for path in (root / folder).rglob("*.py")]
    running.run(OPERATOR, ["env", *environment, sys.executable, "-m", "umbra_operator"], *sorted(sources))
    return f"http://127.0.0.1:{port}"


def wait_planned(running: Cluster, operator: str) -> None:
    """Wait until this very operator has looked at the example as it stands now, and made its pod.

    Raises ClusterError when it ends, or does not get there within a minute.
    """

    def planned() -> bool:
        if problem := running.ended(OPERATOR):
            raise ClusterError(problem)
        body = json.loads(running.kubectl("get", "k3", "k3", "-o", "json"))
        status = body.get("status") or {}
        seen = status.get("observedGeneration") == body["metadata"]["generation"]
        return seen and status.get("replicas") == 1 and _reconciles(operator) > 0

    product.wait(planned, 60, lambda: f"the operator made no pod; its log is {running.layout.log(OPERATOR)}")


def _reconciles(operator: str) -> float:
    """Reconciles that went well since the operator's start: what stands in a status may be from the one before."""
    try:
        return exposition.metric(operator, "controller_runtime_reconcile_total", result="success")
    except OSError:
        return 0.0
