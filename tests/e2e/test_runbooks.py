"""The commands of docs/runbooks on the session's cluster: each answers, though nothing is wrong there."""

import re
import subprocess
from pathlib import Path

import pytest

from localstack.product import NAME, NAMESPACE, Stack
from product import ROOT

pytestmark = [pytest.mark.kubelet, pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(900)]

PAGES = sorted((ROOT / "docs/runbooks").glob("*.md"))


def commands() -> list[str]:
    blocks = [block for page in PAGES for block in re.findall(r"^```\n(.*?)^```", page.read_text(), re.M | re.S)]
    return sorted({line for block in blocks for line in block.splitlines()})


def test_each_command_is_answered(stack: Stack, tmp_path: Path) -> None:
    pod = stack.pods()[0]["metadata"]["name"]
    env = {
        "HOME": str(tmp_path),  # for kubectl's cache
        "KUBECONFIG": str(stack.cluster.kubeconfig),
        "PATH": f"{stack.cluster.kubectl_path.parent}:/usr/bin:/bin",
    }
    found = commands()
    assert len(found) > len(PAGES) / 2
    for line in found:
        command = line.replace("NAMESPACE", NAMESPACE).replace("POD", pod).replace("NAME", NAME)
        argv = ["bash", "-o", "pipefail", "-c", command]
        result = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)
        # A store that never ended has no earlier log.
        if "--previous" in line:
            assert "previous terminated container" in result.stderr
            continue
        # What is looked for may not be there; that is grep's 1.
        nothing = result.returncode == 1 and "| grep" in line
        assert (result.returncode == 0 or nothing) and "rror" not in result.stderr, f"{command}\n{result.stderr}"
