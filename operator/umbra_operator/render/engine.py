"""The launch document: all that the agent needs to start the engine."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from umbra_linker.settings import Settings
from umbra_operator.api.v1alpha1.cache import CachePolicy, TouchPolicy
from umbra_operator.api.v1alpha1.engine import TreeCore
from umbra_operator.render import flags, names, rocm
from umbra_operator.render.resolve import Resolved

_TREE_CORE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"


LINKER_DEFAULTS = Settings()
"""What a linker does where nobody chose anything."""

UMBRA = "Umbra"
"""Who set a value that no field decides."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The value of a flag or variable, and who set it: a field of the spec or of the profile, or Umbra itself."""

    values: tuple[str, ...]
    setter: str


def launch_document(resolved: Resolved, revision: str) -> str:
    """The document as the value of a pod annotation: compact JSON."""
    document = {
        "revision": revision,
        "kit": resolved.profile.kit.version,
        "argv": argv(resolved),
        "env": environment(resolved),
        "port": names.ENGINE_PORT,
        "drainTimeoutSeconds": resolved.drain_seconds,
        "live": _live_settings(resolved),
    }
    return json.dumps(document, separators=(",", ":"))


def argv(resolved: Resolved) -> list[str]:
    """Command line of the engine; a list, never a shell's."""
    chosen = {flag: choice.values for flag, choice in chosen_flags(resolved).items()}
    return [resolved.profile.engine.python, "-m", "sglang.launch_server", *flags.join(chosen)]


def environment(resolved: Resolved) -> dict[str, str]:
    """Environment of the engine besides the container's."""
    return {name: choice.values[0] for name, choice in chosen_environment(resolved).items()}


def chosen_flags(resolved: Resolved) -> dict[str, Choice]:
    """Every flag of the engine with who set it: Umbra under the profile under the deployment under what must be."""
    spec, profile = resolved.spec, resolved.profile
    own_tensor = spec.parallelism is not None and spec.parallelism.tensor is not None
    typed = {flag: Choice(values, f"spec.{flags.OWNED[flag]}") for flag, values in _typed(resolved).items()}
    return {
        "--model-path": Choice((resolved.model_path,), "spec.model.source"),
        "--served-model-name": Choice((spec.model.served_name,), "spec.model.servedName"),
        **_by(
            UMBRA,
            {
                "--host": ("0.0.0.0",),  # noqa: S104 - inside the pod; the NetworkPolicy decides who reaches it
                "--port": (str(names.ENGINE_PORT),),
            },
        ),
        "--tp-size": Choice((str(resolved.tensor),), "spec.parallelism.tensor" if own_tensor else "profile.tensor"),
        **_by(
            UMBRA,
            {
                "--page-size": (str(flags.PAGE_TOKENS),),
                "--enable-metrics": (),
                "--enable-cache-report": (),
                # At "info" every probe and scrape is a line, and what matters is lost between them.
                "--log-level-http": ("warning",),
            },
        ),
        **_by("profile.engine.args", flags.parse(profile.engine.args)),
        **typed,
        **_by("spec.engine.extraArgs", flags.parse(spec.engine.extra_args if spec.engine else ())),
        **_by(UMBRA, _linker(resolved)),
    }


def chosen_environment(resolved: Resolved) -> dict[str, Choice]:
    """Every variable of the engine with who set it: typed fields, the profile's, the deployment's, what must be."""
    spec, profile = resolved.spec, resolved.profile
    own = spec.engine.env if spec.engine else ()
    tree_core = spec.toolchain.tree_core
    chosen = {} if tree_core is TreeCore.AUTO else {_TREE_CORE: (tree_core.lower(),)}
    return {
        **_by("profile.rocm", {name: (value,) for name, value in rocm.environment(profile.rocm).items()}),
        **_by("profile.engine.env", {variable.name: (variable.value,) for variable in profile.engine.env}),
        **_by("spec.engine.env", {variable.name: (variable.value,) for variable in own}),
        **_by(
            UMBRA,
            {
                "UMBP_STANDALONE_ADDRESS": (names.STORE_ADDRESS,),
                # Unset, SGLang would load every plugin that happens to be installed in the image.
                "SGLANG_PLUGINS": ("umbra",),
                # A rank whose compiler probe times out would choose another tree core than the others.
                "SGLANG_RUST_BUILD_MODE": ("never",),
            },
        ),
        **_by("spec.toolchain.treeCore", chosen),
    }


def _by(setter: str, chosen: Mapping[str, tuple[str, ...]]) -> dict[str, Choice]:
    return {name: Choice(values, setter) for name, values in chosen.items()}


def _typed(resolved: Resolved) -> dict[str, tuple[str, ...]]:
    engine = resolved.spec.engine
    chosen: dict[str, tuple[str, ...]] = {}
    if resolved.decode_context > 1:
        chosen["--dcp-size"] = (str(resolved.decode_context),)
    if engine and engine.memory_fraction_percent is not None:
        chosen["--mem-fraction-static"] = (f"{engine.memory_fraction_percent / 100:.2f}",)
    if engine and engine.max_running_requests is not None:
        chosen["--max-running-requests"] = (str(engine.max_running_requests),)
    if engine and engine.chunked_prefill_size is not None:
        chosen["--chunked-prefill-size"] = (str(engine.chunked_prefill_size),)
    if engine and engine.context_length is not None:
        chosen["--context-length"] = (str(engine.context_length),)
    if engine and engine.kv_cache_dtype is not None:
        chosen["--kv-cache-dtype"] = (engine.kv_cache_dtype.value,)
    if engine and engine.mamba_state_dtype is not None:
        chosen["--mamba-ssm-dtype"] = (engine.mamba_state_dtype.value,)
    if resolved.draft and resolved.draft_path:
        chosen["--speculative-algorithm"] = ("DSPARK",)
        chosen["--speculative-draft-model-path"] = (resolved.draft_path,)
        chosen["--speculative-dspark-block-size"] = (str(resolved.draft.block_size),)
    return chosen


def _linker(resolved: Resolved) -> dict[str, tuple[str, ...]]:
    config: dict[str, Any] = {
        "linker": "UmbraLinker",
        "linker_module_path": "umbra_linker.linker",
        "linker_extra_config": {
            "standalone_address": names.STORE_ADDRESS,
            "standalone_auto_start": False,
            "umbra": {"keyLayout": resolved.key_layout.value},
        },
    }
    return {
        "--enable-unified-cache-external-linker": (),
        "--unified-cache-external-linker-backend": ("dynamic",),
        "--unified-cache-external-linker-config": (json.dumps(config, separators=(",", ":")),),
    }


def _live_settings(resolved: Resolved) -> dict[str, object]:
    """The linker's settings that a running engine follows: what somebody chose, and the size of the store.

    A kit that is older than this operator ignores the names here that it does not know, while it refuses unknown ones
    among the engine's arguments.
    """
    policy = resolved.spec.cache.policy or CachePolicy()
    touch = policy.touch or TouchPolicy()
    fields = {
        "touch": touch.mode,
        "touchIntervalSeconds": touch.interval_seconds,
        "checkpoints": policy.checkpoints,
        "rewriteMissing": policy.rewrite_missing,
        "rpcParallelism": policy.rpc_parallelism,
        "chunkPages": policy.chunk_pages,
        "offloadBackpressurePercent": policy.offload_backpressure_percent,
        "lookupDeadlineMilliseconds": policy.lookup_deadline_milliseconds,
        "loadDeadlineSeconds": policy.load_deadline_seconds,
        "storeBytes": resolved.store_bytes,
    }
    chosen = {name: value for name, value in fields.items() if value is not None}
    linker = {name: value for name, value in Settings.from_mapping(chosen).to_mapping().items() if name in chosen}
    recovery = resolved.spec.recovery
    if recovery is None:
        return linker
    # For the agent; the linker ignores a name that it does not know.
    return {**linker, "recovery": {"maxRestarts": recovery.max_restarts, "windowSeconds": recovery.window_seconds}}
