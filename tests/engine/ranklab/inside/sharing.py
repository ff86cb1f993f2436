"""What a linker refuses, and what it asks of a pool, where ranks share the tokens of a page."""

from __future__ import annotations

import contextlib
import itertools
import random
from array import array
from types import SimpleNamespace
from typing import Any

import torch
from player import Player, linker_config
from rank import PAGE, Rank, cache_parameters, make_cache, make_pools, publish

WAYS = 2


def refusals(rank: Rank, address: str) -> dict[str, str]:
    """Start a linker where pages cannot be shared; return what it says, by the reason."""
    from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

    from umbra_linker.linker import UmbraLinker

    page, linker = WAYS * PAGE, linker_config(address)
    arguments = publish(rank, linker, ways=WAYS, chunk=page)
    both = {ComponentType.FULL, ComponentType.MAMBA}
    pools = make_pools(rank, tokens=4 * page, states=4, ways=WAYS)
    drafted = make_pools(rank, tokens=4 * page, states=4, ways=WAYS, draft=True)
    make_cache(rank, pools, arguments)  # The hooks are proven where a cache is built.
    sparse = DSATokenToKVPool(
        size=4 * PAGE, page_size=PAGE, kv_lora_rank=256, dtype=torch.bfloat16, qk_rope_head_dim=32, layer_num=1,
        device="cpu", index_head_dim=128, enable_memory_saver=False, kv_cache_dim=288,
    )  # fmt: skip
    indexed = cache_parameters(rank, pools)
    indexed.token_to_kv_pool_allocator = SimpleNamespace(get_kvcache=lambda: sparse)
    packed, other = cache_parameters(rank, pools), cache_parameters(rank, pools)
    packed.mtp_draft_device_pools = (drafted.draft,)
    other.token_to_kv_pool_allocator = SimpleNamespace(get_kvcache=lambda: pools.allocator.get_kvcache().full_kv_pool)
    not_widened = cache_parameters(rank, pools)
    not_widened.page_size = PAGE
    short = publish(rank, linker, ways=WAYS, chunk=PAGE)

    def says(arguments: Any, parameters: Any, components: Any) -> str:
        try:
            UmbraLinker(arguments, parameters, components=components, extra_config=linker["linker_extra_config"])
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "started"

    return {
        "sparse": says(arguments, indexed, {ComponentType.FULL}),
        "windows": says(arguments, cache_parameters(rank, pools), {*both, ComponentType.SWA}),
        "draft": says(arguments, cache_parameters(rank, drafted), both),
        "packed draft": says(arguments, packed, both),
        "model without KDA": says(arguments, other, {ComponentType.FULL}),
        "page": says(arguments, not_widened, both),
        "chunk": says(short, cache_parameters(rank, pools), both),
    }


def pages_asked_for(rank: Rank, address: str) -> dict[str, Any]:
    """Ask the pool of KV for the rows of some locations; return them, or why they are refused."""
    player = Player.seated(rank, linker_config(address), tokens=8 * WAYS * PAGE, states=4, ways=WAYS)
    entry = player.linker.pools["kv"]
    page = player.page

    def rows(*locations: int) -> Any:
        try:
            return entry.prepare_locations(torch.tensor(locations))
        except ValueError as error:
            return str(error)

    return {
        "page 1 and 3": rows(*range(page, 2 * page), *range(3 * page, 4 * page)),
        "bytes": entry.get_page_buffer_meta(torch.arange(page))[1],
        "half a page": rows(*range(page, page + PAGE)),
        "straddling": rows(*range(page + PAGE, 2 * page + PAGE)),
        "every second": rows(*range(0, 2 * page, 2)),
        "behind the end": rows(*range(9 * page, 10 * page)),
    }


def rows_of_pages(rank: Rank, seed: int) -> list[str]:
    """Ask pools of many widths for the rows of pages in any order; return where SGLang's own rule has others.

    Locations that are no whole pages are asked for, too; whatever is not refused is returned.
    """
    from sglang.srt.layers.dcp.layout import maybe_dcp_kernel_indices
    from sglang.srt.mem_cache.hicache_storage import PoolName

    from umbra_linker.sharded import ShardedPool

    draw, there, wrong = random.Random(seed), 12, []
    for rows, ways in itertools.product((1, 3, 16, 64), (2, 3, 8)):
        page = rows * ways
        pool = ShardedPool(
            ways=ways, name=PoolName.KV, indices_from_pool=PoolName.KV, device_pool=None,
            components=[[torch.zeros(there * rows, 4)]], layer_mapping={0: 0}, page_size=page,
        )  # fmt: skip
        for _ in range(20):
            pages = draw.sample(range(there), draw.randint(1, there))
            wanted = torch.cat([torch.arange(one * page, (one + 1) * page) for one in pages])
            for owner in range(ways):
                own = maybe_dcp_kernel_indices(wanted, ways, owner).view(-1, rows)
                if pool.prepare_locations(wanted) != own[:, 0].tolist():
                    wrong.append(f"{rows} x {ways}, rank {owner}: {pages}")
            exchanged = wanted.clone()
            exchanged[[0, 1]] = exchanged[[1, 0]]
            for broken in (exchanged, wanted + 1, wanted[:-1], wanted - there * page, wanted + there * page):
                with contextlib.suppress(ValueError):
                    wrong.append(f"{rows} x {ways}: {pool.prepare_locations(broken)} of {broken.tolist()}")
    return wrong


def found_with(rank: Rank, address: str, ways: int) -> int:
    """Return how many tokens of a prompt an engine of so many ways finds in the store; leave all of them there."""
    player = Player.seated(rank, linker_config(address), tokens=8 * WAYS * PAGE, states=8, layers=4, ways=ways)
    tokens = list(range(2 * WAYS * PAGE))
    request = player.restore(tokens)
    assert not player.differences(request)
    player.abort(request)
    player.compute(tokens)
    player.settle()
    return request.loaded


def chunk_ends(rank: Rank, address: str, ways: int, chunks: list[int], prompt: int) -> dict[str, list[int]]:
    """Let the scheduler's adder cut a prompt into chunks; return where each ends, with the hook and without.

    Each pass may compute so many tokens as ``chunks`` says, and from its end on as many as the last of it.
    """
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.schedule_policy import PrefillAdder
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.sampling.sampling_params import SamplingParams

    player = Player.seated(rank, linker_config(address), tokens=64 * ways * PAGE, states=4, ways=ways)
    hooked = Scheduler.get_prefill_adder_class(SimpleNamespace(tree_cache=player.cache))

    def ends(adder_class: Any) -> list[int]:
        request = Req("one", "", array("q", range(prompt)), SamplingParams(max_new_tokens=1))
        request.init_next_round_input(player.cache)
        found: list[int] = []
        while not found or found[-1] < prompt:
            chunk = chunks[min(len(found), len(chunks) - 1)]
            adder = adder_class(PAGE, player.cache, player.pools.allocator, None, 1.0, 1 << 20, chunk)
            if found:
                request.prefix_len = found[-1]
                adder.add_chunked_req(request)
            else:
                adder.add_one_req(request, has_chunked_req=False, truncation_align_size=None)
            found.append(request.extend_end)
        return found

    return {"ours": ends(hooked), "SGLang's": ends(PrefillAdder)}
