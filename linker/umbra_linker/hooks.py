"""The hooks into SGLang, and the proof that they are live.

SGLang swallows a failing plugin and serves without it, so ``dead_hooks`` is asked by the linker's constructor. A hook
that raises while it runs ends the scheduler, so these stay small.
"""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path
from typing import Any

from umbra_agent.drain import DRAIN_FLAG, RUNNING_FILE, RunningRequests
from umbra_agent.middleware import ADMIN_KEY_FILE, API_KEY_FILE, Gate, read_key

from .chunks import cutting_at_tree_pages
from .tree_core import RUST, TreeCore, ballot, settle
from .wrapper import wrapper_class

logger = logging.getLogger(__name__)

WRAPPER = "sglang.srt.mem_cache.unified_cache.unified_cache_linker.UnifiedCacheLinkerWrapper"
TREE_CORE = "sglang.srt.mem_cache.unified_cache.tree_core_registry.select_tree_core_backend"
FALLBACK = "sglang.srt.mem_cache.unified_cache.tree_core_registry._rust_fallback_reason"
ADDER = "sglang.srt.managers.scheduler.Scheduler.get_prefill_adder_class"
IDLE = "sglang.srt.managers.scheduler.Scheduler.is_fully_idle"
EVENTS = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.check_hicache_events"
INSERT = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.checkpoint_into_tree"
MIDDLEWARE = "sglang.srt.utils.auth.add_api_key_middleware"
NEEDS_MIDDLEWARE = "sglang.srt.utils.auth.app_has_admin_force_endpoints"

_seen: dict[str, Any] = {}
"""What the hooks observed in this process: the replaced classes and functions, and the tree core that was settled."""


def register_hooks() -> None:
    """Register all hooks with SGLang; it applies them right after."""
    from sglang.srt.mem_cache.unified_cache import tree_core_registry
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    _seen["wrapper"] = wrapper_class()
    _seen["fallback"] = tree_core_registry._rust_fallback_reason
    HookRegistry.register(WRAPPER, _seen["wrapper"], HookType.REPLACE)
    HookRegistry.register(TREE_CORE, _settle_tree_core, HookType.AROUND)
    HookRegistry.register(FALLBACK, _fallback_reason, HookType.AROUND)
    HookRegistry.register(ADDER, _prefill_adder_class, HookType.AROUND)
    HookRegistry.register(IDLE, _is_fully_idle, HookType.AROUND)
    HookRegistry.register(EVENTS, _check_events, HookType.AROUND)
    HookRegistry.register(INSERT, _insert, HookType.AROUND)
    HookRegistry.register(MIDDLEWARE, _add_gate, HookType.AROUND)
    HookRegistry.register(NEEDS_MIDDLEWARE, _needs_middleware, HookType.AROUND)


def dead_hooks() -> list[str]:
    """Return the targets whose hook would not be called; empty when all are live.

    Call it where the cache is being built: the tree core has been chosen by then.
    """
    from sglang.srt.mem_cache import unified_radix_cache
    from sglang.srt.mem_cache.unified_cache import tree_core_registry
    from sglang.srt.plugins.hook_registry import HookRegistry

    dead = []
    if "wrapper" not in _seen or unified_radix_cache.UnifiedCacheLinkerWrapper is not _seen["wrapper"]:
        dead.append(WRAPPER)
    if "tree_core" not in _seen:
        dead.append(TREE_CORE)
    # It runs only where Rust was asked for, so it cannot be asked whether it ran.
    if tree_core_registry._rust_fallback_reason is _seen.get("fallback", tree_core_registry._rust_fallback_reason):
        dead.append(FALLBACK)
    # Importing the scheduler here would cost seconds where there is none; SGLang records what it has patched. What it
    # patched in this process it patched in the server's too: both load the plugin in the same way.
    recorded = (ADDER, IDLE, EVENTS, INSERT, MIDDLEWARE, NEEDS_MIDDLEWARE)
    return dead + [target for target in recorded if target not in HookRegistry._patched]


def settled_tree_core() -> TreeCore:
    """Return the core that the ranks settled on for the cache built last in this process.

    Raises:
        KeyError: before any cache was built.
    """
    settled: TreeCore = _seen["tree_core"]
    return settled


def _settle_tree_core(original: Any, params: Any) -> str:
    _seen.pop("tree_core", None)
    _seen.pop("reason", None)
    chosen = original(params)
    # Also where Rust was not asked for: a rank that stays away would leave its peers waiting.
    settled = settle(chosen, _reduce_min(ballot(chosen), params), fallback=_seen.get("reason"))
    _seen["tree_core"] = settled
    group = params.tp_cache_group
    rank, ranks = (0, 1) if group is None else (group.rank(), group.size())
    log = logger.info if settled.core == settled.chosen else logger.warning
    log("Umbra linker %s", settled.describe(rank, ranks))
    return settled.core


def _fallback_reason(original: Any, params: Any) -> str | None:
    settled = _seen.get("tree_core")
    if settled is not None and settled.core == RUST:
        # SGLang asks again while it builds the core. The toolchain probe may time out then, on one rank alone.
        return None
    _seen["reason"] = original(params)
    reason: str | None = _seen["reason"]
    return reason


def _prefill_adder_class(original: Any, scheduler: Any) -> Any:
    """Cut prompts where the linker can store a checkpoint."""
    adder, wrapper = original(scheduler), getattr(scheduler.tree_cache, "linker", None)
    return cutting_at_tree_pages(adder) if getattr(wrapper, "ours", False) else adder


def _is_fully_idle(original: Any, scheduler: Any, *args: Any, **options: Any) -> bool:
    """Count the linker's work as work: a flush, or an idle engine's sleep, must not come before it has ended."""
    idle = bool(original(scheduler, *args, **options))
    # A health check asks whether requests keep the device busy, which the linker's work does not.
    if not idle or options.get("for_health_check") or (args and args[0]):
        return idle
    return not linker_work(scheduler.tree_cache)


def _check_events(original: Any, cache: Any) -> None:
    """Agree on the time, too, in the reduction over the offloads that ended."""
    if getattr(cache.linker, "ours", False):
        cache.linker.agree()
    else:
        original(cache)


def _insert(original: Any, cache: Any, request: Any, **options: Any) -> None:
    """Let the wrapper know whose pages are inserted: what a checkpoint is worth depends on where the prompt ends."""
    if getattr(cache.linker, "ours", False):
        with cache.linker.inserting(request):
            original(cache, request, **options)
    else:
        original(cache, request, **options)


def _needs_middleware(original: Any, app: Any) -> bool:
    """SGLang adds its middleware, and with it ours, only where keys are in its arguments or a route asks for one."""
    return True


def _add_gate(original: Any, app: Any, **keys: Any) -> None:
    """Add ours after SGLang's, which makes it the outer one. What it raises ends the engine at start."""
    original(app, **keys)
    admin, api, drain_flag = (_path(name) for name in (ADMIN_KEY_FILE, API_KEY_FILE, DRAIN_FLAG))
    for file in filter(None, (admin, api)):
        read_key(file)
    own_key = secrets.token_urlsafe(32)
    _carry(app.server_args.url(), own_key)
    app.add_middleware(
        Gate,
        admin_key_file=admin,
        api_key_file=api,
        drain_flag=drain_flag,
        running=RunningRequests(_path(RUNNING_FILE)),
        own_key=own_key.encode(),
    )


def _path(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value) if value else None


def _carry(server: str, key: str) -> None:
    """Have this process's requests to its own server carry ``key``.

    SGLang warms the server up and freezes the garbage collectors of all its processes by requests to itself, and takes
    their keys from its arguments, where ours are not.
    """
    from requests.adapters import HTTPAdapter

    original: Any = HTTPAdapter.add_headers

    def add_headers(adapter: Any, request: Any, **options: Any) -> None:
        original(adapter, request, **options)
        if request.url.startswith(f"{server}/"):
            request.headers.setdefault("Authorization", f"Bearer {key}")

    setattr(HTTPAdapter, "add_headers", add_headers)  # noqa: B010 - mypy refuses to assign to a method


def linker_work(cache: Any) -> int:
    """Return how many nodes and requests the linker of ``cache`` is busy with; the same on every rank."""
    wrapper = getattr(cache, "linker", None)
    if wrapper is None:
        return 0
    queued = getattr(wrapper.cache_linker, "queued_loads", lambda: 0)
    return len(wrapper.pending_offloads) + len(wrapper.inflight_load_rids) + int(queued())


def _reduce_min(values: tuple[int, int], params: Any) -> tuple[int, int]:
    """Reduce over every group of the cache, in one order on all ranks."""
    import torch

    tensor = torch.tensor(values, dtype=torch.int)
    for group in (params.attn_cp_cache_group, params.attn_tp_cache_group, params.tp_cache_group, params.pp_cache_group):
        if group is not None and group.size() > 1:
            torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MIN, group=group)
    return int(tensor[0]), int(tensor[1])
