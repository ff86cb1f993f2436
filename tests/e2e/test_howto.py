"""The commands of docs/howto, as they stand there, on the session's cluster."""

import os
import re
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from localstack.engine import Engine
from localstack.product import NAME, NAMESPACE, Stack
from product import ROOT
from upgrades import newer_kit

pytestmark = [pytest.mark.kubelet, pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(900)]

SECONDS = 600


@pytest.fixture
def context(stack: Stack, tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose context leads to the demo's namespace."""
    config = tmp_path / "kubeconfig"
    config.write_bytes(stack.cluster.kubeconfig.read_bytes())
    path = f"{stack.cluster.kubectl_path.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(config), "NAME": NAME}
    bash(f"kubectl config set-context --current --namespace={NAMESPACE}", environment)
    return environment


def test_a_kit_is_upgraded_by_following_the_page(stack: Stack, context: dict[str, str]) -> None:
    with newer_kit(stack) as made:
        follow("upgrade.md", 3, {**context, "PROFILE": made})
        restore = '{"spec":{"profileRef":{"name":"' + stack.profile_name + '"}}}'
        stack.cluster.kubectl("-n", NAMESPACE, "patch", "k3", NAME, "--type=merge", "-p", restore)


def test_a_store_is_made_larger_by_following_the_page(stack: Stack, context: dict[str, str]) -> None:
    before = stack.pods()[0]["metadata"]["uid"]
    said = follow("change-the-store-size.md", 3, {**context, "SIZE": "320Mi"})
    assert "(256Mi)" in said
    assert stack.pods()[0]["metadata"]["uid"] != before
    undo = '{"spec":{"rollout":null}}'
    stack.cluster.kubectl("-n", NAMESPACE, "patch", "k3", NAME, "--type=merge", "-p", undo)


@pytest.mark.usefixtures("engine")
def test_a_pod_is_looked_at_by_following_the_page(context: dict[str, str]) -> None:
    said = follow("pod-not-ready.md", 4, context)
    for word in ("EngineReady\tTrue\tServing", '"agent":"engine"', '"agent":"store"', "transparent-hugepages"):
        assert word in said


def test_engines_restart_by_following_the_page(engine: Engine, context: dict[str, str]) -> None:
    follow("rollouts.md", 4, context)
    assert engine.generate([5, 6, 7]).tokens


def follow(page: str, blocks: int, environment: dict[str, str]) -> str:
    """What the page's commands print."""
    found = re.findall(r"^ *```bash\n(.*?)^ *```", (ROOT / "docs/howto" / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == blocks
    return bash("\n".join(dedent(block) for block in found), environment)


def bash(commands: str, environment: dict[str, str]) -> str:
    argv = ["bash", "-euo", "pipefail", "-c", commands]
    result = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout
