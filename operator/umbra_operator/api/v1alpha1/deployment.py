"""``K3Deployment``: one engine shape times ``replicas``, each replica a pod with its own store."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from umbra_operator.api.base import (
    ATOMIC,
    Bytes,
    Cel,
    EditClass,
    Model,
    Name,
    RelativePath,
    checked,
    edit,
    list_map,
    quantity_bytes,
)

ENGINE = edit(EditClass.ENGINE)
LIVE = edit(EditClass.LIVE)
POD = edit(EditClass.POD)
OPERATOR = edit(EditClass.OPERATOR)

NAME_LIMIT = 40
"""Longest name of a K3Deployment: ``-<ordinal>-<attempt>`` and other suffixes must fit into 63 characters."""


class Role(StrEnum):
    """What the engines of a deployment do."""

    UNIFIED = "Unified"


class SourceType(StrEnum):
    """Where the weights are."""

    PVC = "PersistentVolumeClaim"
    NODE_PATH = "NodePath"


class SpeculationType(StrEnum):
    """Speculative decoding algorithm."""

    NONE = "None"
    DSPARK = "DSPARK"


class KeyLayout(StrEnum):
    """How pages are named in the store."""

    AUTO = "Auto"
    PER_RANK = "PerRank"


class TouchMode(StrEnum):
    """Whether the store is told of prefixes that the device serves from its own memory."""

    AUTO = "Auto"
    OFF = "Off"


class Checkpoints(StrEnum):
    """Which checkpoints (KDA states) are stored; pages of KV always are."""

    ALL = "All"
    ADAPTIVE = "Adaptive"
    PROMPT_END = "PromptEnd"


class Autonomy(StrEnum):
    """What the operator does about an engine or a store that is unwell."""

    ADVISE = "Advise"
    """It says so, and what would help."""
    ACT = "Act"
    """It also changes settings that running engines follow, one at a time and for a day at most."""


class Switch(StrEnum):
    """On or off."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


class RolloutStrategy(StrEnum):
    """How a change reaches pods that exist."""

    IN_PLACE = "InPlace"
    """Whatever a running pod can take is changed in it; only what needs another pod replaces it."""
    RECREATE = "Recreate"
    """Every change replaces the pod."""
    ON_DELETE = "OnDelete"
    """A change waits until somebody deletes the pod."""


class CacheLoss(StrEnum):
    """What a change needs that empties a store."""

    ALLOW = "Allow"
    REQUIRE_ACKNOWLEDGEMENT = "RequireAcknowledgement"


class DeviceMode(StrEnum):
    """How a pod asks for its GPUs."""

    DEVICE_PLUGIN = "DevicePlugin"
    """As an extended resource of the engine's container; the store reaches the GPUs as a privileged container."""
    DRA = "DRA"
    """By one ResourceClaim that preflight, store and engine share; nothing is privileged."""


class Hugepages(StrEnum):
    """Pages of the node's memory that the store's tier is made of."""

    NONE = "None"
    TWO_MIB = "2Mi"
    ONE_GIB = "1Gi"


class KvCacheDtype(StrEnum):
    """Types of the engine's MLA KV, in SGLang's words."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"


class MambaStateDtype(StrEnum):
    """Types of the engine's KDA state, in SGLang's words."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class TreeCore(StrEnum):
    """Implementations of SGLang's radix tree."""

    AUTO = "Auto"
    RUST = "Rust"
    PYTHON = "Python"


class ProfileRef(Model):
    """Names the K3Profile that this deployment uses."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of a K3Profile. A missing profile sets ConfigValid=False and stops no engine."""


class ClaimSource(Model):
    """Weights on a PersistentVolumeClaim of the same namespace."""

    claim_name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the PersistentVolumeClaim; it is mounted read-only."""
    path: RelativePath = ""
    """Folder of the weights inside the volume; empty means its root."""


class NodePathSource(Model):
    """Weights on the node, below a root that the profile's administrator allowed."""

    root: Name
    """Name of an entry in the profile's modelRoots."""
    path: RelativePath
    """Folder of the weights below that root."""


class ModelSource(Model):
    """Where the weights are: exactly the member that type names."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "self.type == 'PersistentVolumeClaim' ? has(self.persistentVolumeClaim) && !has(self.nodePath) "
            ": has(self.nodePath) && !has(self.persistentVolumeClaim)",
            "set exactly the member that type names: persistentVolumeClaim or nodePath",
        ),
    )
    type: SourceType
    """Which member is set."""
    persistent_volume_claim: ClaimSource | None = None
    """Weights on a PersistentVolumeClaim."""
    node_path: NodePathSource | None = None
    """Weights on the node."""


class ModelSpec(Model):
    """The model to serve."""

    served_name: Annotated[str, Field(min_length=1, max_length=128, json_schema_extra=ENGINE)]
    """Name that clients put into "model"."""
    source: Annotated[ModelSource, Field(json_schema_extra=POD)]
    """Where the weights are."""


class Parallelism(Model):
    """How one engine is spread over GPUs."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "!has(self.tensor) || !has(self.decodeContext) || self.tensor % self.decodeContext == 0",
            "decodeContext must divide tensor",
        ),
    )
    tensor: Annotated[int | None, Field(ge=1, le=64)] = None
    """Tensor parallel size, one rank per GPU. Unset: the profile's."""
    decode_context: Annotated[int | None, Field(ge=1, le=64)] = None
    """Decode context parallel size: so many ranks share the KV of each context; must divide tensor. Unset: 1."""


class DSpark(Model):
    """Settings of the DSPARK draft model."""

    draft: RelativePath
    """Folder of the draft model, below the same root or volume as the model."""
    block_size: Annotated[int, Field(ge=1, le=16)] = 7
    """Tokens proposed per step."""


class Speculation(Model):
    """Speculative decoding."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel("(self.type == 'DSPARK') == has(self.dspark)", "set dspark when type is DSPARK, and only then"),
    )
    type: SpeculationType = SpeculationType.NONE
    """Algorithm."""
    dspark: DSpark | None = None
    """Settings of DSPARK."""


MOST_STORE_SIZE = "128Ti"
"""Far above any node's memory; the linker takes no larger one."""
_AT_MOST = Cel(f"quantity(self).compareTo(quantity('{MOST_STORE_SIZE}')) <= 0", f"must be at most {MOST_STORE_SIZE}")


def _possible(size: str) -> str:
    """The API server looks at no object that was stored before the rule, so it is checked here again."""
    if quantity_bytes(size) > quantity_bytes(MOST_STORE_SIZE):
        raise ValueError(_AT_MOST.message)
    return size


StoreSize = Annotated[Bytes, AfterValidator(_possible), Field(json_schema_extra=checked(_AT_MOST))]
"""Bytes of a store's memory, at most ``MOST_STORE_SIZE``."""


class Dram(Model):
    """The store's host memory."""

    size: StoreSize
    """Bytes that the store may use on the node, for all ranks together; about 90 % holds pages (see watermarks)."""
    hugepages: Hugepages = Hugepages.NONE
    """Huge pages for the tier, requested from the node, which must have reserved them. None: ordinary pages."""
    numa_nodes: Annotated[
        list[Annotated[int, Field(ge=0, le=63)]],
        Field(max_length=16, json_schema_extra=edit(EditClass.POD, **{"x-kubernetes-list-type": "set"})),
    ] = []
    """NUMA nodes whose memory the tier is spread over. Empty: wherever the kernel puts it."""


class Watermarks(Model):
    """When the store evicts, in percent of its size."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel("self.highPercent > self.lowPercent", "highPercent must be greater than lowPercent"),
    )
    high_percent: Annotated[int, Field(ge=2, le=99)]
    """Eviction starts here."""
    low_percent: Annotated[int, Field(ge=1, le=98)]
    """Eviction ends here."""


class TouchPolicy(Model):
    """How the store learns of prefixes that the device serves from its own memory, and which look unused to it."""

    mode: TouchMode | None = None
    """Auto reads a little of each of their objects, which the store counts as a use. Off: never. Unset: Auto."""
    interval_seconds: Annotated[int | None, Field(ge=1, le=3600)] = None
    """A prefix is touched once in this time at most. Unset: 30."""


class CachePolicy(Model):
    """What the linker stores, under which names, and how it calls the store."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "!has(self.rewriteMissing) || self.rewriteMissing == 'Disabled' || "
            "!has(self.touch) || !has(self.touch.mode) || self.touch.mode != 'Off'",
            "rewriteMissing needs touch: only a touch finds out what the store has lost",
        ),
    )
    key_layout: Annotated[KeyLayout | None, Field(json_schema_extra=ENGINE)] = None
    """Auto stores each page of MLA KV once for all ranks. PerRank stores it once per rank, as the stock linker does."""
    touch: TouchPolicy | None = None
    """How the store learns what the device serves."""
    checkpoints: Checkpoints | None = None
    """PromptEnd: those at the ends of prompts. Adaptive: as many more as the store can keep. Unset: Adaptive."""
    rewrite_missing: Switch | None = None
    """Whether what a touch did not find in the store is written again. Unset: Enabled."""
    rpc_parallelism: Annotated[int | None, Field(ge=1, le=32)] = None
    """Calls that a rank has under way to the store at once, for each of lookups, loads and offloads. Unset: 4."""
    chunk_pages: Annotated[int | None, Field(ge=1, le=65536)] = None
    """Pages that one call to the store carries at most. Unset: 1024."""
    offload_backpressure_percent: Annotated[int | None, Field(ge=1, le=100)] = None
    """Part of each device pool that pages waiting for the store may hold; beyond it they are not stored. Unset: 75."""
    lookup_deadline_milliseconds: Annotated[int | None, Field(ge=1, le=10000)] = None
    """How long requests wait for the store to say what it has; afterwards it is a miss. Unset: 50."""
    load_deadline_seconds: Annotated[int | None, Field(ge=1, le=600)] = None
    """How long a call of a load may stay unanswered before the store is killed and its requests fail. Unset: 10."""


class Cache(Model):
    """The cache tier of one replica."""

    dram: Annotated[Dram, Field(json_schema_extra=POD)]
    """The store's host memory."""
    watermarks: Annotated[Watermarks | None, Field(json_schema_extra=POD)] = None
    """When the store evicts. Unset: 90 and 85."""
    policy: Annotated[CachePolicy | None, Field(json_schema_extra=LIVE)] = None
    """What the linker stores, and how."""


class EnvVar(Model):
    """One environment variable of the engine."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name; the profile's allowedEnv must hold it."""
    value: Annotated[str, Field(max_length=1024)]
    """Value, passed as it is."""


class Engine(Model):
    """The engine's own settings. An unset field leaves the profile's value."""

    memory_fraction_percent: Annotated[int | None, Field(ge=10, le=98)] = None
    """Share of GPU memory for weights and cache pools, in percent (SGLang's mem-fraction-static)."""
    max_running_requests: Annotated[int | None, Field(ge=1, le=4096)] = None
    """Most requests that run at once."""
    chunked_prefill_size: Annotated[int | None, Field(ge=64, le=131072)] = None
    """Most prompt tokens per prefill step."""
    context_length: Annotated[int | None, Field(ge=64, le=1048576)] = None
    """Longest context in tokens."""
    kv_cache_dtype: KvCacheDtype | None = None
    """Type of the MLA KV in GPU and store; fp8 halves its bytes (SGLang's kv-cache-dtype)."""
    mamba_state_dtype: MambaStateDtype | None = None
    """Type of the KDA state; bfloat16 halves the checkpoints, check the accuracy (SGLang's mamba-ssm-dtype)."""
    extra_args: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=512)]],
        Field(max_length=64, json_schema_extra=edit(EditClass.ENGINE, **ATOMIC)),
    ] = []
    """More engine flags. Each flag must be in the profile's allowedArgs; flags that Umbra sets are refused by name."""
    env: Annotated[
        list[EnvVar], Field(max_length=64, json_schema_extra=edit(EditClass.ENGINE, **list_map("name")))
    ] = []
    """More environment variables; each name must be in the profile's allowedEnv."""


class Toolchain(Model):
    """Which of SGLang's implementations run, alike on every rank."""

    tree_core: TreeCore = TreeCore.AUTO
    """The radix tree's core. Auto: Rust where every rank has it. No rank ever builds one: a build may fail alone."""


class Devices(Model):
    """The GPUs of a pod."""

    mode: DeviceMode | None = None
    """How the pod asks for them. Unset: DevicePlugin if the profile names a resource for it, else DRA."""


class ContainerResources(Model):
    """Requests and limits of one container, equal so that the pod is Guaranteed."""

    cpu: Annotated[str | None, Field(max_length=16, pattern=r"^[0-9]+(\.[0-9]{1,3}|m)?$")] = None
    """CPU, such as "16" or "500m". "0" sets no limit: the pod is then Burstable. Unset: 4 for each rank of the engine,
    8 for the store."""
    memory: Bytes | None = None
    """Memory. Unset: 64Gi for each rank of the engine and its /dev/shm; 16Gi for the store.
    The store's size comes on top of it: Umbra adds it to the store's container itself."""


class Resources(Model):
    """Requests and limits per container. An unset field leaves the profile's value."""

    engine: ContainerResources | None = None
    """The engine container."""
    store: ContainerResources | None = None
    """The store container, on top of cache.dram.size."""


class Toleration(Model):
    """A taint that the pod tolerates."""

    key: Annotated[str | None, Field(max_length=317)] = None
    """Key of the taint; unset with operator Exists matches every taint."""
    operator: Annotated[str, Field(pattern=r"^(Exists|Equal)$")] = "Equal"
    """Exists or Equal."""
    value: Annotated[str | None, Field(max_length=63)] = None
    """Value of the taint, for Equal."""
    effect: Annotated[str | None, Field(pattern=r"^(NoSchedule|PreferNoSchedule|NoExecute)$")] = None
    """Effect of the taint; unset matches all."""
    toleration_seconds: Annotated[int | None, Field(ge=0, le=86400)] = None
    """How long a NoExecute taint is tolerated, in seconds; unset: for ever."""


_IS_CIDR = checked(Cel("isCIDR(self)", "cidr must be a range such as 10.0.0.0/8"))

Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)]
Annotations = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32)]


class Placement(Model):
    """Where pods run."""

    node_selector: Labels = {}
    """Labels that a node must have."""
    tolerations: Annotated[list[Toleration], Field(max_length=16, json_schema_extra=edit(EditClass.POD, **ATOMIC))] = []
    """Taints that the pods tolerate."""
    affinity: Annotated[
        dict[str, Any],
        Field(max_length=3, json_schema_extra=edit(EditClass.POD, **{"x-kubernetes-preserve-unknown-fields": True})),
    ] = {}
    """Affinity as a pod has it: nodeAffinity, podAffinity, podAntiAffinity."""
    priority_class_name: Annotated[str | None, Field(max_length=253)] = None
    """PriorityClass of the pods."""
    scheduler_name: Annotated[str | None, Field(max_length=253)] = None
    """Scheduler of the pods; unset: the cluster's."""
    runtime_class_name: Annotated[str | None, Field(max_length=253)] = None
    """RuntimeClass of the pods; unset: the node's."""


class PodMetadata(Model):
    """Labels and annotations that pods carry besides Umbra's own."""

    labels: Labels = {}
    """Labels; umbra.dev/ and app.kubernetes.io/ keys are Umbra's and refused."""
    annotations: Annotations = {}
    """Annotations; umbra.dev/ keys are Umbra's and refused."""


class LabelSelector(Model):
    """Objects by their labels; empty selects all."""

    match_labels: Labels = {}
    """Labels that an object must have, all of them."""


class IpBlock(Model):
    """A range of addresses."""

    cidr: Annotated[str, Field(max_length=43, json_schema_extra=_IS_CIDR)]
    """The range, such as 10.0.0.0/8."""
    except_: Annotated[
        list[Annotated[str, Field(max_length=43)]], Field(alias="except", max_length=16, json_schema_extra=dict(ATOMIC))
    ] = []
    """Ranges inside it that do not count."""


class NetworkPeer(Model):
    """Who may connect, in the words of a Kubernetes NetworkPolicy."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
            "set either ipBlock, or podSelector and namespaceSelector or one of them",
        ),
    )
    pod_selector: LabelSelector | None = None
    """Pods with these labels: in the selected namespaces, or else in this one."""
    namespace_selector: LabelSelector | None = None
    """Namespaces with these labels."""
    ip_block: IpBlock | None = None
    """Addresses, for clients outside the cluster."""


class Network(Model):
    """Who reaches the pods: what the NetworkPolicy of this deployment allows."""

    from_: Annotated[
        list[NetworkPeer] | None,
        Field(alias="from", max_length=32, json_schema_extra=edit(EditClass.OPERATOR, **ATOMIC)),
    ] = None
    """Who may send requests to the engines. Unset: everyone; an empty list: no one."""
    metrics_from: Annotated[
        list[NetworkPeer], Field(max_length=32, json_schema_extra=edit(EditClass.OPERATOR, **ATOMIC))
    ] = []
    """Who may read the agents' metrics besides the operator's namespace. The engines' own are on the serving port."""


class SecretKeyRef(Model):
    """One entry of a Secret in the same namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253, json_schema_extra=POD)]
    """Name of the Secret. Pods wait for it."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$", json_schema_extra=POD)]
    """Entry whose value is the key, without line breaks or blanks around it."""


class Auth(Model):
    """Who is served."""

    api_key_secret_ref: Annotated[SecretKeyRef | None, Field(json_schema_extra=POD)] = None
    """A key that every request for work must carry as a bearer token; another value of it is taken within minutes,
    without a restart. /metrics, /health and the list of models stay open. Unset: whoever reaches the Service is
    served."""


class Rollout(Model):
    """How changes reach the pods."""

    strategy: RolloutStrategy = RolloutStrategy.IN_PLACE
    """InPlace changes in the pod what it can take. Recreate replaces the pod. OnDelete waits until a pod is deleted."""
    max_unavailable: Annotated[int, Field(ge=1, le=64)] = 1
    """Replicas that a rollout or a node drain may have down at once."""
    paused: bool = False
    """Stops the rollout where it is. Scaling still works, and new pods get the new revision."""
    cache_loss: CacheLoss = CacheLoss.ALLOW
    """RequireAcknowledgement holds a change that empties warm stores until acknowledgedChange names it."""
    acknowledged_change: Annotated[str | None, Field(pattern=r"^[0-9a-f]{12}$", max_length=12)] = None
    """The change that may empty stores: the id in the message of the Ready condition that holds it."""


class Restart(Model):
    """A restart on request."""

    id: Annotated[str, Field(min_length=1, max_length=64)]
    """Any word; another one restarts every engine in its pod, one after the other, and the stores keep their pages."""


class Recovery(Model):
    """How often an engine that ends by itself is started again in its pod, after waits of 1, 2, 4 ... 60 s, and how
    often a replica whose pod has ended gets another one, after 0, 10, 20 ... 300 s."""

    max_restarts: Annotated[int, Field(ge=0, le=1000)]
    """Restarts of an engine, and pods in place of others, within windowSeconds, each counted for itself. The end after
    the last one leaves the engine or the pod as it is until restart.id or the spec changes, and Degraded says so."""
    window_seconds: Annotated[int, Field(ge=60, le=86400)] = 3600
    """The window."""


class Health(Model):
    """Bounds on starting and stopping."""

    startup_timeout_seconds: Annotated[int | None, Field(ge=60, le=14400, json_schema_extra=POD)] = None
    """How long the store may take to be ready, in seconds. Unset: computed from its size."""
    drain_timeout_seconds: Annotated[int | None, Field(ge=0, le=3000, json_schema_extra=LIVE)] = None
    """How long running requests may finish before an engine stops, in seconds. Unset: 600. A drain in a pod that stays
    goes by a new value at once; that of a pod which is being deleted keeps the old one."""


def _unless_broken_before(broken: str, message: str) -> Cel:
    """A rule of ``spec`` that an older object may go on breaking; ``broken`` has ``{0}`` for the spec."""
    return Cel(
        f"!({broken.format('self')}) || (oldSelf.hasValue() && {broken.format('oldSelf.value()')})",
        message,
        optional_old_self=True,
    )


_DECODE_CONTEXT = "has({0}.parallelism) && has({0}.parallelism.decodeContext)"


class K3DeploymentSpec(Model):
    """What a K3Deployment asks for."""

    rules: ClassVar[tuple[Cel, ...]] = (
        _unless_broken_before(
            "has({0}.speculation) && {0}.speculation.type == 'DSPARK' && "
            + _DECODE_CONTEXT
            + " && {0}.parallelism.decodeContext > 1",
            "speculation DSPARK cannot be combined with parallelism.decodeContext greater than 1; "
            "set decodeContext to 1 or speculation.type to None",
        ),
        _unless_broken_before(
            "has({0}.engine) && has({0}.engine.chunkedPrefillSize) && "
            + _DECODE_CONTEXT
            + " && {0}.engine.chunkedPrefillSize < 64 * {0}.parallelism.decodeContext",
            "engine.chunkedPrefillSize must be at least 64 tokens times parallelism.decodeContext, a page of the tree",
        ),
    )
    profile_ref: Annotated[ProfileRef, Field(json_schema_extra=OPERATOR)]
    """The profile that images, default flags and limits come from."""
    role: Annotated[
        Role,
        Field(
            json_schema_extra=edit(
                EditClass.OPERATOR,
                **checked(Cel("self == oldSelf", "role is immutable; create another object")),
            )
        ),
    ] = Role.UNIFIED
    """What the engines do. Immutable."""
    replicas: Annotated[int, Field(ge=0, le=64, json_schema_extra=OPERATOR)] = 1
    """Number of engines, each a pod with its own store. Leave it out of a manifest that is applied again while an
    autoscaler sets it."""
    model: ModelSpec
    """The model to serve."""
    parallelism: Annotated[Parallelism | None, Field(json_schema_extra=POD)] = None
    """How one engine is spread over GPUs."""
    speculation: Annotated[Speculation | None, Field(json_schema_extra=ENGINE)] = None
    """Speculative decoding."""
    cache: Cache
    """The cache tier."""
    engine: Annotated[Engine | None, Field(json_schema_extra=ENGINE)] = None
    """The engine's own settings."""
    toolchain: Annotated[Toolchain, Field(json_schema_extra=ENGINE)] = Toolchain()
    """Which of SGLang's implementations run."""
    devices: Annotated[Devices | None, Field(json_schema_extra=POD)] = None
    """The GPUs of a pod."""
    resources: Annotated[Resources | None, Field(json_schema_extra=POD)] = None
    """Requests and limits per container."""
    placement: Annotated[Placement | None, Field(json_schema_extra=POD)] = None
    """Where pods run."""
    pod_metadata: Annotated[PodMetadata | None, Field(json_schema_extra=POD)] = None
    """Labels and annotations of the pods."""
    image_pull_secrets: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=253)]],
        Field(max_length=8, json_schema_extra=edit(EditClass.POD, **ATOMIC)),
    ] = []
    """Names of Secrets in the same namespace that the node pulls images with."""
    service_account_name: Annotated[str | None, Field(min_length=1, max_length=253, json_schema_extra=POD)] = None
    """ServiceAccount of the pods, which get no token of it. Unset: one of the deployment's name, made by Umbra."""
    auth: Annotated[Auth | None, Field(json_schema_extra=POD)] = None
    """Who is served."""
    network: Annotated[Network | None, Field(json_schema_extra=OPERATOR)] = None
    """Who reaches the pods."""
    rollout: Annotated[Rollout, Field(json_schema_extra=OPERATOR)] = Rollout()
    """How changes reach the pods."""
    restart: Annotated[Restart | None, Field(json_schema_extra=ENGINE)] = None
    """A restart on request."""
    recovery: Annotated[Recovery | None, Field(json_schema_extra=LIVE)] = None
    """A bound on restarts. Unset: there is none."""
    health: Health | None = None
    """Bounds on starting and stopping."""
    autonomy: Annotated[Autonomy, Field(json_schema_extra=OPERATOR)] = Autonomy.ADVISE
    """Advise says in conditions and status.cache what would help. Act also does the part of it that no engine restarts
    for, and status.overrides says what and until when."""


def object_rules() -> tuple[dict[str, Any], ...]:
    """Rules on the whole object, which sees its own name."""
    return (
        Cel(
            f"size(self.metadata.name) <= {NAME_LIMIT}",
            f"metadata.name must have at most {NAME_LIMIT} characters: names of pods and Services are made from it",
        ).to_schema(),
        Cel(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name must begin with a letter and hold only a-z, 0-9 and -: the Service has the same name",
        ).to_schema(),
    )
