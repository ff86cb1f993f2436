"""The real Prometheus on a running local cluster: it scrapes what PodMonitors select and evaluates the chart's rules.

There is no Prometheus Operator here. Its part, to turn PodMonitors and pods into targets with labels, is `jobs`.
"""

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

import cpuengine
from localcluster import cluster, images, toolchain
from localcluster.errors import ClusterError
from localcluster.layout import layout
from localcluster.progress import Progress
from umbra_operator.render.names import LABEL_DEPLOYMENT
from umbra_operator.render.podmonitors import pod_monitor

from . import product
from .product import NAME, RELEASE, SYSTEM_NAMESPACE, Stack, wait

SCRAPE_SECONDS = 2
START_SECONDS = 30.0
_ADDRESS = "127.0.0.1:9090"
_NAME = "prometheus"
_CHART = images.REPOSITORY / "charts/umbra"
_RULES = _CHART / "files/alerts.yaml"


@dataclass(frozen=True)
class Series:
    """A sample of an instant query."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus, by its address on this machine, such as ``http://127.0.0.1:9090``."""

    url: str

    def query(self, expr: str) -> list[Series]:
        """Samples of an expression now."""
        return [Series(each["metric"], float(each["value"][1])) for each in self._get("query", query=expr)["result"]]

    def query_range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Series of an expression over a time, as Prometheus gives them; ``start`` and ``end`` are Unix seconds."""
        found: list[dict[str, Any]] = self._get("query_range", query=expr, start=start, end=end, step=step)["result"]
        return found

    def tree(self, expr: str) -> dict[str, Any]:
        """An expression as Prometheus parses it."""
        parsed: dict[str, Any] = self._get("parse_query", query=expr)
        return parsed

    def down(self) -> list[str]:
        """Targets that were not scraped, each with the reason."""
        targets = self._get("targets", state="active")["activeTargets"]
        return [
            f"{each['scrapeUrl']}: {each['lastError'] or each['health']}" for each in targets if each["health"] != "up"
        ]

    def alerts(self) -> dict[str, str]:
        """State, pending or firing, of each alert that is active."""
        return {each["labels"]["alertname"]: each["state"] for each in self._get("alerts")["alerts"]}

    def _get(self, what: str, **arguments: str | float) -> Any:
        address = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(address, timeout=10) as response:
            return json.load(response)["data"]


def demo() -> Stack:
    """The running local cluster's demo. Raises ClusterError when there is none, or not the whole of it yet."""
    where, again = layout(), cluster.starter()
    if not cluster.has_node():
        raise ClusterError(
            f"The local cluster has no node, so there is nothing to scrape: `{where.command('down')}` removes it, "
            f"then `{where.command('up')}` starts one with a node."
        )
    running = cluster.find()
    if running is None:
        raise ClusterError(f"There is nothing to scrape: `{again}` starts the local cluster.")
    if left := product.unfinished(running.kubectl, where, again):
        raise ClusterError(left)
    get = ("-n", product.NAMESPACE, "get")
    name = running.kubectl(*get, "k3", NAME, "--ignore-not-found", "-o", "jsonpath={.spec.profileRef.name}")
    if not name:
        raise ClusterError(f"The deployment {product.NAMESPACE}/{NAME} is not there: `{again}` makes it.")
    service = running.kubectl(*get, "service", NAME, "--ignore-not-found", "-o", "name")
    if not service or not running.kubectl(*get, "secrets", "-l", f"{LABEL_DEPLOYMENT}={NAME}", "-o", "name"):
        raise ClusterError(f"The operator has not made all of {product.NAMESPACE}/{NAME} yet: `{again}` waits for it.")
    return Stack(running, cpuengine.environment(), name)


def watch(progress: Progress) -> str:
    """Starts Prometheus on the running local cluster; returns what its user is told. Raises ClusterError."""
    stack = demo()
    running, found = stack.cluster, start(stack, progress)
    _, promtool = toolchain.prometheus()
    return f"""
  Prometheus scrapes the pods that there are now; after pods were replaced, run the same command again.
  It is built without its web pages: ask it with promtool, or point a Grafana at it.

  export KUBECONFIG={running.kubeconfig}
  export PATH={running.kubectl_path.parent}:{promtool.parent}:$PATH
  export PROMETHEUS={found.url}
  export ENGINE={product.engine(stack).url}
"""


def start(stack: Stack, progress: Progress) -> Prometheus:
    """Starts Prometheus for the pods that there are now, or again after pods were replaced; it keeps what it has.

    Raises ClusterError when it does not start, or does not reach every target.
    """
    running = stack.cluster
    program, _ = toolchain.prometheus(progress)
    pods = json.loads(running.kubectl("get", "pods", "--all-namespaces", "-o", "json"))["items"]
    folder = running.layout.directory / _NAME
    folder.mkdir(exist_ok=True)
    config = folder / "prometheus.json"
    config.write_text(json.dumps(configuration(monitors(stack), pods), indent=1))
    arguments = [
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={_ADDRESS}",
    ]
    running.run(_NAME, [str(program), *arguments, "--log.level=warn"], config, _RULES)
    started = Prometheus(f"http://127.0.0.1:{running.forward(_NAME, _ADDRESS)}")

    def scraped() -> bool:
        try:
            return not started.down()
        except OSError:
            return False

    def what() -> str:
        try:
            return running.ended(_NAME) or f"not scraped: {'; '.join(started.down())}"
        except OSError as error:
            return f"Prometheus does not answer: {error}"

    with progress.step(_NAME, "starting Prometheus"):
        wait(scraped, START_SECONDS, what)
    return started


def monitors(stack: Stack) -> list[dict[str, Any]]:
    """The chart's PodMonitor and those that the operator makes where the cluster has that kind."""
    template = ("template", RELEASE, str(_CHART), "--namespace", SYSTEM_NAMESPACE, "--set", "podMonitor.create=true")
    image = ("--set", "image.repository=unused", "--set", "image.tag=unused")
    chart = yaml.safe_load(stack.cluster.helm(*template, *image, "--show-only", "templates/podmonitor.yaml"))
    found = json.loads(stack.cluster.kubectl("get", "k3deployments", "--all-namespaces", "-o", "json"))["items"]
    metas = [body["metadata"] for body in found]
    return [chart, *(pod_monitor(meta["name"], meta["namespace"], meta["uid"]) for meta in metas)]


def configuration(monitors: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Prometheus' configuration for these PodMonitors and pods."""
    pods = list(pods)
    interval = f"{SCRAPE_SECONDS}s"
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [str(_RULES)],
        "scrape_configs": [job for monitor in monitors for job in jobs(monitor, pods)],
    }


def jobs(monitor: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The scrape configuration of each endpoint of a PodMonitor, with the labels that the Prometheus Operator gives."""
    meta, spec = monitor["metadata"], monitor["spec"]
    wanted = spec["selector"]["matchLabels"].items()
    chosen = [
        pod
        for pod in pods
        if pod["metadata"]["namespace"] == meta["namespace"]
        and wanted <= pod["metadata"]["labels"].items()
        and pod["status"]["phase"] not in ("Failed", "Succeeded")
        and "podIP" in pod["status"]
    ]
    for number, endpoint in enumerate(spec["podMetricsEndpoints"]):
        yield {
            "job_name": f"podMonitor/{meta['namespace']}/{meta['name']}/{number}",
            "metrics_path": endpoint["path"],
            "honor_labels": endpoint.get("honorLabels", False),
            "static_configs": [
                {"targets": [address], "labels": {"job": f"{meta['namespace']}/{meta['name']}", **labels}}
                for pod in chosen
                for address, labels in _targets(pod, endpoint["port"], spec.get("podTargetLabels", ()))
            ],
        }


def _targets(pod: Mapping[str, Any], port: str, copied: Iterable[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Address and labels of each container of a pod that has a port of that name."""
    meta = pod["metadata"]
    labels = {re.sub(r"\W", "_", name): meta["labels"][name] for name in copied if name in meta["labels"]}
    for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
        for each in container.get("ports", ()):
            if each.get("name") == port:
                address = f"{pod['status']['podIP']}:{each['containerPort']}"
                own = {"namespace": meta["namespace"], "pod": meta["name"], "container": container["name"]}
                yield address, {**own, "endpoint": port, **labels}
