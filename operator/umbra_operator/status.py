"""Status of a K3Deployment: recomputed whole from what is observed, by pure functions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from umbra_operator.advice import cache_status
from umbra_operator.agents import Agents, EngineAgent
from umbra_operator.conditions import Reason, Type, Verdict, merge
from umbra_operator.judge import Assessment
from umbra_operator.overrides import Override
from umbra_operator.plan import Plan
from umbra_operator.records import IMAGE_PROBLEMS, ContainerRecord, Observed, PodRecord
from umbra_operator.render import names
from umbra_operator.rules import RULES
from umbra_operator.served import sentence

_JUDGED = frozenset(
    {rule.reason for rule in RULES} | {Reason.CONSISTENT, Reason.PASSED, Reason.EFFECTIVE, Reason.AS_EXPECTED}
)
_OOM = "OOMKilled"
_COMPLETED = "Completed"


def status(
    observed: Observed,
    plan: Plan,
    agents: Mapping[str, Agents],
    now: str,
    assessment: Assessment | None = None,
    in_force: Sequence[Override] = (),
) -> dict[str, Any]:
    """The whole status. ``agents`` is keyed by pod uid; ``now`` is an RFC 3339 time in UTC.

    Without an ``assessment``, as after a start of the operator, what was told of the engines' numbers stays. The same
    input with another ``now`` differs only in the transition times of conditions that flipped.
    """
    deployment = observed.deployment
    live = _live(plan.owned)
    serving = [pod for pod in live if pod.ready]
    verdicts = _verdicts(observed, plan, live, agents, assessment)
    previous = deployment.status.get("conditions") or []
    out: dict[str, Any] = {
        "observedGeneration": deployment.generation,
        "replicas": len(live),
        "readyReplicas": len(serving),
        "selector": ",".join(f"{key}={value}" for key, value in names.selector(deployment.name).items()),
        "conditions": merge(previous, verdicts, deployment.generation, now),
        "pods": [_pod(pod, agents.get(pod.uid, Agents())) for pod in live[:64]],
    }
    if assessment and deployment.spec:
        out["cache"] = cache_status(deployment.spec, assessment)
    elif live and "cache" in deployment.status:
        out["cache"] = deployment.status["cache"]
    if in_force:
        out["overrides"] = [override.to_status() for override in in_force]
    if plan.revision:
        out["revision"] = plan.revision.launch
    return out


def _live(owned: Sequence[PodRecord]) -> list[PodRecord]:
    """The pods of the replicas, by ordinal; without those that are going, and those that have a successor."""
    newest = {pod.ordinal: pod.attempt for pod in sorted(owned, key=lambda pod: pod.attempt)}
    kept = (pod for pod in owned if not pod.deleting and not (pod.over and pod.attempt < newest[pod.ordinal]))
    return sorted(kept, key=lambda pod: (pod.ordinal, pod.attempt))


def _verdicts(
    observed: Observed,
    plan: Plan,
    live: Sequence[PodRecord],
    agents: Mapping[str, Agents],
    assessment: Assessment | None,
) -> list[Verdict]:
    config = _config_valid(plan)
    stages = [
        _preflight_passed(live, [pod for pod in plan.owned if pod.deleting], plan.unpulled),
        _store_ready(live, agents),
        _engine_ready(live, agents, plan),
    ]
    judged = _judged(observed, plan, live, agents, assessment)
    available = _available(observed, live)
    # Ranks and bytes of which nothing is known are no reason to deny that their engines serve.
    gates = (Type.RANKS_CONSISTENT, Type.CANARY_PASSED)
    apart = [each for each in judged if each.type in gates and each.status is False]
    ready = _ready(observed, plan, live, agents, [config, *stages, *apart])
    verdicts = [config, *stages, *judged, *_warnings(observed, plan), *_schema(observed), available, ready]
    if ready.status is not True:
        held = plan.hold is not None and ready.reason is plan.hold.reason
        blocked = config.status is False or held or ready.reason in [each.reason for each in apart]
        kind = Type.STALLED if blocked else Type.RECONCILING
        verdicts.append(Verdict(kind, True, ready.reason, ready.message))
    return verdicts


def _config_valid(plan: Plan) -> Verdict:
    if plan.finding:
        return Verdict(Type.CONFIG_VALID, False, plan.finding.reason, plan.finding.message)
    return Verdict(Type.CONFIG_VALID, True, Reason.VALID, "spec and profile fit together")


def _preflight_passed(live: Sequence[PodRecord], ending: Sequence[PodRecord], unpulled: Mapping[str, str]) -> Verdict:
    for pod in live:
        if pod.name in unpulled:
            message = f"{pod.name} goes on as it is, its node cannot get the new kit: {unpulled[pod.name]}"
            return Verdict(Type.PREFLIGHT_PASSED, None, Reason.IMAGE_UNAVAILABLE, message)
        if pod.unschedulable:
            # A pod that drains, or whose node is lost, holds its GPUs: the scheduler's sentence does not say so.
            holders = "".join(f"; {old.name} still ends on {old.node}" for old in ending if old.node)
            message = f"{pod.name}: {pod.unschedulable}{holders}"
            return Verdict(Type.PREFLIGHT_PASSED, None, Reason.UNSCHEDULABLE, message)
        for container in pod.containers:
            if container.waiting_reason in IMAGE_PROBLEMS:
                message = (
                    f"{pod.name}, container {container.name}: {container.waiting_message or container.waiting_reason}"
                )
                return Verdict(Type.PREFLIGHT_PASSED, None, Reason.IMAGE_UNAVAILABLE, message)
        preflight = pod.container(names.PREFLIGHT)
        if preflight and _failed(preflight):
            message = f"{pod.name}: {_preflight_message(preflight)}"
            return Verdict(Type.PREFLIGHT_PASSED, False, Reason.CHECK_FAILED, message)
    pending = [_named(pod) for pod in live if not _passed(pod.container(names.PREFLIGHT))]
    if pending or not live:
        message = f"waiting for {', '.join(pending)}" if pending else "there are no pods"
        return Verdict(Type.PREFLIGHT_PASSED, None, Reason.PENDING, message)
    return Verdict(Type.PREFLIGHT_PASSED, True, Reason.PASSED, "every node offers what the profile requires")


def _store_ready(live: Sequence[PodRecord], agents: Mapping[str, Agents]) -> Verdict:
    for pod in live:
        container = pod.container(names.STORE)
        if container and not container.started and container.exit_reason == _OOM:
            return _out_of_memory(Type.STORE_READY, pod, names.STORE)
        if container and _backs_off(container):
            message = (
                f"{pod.name}: {container.exit_message or container.waiting_message or 'the store ends again and again'}"
            )
            return Verdict(Type.STORE_READY, False, Reason.STORE_FAILED, message)
    starting, silent = [], []
    for pod in live:
        container, answer = pod.container(names.STORE), agents.get(pod.uid, Agents()).store
        if container and container.started and answer is None:
            silent.append(pod.name)
        elif container is None or not container.started or (answer and answer.state != "ready"):
            problem = f" ({answer.problem})" if answer and answer.problem else ""
            starting.append(f"{pod.name}{problem}")
    if starting or not live:
        message = f"waiting for {', '.join(starting)}" if starting else "there are no pods"
        return Verdict(
            Type.STORE_READY, False if live else None, Reason.STORE_STARTING if live else Reason.PENDING, message
        )
    if silent:
        message = f"the agents of {', '.join(silent)} do not answer on port {names.STORE_AGENT_PORT}"
        return Verdict(Type.STORE_READY, None, Reason.AGENT_SILENT, message)
    return Verdict(Type.STORE_READY, True, Reason.SERVING, "every store answers")


def _engine_ready(live: Sequence[PodRecord], agents: Mapping[str, Agents], plan: Plan) -> Verdict:
    for pod in live:
        container, answer = pod.container(names.ENGINE), agents.get(pod.uid, Agents()).engine
        # The last end of the container stays there for ever: it explains only what has not served since.
        fresh = not pod.ready and (answer is None or answer.restarts == 0)
        if container and fresh and container.exit_reason == _OOM:
            return _out_of_memory(Type.ENGINE_READY, pod, names.ENGINE)
        if failure := _engine_failure(pod, container, answer):
            reason = Reason.GPU_MEMORY_HELD if answer and answer.memory_held else Reason.ENGINE_FAILED
            return Verdict(Type.ENGINE_READY, False, reason, failure)
    starting = [pod.name for pod in live if not pod.ready]
    if starting or not live:
        message = f"waiting for {', '.join(starting)}" if starting else "there are no pods"
        return Verdict(
            Type.ENGINE_READY, False if live else None, Reason.ENGINE_STARTING if live else Reason.PENDING, message
        )
    silent = [pod.name for pod in live if agents.get(pod.uid, Agents()).engine is None]
    if silent:
        message = f"the agents of {', '.join(silent)} do not answer on port {names.ENGINE_AGENT_PORT}"
        return Verdict(Type.ENGINE_READY, None, Reason.AGENT_SILENT, message)
    return _engines_at_revision(live, agents, plan)


def _engine_failure(pod: PodRecord, container: ContainerRecord | None, answer: EngineAgent | None) -> str | None:
    """Why a pod's engine does not come; None where nothing keeps it from coming."""
    if pod.over:
        return _named(pod)
    if container and _backs_off(container):
        last = container.exit_message or container.waiting_message or "the agent ends again and again"
        return f"{pod.name}: {last}"
    return f"{pod.name}: {answer.problem}" if answer and answer.problem and not pod.ready else None


def _out_of_memory(kind: Type, pod: PodRecord, container: str) -> Verdict:
    message = f"{pod.name}: the {container} reached its memory limit; raise spec.resources.{container}.memory"
    return Verdict(kind, False, Reason.OUT_OF_MEMORY, message)


def _engines_at_revision(live: Sequence[PodRecord], agents: Mapping[str, Agents], plan: Plan) -> Verdict:
    """Every engine serves; whether each runs what the spec asks for. What is held stays behind on purpose."""
    held = plan.hold.pods if plan.hold else frozenset()
    behind = [pod.name for pod in live if pod.name not in held and not _at(pod, agents, plan)]
    if losing := [f"{name} ({plan.losing[name]})" for name in behind if name in plan.losing]:
        message = f"the change empties the stores of {', '.join(losing)}"
        return Verdict(Type.ENGINE_READY, False, Reason.POD_REPLACED, message)
    if waiting := [_kept_waiting(pod) for pod in live if pod.name in behind and _backs_off(pod.container(names.KIT))]:
        return Verdict(Type.ENGINE_READY, False, Reason.IMAGE_BACK_OFF, "; ".join(waiting))
    if behind:
        message = f"{', '.join(behind)} restarts into the wanted revision"
        return Verdict(Type.ENGINE_READY, False, Reason.ENGINE_RESTARTING, message)
    return Verdict(Type.ENGINE_READY, True, Reason.SERVING, "every engine serves")


def _backs_off(container: ContainerRecord | None) -> bool:
    return container is not None and container.waiting_reason == "CrashLoopBackOff"


def _kept_waiting(pod: PodRecord) -> str:
    """What a pod says whose kit the kubelet does not start yet: its engine goes on meanwhile.

    The kubelet counts its own exchange of an image as an end of the container, so that a return to an earlier image
    waits like one that fails; a kit that was told to end has ended well.
    """
    kit = pod.container(names.KIT)
    failed = kit and kit.exit_reason not in (None, _COMPLETED)
    last = (kit.exit_message or kit.exit_reason) if kit and failed else None
    return f"{pod.name}: the kubelet waits before it starts the kit's image {pod.kit_image} again" + (
        f", which ended with: {last}; read the log of container kit, and correct the profile's kit.image"
        if last
        else "; 10 to 30 s are usual when the pod had that image before, and the engine serves meanwhile"
    )


_WELL = (
    Verdict(Type.RANKS_CONSISTENT, True, Reason.CONSISTENT, "the ranks of every engine are there and alike"),
    Verdict(Type.CANARY_PASSED, True, Reason.PASSED, "what was compared of the stores is what was written"),
    Verdict(Type.CACHE_EFFECTIVE, True, Reason.EFFECTIVE, "every store answers and keeps what is asked again"),
    Verdict(Type.DEGRADED, False, Reason.AS_EXPECTED, "every engine that was measured is well"),
)


def _judged(
    observed: Observed,
    plan: Plan,
    live: Sequence[PodRecord],
    agents: Mapping[str, Agents],
    assessment: Assessment | None,
) -> list[Verdict]:
    """What the numbers of the engines come to, one verdict for each condition of ``_WELL``."""
    answers = [(pod.name, agents.get(pod.uid, Agents()).engine) for pod in live]
    engines = (f"{name}: {engine.problem}" for name, engine in answers if engine and engine.stopped)
    stopped = "; ".join((*plan.stopped, *engines))
    verdicts = []
    for well in _WELL:
        if stopped and well.type is Type.DEGRADED:
            verdicts.append(Verdict(well.type, True, Reason.RECOVERY_STOPPED, stopped))
        elif not live:
            verdicts.append(Verdict(well.type, None, Reason.PENDING, "there are no pods"))
        elif assessment is None:
            verdicts.append(_told_before(observed, well))
        elif found := [finding for finding in assessment.findings if finding.condition is well.type]:
            message = "; ".join(f"{finding.pod}: {finding.sentence}" for finding in found)
            verdicts.append(Verdict(well.type, not well.status, found[0].reason, message))
        elif well.type is Type.CANARY_PASSED and not assessment.compared:
            verdicts.append(Verdict(well.type, None, Reason.NOT_MEASURED, "nothing that is stored was compared yet"))
        else:
            verdicts.append(well)
    return verdicts


def _told_before(observed: Observed, well: Verdict) -> Verdict:
    """What an operator said that has measured more than this one so far."""
    for condition in observed.deployment.status.get("conditions") or ():
        if condition["type"] == well.type and condition["reason"] in _JUDGED:
            status = {"True": True, "False": False}.get(condition["status"])
            return Verdict(well.type, status, Reason(condition["reason"]), condition["message"])
    return Verdict(well.type, None, Reason.NOT_MEASURED, "no engine was measured yet")


def _warnings(observed: Observed, plan: Plan) -> list[Verdict]:
    """What an administrator should know although nothing is wrong; none of it lowers Ready."""
    spec = observed.deployment.spec
    replicas = spec.replicas if spec else 0
    if replicas == 0 or plan.finding or observed.deployment.deleting:
        return []
    found = []
    if replicas > 1:
        message = f"{replicas} replicas have a store each, and the Service sends requests to any of them: hits divide"
        found.append(Verdict(Type.CACHE_AWARE_ROUTING, False, Reason.NO_CACHE_AWARE_ROUTING, message))
    if plan.min_available:
        message = f"a drain leaves {plan.min_available} of {replicas} replicas serving"
        found.append(Verdict(Type.DISRUPTION_PROTECTED, True, Reason.BUDGET_IN_PLACE, message))
    else:
        message = f"there is no PodDisruptionBudget with replicas {replicas}: draining the node stops the service"
        found.append(Verdict(Type.DISRUPTION_PROTECTED, False, Reason.NO_BUDGET, message))
    return found


def _schema(observed: Observed) -> list[Verdict]:
    lacking = observed.facts.lacking
    return [Verdict(Type.SCHEMA_CURRENT, False, Reason.CRD_OUTDATED, sentence(lacking))] if lacking else []


def _available(observed: Observed, live: Sequence[PodRecord]) -> Verdict:
    serving = sum(pod.ready for pod in live)
    if serving:
        return Verdict(Type.AVAILABLE, True, Reason.SERVING, "at least one replica serves")
    if observed.deployment.spec and observed.deployment.spec.replicas == 0:
        return Verdict(Type.AVAILABLE, False, Reason.SCALED_TO_ZERO, "spec.replicas is 0")
    return Verdict(Type.AVAILABLE, False, Reason.NO_REPLICA_SERVES, "no replica serves")


def _ready(
    observed: Observed,
    plan: Plan,
    live: Sequence[PodRecord],
    agents: Mapping[str, Agents],
    earlier: Sequence[Verdict],
) -> Verdict:
    if observed.deployment.deleting:
        return Verdict(Type.READY, False, Reason.DELETING, "the object is being deleted")
    replicas = observed.deployment.spec.replicas if observed.deployment.spec else 0
    config = earlier[0]
    if config.status is False:
        return Verdict(Type.READY, False, config.reason, config.message)
    if replicas == 0 and not live:
        return Verdict(Type.READY, True, Reason.SCALED_TO_ZERO, "spec.replicas is 0")
    # A store that is lost later costs hits, not requests: it shows in StoreReady and leaves readiness alone.
    missing = [each for each in earlier if each.type is not Type.STORE_READY and each.status is not True]
    if missing:
        return Verdict(Type.READY, False, missing[0].reason, missing[0].message)
    if plan.hold:
        return Verdict(Type.READY, False, plan.hold.reason, plan.hold.message)
    there = sum(pod.ready and _at(pod, agents, plan) for pod in live)
    complete = there == len(live) == replicas
    counted = "all" if complete else f"{there} of {replicas}"
    reason = Reason.SERVING if complete else Reason.PROGRESSING
    return Verdict(Type.READY, complete, reason, f"{counted} replicas serve at the wanted revision")


def _at(pod: PodRecord, agents: Mapping[str, Agents], plan: Plan) -> bool:
    """Whether the pod's engine runs what the spec asks for, by its agent's word."""
    if plan.revision is None:
        return False
    answer = agents.get(pod.uid, Agents()).engine
    return answer is not None and answer.serves(plan.revision.launch) and pod.pod_revision == plan.revision.pod


def _pod(pod: PodRecord, agents: Agents) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": pod.name, "ordinal": pod.ordinal, "ready": pod.ready}
    if pod.node:
        entry["node"] = pod.node
    if agents.engine and agents.engine.revision:
        entry["revision"] = agents.engine.revision
    if agents.store and agents.store.epoch:
        entry["epoch"] = agents.store.epoch
    return entry


def _named(pod: PodRecord) -> str:
    """The pod, and why nothing more is to be expected of it."""
    return f"{pod.name}, which has ended ({pod.end.cause})" if pod.over and pod.end else pod.name


def _passed(container: ContainerRecord | None) -> bool:
    return container is not None and container.exit_code == 0


def _failed(container: ContainerRecord) -> bool:
    """Whether its last end was a failure; while it runs again it has not passed yet, and nothing flaps."""
    if container.exit_code is not None:
        return container.exit_code != 0
    again = container.restarts > 0 and container.exit_reason not in (None, _COMPLETED)
    return again or _backs_off(container)


def _preflight_message(container: ContainerRecord) -> str:
    """The failed checks as sentences; the container's own words when they are not the agent's JSON."""
    if container.exit_reason == _OOM:
        return "preflight reached its memory limit, which is the engine's; raise spec.resources.engine.memory"
    raw = container.exit_message or container.waiting_message or "preflight failed without a message"
    try:
        checks = json.loads(raw)["checks"]
        return "; ".join(
            f"{check['name']}: found {check['found']}, needed {check['needed']}; {check['remedy']}"
            for check in checks
            if check["ok"] is False
        )
    except (ValueError, KeyError, TypeError):
        return raw[:512]
