"""One replay of one policy at one size, from plain values to plain figures."""

from __future__ import annotations

from dataclasses import dataclass, field

from umbra_sim.cache import Cache
from umbra_sim.device import Device
from umbra_sim.policies import Policy, Recency
from umbra_sim.replay import Counts, Load, replay
from umbra_sim.shape import Shape
from umbra_sim.tier import Tier
from umbra_sim.trace import PAGE_TOKENS, Trace


@dataclass(frozen=True, slots=True)
class Setup:
    """All but policy, size and seed."""

    shape: Shape = field(default_factory=Shape)
    load: Load = field(default_factory=Load)
    recency: Recency = Recency.READS
    high_percent: int = 90
    low_percent: int = 70
    device_tokens: int = 1_140_000
    """Tokens of KV that the device holds."""
    device_checkpoints: int = 40
    """Checkpoints that the device holds besides those of running requests."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one replay gave."""

    counts: Counts
    tier: Tier


def simulate(trace: Trace, policy: Policy, capacity: int, setup: Setup, seed: int) -> Outcome:
    """Replay ``trace`` once."""
    size = None if policy.infinite else capacity
    kv, checkpoint = setup.shape.page_bytes(once=policy.once), setup.shape.checkpoint_bytes
    tier = Tier(kv, checkpoint, size, setup.high_percent, setup.low_percent)
    device = Device(setup.device_tokens // PAGE_TOKENS, setup.device_checkpoints)
    cache = Cache(policy, setup.recency, device, tier, size)
    return Outcome(replay(trace, setup.load, cache, seed), tier)
