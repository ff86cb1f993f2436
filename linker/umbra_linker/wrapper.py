"""The linker's place in SGLang's radix tree: what the ranks agree on, and which nodes are offered with what."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .keys import MAMBA_POOL
from .writing import Node

logger = logging.getLogger(__name__)


def wrapper_class() -> type:
    """Return the subclass of SGLang's wrapper. It behaves as SGLang's own around a linker that is not Umbra's."""
    # A local name: SGLang rebinds module globals that hold the original class to the subclass, and then recurses.
    import torch
    from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinkerWrapper as Original

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

        # ---- agreement ----

        def agree(self) -> None:
            """Take what all ranks have: ended offloads, the time, settings. Called in every scheduler step."""
            # Taken once: the file may be read anew at any moment, on one rank earlier than on the other.
            version, settings = self.cache_linker.newest_settings
            now_ms = time.monotonic_ns() // 1_000_000
            ended, now_ms, least, most = self._least([self.num_completed_offloads(), now_ms, version, -version])
            self.cache_linker.writing.agree(now_ms)
            if least == -most != self.cache_linker.version:
                self.cache_linker.adopt(version, settings)
            successes = self.take_completed_offloads(ended)
            if successes:
                self.commit_completed_offloads([bool(one) for one in self._least([int(one) for one in successes])])

        def _least(self, values: list[int]) -> list[int]:
            tensor = torch.tensor(values, dtype=torch.int64)
            self.cache._all_reduce_attn_groups(tensor, torch.distributed.ReduceOp.MIN)
            reduced: list[int] = tensor.tolist()
            return reduced

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
            if self.ours and any(transfer.name.value == MAMBA_POOL for transfer in transfers):
                transfers = self._chosen(node_id, transfers)
            super()._offload_node(node_id, transfers)

        def _chosen(self, node_id: Any, transfers: list[Any]) -> list[Any]:
            """Return the transfers without the checkpoint where the write policy drops it."""
            page = self.cache.page_size
            begin = len(self.cache.get_prefix_hash_values(node_id)) * page
            pages = max(len(transfer.keys) for transfer in transfers)
            node = Node(begin, begin + pages * page, prompt=self._prompt, restored=self._restored)
            if self.cache_linker.writing.keeps_checkpoint(node):
                return transfers
            return [transfer for transfer in transfers if transfer.name.value != MAMBA_POOL]

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
            hit = self.hit_markers.get(req.rid)
            result = super().load_back(req)
            if hit is not None and result[0]:
                self._restored_by[req.rid] = hit.device_hit_len + len(hit.tail_hashes) * self.cache.page_size
            return result

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
            self._report_depth()

        def _report_depth(self) -> None:
            if self.ours:
                self.cache_linker.metrics.queue_depth(len(self.pending_offloads))

    return UmbraLinkerWrapper
