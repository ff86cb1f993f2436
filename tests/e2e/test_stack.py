"""What users rely on, on a real kubelet: serving, restoring, editing in place, refusing, repairing and deleting.

The tests share one deployment, because an engine takes long to start; each brings its own prompt and can run alone.
"""

import json
import os
import secrets
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from localcluster.errors import ClusterError
from localcluster.progress import Progress
from localstack import product, profile
from localstack.engine import Engine, prompt
from localstack.product import NAME, NAMESPACE, Stack
from umbra_operator import __version__
from umbra_operator.render import names
from upgrades import NEWER, newer_kit

pytestmark = [pytest.mark.kubelet, pytest.mark.engine, pytest.mark.timeout(900)]

QUIET = Progress()
KILL_STORE = f"""
import sys
sys.path.insert(0, "{names.KIT_DIR}/{__version__}")
from umbra_linker.connection import StoreWatch, epoch_at
store = "{names.STORE_ADDRESS}"
sys.exit(0 if StoreWatch(store, epoch_at(store), lambda: None).kill() else "it lives on")
"""


def test_a_prefix_is_restored_from_the_store_with_equal_log_probabilities(engine: Engine) -> None:
    longer = _stored(engine)
    device = engine.generate(longer)
    read_before = engine.metric("umbra_linker_read_bytes_total")
    engine.flush()
    restored = engine.generate(longer)
    assert (device.device_tokens, device.store_tokens) == (320, 0)
    assert (restored.device_tokens, restored.store_tokens) == (0, 320)
    assert restored.logprobs == device.logprobs
    assert engine.metric("umbra_linker_read_bytes_total") > read_before
    assert engine.metric("umbra_linker_stored_bytes_total") > 0


def test_routes_that_are_not_for_users_need_the_key_of_the_secret(engine: Engine) -> None:
    with pytest.raises(ClusterError, match="401"):
        Engine(engine.url).flush(seconds=0)
    engine.flush()


def test_status_names_node_revision_and_epoch(stack: Stack) -> None:
    status = stack.get("k3deployment", NAME)["status"]
    (pod,) = status["pods"]
    assert pod["ready"] is True
    assert pod["node"] == stack.cluster.layout.node
    assert pod["revision"] == status["revision"]
    assert pod["epoch"]
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    assert "Reconciling" not in stack.conditions()


def test_nothing_is_written_while_nothing_changes(stack: Stack) -> None:
    before = (_version(stack, "k3deployment", NAME), _version(stack, "service", NAME))
    time.sleep(15)
    assert (_version(stack, "k3deployment", NAME), _version(stack, "service", NAME)) == before


def test_an_engine_edit_restarts_the_engine_in_its_pod_and_keeps_the_cache(stack: Stack, engine: Engine) -> None:
    known = _stored(engine)
    pod_before = stack.pods()[0]
    body = stack.get("k3deployment", NAME)
    epoch = body["status"]["pods"][0]["epoch"]
    running = (body["spec"].get("engine") or {}).get("maxRunningRequests")
    _patch(stack, {"engine": {"maxRunningRequests": 3 if running == 2 else 2}})
    product.wait_ready(stack, QUIET)
    pod = stack.pods()[0]
    assert pod["metadata"]["uid"] == pod_before["metadata"]["uid"]
    assert _restarts(pod) == _restarts(pod_before)
    assert stack.get("k3deployment", NAME)["status"]["pods"][0]["epoch"] == epoch
    # The new engine's device cache is empty, so what it knows of the prompt came from the store.
    assert engine.generate(known).store_tokens == 320


def test_a_drain_loses_no_request_that_runs(stack: Stack, engine: Engine) -> None:
    """Through the Service, with as many requests as the engine runs at once, until the drain has begun."""
    before, requests, drains = stack.pods()[0], 4, threading.Event()
    engine.generate(prompt(64))
    # A drain's first 6 s are as any other; so that requests are left when the engine is told to end.
    long = min(1200, round(12 * 16 / engine.generate(prompt(64), 16).seconds))

    def ask() -> list[int]:
        lengths = []
        while not drains.is_set():
            lengths.append(len(engine.generate(prompt(64), long).tokens))
        return lengths

    with ThreadPoolExecutor(requests) as pool:
        answers = [pool.submit(ask) for _ in range(requests)]
        try:
            _patch(stack, {"restart": {"id": secrets.token_hex(4)}})
            product.wait(lambda: _engine_agent(stack)["state"] == "draining", 120, lambda: "no drain began")
        finally:
            drains.set()
        assert not any(answer.done() for answer in answers)
        assert {length for answer in answers for length in answer.result()} == {long}
    product.wait_ready(stack, QUIET)
    assert _engine_agent(stack)["lastExit"]["reason"] == "Stopped"
    pod = stack.pods()[0]
    assert (pod["metadata"]["uid"], _restarts(pod)) == (before["metadata"]["uid"], _restarts(before))


def test_a_kit_comes_and_goes_in_its_pod_and_the_cache_stays(stack: Stack, engine: Engine) -> None:
    """Back to the earlier image, too, for which the kubelet may make the container wait."""
    known, before = _stored(engine), stack.pods()[0]
    epoch = stack.get("k3deployment", NAME)["status"]["pods"][0]["epoch"]
    with newer_kit(stack) as newer:
        for name, version in ((newer, NEWER), (stack.profile_name, __version__)):
            _patch(stack, {"profileRef": {"name": name}})
            product.wait_ready(stack, QUIET)
            pod, agent = stack.pods()[0], _engine_agent(stack)
            assert pod["metadata"]["uid"] == before["metadata"]["uid"]
            assert {**_restarts(pod), "kit": 0} == {**_restarts(before), "kit": 0}
            assert stack.get("k3deployment", NAME)["status"]["pods"][0]["epoch"] == epoch
            assert (agent["agentKit"], agent["kit"]) == (version, version)
            assert product.agent(stack, names.STORE_AGENT_PORT)["kit"] == version
            assert engine.generate(known).store_tokens == 320


def test_a_kit_that_its_node_cannot_get_is_said_and_the_engine_goes_on(stack: Stack, engine: Engine) -> None:
    started, body = _engine_process(stack), stack.get("k3profile", stack.profile_name)
    body["spec"]["kit"]["image"] = "umbra.test/kit:nowhere"
    meta = {"name": "nowhere-v1"}
    made = {"apiVersion": body["apiVersion"], "kind": "K3Profile", "metadata": meta, "spec": body["spec"]}
    product.apply(stack.cluster, made)
    _patch(stack, {"profileRef": meta})
    try:
        product.wait(
            lambda: stack.conditions()["PreflightPassed"]["reason"] == "ImageUnavailable",
            60,
            lambda: f"PreflightPassed is {stack.conditions()['PreflightPassed']}",
        )
        assert engine.generate([5, 6, 7]).tokens
    finally:
        _patch(stack, {"profileRef": {"name": stack.profile_name}})
        stack.cluster.kubectl("delete", "k3profile", meta["name"])
    product.wait_ready(stack, QUIET)
    assert _engine_process(stack) == started


def test_a_flag_that_is_not_allowed_stops_no_engine(stack: Stack, engine: Engine) -> None:
    _patch(stack, {"engine": {"extraArgs": ["--trust-remote-code"]}})
    try:
        product.wait(
            lambda: stack.conditions()["ConfigValid"]["status"] == "False", 30, lambda: "ConfigValid stays True"
        )
        condition = stack.conditions()["ConfigValid"]
        assert condition["reason"] == "ArgumentNotAllowed"
        assert "--trust-remote-code" in condition["message"]
        assert engine.generate([5, 6, 7]).tokens
    finally:
        _patch(stack, {"engine": {"extraArgs": None}})
    product.wait_ready(stack, QUIET)


def test_a_killed_engine_comes_back_in_its_pod(stack: Stack, engine: Engine) -> None:
    known = _stored(engine)
    pod_before = stack.pods()[0]
    os.kill(_engine_process(stack), signal.SIGKILL)
    product.wait(lambda: stack.conditions()["Ready"]["status"] == "False", 60, lambda: "the end was not noticed")
    product.wait_ready(stack, QUIET)
    pod = stack.pods()[0]
    assert pod["metadata"]["uid"] == pod_before["metadata"]["uid"]
    assert _restarts(pod) == _restarts(pod_before)
    assert engine.generate(known).store_tokens == 320


def test_the_engine_outlives_its_store_and_can_end_one_that_is_stuck(stack: Stack, engine: Engine) -> None:
    """What the linker does to a store that never answers a load, done from the engine's container."""
    pod_before, engine_before = stack.pods()[0], _engine_process(stack)
    name, epoch = pod_before["metadata"]["name"], stack.get("k3deployment", NAME)["status"]["pods"][0]["epoch"]
    os.kill(_process_of(stack, b"umbp_standalone_server"), signal.SIGSTOP)
    stack.cluster.kubectl("-n", NAMESPACE, "exec", name, "-c", "engine", "--", _python(stack), "-c", KILL_STORE)
    product.wait(
        lambda: stack.get("k3deployment", NAME)["status"]["pods"][0]["epoch"] not in ("", epoch),
        60,
        lambda: "no new store was noticed",
    )
    product.wait_ready(stack, QUIET)
    product.wait(
        lambda: engine.metric("umbra_linker_reconnects_total") > 0, 30, lambda: "the engine did not connect anew"
    )
    known = _stored(engine)
    engine.flush()
    assert engine.generate(known).store_tokens == 320
    assert _engine_process(stack) == engine_before
    pod = stack.pods()[0]
    assert pod["metadata"]["uid"] == pod_before["metadata"]["uid"]
    assert _restarts(pod)["engine"] == _restarts(pod_before)["engine"]


def test_the_steps_of_node_maintenance_at_one_replica(stack: Stack, engine: Engine) -> None:
    """docs/howto/node-maintenance.md, "Accept it"; the drain is kept to this deployment: the operator runs here too."""
    cluster, node = stack.cluster, stack.cluster.layout.node
    known = _stored(engine)
    assert stack.conditions()["DisruptionProtected"]["reason"] == "NoBudget"
    before = stack.pods()[0]["metadata"]["uid"]
    cluster.kubectl("cordon", node)
    try:
        chosen = f"--pod-selector=umbra.dev/deployment={NAME}"
        cluster.kubectl("drain", node, chosen, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
        assert before not in {pod["metadata"]["uid"] for pod in stack.pods()}

        def pending() -> bool:
            return stack.conditions()["PreflightPassed"]["reason"] == "Unschedulable"

        product.wait(pending, 30, lambda: f"PreflightPassed is {stack.conditions()['PreflightPassed']}")
    finally:
        cluster.kubectl("uncordon", node)
    product.wait_ready(stack, QUIET)
    # A new pod has an empty store, so the prompt is known to nobody.
    assert engine.generate(known).store_tokens == 0


def test_a_node_that_is_too_small_is_said_within_a_minute(stack: Stack) -> None:
    cluster = stack.cluster
    body = json.loads(cluster.kubectl("get", "k3profile", stack.profile_name, "-o", "json"))
    hungry = {
        "apiVersion": body["apiVersion"],
        "kind": "K3Profile",
        "metadata": {"name": "hungry-v1"},
        "spec": body["spec"],
    }
    hungry["spec"]["requirements"]["memoryHeadroom"] = "4Ti"
    product.apply(cluster, hungry)
    product.apply(cluster, profile.deployment("hungry", "hungry-v1", stack.environment))
    try:
        _wait_for_failed_preflight(stack)
    finally:
        cluster.kubectl("-n", NAMESPACE, "delete", "k3deployment", "hungry")
        cluster.kubectl("delete", "k3profile", "hungry-v1")


def _wait_for_failed_preflight(stack: Stack) -> None:
    # The kubelet tries preflight again and again, so one look must see reason and message.
    def failed() -> bool:
        condition = stack.conditions("hungry").get("PreflightPassed", {})
        return condition.get("reason") == "CheckFailed" and "memory: found" in condition["message"]

    product.wait(failed, 60, lambda: f"preflight did not fail: {stack.conditions('hungry').get('PreflightPassed')}")


def test_deleting_the_deployment_leaves_no_pod_process_or_socket(stack: Stack) -> None:
    uid = stack.pods()[0]["metadata"]["uid"]
    volumes = stack.cluster.layout.kubelet_root / "pods" / uid
    assert list(volumes.rglob("umbp.grpc.sock"))
    stack.cluster.kubectl("-n", NAMESPACE, "delete", "k3deployment", NAME)
    product.wait(lambda: not stack.pods(), 120, lambda: f"{stack.pods()[0]['metadata']['name']} is still there")
    product.wait(lambda: not volumes.exists(), 60, lambda: f"{volumes} is still there")
    assert not _processes(uid)
    found = stack.cluster.kubectl("-n", NAMESPACE, "get", "service", NAME, "--ignore-not-found")
    assert not found.strip()


def _stored(engine: Engine) -> list[int]:
    """A prompt that nobody used before, whose first 320 tokens are in the store now."""
    asked = prompt(320)
    before = engine.metric("umbra_linker_offloads_total")
    engine.generate(asked)
    product.wait(lambda: engine.metric("umbra_linker_offloads_total") > before, 30, lambda: "nothing was stored")
    return [*asked, 11, 12, 13]


def _patch(stack: Stack, spec: dict[str, object]) -> None:
    patch = json.dumps({"spec": spec})
    stack.cluster.kubectl("-n", NAMESPACE, "patch", "k3deployment", NAME, "--type=merge", "-p", patch)


def _version(stack: Stack, kind: str, name: str) -> str:
    return str(stack.get(kind, name)["metadata"]["resourceVersion"])


def _restarts(pod: dict[str, dict[str, list[dict[str, object]]]]) -> dict[object, object]:
    status = pod["status"]
    entries = [*status["initContainerStatuses"], *status["containerStatuses"]]
    return {entry["name"]: entry["restartCount"] for entry in entries}


def _processes(pod_uid: str) -> list[int]:
    """Processes in the cgroups of a pod."""
    found = []
    for tasks in Path("/sys/fs/cgroup").glob(f"**/pod{pod_uid}/**/cgroup.procs"):
        found += [int(line) for line in tasks.read_text().split()]
    return found


def _engine_process(stack: Stack) -> int:
    """The engine's main process: the only one in the pod that was started as sglang.launch_server by the agent."""
    return _process_of(stack, b"sglang.launch_server")


def _process_of(stack: Stack, command: bytes) -> int:
    """The first process in the pod whose command line has this text and that is no agent."""
    for pid in sorted(set(_processes(stack.pods()[0]["metadata"]["uid"]))):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        if command in line and b"umbra_agent" not in line:
            return pid
    raise AssertionError(f"no {command.decode()} runs in the pod")


def _engine_agent(stack: Stack) -> dict[str, object]:
    return product.agent(stack, names.ENGINE_AGENT_PORT)


def _python(stack: Stack) -> str:
    """The engine's interpreter, as the profile names it."""
    found: str = stack.get("k3profile", stack.profile_name)["spec"]["engine"]["python"]
    return found
