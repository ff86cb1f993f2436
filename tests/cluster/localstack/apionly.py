"""The product without a node: what needs neither root nor containers, and what is then not real."""

import sys

from localcluster import cluster, images
from localcluster.progress import Progress

from . import product

OPERATOR = "operator"


def up(progress: Progress) -> None:
    """A control plane on the loopback address, the CRDs, the operator as a process, and the example applied."""
    running = cluster.up(progress, api_only=True)
    root = images.REPOSITORY
    for path in sorted((root / "crds").glob("*.yaml")):
        running.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
    running.kubectl("wait", "--for=condition=Established", "crd/k3deployments.umbra.dev", "crd/k3profiles.umbra.dev")
    environment = [
        f"KUBECONFIG={running.kubeconfig}",
        "UMBRA_METRICS_PORT=0",
        f"PYTHONPATH={root}/operator:{root}/linker",
    ]
    running.run(OPERATOR, ["env", *environment, sys.executable, "-m", "umbra_operator"])
    for example in ("mi355x-tp8-v1.yaml", "k3-mi355x.yaml"):
        running.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(root / "examples" / example))

    def planned() -> bool:
        found = running.kubectl("get", "k3", "k3", "-o", "jsonpath={.status.replicas}", check=False)
        return found.strip() == "1"

    with progress.step("api-only", "waiting for the operator to make the example's pod"):
        product.wait(planned, 60, lambda: f"the operator made no pod; its log is {running.layout.log(OPERATOR)}")
    print(
        f"""
  Real: API server, admission, rules of the CRDs, controllers, scheduler, operator.
  Not real: there is no node, so pods stay Pending, no container runs and Services lead nowhere.
  With root, Linux and containers `{running.layout.command("up")}` runs the whole product.

  export KUBECONFIG={running.kubeconfig}
  alias kubectl={running.kubectl_path}
  kubectl get k3,pods
  kubectl explain k3.spec.cache
  {running.layout.command("status")}
  {running.layout.command("down")}
""",
        flush=True,
    )
