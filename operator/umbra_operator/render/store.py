"""The store's environment and time budget, from typed fields in exact bytes.

UMBP turns a value that it cannot read into its default with one warning, so nothing here is passed through as text.
"""

from umbra_operator.render.resolve import Resolved

GIB = 1024**3
REGISTRATION_SECONDS_PER_GIB = 0.52
"""Registering a tier of 1160 GiB with eight GPUs took 599.6 s in a public report."""
HEADROOM_BYTES = 16 * GIB
"""What the store's container needs besides its pages, unless the profile says otherwise."""


def environment(resolved: Resolved) -> dict[str, str]:
    """Environment of ``umbp_standalone_server``: the profile's, then what Umbra sets."""
    return {
        **{variable.name: variable.value for variable in resolved.profile.store.env},
        "UMBP_DRAM_CAPACITY": str(resolved.store_bytes),
        "UMBP_DRAM_HIGH_WM": f"{resolved.high_percent / 100:.2f}",
        "UMBP_DRAM_LOW_WM": f"{resolved.low_percent / 100:.2f}",
        # Host memory that KFD may evict freezes the queues of every GPU; this makes ROCr allocate it as GTT.
        "HSA_USERPTR_FOR_PAGED_MEM": "0",
        # The agent reads the server's log lines; the default level prints none.
        "MORI_GLOBAL_LOG_LEVEL": "info",
    }


def startup_seconds(resolved: Resolved) -> int:
    """How long the store may take until it is ready: two minutes, plus three times the registration's expected time."""
    health = resolved.spec.health
    if health and health.startup_timeout_seconds:
        return health.startup_timeout_seconds
    return round(120 + 3 * REGISTRATION_SECONDS_PER_GIB * resolved.store_bytes / GIB)
