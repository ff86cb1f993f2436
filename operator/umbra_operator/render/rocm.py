"""ROCm's environment from the profile's typed fields, the same for the engine and the store."""

from umbra_operator.api.v1alpha1.profile import Rocm


def environment(rocm: Rocm) -> dict[str, str]:
    """Variables for the fields that are set."""
    values = {
        "HSA_ENABLE_IPC_MODE_LEGACY": rocm.legacy_ipc,
        "HSA_NO_SCRATCH_RECLAIM": rocm.no_scratch_reclaim,
        "HIP_FORCE_DEV_KERNARG": rocm.kernarg_in_device_memory,
        "GPU_MAX_HW_QUEUES": rocm.hardware_queues,
    }
    # ROCm reads numbers: "true" would be 0.
    return {name: str(int(value)) for name, value in values.items() if value is not None}
