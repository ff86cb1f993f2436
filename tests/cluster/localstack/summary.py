"""What a user reads at the end of `make up` and from `make status`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from localcluster import cluster
from localcluster.controlplane import run_kubectl
from localcluster.layout import layout
from localcluster.state import State

from . import product
from .demo import Shown
from .engine import Engine


def after_up(stack: product.Stack, engine: Engine, shown: Shown) -> str:
    """Where everything is, what the demonstration showed, and what to try next."""
    running = stack.cluster
    patch = json.dumps({"spec": {"engine": {"maxRunningRequests": 2}}})
    return f"""
  endpoint      {engine.url}  (POST /generate with input_ids)
  cached tokens {shown.device_tokens:,} from the device, {shown.store_tokens:,} from the store, in these three requests
  store pages   {shown.pages[0]} of the prompt before the first request, {shown.pages[1]} after, says the store itself
  store bytes   {shown.stored_bytes:,} written, {shown.read_bytes:,} read meanwhile, as counted by the linker
  metrics       {engine.url}/metrics
  conditions    {_indented(tree(stack.get("k3deployment", product.NAME)))}

  export KUBECONFIG={running.kubeconfig}
  alias kubectl={running.kubectl_path}
  kubectl -n {product.NAMESPACE} get k3,pods
  kubectl -n {product.NAMESPACE} describe k3 {product.NAME}
  kubectl -n {product.NAMESPACE} patch k3 {product.NAME} --type merge -p '{patch}'
     # restarts the engine in its pod; the cache stays
  {running.layout.command("status")}
  {running.layout.command("down")}
"""


def status() -> str:
    """What of the cluster runs, where its engine answers, and the conditions of every deployment."""
    where = layout()
    again = cluster.starter()
    if not (lines := cluster.status()):
        return f"no cluster runs; `{again}` starts one"
    processes = State.load(where.state)
    apiserver = processes.processes.get("apiserver")
    if apiserver is None or not apiserver.alive:
        return "\n".join([*lines, "", f"the API server does not run; `{again}` repairs what is dead"])
    program = Path(f"/proc/{apiserver.pid}/exe").readlink().with_name("kubectl")

    def kubectl(*arguments: str) -> str:
        return run_kubectl(program, where.kubeconfig, [*arguments, "--request-timeout=10s"])

    if left := product.unfinished(kubectl, where, again):
        return "\n".join([*lines, "", left])
    found = json.loads(kubectl("get", "k3deployments", "--all-namespaces", "-o", "json"))["items"]
    if not found:
        return "\n".join([*lines, "", f"There is no K3Deployment: `{again}` makes one."])
    for body in found:
        name = body["metadata"]["name"]
        lines += ["", f"{body['metadata']['namespace']}/{name}"]
        if port := processes.values.get(f"forward-{name}", "").rpartition(" ")[2]:
            lines.append(f"  endpoint      http://127.0.0.1:{port}  (POST /generate with input_ids)")
        lines.append(f"  conditions    {_indented(tree(body))}")
    return "\n".join(lines)


def tree(body: Mapping[str, Any]) -> list[str]:
    """The conditions of a K3Deployment: Ready, and below it what it rests on, with the reason of each that is not True.

    Says so when they tell of an older generation than the object's.
    """
    said = (body.get("status") or {}).get("conditions") or []
    by_type = {each["type"]: each for each in said}
    if not by_type:
        return ["none yet: the operator has not looked at it"]
    ready = by_type.pop("Ready", None)
    lines = [_line("", ready)] if ready else []
    others: Sequence[Mapping[str, Any]] = list(by_type.values())
    lines += [_line("└─ " if each is others[-1] else "├─ ", each) for each in others]
    if (seen := (body["status"]).get("observedGeneration")) != body["metadata"]["generation"]:
        lines.append(f"(of generation {seen}; the operator has not looked at {body['metadata']['generation']} yet)")
    return lines


def _line(branch: str, condition: Mapping[str, Any]) -> str:
    why = "" if condition["status"] == "True" else f"  {condition['reason']}: {condition.get('message', '')}"
    return f"{branch + condition['type']:24} {condition['status']:7}{why}".rstrip()


def _indented(lines: Sequence[str]) -> str:
    return ("\n" + " " * 16).join(lines)
