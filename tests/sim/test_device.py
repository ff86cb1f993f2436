"""The device's tree, where its rules are those of SGLang 0.5.23 and easily taken for others."""

import numpy as np

from umbra_linker.shape import PAGE_TOKENS
from umbra_sim.cache import Cache
from umbra_sim.device import Device
from umbra_sim.policies import POLICIES, Recency
from umbra_sim.tier import Tier

PROMPT, OTHER = np.arange(300), np.arange(1000, 1010)


def test_kv_above_an_evicted_leaf_stays_though_nothing_restores_it() -> None:
    device = Device(pages=1000, checkpoints=1)
    root, _ = device.match(PROMPT, 300)
    device.insert(device.insert(root, PROMPT, 128), PROMPT, 256)
    for _ in range(2):
        node, _ = device.match(OTHER, 10)
        device.give_checkpoint(node if node.end else device.insert(node, OTHER, 10))
    matched, anchor = device.match(PROMPT, 300)
    assert (matched.end, anchor.end) == (128, 0), "the leaf went with its checkpoint, the node above keeps its KV"


def test_the_end_of_an_answer_makes_no_checkpoint_of_its_prompt_young() -> None:
    device = Device(pages=1000, checkpoints=2)
    root, _ = device.match(PROMPT, 300)
    device.insert(root, PROMPT, 128)
    root, _ = device.match(OTHER, 10)
    device.insert(root, OTHER, 10)
    device.insert(device.path(PROMPT, 128), PROMPT, 256)
    assert device.match(PROMPT, 130)[1].end == 0, "the prompt's checkpoint was the oldest"
    assert device.match(OTHER, 10)[1].end == 10


def test_a_prompt_of_whole_pages_that_comes_again_is_in_the_device_once() -> None:
    device = Device(1000, 8)
    tier = Tier(1, 1, None, 90, 70)
    cache = Cache(POLICIES["kv-once"], Recency.READS, device, tier, None)
    cache.new_pages(4000)
    for now in range(3):
        found = cache.prefill(PROMPT, 300 * PAGE_TOKENS, float(now))
        assert (found.asked, device.resident, tier.kv.present) == (299, 300, 300)
    for first in range(1000, 4000, 300):
        other = np.arange(first, first + 300)
        cache.prefill(other, 300 * PAGE_TOKENS, float(first))
        assert device.resident <= 1000


def test_a_restored_prefix_takes_no_checkpoint_where_it_was_restored() -> None:
    """It is the request's own until its first chunk is computed."""
    tier = Tier(1, 1, None, 90, 70)
    long = np.arange(200)
    Cache(POLICIES["kv-once"], Recency.READS, Device(1000, 8), tier, None).prefill(long, 200 * PAGE_TOKENS, 0.0)
    device = Device(1000, 8)
    found = Cache(POLICIES["kv-once"], Recency.READS, device, tier, None).prefill(PROMPT, 300 * PAGE_TOKENS, 1.0)
    assert (found.device, found.hit) == (0, 200)
    assert [device.match(PROMPT, end)[1].end for end in (200, 299, 300)] == [0, 0, 300]
