"""The hooks into SGLang, and the proof that they are live.

SGLang swallows a failing plugin and serves without it, so ``dead_hooks`` is asked by the linker's constructor. A hook
that raises while it runs ends the scheduler: these only record numbers and pass on.
"""

from __future__ import annotations

from typing import Any

WRAPPER = "sglang.srt.mem_cache.unified_cache.unified_cache_linker.UnifiedCacheLinkerWrapper"
TREE_CORE = "sglang.srt.mem_cache.unified_cache.tree_core_registry.select_tree_core_backend"

_seen: dict[str, Any] = {}
"""What the hooks observed in this process: the replaced class and the tree core chosen."""


def register_hooks() -> None:
    """Register all hooks with SGLang; it applies them right after."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    _seen["wrapper"] = _wrapper_class()
    HookRegistry.register(WRAPPER, _seen["wrapper"], HookType.REPLACE)
    HookRegistry.register(TREE_CORE, _record_tree_core, HookType.AROUND)


def dead_hooks() -> list[str]:
    """Return the targets whose hook would not be called; empty when all are live.

    Call it where the cache is being built: the tree core has been chosen by then.
    """
    from sglang.srt.mem_cache import unified_radix_cache

    dead = []
    if "wrapper" not in _seen or unified_radix_cache.UnifiedCacheLinkerWrapper is not _seen["wrapper"]:
        dead.append(WRAPPER)
    if "tree_core" not in _seen:
        dead.append(TREE_CORE)
    return dead


def tree_core() -> str:
    """Return the tree core that SGLang chose in this process, 'unknown' before that."""
    return str(_seen.get("tree_core", "unknown"))


def _record_tree_core(original: Any, params: Any) -> Any:
    _seen["tree_core"] = original(params)
    return _seen["tree_core"]


def _wrapper_class() -> type:
    # A local name: SGLang rebinds module globals that hold the original class to the subclass, and then recurses.
    from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinkerWrapper as Original

    class UmbraLinkerWrapper(Original):  # type: ignore[misc]  # sglang is untyped
        """SGLang's wrapper around a linker; reports what all ranks agreed on."""

        def offload_nodes(self, node_ids: Any) -> None:
            super().offload_nodes(node_ids)
            self._report_depth()

        def commit_completed_offloads(self, successes: Any) -> None:
            super().commit_completed_offloads(successes)
            metrics = getattr(self.cache_linker, "metrics", None)
            if metrics is not None and successes:
                metrics.offloads(len(successes), failed=sum(not success for success in successes))
            self._report_depth()

        def finish_loads(self) -> Any:
            loading = len(self.inflight_load_rids)
            failed = super().finish_loads()
            metrics = getattr(self.cache_linker, "metrics", None)
            if metrics is not None and loading:
                metrics.loads(loading, failed=len(failed))
            return failed

        def reset(self) -> None:
            super().reset()
            self._report_depth()

        def _report_depth(self) -> None:
            metrics = getattr(self.cache_linker, "metrics", None)
            if metrics is not None:
                metrics.queue_depth(len(self.pending_offloads))

    return UmbraLinkerWrapper
