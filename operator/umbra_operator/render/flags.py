"""The engine's command-line flags: parsing and merging; and which flags and variables Umbra owns."""

import re
from collections.abc import Iterable, Mapping

PAGE_TOKENS = 64
"""Tokens of a page of KV on one rank."""

DECODE_BACKEND = ("--decode-attention-backend", "--attention-backend")
"""Flags that choose the attention of decoding; SGLang heeds the first that is given."""

DECODE_CONTEXT_BACKENDS = ("aiter", "cutedsl_mla")
"""What SGLang 0.5.23 accepts there for Kimi K3 with decode context parallelism (model_overrides/kimi_k3.py)."""

OWNED: Mapping[str, str] = {
    "--model-path": "model.source",
    "--model": "model.source",
    "--served-model-name": "model.servedName",
    "--host": "nothing: Umbra sets it",
    "--port": "nothing: Umbra sets it",
    "--tp": "parallelism.tensor",
    "--tp-size": "parallelism.tensor",
    "--tensor-parallel-size": "parallelism.tensor",
    "--dcp-size": "parallelism.decodeContext",
    "--decode-context-parallel-size": "parallelism.decodeContext",
    "--page-size": "nothing: a page is 64 tokens",
    "--enable-metrics": "nothing: Umbra sets it",
    "--enable-cache-report": "nothing: Umbra sets it",
    "--enable-unified-cache-external-linker": "nothing: Umbra sets it",
    "--unified-cache-external-linker-backend": "nothing: Umbra sets it",
    "--unified-cache-external-linker-config": "cache.policy",
    "--enable-hierarchical-cache": "nothing: the linker excludes it",
    "--enable-hicache": "nothing: the linker excludes it",
    "--disable-radix-cache": "nothing: the linker needs the radix cache",
    "--mem-fraction-static": "engine.memoryFractionPercent",
    "--max-running-requests": "engine.maxRunningRequests",
    "--chunked-prefill-size": "engine.chunkedPrefillSize",
    "--context-length": "engine.contextLength",
    "--kv-cache-dtype": "engine.kvCacheDtype",
    "--mamba-ssm-dtype": "engine.mambaStateDtype",
    "--speculative-algorithm": "speculation.type",
    "--speculative-draft-model-path": "speculation.dspark.draft",
    "--speculative-draft-model": "speculation.dspark.draft",
    "--speculative-dspark-block-size": "speculation.dspark.blockSize",
    "--tokenizer-worker-num": "nothing: one tokenizer process holds the admin key",
    "--grpc-port": "nothing: it would serve without the admin key",
    "--grpc-mode": "nothing: it would serve without the admin key",
    "--smg-grpc-mode": "nothing: it would serve without the admin key",
    "--use-ray": "nothing: it would serve without the admin key",
    "--encoder-only": "nothing: it would serve without the admin key",
    "--api-key": "nothing: /server_info would print it",
    "--admin-api-key": "nothing: /server_info would print it",
}
"""Flags that Umbra sets, by every name, with the field that sets each. ``engine.extraArgs`` may not hold them."""

PROFILE_MAY_SET = frozenset(
    {
        "--mem-fraction-static",
        "--max-running-requests",
        "--chunked-prefill-size",
        "--context-length",
        "--kv-cache-dtype",
        "--mamba-ssm-dtype",
    }
)
"""Owned flags whose default a profile may give: a field of the deployment then replaces it."""


OWNED_ENV: Mapping[str, str] = {
    "UMBP_STANDALONE_ADDRESS": "nothing: Umbra sets it",
    "UMBRA_ADMIN_KEY_FILE": "nothing: Umbra sets it",
    "UMBRA_API_KEY_FILE": "auth.apiKeySecretRef",
    "UMBRA_DRAIN_FLAG": "nothing: Umbra sets it",
    "UMBRA_RUNNING_FILE": "nothing: Umbra sets it",
    "SGLANG_PLUGINS": "nothing: Umbra sets it",
    "SGLANG_RUST_BUILD_MODE": "nothing: no rank may build alone",
    "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "toolchain.treeCore",
    "SGLANG_MAMBA_SSM_DTYPE": "engine.mambaStateDtype",
    "HSA_ENABLE_IPC_MODE_LEGACY": "the profile's rocm.legacyIpc",
}
"""Variables of the engine that Umbra sets, with the field that sets each. Neither kind's ``env`` may hold them."""


OWNED_STORE_ENV: Mapping[str, str] = {
    "UMBP_DRAM_CAPACITY": "cache.dram.size",
    "UMBP_DRAM_HIGH_WM": "cache.watermarks.highPercent",
    "UMBP_DRAM_LOW_WM": "cache.watermarks.lowPercent",
    "UMBP_DRAM_USE_HUGEPAGES": "cache.dram.hugepages",
    "UMBP_DRAM_HUGEPAGE_SIZE": "cache.dram.hugepages",
    "UMBP_DRAM_NUMA_NODE": "cache.dram.numaNodes",
    "UMBP_DRAM_PREFAULT": "the profile's store.prefaultThreads",
    "UMBP_DRAM_PREFAULT_THREADS": "the profile's store.prefaultThreads",
    "UMBP_STANDALONE_ADDRESS": "nothing: Umbra sets it",
    "HSA_USERPTR_FOR_PAGED_MEM": "nothing: Umbra sets it",
    "HSA_ENABLE_IPC_MODE_LEGACY": "the profile's rocm.legacyIpc",
    "UMBP_DRAM_HOST_REGISTER": "nothing: GPUs reach no store that is not registered",
    "MORI_GLOBAL_LOG_LEVEL": "nothing: the agent reads the log",
    "MORI_UMBP_LOG_LEVEL": "nothing: the agent reads the log",
}
"""The store's variables that Umbra sets, with the field that sets each. A profile's ``store.env`` may not hold them."""


def owner(flag: str) -> str | None:
    """The field that sets ``flag``, by any of its names or an abbreviation; None when Umbra does not set it.

    The engine's parser takes a beginning of a flag for the flag itself, as long as no other flag begins so.
    """
    return OWNED.get(flag) or next((field for owned, field in OWNED.items() if owned.startswith(flag)), None)


def decode_backend(given: Mapping[str, tuple[str, ...]]) -> tuple[str, str] | None:
    """The flag and value that choose the attention of decoding; None where SGLang does."""
    return next(((name, given[name][-1]) for name in DECODE_BACKEND if given.get(name)), None)


def can_share_context(backend: tuple[str, str] | None) -> bool:
    """Whether decode context parallelism runs with it.

    Not with SGLang's own choice: it takes ``cutedsl_mla``, which needs FlashInfer and so never runs on these GPUs.
    """
    return backend is not None and backend[1] in DECODE_CONTEXT_BACKENDS


_NUMBER = re.compile(r"-[0-9]+(\.[0-9]*)?|-\.[0-9]+")
"""What argparse takes for a negative number."""


def parse(args: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Flags of an argument list with their values, in order: ``--a 1 --b`` is ``{"--a": ("1",), "--b": ()}``.

    ``--a=1`` counts as ``--a 1``. Raises ValueError for a value that no flag precedes, and for one that the engine
    would take for a flag: ``--allowed=--api-key`` must not become two flags.
    """
    flags: dict[str, tuple[str, ...]] = {}
    current: str | None = None
    for arg in args:
        if arg.startswith("--"):
            current, equals, value = arg.partition("=")
            flags[current] = values = (value,) if equals else ()
        else:
            values = (arg,)
        if current is None or any(map(_looks_like_flag, values)):
            raise ValueError(f"{arg!r} is not a flag with a value; flags begin with --, values do not begin with -")
        if not arg.startswith("--"):
            flags[current] += values
    return flags


def _looks_like_flag(value: str) -> bool:
    return value.startswith("-") and not _NUMBER.fullmatch(value)


def join(flags: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The argument list of flags."""
    return [part for flag, values in flags.items() for part in (flag, *values)]
