"""The linker on the real tree and store puts and touches what ``umbra size``'s model says that it will."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cpuengine.store import Store
from ranklab import RankLab
from traffic import PAGE
from umbra_linker.settings import Checkpoints
from umbra_sim.cache import Cache
from umbra_sim.device import Device
from umbra_sim.policies import Policy, Recency
from umbra_sim.tier import Objects, Tier

pytestmark = pytest.mark.engine

CHUNK = 2 * PAGE
Requests = list[tuple[list[int], list[int]]]
Keys = dict[str, list[int]]


class _Noting(Tier):
    """A store that never evicts and notes what is put and touched."""

    def __init__(self, kv_bytes: int, checkpoint_bytes: int) -> None:
        super().__init__(kv_bytes, checkpoint_bytes, None, 90, 85)
        self.noted: dict[str, tuple[set[int], set[int]]] = {"put": (set(), set()), "touched": (set(), set())}

    def put(self, objects: Objects, now: float) -> None:
        self._note("put", objects)
        super().put(objects, now)

    def touch(self, objects: Objects) -> None:
        self._note("touched", [(pool, pages[pool.has(pages)]) for pool, pages in objects])
        super().touch(objects)

    def keys(self, what: str) -> Keys:
        kv, checkpoints = self.noted[what]
        return {"kv": sorted(kv), "checkpoints": sorted(checkpoints)}

    def _note(self, what: str, objects: Objects) -> None:
        for pool, pages in objects:
            self.noted[what][pool is self.checkpoints].update(pages.tolist())


def _requests(count: int) -> Requests:
    """Conversations: a prompt is one of before and some pages more; the answer is not in the next one."""
    rng, fresh = random.Random(3), 0
    made: Requests = [([], [])]
    while len(made) <= count:
        prompt, answer = (list(range(fresh, fresh + rng.randint(1, most))) for most in (9, 3))
        answer = [page + len(prompt) for page in answer]
        fresh += len(prompt) + len(answer)
        made.append(([*rng.choice(made[-4:])[0], *prompt], answer))
    return made[1:]


def _predicted(requests: Requests, checkpoints: Checkpoints, store_bytes: int, sizes: list[int]) -> dict[str, Keys]:
    tier = _Noting(*sizes)
    policy = Policy("asked", touch=True, checkpoints=checkpoints, leaf_first=True)
    cache = Cache(policy, Recency.READS, Device(1000, 1000), tier, store_bytes or None, CHUNK)
    cache.new_pages(1000)
    for number, (prompt, answer) in enumerate(requests):
        now, tokens = 1000.0 + number * 10, len(prompt) * PAGE + 1
        cache.prefill(np.array(prompt), tokens, now)
        cache.finish(np.array([*prompt, *answer]), len(prompt), tokens, now)
    return {what: tier.keys(what) for what in ("put", "touched")}


@pytest.mark.parametrize(
    ("checkpoints", "store_bytes"),
    [("All", 0), ("Adaptive", 0), ("Adaptive", 150 << 20), ("Adaptive", 1), ("PromptEnd", 0)],
)
def test_the_same_keys_are_put_and_touched_as_predicted(
    rank_lab: RankLab, store: Store, checkpoints: str, store_bytes: int
) -> None:
    requests = _requests(24)
    (seen,) = rank_lab.run(
        "predicted.served", address=store.address, requests=requests, checkpoints=checkpoints, store_bytes=store_bytes
    )
    predicted = _predicted(requests, Checkpoints(checkpoints), store_bytes, seen["sizes"])
    assert seen["put"] == predicted["put"]
    assert seen["touched"] == predicted["touched"]
    assert len(seen["touched"]["kv"]) > 20
