"""The store's environment and time budget, from typed fields in exact bytes.

UMBP turns a value that it cannot read into its default with one warning, so nothing here is passed through as text.
"""

from umbra_operator.api.base import quantity_bytes
from umbra_operator.api.v1alpha1.cache import Hugepages
from umbra_operator.render import rocm
from umbra_operator.render.resolve import Resolved

GIB = 1024**3
REGISTRATION_SECONDS_PER_GIB = 0.52
"""Registering a tier of 1160 GiB with eight GPUs took 599.6 s in a public report."""
HEADROOM_BYTES = 16 * GIB
"""What the store's container needs besides its pages, unless the profile says otherwise."""


def environment(resolved: Resolved) -> dict[str, str]:
    """Environment of ``umbp_standalone_server``: the profile's, then what Umbra sets."""
    dram, prefault = resolved.spec.cache.dram, resolved.profile.store.prefault_threads
    chosen = {
        **rocm.environment(resolved.profile.rocm),
        **{variable.name: variable.value for variable in resolved.profile.store.env},
        "UMBP_DRAM_CAPACITY": str(resolved.store_bytes),
        "UMBP_DRAM_HIGH_WM": f"{resolved.high_percent / 100:.2f}",
        "UMBP_DRAM_LOW_WM": f"{resolved.low_percent / 100:.2f}",
        # Host memory that KFD may evict freezes the queues of every GPU; this makes ROCr allocate it as GTT.
        "HSA_USERPTR_FOR_PAGED_MEM": "0",
        # The agent reads the server's log lines; the default level prints none.
        "MORI_GLOBAL_LOG_LEVEL": "info",
    }
    if dram.hugepages is not Hugepages.NONE:
        chosen["UMBP_DRAM_USE_HUGEPAGES"] = "1"
        chosen["UMBP_DRAM_HUGEPAGE_SIZE"] = str(quantity_bytes(dram.hugepages))
    if dram.numa_nodes:
        chosen["UMBP_DRAM_NUMA_NODE"] = ",".join(str(node) for node in dram.numa_nodes)
    if prefault:
        chosen["UMBP_DRAM_PREFAULT"] = "1"
        chosen["UMBP_DRAM_PREFAULT_THREADS"] = str(prefault)
    return chosen


def hugepage_bytes(resolved: Resolved) -> int:
    """What the store takes of the node's huge pages instead of its ordinary memory: whole pages."""
    pages = resolved.spec.cache.dram.hugepages
    if pages is Hugepages.NONE:
        return 0
    size = quantity_bytes(pages)
    return -(-resolved.store_bytes // size) * size


def startup_seconds(resolved: Resolved) -> int:
    """How long the store may take until it is ready: two minutes, plus three times the registration's expected time."""
    health = resolved.spec.health
    if health and health.startup_timeout_seconds:
        return health.startup_timeout_seconds
    return round(120 + 3 * REGISTRATION_SECONDS_PER_GIB * resolved.store_bytes / GIB)
