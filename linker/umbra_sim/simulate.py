"""One replay of one policy at one size, from plain values to plain figures."""

from __future__ import annotations

from dataclasses import dataclass, field

from umbra_linker.shape import Shape
from umbra_sim.cache import CHUNK_TOKENS, Cache
from umbra_sim.device import Device
from umbra_sim.foresight import ForesightCache, ForesightTier, future
from umbra_sim.policies import Policy, Recency
from umbra_sim.replay import Counts, Load, Script, repeat, replay
from umbra_sim.tier import Tier
from umbra_sim.trace import Trace


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
    chunk_tokens: int = CHUNK_TOKENS
    """Tokens of a prefill chunk."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one replay gave."""

    counts: Counts
    tier: Tier


def simulate(trace: Trace, policy: Policy, capacity: int, setup: Setup, seed: int) -> Outcome:
    """Replay ``trace`` once."""
    trace = trace.in_pages_of(setup.shape.page_tokens)
    if policy.clairvoyant:
        return _clairvoyant(trace, policy, capacity, setup, seed)
    size = None if policy.infinite else capacity
    tier = Tier(*_object_bytes(policy, setup), size, setup.high_percent, setup.low_percent)
    cache = Cache(policy, setup.recency, _device(trace, setup), tier, size, setup.chunk_tokens, trace.page_tokens)
    return Outcome(replay(trace, setup.load, cache, seed), tier)


def _clairvoyant(trace: Trace, policy: Policy, capacity: int, setup: Setup, seed: int) -> Outcome:
    script = Script()
    endless = Tier(*_object_bytes(policy, setup), None, setup.high_percent, setup.low_percent)
    first = Cache(policy, setup.recency, _device(trace, setup), endless, None, setup.chunk_tokens, trace.page_tokens)
    replay(trace, setup.load, first, seed, script)
    known = future([step for step in script.steps if not step.prompt_pages], script.found, first.page_numbers)
    marks = (setup.high_percent, setup.low_percent)
    tier = ForesightTier(*_object_bytes(policy, setup), capacity, marks, known)
    device = _device(trace, setup)
    cache = ForesightCache(policy, setup.recency, device, tier, capacity, setup.chunk_tokens, trace.page_tokens)
    cache.new_pages(first.page_numbers)
    return Outcome(repeat(script, cache), tier)


def _object_bytes(policy: Policy, setup: Setup) -> tuple[int, int]:
    return setup.shape.page_bytes(once=policy.once), setup.shape.checkpoint_bytes


def _device(trace: Trace, setup: Setup) -> Device:
    if trace.below_device:
        return Device(0, 1)
    return Device(setup.device_tokens // trace.page_tokens, setup.device_checkpoints)
