"""Condition types and reasons, each with the line that the reference page prints, and how a list of them is made."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Type(StrEnum):
    """Conditions of a K3Deployment, in the order in which they can become true."""

    CONFIG_VALID = "ConfigValid"
    PREFLIGHT_PASSED = "PreflightPassed"
    STORE_READY = "StoreReady"
    RANKS_CONSISTENT = "RanksConsistent"
    ENGINE_READY = "EngineReady"
    CANARY_PASSED = "CanaryPassed"
    CACHE_EFFECTIVE = "CacheEffective"
    DEGRADED = "Degraded"
    CACHE_AWARE_ROUTING = "CacheAwareRouting"
    DISRUPTION_PROTECTED = "DisruptionProtected"
    SCHEMA_CURRENT = "SchemaCurrent"
    AVAILABLE = "Available"
    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


MEANINGS: Mapping[Type, str] = {
    Type.CONFIG_VALID: "The spec and its profile fit together. False never stops an engine that runs.",
    Type.PREFLIGHT_PASSED: "Every pod's node offers what the profile requires.",
    Type.STORE_READY: "Every pod's store answers. False means cache misses, never failed requests.",
    Type.RANKS_CONSISTENT: "The ranks of every engine are all there and alike. False lowers Ready: such ranks wait for "
    "each other for ever, sooner or later. docs/explanation/health.md has the rules.",
    Type.ENGINE_READY: "Every engine serves.",
    Type.CANARY_PASSED: "What the stores give back is what was written, by samples that each rank compares. "
    "False lowers Ready: answers may be wrong. Unknown, until something was compared, lowers nothing.",
    Type.CACHE_EFFECTIVE: "Every store answers in time and keeps what is asked again. "
    "False costs hits, never requests.",
    Type.DEGRADED: "True while an engine that serves is unwell. Nothing is restarted for it.",
    Type.CACHE_AWARE_ROUTING: "Present, and False, only with several replicas: each has a store of its own, and "
    "nothing sends a conversation back to the replica that holds its pages. A warning: nothing else depends on it.",
    Type.DISRUPTION_PROTECTED: "A PodDisruptionBudget keeps a node drain from stopping more replicas than "
    "spec.rollout.maxUnavailable. A warning: nothing else depends on it.",
    Type.SCHEMA_CURRENT: "Present, and False, only while the cluster's CRDs are older than the operator. "
    "A warning: nothing else depends on it, and no engine stops.",
    Type.AVAILABLE: "At least one replica serves.",
    Type.READY: "All replicas serve at the wanted revision.",
    Type.RECONCILING: "Present only while the operator works toward the spec.",
    Type.STALLED: "Present only while someone must act before the operator can go on.",
}


class Reason(StrEnum):
    """Every reason that a condition can carry."""

    VALID = "Valid"
    SPEC_UNREADABLE = "SpecUnreadable"
    PROFILE_NOT_FOUND = "ProfileNotFound"
    PROFILE_UNREADABLE = "ProfileUnreadable"
    ARGUMENT_OWNED = "ArgumentOwned"
    ARGUMENT_NOT_ALLOWED = "ArgumentNotAllowed"
    ENV_OWNED = "EnvOwned"
    ENV_NOT_ALLOWED = "EnvNotAllowed"
    METADATA_RESERVED = "MetadataReserved"
    POD_PATCH_REFUSED = "PodPatchRefused"
    MODEL_ROOT_NOT_FOUND = "ModelRootNotFound"
    DEVICES_NOT_OFFERED = "DevicesNotOffered"
    PARALLELISM_INVALID = "ParallelismInvalid"
    DECODE_CONTEXT_UNSUPPORTED = "DecodeContextUnsupported"
    GPU_MEMORY_SHORT = "GpuMemoryShort"
    VERSIONS_UNSUPPORTED = "VersionsUnsupported"
    NAME_CONFLICT = "NameConflict"
    WRITE_REFUSED = "WriteRefused"
    PASSED = "Passed"
    PENDING = "Pending"
    CHECK_FAILED = "CheckFailed"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    STORE_STARTING = "StoreStarting"
    STORE_FAILED = "StoreFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    ENGINE_STARTING = "EngineStarting"
    ENGINE_FAILED = "EngineFailed"
    GPU_MEMORY_HELD = "GPUMemoryHeld"
    ENGINE_RESTARTING = "EngineRestarting"
    IMAGE_BACK_OFF = "ImageBackOff"
    POD_REPLACED = "PodReplaced"
    AGENT_SILENT = "AgentSilent"
    NOT_MEASURED = "NotMeasured"
    CONSISTENT = "Consistent"
    TREE_CORES_DIFFER = "TreeCoresDiffer"
    PAGE_NAMES_DIFFER = "PageNamesDiffer"
    RANK_MISSING = "RankMissing"
    STORES_DIFFER = "StoresDiffer"
    RANKS_DIVERGE = "RanksDiverge"
    STORED_BYTES_DIFFER = "StoredBytesDiffer"
    EFFECTIVE = "Effective"
    STORE_FROZEN = "StoreFrozen"
    STORE_SLOW = "StoreSlow"
    EVICTION_STUCK = "EvictionStuck"
    HOT_PAGES_EVICTED = "HotPagesEvicted"
    HIT_RATIO_FELL = "HitRatioFell"
    OFFLOADS_HELD_BACK = "OffloadsHeldBack"
    AS_EXPECTED = "AsExpected"
    RECOVERY_STOPPED = "RecoveryStopped"
    ENGINE_STALLED = "EngineStalled"
    ENGINE_SILENT = "EngineSilent"
    CHECKPOINTS_LOCKED = "CheckpointsLocked"
    LOADS_FAIL = "LoadsFail"
    NO_CACHE_AWARE_ROUTING = "NoCacheAwareRouting"
    BUDGET_IN_PLACE = "BudgetInPlace"
    NO_BUDGET = "NoBudget"
    CRD_OUTDATED = "CRDOutdated"
    SERVING = "Serving"
    NO_REPLICA_SERVES = "NoReplicaServes"
    SCALED_TO_ZERO = "ScaledToZero"
    ROLLOUT_PAUSED = "RolloutPaused"
    WAITING_FOR_DELETION = "WaitingForDeletion"
    ACKNOWLEDGEMENT_REQUIRED = "AcknowledgementRequired"
    PROGRESSING = "Progressing"
    DELETING = "Deleting"


REASONS: Mapping[Reason, str] = {
    Reason.VALID: "Nothing to do.",
    Reason.SPEC_UNREADABLE: "This operator cannot read the spec; the message names the field. Correct it or upgrade.",
    Reason.PROFILE_NOT_FOUND: "No K3Profile has the name in spec.profileRef. Create it, or correct the name.",
    Reason.PROFILE_UNREADABLE: "This operator cannot read the K3Profile; the message names the field.",
    Reason.ARGUMENT_OWNED: "engine.extraArgs holds a flag that Umbra sets; use the field in the message.",
    Reason.ARGUMENT_NOT_ALLOWED: "engine.extraArgs holds a flag that is not in the profile's allowedArgs.",
    Reason.ENV_OWNED: "An env list holds a variable that Umbra sets; use the field in the message.",
    Reason.ENV_NOT_ALLOWED: "engine.env holds a name that the profile does not allow. Ask for it in allowedEnv.",
    Reason.METADATA_RESERVED: "podMetadata holds a key under umbra.dev/ or app.kubernetes.io/, which are Umbra's.",
    Reason.POD_PATCH_REFUSED: "The profile's podPatch touches what Umbra needs or another field sets; the message "
    "names the path.",
    Reason.MODEL_ROOT_NOT_FOUND: "model.source.nodePath.root is not in the profile's modelRoots.",
    Reason.DEVICES_NOT_OFFERED: "spec.devices.mode asks for GPUs in a way that the profile's devices do not name.",
    Reason.PARALLELISM_INVALID: "decodeContext does not divide the tensor size that the profile gives.",
    Reason.DECODE_CONTEXT_UNSUPPORTED: "decodeContext greater than 1 runs neither with DSPARK, nor with prefill chunks "
    "shorter than 64 x decodeContext tokens, nor with most attention backends; the message names the field or flag.",
    Reason.GPU_MEMORY_SHORT: "Weights, pools and prefill do not fit the profile's GPUs; `umbra plan` has the figures.",
    Reason.VERSIONS_UNSUPPORTED: "The profile's kit was not tested with its SGLang or mori, or this operator not with "
    "that kit. Use a profile whose versions go together; the message says which do.",
    Reason.NAME_CONFLICT: "A name that Umbra needs belongs to another object, which is never touched.",
    Reason.WRITE_REFUSED: "The API server refuses an object that Umbra makes; the message is its sentence. "
    "Correct the spec, lift the quota or policy that it names, or repair the webhook that does not answer.",
    Reason.PASSED: "Nothing to do.",
    Reason.PENDING: "The pods have not come so far yet.",
    Reason.CHECK_FAILED: "A node does not offer what the profile requires; the message has numbers and remedy.",
    Reason.UNSCHEDULABLE: "The scheduler found no node for a pod; the message is its sentence.",
    Reason.IMAGE_UNAVAILABLE: "A node cannot get an image; the message names container and error.",
    Reason.STORE_STARTING: "A store is starting or registers its memory.",
    Reason.STORE_FAILED: "A store ended; the message has its last words.",
    Reason.OUT_OF_MEMORY: "The kernel ended a container at its memory limit. Raise the field in the message.",
    Reason.ENGINE_STARTING: "An engine is starting or loads weights.",
    Reason.ENGINE_FAILED: "An engine ends again and again; the message has its last words.",
    Reason.GPU_MEMORY_HELD: "GPUs hold memory of an engine that has ended, and the next one waits for up to 60 s. When "
    "it comes again and again on one node, look for a process on that GPU.",
    Reason.ENGINE_RESTARTING: "An engine restarts into a new revision inside its pod; the store keeps every page.",
    Reason.IMAGE_BACK_OFF: "The kubelet waits before it starts a container with the image in the message. After a "
    "return to an image that the pod had before that is 10 to 30 s, and nothing needs doing. If it lasts longer, read "
    "the log of that container and correct the profile's image.",
    Reason.POD_REPLACED: "The change needs another pod: when its turn comes, a replica's store starts empty. "
    "The message has the sizes; rollout.cacheLoss can hold such a change.",
    Reason.AGENT_SILENT: "An agent of a pod that runs does not answer the operator; let it reach ports 9600 and 9601.",
    Reason.NOT_MEASURED: "No engine serves whose agent tells numbers, as with an older kit; or nothing was stored yet "
    "that could be compared.",
    Reason.CONSISTENT: "Nothing to do.",
    Reason.TREE_CORES_DIFFER: "Ranks of one engine run different tree cores. Set toolchain.treeCore to Python.",
    Reason.PAGE_NAMES_DIFFER: "Ranks of one engine name their pages differently. Restart it (restart.id).",
    Reason.RANK_MISSING: "A rank of an engine that serves reports nothing. Look at the engine's log.",
    Reason.STORES_DIFFER: "Ranks of one engine ask different lives of the store. Restart the engine (restart.id).",
    Reason.RANKS_DIVERGE: "A rank finds or evicts other pages than the others. Restart the engine (restart.id).",
    Reason.STORED_BYTES_DIFFER: "A store gave back other bytes than were written; the message names rank and pool. "
    "Delete the pod, which empties its store, and look at the node's memory.",
    Reason.EFFECTIVE: "Nothing to do.",
    Reason.STORE_FROZEN: "A store does not answer; requests are served without it. Delete the pod if it stays so.",
    Reason.STORE_SLOW: "A store answers slowly. Look at the node's load and at cache.policy.rpcParallelism.",
    Reason.EVICTION_STUCK: "A full store can evict nothing. Give it more memory (cache.dram.size).",
    Reason.HOT_PAGES_EVICTED: "A store evicts pages that are asked again; status.cache.advice says what helps.",
    Reason.HIT_RATIO_FELL: "The ratio of hits fell while the store evicts; status.cache.advice says what helps.",
    Reason.OFFLOADS_HELD_BACK: "A store takes what is to be stored too slowly, so part of it is not stored.",
    Reason.AS_EXPECTED: "Nothing to do.",
    Reason.RECOVERY_STOPPED: "An engine or a replica's pods ended by themselves as often as spec.recovery allows, and "
    "nothing is started again. The message says how; find the cause, then set another restart.id.",
    Reason.ENGINE_STALLED: "Requests run and no token is computed. Restart the engine (restart.id).",
    Reason.ENGINE_SILENT: "An engine does not answer its own agent. Look at its log.",
    Reason.CHECKPOINTS_LOCKED: "Most slots of the checkpoint pool wait for the store; without a free one "
    "the engine ends.",
    Reason.LOADS_FAIL: "Loads from a store fail, and their requests with them. Look at the store's log.",
    Reason.NO_CACHE_AWARE_ROUTING: "The Service spreads requests over replicas whose stores share nothing, so hits "
    "divide by their number. Send a conversation always to the same replica, or use one replica.",
    Reason.BUDGET_IN_PLACE: "Nothing to do.",
    Reason.NO_BUDGET: "No budget can help: with so few replicas it would block every drain for ever. "
    "A drain stops the service; docs/howto/node-maintenance.md has the steps.",
    Reason.CRD_OUTDATED: "The cluster's CRDs lack the fields in the message, so what is set there is dropped. "
    "Apply the CRDs of the operator's release: Helm does it with the chart, or `kubectl apply --server-side -f crds/`.",
    Reason.SERVING: "Nothing to do.",
    Reason.NO_REPLICA_SERVES: "No replica serves; the conditions above say why.",
    Reason.SCALED_TO_ZERO: "spec.replicas is 0.",
    Reason.ROLLOUT_PAUSED: "spec.rollout.paused keeps pods at the old revision. Unset it to go on.",
    Reason.WAITING_FOR_DELETION: "spec.rollout.strategy is OnDelete: a pod gets the new revision when you delete it.",
    Reason.ACKNOWLEDGEMENT_REQUIRED: "The change would empty warm stores and spec.rollout.cacheLoss asks first. "
    "Set rollout.acknowledgedChange to the id in the message, or take the edit back.",
    Reason.PROGRESSING: "The operator works toward the spec; the message says what it waits for.",
    Reason.DELETING: "The object is being deleted.",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition before it has a time."""

    type: Type
    status: bool | None
    """None is Unknown."""
    reason: Reason
    message: str


def merge(
    previous: Sequence[Mapping[str, Any]], verdicts: Iterable[Verdict], generation: int, now: str
) -> list[dict[str, Any]]:
    """The conditions list: transition times move only when a status changes.

    ``now`` is an RFC 3339 time in UTC.
    """
    before = {condition.get("type"): condition for condition in previous}
    merged = []
    for verdict in verdicts:
        status = {True: "True", False: "False", None: "Unknown"}[verdict.status]
        old = before.get(verdict.type.value, {})
        merged.append(
            {
                "type": verdict.type.value,
                "status": status,
                "reason": verdict.reason.value,
                "message": verdict.message[:1024],
                "lastTransitionTime": old["lastTransitionTime"] if old.get("status") == status else now,
                "observedGeneration": generation,
            }
        )
    return merged
