"""The pod that the operator renders is one that this agent accepts: commands, paths, ports, preflight input."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from umbra_agent.__main__ import parser
from umbra_agent.preflight import parse_needs

GOLDEN = Path(__file__).parents[1] / "operator" / "golden"
PODS = ["pod.yaml", "pod-full.yaml"]


@pytest.fixture(params=PODS)
def containers(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """Containers and init containers of a rendered pod, by name."""
    pod = yaml.safe_load((GOLDEN / request.param).read_text())
    return {container["name"]: container for container in pod["spec"]["initContainers"] + pod["spec"]["containers"]}


def arguments(command: list[str]) -> list[str]:
    """What follows `python -m umbra_agent` in a container's command."""
    assert command[1:3] == ["-m", "umbra_agent"]
    return command[3:]


@pytest.mark.parametrize("name", ["kit", "preflight", "store", "engine"])
def test_commands_are_accepted(containers: dict[str, dict[str, Any]], name: str) -> None:
    assert parser().parse_args(arguments(containers[name]["command"])).mode == name


def test_probes_ask_where_the_agent_listens(containers: dict[str, dict[str, Any]]) -> None:
    for name, probe in (("store", "startupProbe"), ("engine", "readinessProbe")):
        options = parser().parse_args(arguments(containers[name]["command"]))
        assert containers[name][probe]["httpGet"] == {"path": "/ready", "port": options.port}
    assert parser().parse_args(arguments(containers["kit"]["startupProbe"]["exec"]["command"])).check


def test_the_engine_is_told_to_end_after_kubernetes_saw_that_it_is_not_ready(
    containers: dict[str, dict[str, Any]],
) -> None:
    probe = containers["engine"]["readinessProbe"]
    seen = probe["periodSeconds"] * probe["failureThreshold"]
    assert parser().parse_args(arguments(containers["engine"]["command"])).lame_duck_seconds >= seen + 1


def test_default_paths_lie_in_the_mounted_volumes(containers: dict[str, dict[str, Any]]) -> None:
    engine = parser().parse_args(arguments(containers["engine"]["command"]))
    store = parser().parse_args(arguments(containers["store"]["command"]))
    assert engine.store_port == store.port
    assert engine.boot_id == store.boot_id
    assert f"unix://{store.socket}" in containers["store"]["command"]
    for container, path, writable in (
        ("kit", engine.kit_root, True),
        ("engine", engine.kit_root, False),
        ("engine", engine.document.parent, False),
        ("engine", engine.drain_flag.parent, True),
        ("engine", engine.boot_id.parent, False),
        ("store", store.boot_id.parent, True),
        ("store", store.socket.parent, True),
    ):
        mounts = {mount["mountPath"]: mount for mount in containers[container]["volumeMounts"]}
        assert not (writable and mounts[str(path)].get("readOnly")), (container, path)


def test_preflight_input_is_understood(containers: dict[str, dict[str, Any]]) -> None:
    environment = {variable["name"]: variable.get("value") for variable in containers["preflight"]["env"]}
    needs = parse_needs(environment["UMBRA_PREFLIGHT"])
    assert needs.memory_bytes
    assert set(needs.versions) == {"sglang", "amd-mori"}
