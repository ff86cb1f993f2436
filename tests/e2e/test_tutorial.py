"""The commands of docs/tutorial, as they stand there, on the session's cluster."""

import re
import subprocess

import pytest

from localstack.engine import Engine
from localstack.product import Stack
from product import ROOT

pytestmark = [pytest.mark.kubelet, pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(900)]

PAGE = ROOT / "docs/tutorial/an-alert.md"
SECONDS = 400


def test_an_alert_fires_and_clears_by_following_the_page(stack: Stack, engine: Engine) -> None:
    started = bash(stack.cluster.layout.command("prometheus"))
    exports = re.findall(r"^ +(export .*)$", started, re.MULTILINE)
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(exports) == 4
    assert len(blocks) == 7
    output = bash("\n".join([*exports, *blocks]))
    assert output.count('"cached_tokens":0') == 3, output
    assert re.search(r'ALERTS\{alertname="UmbraStoreFrozen", alertstate="firing", .*severity="critical"', output)
    assert 'type="StoreReady"' in output
    assert engine.generate([5, 6, 7]).tokens


def bash(commands: str) -> str:
    argv = ["bash", "-euo", "pipefail", "-c", commands]
    result = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout
