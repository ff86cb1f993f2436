"""The launch document: all that the agent needs to start the engine."""

import json
from typing import Any

from umbra_linker.settings import Settings
from umbra_operator.api.v1alpha1.deployment import TreeCore
from umbra_operator.render import flags, names, rocm
from umbra_operator.render.resolve import Resolved

PAGE_TOKENS = 64
_TREE_CORE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"


def launch_document(resolved: Resolved, revision: str) -> str:
    """The document as the value of a pod annotation: compact JSON."""
    document = {
        "revision": revision,
        "kit": resolved.profile.kit.version,
        "argv": argv(resolved),
        "env": environment(resolved),
        "port": names.ENGINE_PORT,
        "drainTimeoutSeconds": resolved.drain_seconds,
        "live": {},
    }
    return json.dumps(document, separators=(",", ":"))


def argv(resolved: Resolved) -> list[str]:
    """Command line of the engine; a list, never a shell's."""
    chosen: dict[str, tuple[str, ...]] = {
        "--model-path": (resolved.model_path,),
        "--served-model-name": (resolved.spec.model.served_name,),
        "--host": ("0.0.0.0",),  # noqa: S104 - inside the pod; the Service and NetworkPolicies decide who reaches it
        "--port": (str(names.ENGINE_PORT),),
        "--tp-size": (str(resolved.tensor),),
        "--page-size": (str(PAGE_TOKENS),),
        "--enable-metrics": (),
        "--enable-cache-report": (),
        # At "info" every probe and scrape is a line, and what matters is lost between them.
        "--log-level-http": ("warning",),
        **flags.parse(resolved.profile.engine.args),
        **_typed(resolved),
        **flags.parse(resolved.spec.engine.extra_args if resolved.spec.engine else ()),
        **_linker(resolved),
    }
    return [resolved.profile.engine.python, "-m", "sglang.launch_server", *flags.join(chosen)]


def environment(resolved: Resolved) -> dict[str, str]:
    """Environment of the engine besides the container's: the profile's, the deployment's, then what Umbra needs."""
    variables = [*resolved.profile.engine.env, *(resolved.spec.engine.env if resolved.spec.engine else ())]
    tree_core = resolved.spec.toolchain.tree_core
    return {
        **rocm.environment(resolved.profile.rocm),
        **{variable.name: variable.value for variable in variables},
        "UMBP_STANDALONE_ADDRESS": names.STORE_ADDRESS,
        # Unset, SGLang would load every plugin that happens to be installed in the image.
        "SGLANG_PLUGINS": "umbra",
        # A rank whose compiler probe times out would choose another tree core than the others.
        "SGLANG_RUST_BUILD_MODE": "never",
        **({} if tree_core is TreeCore.AUTO else {_TREE_CORE: tree_core.lower()}),
    }


def _typed(resolved: Resolved) -> dict[str, tuple[str, ...]]:
    engine = resolved.spec.engine
    chosen: dict[str, tuple[str, ...]] = {}
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
            "umbra": dict(Settings.from_mapping({"keyLayout": resolved.key_layout.value}).to_mapping()),
        },
    }
    return {
        "--enable-unified-cache-external-linker": (),
        "--unified-cache-external-linker-backend": ("dynamic",),
        "--unified-cache-external-linker-config": (json.dumps(config, separators=(",", ":")),),
    }
