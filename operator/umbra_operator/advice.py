"""``status.cache``: how well the caches do, and what would help, in words and as a patch of the spec. Pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from umbra_operator.api.base import quantity_bytes
from umbra_operator.api.v1alpha1 import K3DeploymentSpec
from umbra_operator.api.v1alpha1.cache import CachePolicy, Checkpoints, KeyLayout, TouchMode
from umbra_operator.conditions import Reason
from umbra_operator.judge import Assessment, CacheNumbers

GIB = 1 << 30
KEPT_SECONDS = 1800
"""How long a page should stay in the store: most of what is asked again is asked again within half an hour."""
LEAST_GROWTH, MOST_GROWTH = 1.5, 4.0
"""Of one advice. More than fourfold at once is a guess; ``umbra size`` replays a trace instead."""
TOO_SMALL = frozenset({Reason.HOT_PAGES_EVICTED, Reason.HIT_RATIO_FELL, Reason.EVICTION_STUCK})


def cache_status(spec: K3DeploymentSpec, assessment: Assessment) -> dict[str, Any]:
    """The object of the status, without what is not known."""
    cache = assessment.cache
    numbers = {
        "hitPercent": cache.hit_percent,
        "hotMissPercent": cache.hot_miss_percent,
        "retentionSeconds": cache.retention_seconds,
    }
    known: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
    told = {finding.reason for finding in assessment.findings}
    advice = [*_policy(spec.cache.policy or CachePolicy()), _grow(spec, cache)] if told & TOO_SMALL else []
    return {**known, "advice": advice}


def _policy(policy: CachePolicy) -> Iterator[dict[str, str]]:
    """What makes more of the store that is there, the cheapest first."""
    if policy.touch and policy.touch.mode is TouchMode.OFF:
        message = "the store evicts what the device serves, since nobody tells it (running engines follow, no restart)"
        yield _advice("Touch", message, {"policy": {"touch": {"mode": TouchMode.AUTO.value}}})
    if policy.checkpoints is Checkpoints.ALL:
        message = (
            "checkpoints inside of prompts take the room of pages that are asked again; Adaptive stores as many as the "
            "store keeps for half an hour (running engines follow, no restart)"
        )
        yield _advice("AdaptCheckpoints", message, {"policy": {"checkpoints": Checkpoints.ADAPTIVE.value}})
    if policy.key_layout is KeyLayout.PER_RANK:
        yield _share_pages()


def _share_pages() -> dict[str, str]:
    message = (
        "each rank stores its own copy of every page; stored once, as many times more of them fit as there are ranks "
        "(the engines restart and find nothing under the old names)"
    )
    return _advice("SharePages", message, {"policy": {"keyLayout": KeyLayout.AUTO.value}})


def _grow(spec: K3DeploymentSpec, cache: CacheNumbers) -> dict[str, str]:
    size = quantity_bytes(spec.cache.dram.size)
    stays = cache.retention_seconds
    growth = max(LEAST_GROWTH, min(MOST_GROWTH, KEPT_SECONDS / stays if stays else LEAST_GROWTH))
    wanted = f"{-(-round(size * growth) // GIB)}Gi"
    now = f", which are written over in {_minutes(stays)}" if stays else ""
    message = (
        f"the store evicts what is asked again: give it {wanted} instead of {spec.cache.dram.size}{now} "
        "(the pods are replaced and their stores start empty; `umbra size` tells more from a trace)"
    )
    return _advice("GrowStore", message, {"dram": {"size": wanted}})


def _minutes(seconds: int) -> str:
    return f"{round(seconds / 60)} minutes" if seconds >= 120 else f"{seconds} s"


def _advice(name: str, message: str, cache: Mapping[str, Any]) -> dict[str, str]:
    patch = json.dumps({"spec": {"cache": cache}}, separators=(",", ":"))
    return {"name": name, "message": message, "patch": patch}
