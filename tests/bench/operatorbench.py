"""``make bench-operator``: the operator with many K3Deployments on a real API server, controller manager and scheduler.

There is no kubelet: pods are made and patched, and never run. A figure is about the operator and the API server alone.
Only the writes until a replica is ready are counted with the tests' node, which plays kubelet and agents.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from figures import REPOSITORY, Figure, machine_line, report, written_between
from localcluster.controlplane import ControlPlane
from nodeagent import Api, NodeAgent, Timing
from operatorprocess import OperatorProcess, grant, kubeconfig
from product import install_crds
from stack import MERGE, NATIVE, Stack, eventually
from umbra_operator.cluster import CHILDREN, DEPLOYMENTS, PODS, PROFILES
from umbra_operator.observe import Memory
from umbra_operator.plan import plan
from umbra_operator.reconcile import utc_now
from umbra_operator.records import Key
from umbra_operator.render.names import ANNOTATION_REVISION, LABEL_DEPLOYMENT
from umbra_operator.status import status

NAMESPACE = "bench"
ADDRESSES = "10.0.0.0/16"
"""Of Services; the tests' control plane has 254."""
EDITS = 100
READY = 20
STEADY_SECONDS = 60.0
QUIET_SECONDS = 3.0
"""Without a write, after which nothing more is expected."""
LIMIT_SECONDS = 900.0
PAGE = REPOSITORY / "docs" / "explanation" / "operator-performance.md"
BEGIN, END = "<!-- make bench-operator-page writes this table -->", "<!-- until here -->"
TARGETS = {
    "create_all_1000_s": 36,
    "reconcile_cpu_p99_ms": 20,
    "rss_mib_1000_crs": 128,
    "steady_writes_per_minute": 0,
    "edit_to_write_p50_ms": 13,
    "edit_to_write_p99_ms": 40,
    "edit_burst_p99_ms": 1700,
    "restart_to_first_edit_s": 5,
    "restart_writes": 0,
    "writes_to_ready_per_replica": 7,
}
"""At most. Each is what the best of three other operators took on such a machine with 1,000 objects, or less."""


class Pods:
    """A watch of all pods in a thread of its own: when each revision of each deployment's launch document was seen."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._api = Api(control_plane)
        self.seen: dict[tuple[str, str], float] = {}
        self.revisions: dict[str, str] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._follow, name="pods", daemon=True).start()

    def _follow(self) -> None:
        for event in self._api.watch(f"/api/v1/namespaces/{NAMESPACE}/pods?watch=true"):
            meta = event["object"]["metadata"]
            name, revision = (
                meta["labels"][LABEL_DEPLOYMENT],
                meta["annotations"][ANNOTATION_REVISION],
            )
            with self._changed:
                self.seen.setdefault((name, revision), time.monotonic())
                self.revisions[name] = revision
                self._changed.notify_all()

    def until(self, check: Callable[[], bool]) -> None:
        """Waits for a state of what was seen. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(check, LIMIT_SECONDS):
                raise TimeoutError("the operator did not write what the bench waits for")


class Bench:
    """One control plane, one operator, many deployments."""

    def __init__(self, control_plane: ControlPlane, folder: Path, objects: int) -> None:
        self._control_plane, self._folder, self._objects = control_plane, folder, objects
        control_plane.kubectl("create", "namespace", NAMESPACE)
        grant(control_plane)
        self._config = kubeconfig(control_plane, folder / "kubeconfig")
        self._stack = Stack(control_plane, NAMESPACE)
        self._stack.add_profile()
        self._pods = Pods(control_plane)
        self._values = count(1024, 64)
        self._numbers = count(1)
        self._operator = self._start()

    def run(self) -> list[Figure]:
        """Every figure, in the order in which it can be measured."""
        n = self._objects
        found = [Figure(f"create_all_{n}_s", round(self._create(), 1), "s")]
        self._rest()
        found.append(Figure("create_cpu_ms", _ms(self._operator.cpu_seconds() / n), "ms"))
        found.append(Figure("reconcile_cpu_p99_ms", _ms(_p99(self._reconciles())), "ms"))
        found.append(Figure(f"rss_mib_{n}_crs", round(self._operator.rss_mib()), "MiB"))
        found.append(Figure("steady_writes_per_minute", self._writes_while(STEADY_SECONDS), "writes"))
        idle = [self._edit(self._name(number)) for number in range(EDITS)]
        found.append(Figure("edit_to_write_p50_ms", _ms(statistics.median(idle)), "ms"))
        found.append(Figure("edit_to_write_p99_ms", _ms(_p99(idle)), "ms"))
        before = self._operator.cpu_seconds()
        found.append(Figure("edit_burst_p99_ms", _ms(_p99(self._burst())), "ms"))
        self._rest()
        found.append(Figure("edit_cpu_ms", _ms((self._operator.cpu_seconds() - before) / EDITS), "ms"))
        self._operator.stop()
        began = time.monotonic()
        self._operator = self._start()
        self._edit(self._name(0))
        found.append(Figure("restart_to_first_edit_s", round(time.monotonic() - began, 1), "s"))
        self._rest()
        self._operator.stop()
        self._operator = self._start()
        while self._operator.answers("/readyz") != 200:
            time.sleep(0.2)
        self._rest()
        found.append(Figure("restart_writes", self._operator.writes(), "writes"))
        self._operator.stop()
        return found

    def _start(self) -> OperatorProcess:
        return OperatorProcess(self._config, self._folder / f"operator-{next(self._numbers)}.log")

    def _name(self, number: int) -> str:
        return f"k{number % self._objects}"

    def _create(self) -> float:
        """Seconds from the first object until each has its pod and its Service."""
        while not self._operator.leads():
            time.sleep(0.1)
        began = time.monotonic()
        self._parallel(lambda stack, name: stack.add(name), map(self._name, range(self._objects)))
        self._pods.until(lambda: len(self._pods.revisions) == self._objects)
        api = Api(self._control_plane)
        while len(api("GET", f"/api/v1/namespaces/{NAMESPACE}/services")["items"]) < self._objects:
            time.sleep(0.2)
        return time.monotonic() - began

    def _reconciles(self) -> list[float]:
        """CPU seconds that deciding takes for each deployment: two plans and a status, of what is in the cluster."""
        api, memory = Api(self._control_plane), Memory()
        memory.put_profile(api("GET", PROFILES.path(None, self._stack.profile)))
        lists = [(DEPLOYMENTS, memory.put_deployment), (PODS, memory.put_pod)]
        lists += [(resource, partial(memory.put_child, kind)) for kind, resource in CHILDREN.items() if kind in NATIVE]
        for resource, put in lists:
            for body in api("GET", resource.path(NAMESPACE))["items"]:
                if resource is DEPLOYMENTS or LABEL_DEPLOYMENT in body["metadata"].get("labels", {}):
                    put(body)
        return [_decide(memory, key) for key in memory.deployments]

    def _parallel(self, step: Callable[[Stack, str], Any], chosen: Iterable[str]) -> None:
        """Eight users at once, each with a connection of its own."""
        own = threading.local()

        def run(name: str) -> None:
            if not hasattr(own, "stack"):
                own.stack = Stack(self._control_plane, NAMESPACE)
            step(own.stack, name)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(run, chosen))

    def _edit(self, name: str) -> float:
        """Seconds from an edit of the engine until the pod's new launch document is seen."""
        before, began = self._pods.revisions[name], time.monotonic()
        self._stack.edit({"engine.contextLength": next(self._values)}, name)
        self._pods.until(lambda: self._pods.revisions[name] != before)
        return self._pods.seen[name, self._pods.revisions[name]] - began

    def _burst(self) -> list[float]:
        """The same for many edits that are sent at once."""
        chosen = [self._name(number) for number in range(EDITS)]
        before, began, value = dict(self._pods.revisions), {}, next(self._values)
        body = {"spec": {"engine": {"contextLength": value}}}

        def send(stack: Stack, name: str) -> None:
            began[name] = time.monotonic()
            stack.api("PATCH", stack.path(name), body, MERGE)

        self._parallel(send, chosen)
        self._pods.until(lambda: all(self._pods.revisions[name] != before[name] for name in chosen))
        return [self._pods.seen[name, self._pods.revisions[name]] - began[name] for name in chosen]

    def _rest(self) -> None:
        """Waits until the operator writes nothing for a while."""
        end = time.monotonic() + LIMIT_SECONDS
        while self._writes_while(QUIET_SECONDS):
            if time.monotonic() > end:
                raise TimeoutError("the operator does not come to rest")

    def _writes_while(self, seconds: float) -> int:
        before = self._operator.writes()
        time.sleep(seconds)
        return self._operator.writes() - before


def writes_to_ready(control_plane: ControlPlane, folder: Path) -> float:
    """Writes for each deployment of one replica until all are ready and no more comes, with the tests' node."""
    stack = Stack(control_plane, NAMESPACE)
    control_plane.kubectl("create", "namespace", NAMESPACE)
    grant(control_plane)
    stack.add_profile()
    with NodeAgent(control_plane, Timing()):
        operator = OperatorProcess(kubeconfig(control_plane, folder / "ready.kubeconfig"), folder / "ready.log")
        for number in range(READY):
            stack.add(f"k{number}")
        for number in range(READY):
            eventually(partial(stack.ready, f"k{number}"), "every deployment is ready", LIMIT_SECONDS)
        time.sleep(QUIET_SECONDS)
        writes = operator.writes()
        operator.stop()
    return writes / READY


def _decide(memory: Memory, key: Key) -> float:
    now = time.time()
    began = time.thread_time()
    observed = memory.observe(key)
    assert observed
    plan(observed, {}, now)
    status(observed, plan(observed, {}, now), {}, utc_now())
    return time.thread_time() - began


def _p99(values: list[float]) -> float:
    return sorted(values)[max(0, round(len(values) * 0.99) - 1)]


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def page(text: str, document: Mapping[str, Any]) -> str:
    """The page `text` with the table of figures that `document`, a bench's file, has; what stands around it stays."""
    rows = [
        machine_line(document),
        "",
        "| figure | measured | target |",
        "|---|---|---|",
    ]
    for figure in document["figures"]:
        target = TARGETS.get(figure["name"])
        wanted = "" if target is None else f"{target:g} {figure['unit']}"
        rows.append(f"| `{figure['name']}` | {figure['value']:g} {figure['unit']} | {wanted} |")
    return written_between(text, BEGIN, END, rows)


def main() -> None:
    """Measures and reports, or writes the page about what was measured last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=1000, help="K3Deployments, of one replica each")
    parser.add_argument("--page", action="store_true", help="measure nothing: write the last figures into the page")
    arguments = parser.parse_args()
    if arguments.page:
        document = json.loads((REPOSITORY / "build" / "bench" / "operator.json").read_text())
        PAGE.write_text(page(PAGE.read_text(), document))
        return
    objects = max(arguments.objects, EDITS)
    with tempfile.TemporaryDirectory() as folder:
        with ControlPlane(controllers=True, extra=[f"--service-cluster-ip-range={ADDRESSES}"]) as control_plane:
            install_crds(control_plane)
            found = Bench(control_plane, Path(folder), objects).run()
        with ControlPlane(controllers=True) as control_plane:
            install_crds(control_plane)
            writes = writes_to_ready(control_plane, Path(folder))
        report("operator", [*found, Figure("writes_to_ready_per_replica", writes, "writes")])


if __name__ == "__main__":
    main()
