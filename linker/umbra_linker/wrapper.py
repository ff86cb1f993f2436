"""The linker's place in SGLang's radix tree: what the ranks agree on, and which nodes are offered with what."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .bounded import Bounded
from .keys import MAMBA_POOL
from .paths import Paths
from .planning import SkipReason
from .policy import Rewrite, TouchTimes, rewrite
from .settings import Switch, Touch
from .waiting import Waiting
from .writing import Node

logger = logging.getLogger(__name__)

MOST_NODES = 1 << 16
"""Nodes of which is remembered when they were touched, and whether their checkpoint was not stored."""
MOST_SKIPPED = 1 << 12
"""Nodes of each kind that may wait for room to be offered again."""
MOST_OFFERED = 8
"""Of each kind a step offers so many; a step in which offloads ended makes room for few."""
MOST_ANSWERS = 8
"""Touched prefixes that a step looks at; each costs the ranks a number a page."""


def wrapper_class() -> type:
    """Return the subclass of SGLang's wrapper. It behaves as SGLang's own around a linker that is not Umbra's."""
    # A local name: SGLang rebinds module globals that hold the original class to the subclass, and then recurses.
    import numpy as np
    import torch
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams
    from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinkerWrapper as Original
    from sglang.srt.mem_cache.unified_cache.unified_cache_linker import _PendingOffload as PendingOffload

    class UmbraLinkerWrapper(Original):  # type: ignore[misc]  # sglang is untyped
        """Every rank calls every method with the same arguments in the same order."""

        inflight_load_rids: list[str]
        inflight_load_index: int

        def __init__(self, cache: Any, cache_linker: Any) -> None:
            super().__init__(cache, cache_linker)
            self.ours = hasattr(cache_linker, "writing")
            self._prompt: int | None = None
            """Tokens of the prompt whose pages are being inserted; None outside of ``inserting``."""
            self._restored = 0
            """Tokens of it, from its beginning, that the store has."""
            self._restored_by: dict[str, int] = {}
            self._touched = TouchTimes(MOST_NODES)
            self._bare: Bounded[int, None] = Bounded(MOST_NODES)
            """Nodes whose checkpoint the policy did not store."""
            self._skipped = Waiting(MOST_SKIPPED)
            self._paths = Paths()
            self._hinted: deque[int] = deque()
            """The nodes of the hints that have no answer yet, in the linker's order."""

        # ---- agreement ----

        def agree(self) -> None:
            """Take what all ranks have: ended offloads, the time, settings. Called in every scheduler step."""
            # Taken once: the file may be read anew at any moment, on one rank earlier than on the other.
            version, settings = self.cache_linker.newest_settings
            now_ms = time.monotonic_ns() // 1_000_000
            ended, answered, now_ms, least, most = self._least(
                [self.num_completed_offloads(), self.cache_linker.touches.answered(), now_ms, version, -version]
            )
            self.cache_linker.writing.agree(now_ms)
            if least == -most != self.cache_linker.version:
                self.cache_linker.adopt(version, settings)
            successes = self.take_completed_offloads(ended)
            if successes:
                self.commit_completed_offloads([bool(one) for one in self._least([int(one) for one in successes])])
            if self._skipped and (successes or not self.pending_offloads):
                self._offer_again()
            if answered:
                self._take_answers(min(answered, MOST_ANSWERS))

        def _least(self, values: list[int]) -> list[int]:
            # A tensor that numpy made and reads costs half as much: this is in every scheduler step.
            numbers = np.array(values, dtype=np.int64)
            self.cache._all_reduce_attn_groups(torch.from_numpy(numbers), torch.distributed.ReduceOp.MIN)
            reduced: list[int] = numbers.tolist()
            return reduced

        # ---- touches ----

        def match(self, key: Any, req: Any, result: Any) -> Any:
            if self.ours and result.device_prefix_len:
                self._hint(result.last_device_node, result.device_prefix_len)
            return super().match(key, req, result)

        def _hint(self, node_id: int, tokens: int) -> None:
            """Let the store know that a prefix is in use, although nobody asks it for it."""
            settings = self.cache_linker.settings
            interval_ms = settings.touch_interval_seconds * 1000
            now_ms = self.cache_linker.writing.now_ms
            if settings.touch is Touch.OFF or not self._touched.due(node_id, now_ms, interval_ms):
                return
            begin = time.perf_counter()
            path = self._paths.of(node_id, lambda: self._path(node_id))
            # A session's own node may stand for less than the tree's.
            if len(path) * self.cache.page_size == tokens and self.cache_linker.touches.hint(
                path, node_id not in self._bare
            ):
                self._hinted.append(node_id)
            self.cache_linker.metrics.hint_took(time.perf_counter() - begin)

        def _path(self, node_id: int) -> list[str]:
            return [*self.cache.get_prefix_hash_values(node_id), *self.cache.tree_core.get_hash_values(node_id)]

        def _take_answers(self, count: int) -> None:
            """Write again what a touch did not find, if every rank's answer is here."""
            answers = [self.cache_linker.touches.take() for _ in range(count)]
            nodes = [self._hinted.popleft() for _ in range(count)]
            if self.cache_linker.settings.rewrite_missing is Switch.DISABLED:
                return
            everywhere = self._least([int(present) for answer in answers for present in answer])
            for node_id, answer in zip(nodes, answers, strict=True):
                *pages, checkpoint = (bool(one) for one in everywhere[: len(answer)])
                del everywhere[: len(answer)]
                plan = rewrite(pages, None if node_id in self._bare else checkpoint)
                if plan:
                    self._rewrite(node_id, len(pages), plan)

        def _rewrite(self, node_id: int, pages: int, plan: Rewrite) -> None:
            slots = self._slots_of(node_id)
            if slots is None or len(slots) != pages * self.cache.page_size:
                return  # The device evicted it meanwhile.
            # Asked anew: names and slots must come from the same tree.
            path = self._path(node_id)
            # In the order of the path: an offload turns it round.
            missing = sorted(plan.pages)
            transfers = []
            if missing:
                rows = slots.view(pages, self.cache.page_size)[missing].reshape(-1)
                transfers.append(PoolTransfer(PoolName.KV, device_indices=rows, keys=[path[page] for page in missing]))
            state = self.cache.tree_core.get_component_device_value(node_id, ComponentType.MAMBA)
            if plan.checkpoint and state is not None:
                transfers.append(
                    PoolTransfer(
                        PoolName.MAMBA, device_indices=state, keys=[path[-1]], hit_policy=PoolHitPolicy.TRAILING_PAGES
                    )
                )
            if not transfers:
                return
            lock = self.cache.inc_lock_ref(node_id).to_dec_params()
            if not self.cache_linker.offload(transfers):
                # The next touch finds the same missing.
                self.cache.dec_lock_ref(node_id, lock)
                self.cache_linker.metrics.skipped(SkipReason.BACKPRESSURE)
                return
            # No node is published: the tree believes that they are stored.
            self.pending_offloads.append(PendingOffload(node_id, lock, []))
            for transfer in transfers:
                self.cache_linker.metrics.rewritten(transfer.name.value, len(transfer.keys))
            self._report_depth()

        def _slots_of(self, node_id: int) -> Any:
            """Return the device's slots of the path to a node, None for a node that is not in the tree any more."""
            try:
                return self.cache.path_device_indices(node_id)
            except KeyError:
                return None

        # ---- offloads ----

        @contextmanager
        def inserting(self, request: Any) -> Iterator[None]:
            """Tell whose pages are inserted meanwhile."""
            # A bigram key is one shorter than its tokens, and so are the ends of its nodes.
            self._prompt = len(request.origin_input_ids) - int(self.cache.tree_core.is_eagle)
            self._restored = self._restored_by.pop(request.rid, 0)
            try:
                yield
            finally:
                self._prompt, self._restored = None, 0

        def _offload_node(self, node_id: Any, transfers: list[Any]) -> None:
            if not self.ours or not transfers:
                super()._offload_node(node_id, transfers)
                return
            # What was decided when it was offered first holds: it was counted then.
            decided = self._skipped.decided(node_id)
            checkpoint = any(transfer.name.value == MAMBA_POOL for transfer in transfers)
            kept = decided
            if checkpoint and kept is None:
                kept = self._keeps_checkpoint(node_id, transfers)
            if checkpoint and not kept:
                transfers = [transfer for transfer in transfers if transfer.name.value != MAMBA_POOL]
                checkpoint = False
            waiting = len(self.pending_offloads)
            super()._offload_node(node_id, transfers)
            if len(self.pending_offloads) > waiting:
                self._skipped.drop(node_id)
                return
            self._skipped.put(node_id, carries=checkpoint, kept=kept is not False)
            if decided is None:
                self.cache_linker.metrics.skipped(SkipReason.BACKPRESSURE)

        def _offer_again(self) -> None:
            """Offer nodes that found no room, the oldest of each kind first: the device evicts it first."""
            for node_id in self._skipped.offered(MOST_OFFERED):
                if self._storable(node_id):
                    # With what of its path is not stored: a split has made two nodes of it, or its parent waits, too.
                    self.offload_nodes(self.cache.tree_core.build_backup_kv_action(node_id).node_ids)
                else:
                    self._skipped.drop(node_id)

        def _storable(self, node_id: int) -> bool:
            """Return whether a node is in the tree and neither stored nor waiting."""
            try:
                return bool(self.cache.tree_core.build_external_linker_offload_transfers(node_id))
            except KeyError:
                return False

        def _keeps_checkpoint(self, node_id: Any, transfers: list[Any]) -> bool:
            """Ask the write policy for the checkpoint at a node's end, and remember the node where it is dropped."""
            page = self.cache.page_size
            path = self._path(node_id)
            self._paths.put(node_id, path)
            end = len(path) * page
            begin = end - max(len(transfer.keys) for transfer in transfers) * page
            node = Node(begin, end, prompt=self._prompt, restored=self._restored)
            kept: bool = self.cache_linker.writing.keeps_checkpoint(node)
            if not kept:
                self._bare[node_id] = None
            return kept

        def offload_nodes(self, node_ids: Any) -> None:
            super().offload_nodes(node_ids)
            self._report_depth()

        def commit_completed_offloads(self, successes: Any) -> None:
            super().commit_completed_offloads(successes)
            if self.ours and successes:
                self.cache_linker.metrics.offloads(len(successes), failed=sum(not success for success in successes))
            self._report_depth()

        # ---- loads ----

        def load_back(self, req: Any) -> Any:
            if self.ours and self.has_hit(req.rid) and not self._room_for_state():
                # SGLang asserts that there is room; without it the request is computed like one that missed.
                del self.hit_markers[req.rid]
            hit = self.hit_markers.get(req.rid)
            result = super().load_back(req)
            if hit is not None and result[0]:
                self._restored_by[req.rid] = hit.device_hit_len + len(hit.tail_hashes) * self.cache.page_size
            return result

        def _room_for_state(self) -> bool:
            """Return whether a KDA state can be restored, if this cache has any; evicts for it."""
            if ComponentType.MAMBA not in self.cache.tree_components:
                return True
            allocator = self.cache.req_to_token_pool.mamba_allocator
            if not allocator.available_size():
                self.cache.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=1))
            return bool(allocator.available_size())

        def finish_loads(self) -> Any:
            """Wait for the loads of the batch that just ran; return the requests that did not land on every rank.

            SGLang aborts all requests of a batch when one failed. Every rank holds the same requests in the same order
            and enters the reduction.
            """
            if not self.ours:
                return super().finish_loads()
            requests: list[str] = self.inflight_load_rids
            self.inflight_load_rids = []
            if not requests:
                return []
            index: int = self.inflight_load_index
            self.inflight_load_index = -1
            failed = self._failed_anywhere(requests, self.cache_linker.finish_loads(index))
            for request in requests:
                self.private_load_indices.pop(request, None)
            for request in failed:
                self._restored_by.pop(request, None)
            self.cache_linker.metrics.loads(len(requests), failed=len(failed))
            if failed:
                logger.error("load failed on some rank; %d of %d requests are aborted", len(failed), len(requests))
            return failed

        def _failed_anywhere(self, requests: list[str], landed: list[bool]) -> list[str]:
            # A rank that knows nothing of the batch has restored nothing.
            mine = landed if len(landed) == len(requests) else [False] * len(requests)
            everywhere = self._least([int(one) for one in mine])
            return [request for request, one in zip(requests, everywhere, strict=True) if not one]

        # ---- ending ----

        def release_request(self, rid: str) -> None:
            super().release_request(rid)
            self._restored_by.pop(rid, None)

        def reset(self) -> None:
            super().reset()
            self._restored_by.clear()
            self._touched.clear()
            self._bare.clear()
            self._skipped.clear()
            self._paths.clear()
            self._hinted.clear()
            self._report_depth()

        def _report_depth(self) -> None:
            if self.ours:
                self.cache_linker.metrics.queue_depth(len(self.pending_offloads))

    return UmbraLinkerWrapper
