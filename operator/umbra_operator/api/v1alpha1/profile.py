"""``K3Profile``: a tested combination of images, flags and limits. What can run code or touch a node stands here."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field

from umbra_operator.api.base import ATOMIC, ENGINE, OPERATOR, POD, Bytes, Cel, EditClass, Model, Name, edit, list_map
from umbra_operator.api.v1alpha1.engine import EnvVar
from umbra_operator.api.v1alpha1.scheduling import ContainerResources

Text = Annotated[str, Field(min_length=1, max_length=512)]
AbsolutePath = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^/")]
Image = Annotated[str, Field(min_length=1, max_length=512)]
_IMAGE = (
    r"^[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?(/[a-z0-9]([._-]*[a-z0-9])*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@sha256:[0-9a-f]{64})?$"
)
"""References that a container runtime can parse; a name of one part may be a host, which decides nothing here."""


def _image(optional: bool = False) -> Cel:
    pattern = _IMAGE.replace("\\", "\\\\")
    return Cel(
        f"{'!has(self.image) || ' if optional else ''}self.image.matches('{pattern}')",
        "image must be NAME, NAME:TAG or NAME@sha256:DIGEST, where DIGEST has 64 hexadecimal digits; "
        "write the digest of an image that you have tested",
    )


class PullPolicy(StrEnum):
    """When the node pulls an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class CheckMode(StrEnum):
    """What a failed preflight check does."""

    REQUIRE = "Require"
    WARN = "Warn"


class EngineProfile(Model):
    """The engine container."""

    rules: ClassVar[tuple[Cel, ...]] = (_image(),)
    image: Annotated[Image, Field(json_schema_extra=POD)]
    """Image of SGLang with the mori client, best by digest."""
    python: Annotated[Text, Field(json_schema_extra=POD)] = "python3"
    """Interpreter inside the image that has SGLang installed."""
    args: Annotated[list[Text], Field(max_length=128, json_schema_extra=edit(EditClass.ENGINE, **ATOMIC))] = []
    """Default flags of sglang.launch_server. Flags that Umbra sets are refused."""
    env: Annotated[
        list[EnvVar], Field(max_length=128, json_schema_extra=edit(EditClass.ENGINE, **list_map("name")))
    ] = []
    """Default environment of the engine process."""
    allowed_args: Annotated[
        list[Text], Field(max_length=256, json_schema_extra=edit(EditClass.OPERATOR, **ATOMIC))
    ] = []
    """Flags that a K3Deployment may set in engine.extraArgs."""
    allowed_env: Annotated[list[Text], Field(max_length=256, json_schema_extra=edit(EditClass.OPERATOR, **ATOMIC))] = []
    """Environment variables that a K3Deployment may set in engine.env."""
    resources: Annotated[ContainerResources | None, Field(json_schema_extra=POD)] = None
    """Default requests and limits of the engine container."""
    shm_size: Annotated[Bytes, Field(json_schema_extra=POD)] = "16Gi"
    """Size of /dev/shm; it counts toward the memory of the containers that write to it."""


class StoreProfile(Model):
    """The store container."""

    rules: ClassVar[tuple[Cel, ...]] = (_image(optional=True),)
    image: Annotated[Image | None, Field(json_schema_extra=POD)] = None
    """Image with umbp_standalone_server and Python. Unset: the engine's image."""
    python: Annotated[Text | None, Field(json_schema_extra=POD)] = None
    """Interpreter inside that image, for the agent. Unset: the engine's."""
    command: Annotated[
        list[Text], Field(min_length=1, max_length=16, json_schema_extra=edit(EditClass.POD, **ATOMIC))
    ] = ["umbp_standalone_server"]
    """Command line of the server; Umbra appends the address of its socket."""
    env: Annotated[list[EnvVar], Field(max_length=128, json_schema_extra=edit(EditClass.POD, **list_map("name")))] = []
    """Environment of the server besides what Umbra sets from typed fields."""
    prefault_threads: Annotated[int | None, Field(ge=1, le=16, json_schema_extra=POD)] = None
    """Threads that touch the whole tier at start, so that no request waits for a page. Unset: nothing is touched."""
    resources: Annotated[ContainerResources | None, Field(json_schema_extra=POD)] = None
    """Default requests and limits of the store container, on top of the store's size."""


class KitProfile(Model):
    """The kit container: linker and agent."""

    rules: ClassVar[tuple[Cel, ...]] = (_image(),)
    image: Annotated[Image, Field(json_schema_extra=ENGINE)]
    """Image of the kit. A pod changes to another one in place, after its node has it."""
    version: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z.+-]+$", json_schema_extra=ENGINE)]
    """Version of the kit inside that image."""


class Rocm(Model):
    """ROCm's settings for the engine and the store. An unset field leaves ROCm's own default."""

    legacy_ipc: bool | None = None
    """GPU IPC in the old way (HSA_ENABLE_IPC_MODE_LEGACY); always the same on both sides."""
    no_scratch_reclaim: bool | None = None
    """Keeps scratch memory of kernels (HSA_NO_SCRATCH_RECLAIM); needed with older firmware."""
    kernarg_in_device_memory: bool | None = None
    """Arguments of kernels in GPU memory (HIP_FORCE_DEV_KERNARG)."""
    hardware_queues: Annotated[int | None, Field(ge=1, le=32)] = None
    """Most hardware queues of a process (GPU_MAX_HW_QUEUES)."""


class HostMount(Model):
    """A folder of the node that the preflight, store and engine containers see."""

    name: Annotated[str, Field(min_length=1, max_length=58, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the volume, to which Umbra adds "host-"."""
    host_path: AbsolutePath
    """Folder on the node."""
    mount_path: AbsolutePath
    """Folder in the containers."""
    read_only: bool = True
    """Whether the containers may write to it."""


class ModelRoot(Model):
    """A folder of the node that holds weights."""

    name: Name
    """Name that K3Deployments use."""
    path: AbsolutePath
    """Folder on the node; it is mounted read-only."""


class Devices(Model):
    """GPUs as the nodes offer them, by a device plugin, by dynamic resource allocation, or both."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "has(self.resourceName) || has(self.deviceClassName)",
            "set resourceName for a device plugin, deviceClassName for DRA, or both",
        ),
    )
    resource_name: Annotated[str | None, Field(min_length=1, max_length=253)] = None
    """Extended resource of the device plugin, such as amd.com/gpu; each rank requests one."""
    device_class_name: Annotated[str | None, Field(min_length=1, max_length=253)] = None
    """DeviceClass of the DRA driver, such as gpu.amd.com; each rank requests one device of it."""


class CheckModes(Model):
    """What each failed preflight check does."""

    memlock: CheckMode = CheckMode.REQUIRE
    """Locked memory too small for the store's buffers."""
    memory: CheckMode = CheckMode.REQUIRE
    """Node or container memory too small for the store."""
    versions: CheckMode = CheckMode.REQUIRE
    """SGLang or mori outside the versions below."""


class Versions(Model):
    """Versions that this profile was tested with."""

    sglang: Annotated[list[Text], Field(min_length=1, max_length=16, json_schema_extra=dict(ATOMIC))]
    """Versions of SGLang."""
    mori: Annotated[list[Text], Field(min_length=1, max_length=16, json_schema_extra=dict(ATOMIC))]
    """Versions of amd-mori, client and server."""


class NodeRequirements(Model):
    """What the node must offer before anything is loaded."""

    memlock: Bytes | None = None
    """Memory that a container must be able to lock. Unset: not checked."""
    memory_headroom: Bytes = "16Gi"
    """Memory that must remain on the node besides the store's size."""
    modes: CheckModes = CheckModes()
    """What each failed check does: Require stops the pod, Warn goes on."""


class GpuMemory(Model):
    """What the arithmetic of GPU memory rests on."""

    size: Bytes
    """Memory of one GPU."""
    weights: Bytes
    """Weights of all ranks together, as this profile's engine holds them."""
    draft: Bytes = "8G"
    """A DSPARK draft on each rank."""
    working: Bytes = "24G"
    """What the prefill needs on each rank beside weights and pools."""


class K3ProfileSpec(Model):
    """Images, default flags and limits. Immutable: a change is a new profile with a new version in its name."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel("self == oldSelf", "spec is immutable; create a profile with the next version in its name"),
    )
    engine: EngineProfile
    """The engine container."""
    store: StoreProfile = StoreProfile()
    """The store container."""
    kit: KitProfile
    """The kit container."""
    pull_policy: Annotated[PullPolicy, Field(json_schema_extra=POD)] = PullPolicy.IF_NOT_PRESENT
    """When the node pulls the three images."""
    tensor: Annotated[int, Field(ge=1, le=64, json_schema_extra=POD)] = 8
    """Default tensor parallel size."""
    devices: Annotated[Devices | None, Field(json_schema_extra=POD)] = None
    """GPUs of the node. Unset: the engine requests none."""
    rocm: Annotated[Rocm, Field(json_schema_extra=POD)] = Rocm()
    """ROCm's settings."""
    gpu_memory: Annotated[GpuMemory | None, Field(json_schema_extra=OPERATOR)] = None
    """Sizes of GPUs and weights: what cannot fit is told before a pod is made. Unset: nothing is checked."""
    host_mounts: Annotated[
        list[HostMount], Field(max_length=32, json_schema_extra=edit(EditClass.POD, **list_map("name")))
    ] = []
    """Folders of the node that the containers see."""
    model_roots: Annotated[
        list[ModelRoot], Field(max_length=16, json_schema_extra=edit(EditClass.POD, **list_map("name")))
    ] = []
    """Folders of the node that hold weights."""
    pod_patch: Annotated[
        dict[str, Any],
        Field(max_length=2, json_schema_extra=edit(EditClass.POD, **{"x-kubernetes-preserve-unknown-fields": True})),
    ] = {}
    """Strategic merge patch of every pod, applied last, for what has no field. Paths that Umbra needs are refused."""
    versions: Annotated[Versions, Field(json_schema_extra=POD)]
    """Versions that were tested."""
    requirements: Annotated[NodeRequirements, Field(json_schema_extra=POD)] = NodeRequirements()
    """What the node must offer."""


def object_rules() -> tuple[dict[str, Any], ...]:
    """Rules on the whole object, which sees its own name."""
    return (
        Cel(
            "self.metadata.name.matches('-v[0-9]+$')",
            "metadata.name must end in a content version such as -v1: profiles are immutable and kept side by side",
        ).to_schema(),
    )
