"""What a rank does every second beside the scheduler."""

import time
from pathlib import Path

import prometheus_client

from umbra_linker.live import LiveSettings
from umbra_linker.lookups import Lookups
from umbra_linker.metrics import LinkerMetrics
from umbra_linker.recent import RecentPages
from umbra_linker.settings import Settings
from umbra_linker.store import CallClock
from umbra_linker.upkeep import Upkeep


def test_the_time_that_hints_took_is_recorded_by_another_thread_than_the_schedulers(tmp_path: Path) -> None:
    registry = prometheus_client.CollectorRegistry()
    metrics = LinkerMetrics(0, registry=registry)

    def hints() -> float | None:
        return registry.get_sample_value("umbra_linker_touch_hint_seconds_count", {"rank": "0"})

    metrics.hint_took(0.00002)
    assert hints() == 0
    upkeep = Upkeep(
        None, None, CallClock(metrics.call), Lookups(metrics, RecentPages(), 0), metrics,
        LiveSettings(tmp_path / "live.json", Settings()),
        load_deadline_seconds=10, oldest_offload=lambda: 0.0, held_pages=dict, rank=0,
    )  # fmt: skip
    try:
        end = time.monotonic() + 10
        while not hints() and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        upkeep.stop()
    assert hints() == 1
