"""Full lists of all that the operator remembers: they fill the memory at first, and repair it afterwards.

A list that is refused, such as that of a namespace whose rights are gone, holds up no other, and what is remembered
of it stays.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from umbra_operator import errors, metrics
from umbra_operator.cluster import CHILDREN, DEPLOYMENTS, POD_MONITORS, PODS, PROFILES, Cluster, Resource
from umbra_operator.observe import Memory
from umbra_operator.records import Key
from umbra_operator.render import names
from umbra_operator.served import lacking, sentence

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resynced:
    """What one round of lists found."""

    changed: set[Key]
    """Deployments where memory and cluster differed."""
    refused: tuple[str, ...]
    """What the API server said to each list that it refused."""


@dataclass(frozen=True)
class _List:
    kind: str
    resource: Resource
    namespace: str | None
    take: Callable[[Mapping[str, Any]], None]
    labels: str = ""


class Lists:
    """The lists of ``namespaces``, or of all namespaces where none is named."""

    def __init__(self, cluster: Cluster, memory: Memory, namespaces: Sequence[str]) -> None:
        self._cluster = cluster
        self._memory = memory
        self._namespaces: tuple[str | None, ...] = tuple(namespaces) or (None,)
        self._unseen = {(kind, each) for kind in ("K3Deployment", "Pod") for each in self._namespaces}
        """Lists, as kind and namespace, without which an absent object proves nothing, and that never arrived."""
        self._unseen.add(("K3Profile", None))

    def sees(self, key: Key) -> bool:
        """Whether all was listed that a deployment depends on."""
        return not any(namespace in (None, key[0]) for _, namespace in self._unseen)

    async def lacking(self) -> tuple[str, ...]:
        """Fields that the cluster's CRDs lack; what was known before when the API server does not tell."""
        try:
            found = lacking(await self._cluster.schemas())
        except errors.Refused as error:
            logger.debug("which schemas are served? %s", error)
            return self._memory.facts.lacking
        metrics.CRD_LACKS.set(len(found))
        if found and found != self._memory.facts.lacking:
            logger.warning("CRDOutdated: %s", sentence(found))
        return found

    async def resync(self) -> Resynced:
        """One round.

        Raises ClusterUnavailable when the API server does not answer; the next round then repairs what this one
        did not reach.
        """
        served = await self._cluster.serves(POD_MONITORS)
        self._memory.facts = replace(self._memory.facts, pod_monitors=served, lacking=await self.lacking())
        repair = self._memory.repair()
        wanted = [_List("K3Profile", PROFILES, None, repair.profile)]
        for namespace in self._namespaces:
            wanted.append(_List("K3Deployment", DEPLOYMENTS, namespace, repair.deployment))
            wanted.append(_List("Pod", PODS, namespace, repair.pod, names.LABEL_DEPLOYMENT))
            for kind, resource in CHILDREN.items():
                if resource is not POD_MONITORS or served:
                    wanted.append(_List(kind, resource, namespace, partial(repair.child, kind), names.LABEL_DEPLOYMENT))
        refused: list[str] = []
        for each in wanted:
            try:
                async for body in self._cluster.list(each.resource, each.namespace, each.labels):
                    each.take(body)
            except (errors.Missing, errors.Refused) as error:
                refused.append(str(error))
                repair.keep(each.kind, each.namespace)
                if isinstance(error, errors.Refused):
                    continue
            # A kind that is not served has no objects, which is an answer too.
            self._unseen.discard((each.kind, each.namespace))
        return Resynced(repair.finish(), tuple(refused))
