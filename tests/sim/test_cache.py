"""The cache model: equal to a plain one on small cases, and nothing is lost or won in any."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from naivecache import NaiveCache
from umbra_linker.shape import PAGE_TOKENS
from umbra_sim.cache import Cache
from umbra_sim.device import Device
from umbra_sim.policies import POLICIES, Recency
from umbra_sim.tier import Tier

Step = tuple[int, int, int, int, int]
STEPS = st.lists(
    st.tuples(
        st.integers(0, 6),  # which earlier prompt this one continues, counted from the last
        st.integers(0, 400),  # how many pages of it
        st.integers(0, 300),  # new pages
        st.integers(0, 63),  # tokens beyond the last page
        st.integers(0, 12),  # pages of the answer
    ),
    min_size=1,
    max_size=14,
)
POLICY = st.sampled_from([name for name, policy in POLICIES.items() if not policy.infinite and not policy.clairvoyant])


@settings(max_examples=60, deadline=None)
@given(
    steps=STEPS,
    policy=POLICY,
    recency=st.sampled_from(Recency),
    capacity=st.integers(100, 3000),
    checkpoint=st.integers(1, 80),
    device_pages=st.integers(100, 1500),
    slots=st.integers(1, 8),
    marks=st.sampled_from([(90, 70), (90, 85), (100, 100), (60, 10)]),
)
def test_model_equals_a_plain_one_and_conserves(
    steps: list[Step],
    policy: str,
    recency: Recency,
    capacity: int,
    checkpoint: int,
    device_pages: int,
    slots: int,
    marks: tuple[int, int],
) -> None:
    rule = POLICIES[policy]
    tier = Tier(1, checkpoint, capacity, *marks)
    cache = Cache(rule, recency, Device(device_pages, slots), tier, capacity)
    plain = NaiveCache(
        1,
        checkpoint,
        capacity,
        *marks,
        device_pages,
        slots,
        touch=rule.touch,
        leaf_first=rule.leaf_first,
        rewrite=rule.rewrite,
        reads=recency is Recency.READS,
        checkpoints=rule.checkpoints,
    )
    prompts: list[list[int]] = [[]]
    for number, (back, keep, new, rest, answer) in enumerate(steps):
        earlier = prompts[-1 - back % len(prompts)]
        kept = earlier[:keep]
        first = cache.new_pages(new + answer)
        pages = kept + list(range(first, first + new))
        tokens = len(pages) * PAGE_TOKENS + rest
        if not tokens:
            continue
        prompts.append(pages)
        now = number * 17.0
        found = cache.prefill(np.array(pages, np.int64), tokens, now)
        assert (found.asked, found.device, found.hit) == plain.prefill(pages, tokens, now)
        answered = pages + list(range(first + new, first + new + answer))
        cache.finish(np.array(answered, np.int64), len(pages), tokens, now + 1)
        plain.finish(answered, len(pages), tokens, now + 1)

        assert tier.used == plain.used()
        assert tier.bytes_written == plain.written
        resident = 0
        for pool in (tier.kv, tier.checkpoints):
            assert pool.written - pool.evicted == pool.present == (pool.stamps > 0).sum()
            resident += pool.present * pool.size
        assert resident == tier.used <= capacity
        assert 0 <= found.device <= found.hit <= found.asked
