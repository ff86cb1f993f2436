"""The linker refuses to start where it was not tested, and says what it is when it does."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from cpuengine.launcher import EngineExited, ForkLauncher, Launch
from cpuengine.store import Store
from engine_fixtures import linker_arguments, write_metadata
from umbra_agent.digest import Digest, digest
from umbra_linker.metrics import METRICS

pytestmark = pytest.mark.engine


def test_metrics_are_in_the_engines_own_exposition(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store
) -> None:
    engine = fork_launcher.launch(Launch(linker_arguments(store.address), path=kit_path), "metrics")
    engine.client.generate([5] * 80)
    found: Digest | None = None
    while found is None or not found.ranks.store:  # published beside the scheduler, once a second
        found = digest(engine.client.request("/metrics"), time.time())
    samples = engine.client.samples("umbra_")
    log = engine.log.read_text()
    engine.stop()

    core = next(sample for sample in samples if sample.startswith("umbra_tree_core_info"))
    assert 'core="rust"' in core
    assert 'agreement="all_ranks"' in core
    names = {sample.split("{")[0] for sample in samples}
    for metric in METRICS:
        if metric.labels == ("rank",):
            assert metric.name in names or f"{metric.name}_count" in names, metric.name
    assert all('rank="0"' in sample for sample in samples)
    assert not any("pid=" in sample for sample in samples)
    info = next(sample for sample in samples if sample.startswith("umbra_linker_info"))
    assert 'key_layout="Auto"' in info
    assert 'kv_suffix="cp0_pp0"' in info
    assert "key layout: kv cp0_pp0 (one copy for all tensor ranks)" in log

    # What the agent makes of it: every name that it looks for is one that the engine has.
    assert (found.values["promptTokens"], found.values["hitTokens"]) == (80, 0)
    assert found.values["computedTokens"] >= 80
    assert found.values["lookups"] == 1
    assert found.missed_pages == {"never_stored": 1}
    assert found.values["calls"] == found.values["fastCalls"] == 1
    assert found.values["checkpointSlots"] > found.values["lockedCheckpoints"] >= 0
    assert found.ranks.tree_core == {"rust": "0"}
    assert [*found.ranks.store] == [f"{store.socket_path.stat().st_ctime:.3f}"]


def test_an_untested_version_ends_the_engine(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store, tmp_path: Path
) -> None:
    metadata = tmp_path / "amd_mori-1.3.0.dist-info"
    metadata.mkdir()
    write_metadata(metadata, "amd-mori", "1.3.0")
    with pytest.raises(EngineExited, match=re.escape("found amd-mori 1.3.0, tested is amd-mori>=1.2.4,<1.2.5")):
        fork_launcher.launch(Launch(linker_arguments(store.address), path=[tmp_path, *kit_path]), "version")


def test_dead_hooks_end_the_engine(fork_launcher: ForkLauncher, kit_path: list[Path], store: Store) -> None:
    without_entry_point = kit_path[1:]
    with pytest.raises(EngineExited, match="its hooks are not live"):
        fork_launcher.launch(Launch(linker_arguments(store.address), path=without_entry_point), "hooks")


def test_a_wrong_setting_ends_the_engine(fork_launcher: ForkLauncher, kit_path: list[Path], store: Store) -> None:
    arguments = linker_arguments(store.address, {"keyLayout": "Once"})
    with pytest.raises(EngineExited, match="'keyLayout' is 'Once': set it to 'Auto' or 'PerRank'"):
        fork_launcher.launch(Launch(arguments, path=kit_path), "setting")
