"""Watches that kopf lost: of a kind that was away and is back.

kopf looks for its kinds once for every event of a CRD, and drops those that it does not find. The API server may
answer a moment after the last of these events, and then nothing would make kopf look again: the kind would stay
unwatched until the process ends.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from kopf._cogs.structs.references import Insights
from kopf._cogs.structs.references import Resource as Watched

from umbra_operator import errors
from umbra_operator.api.base import GROUP, VERSION
from umbra_operator.cluster import DEPLOYMENTS, PROFILES, KubeCluster, Resource

logger = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
"""Between two looks at what kopf watches; the API server is asked only while a kind is not watched."""
KINDS: Mapping[str, Resource] = {"K3Deployment": DEPLOYMENTS, "K3Profile": PROFILES}
"""Kinds that can come and go while the operator runs."""


async def keep(insights: Insights, cluster: KubeCluster, renewed: Callable[[], None]) -> None:
    """Adds what is missing to kopf's watches, for ever; calls ``renewed`` each time: events may have been missed."""
    await insights.ready_resources.wait()
    while True:
        for kind, resource in KINDS.items():
            if _watched(insights, resource):
                continue
            try:
                if not await cluster.serves(resource):
                    continue
            except errors.UmbraError as error:
                logger.debug("is %s served? %s", kind, error)
                continue
            logger.info("%s is served again; watching it", kind)
            async with insights.revised:
                insights.watched_resources.add(_as_kopf_knows_it(kind, resource))
                insights.revised.notify_all()
            renewed()
        await asyncio.sleep(CHECK_SECONDS)


def _watched(insights: Insights, resource: Resource) -> bool:
    wanted = (GROUP, VERSION, resource.plural)
    return any((each.group, each.version, each.plural) == wanted for each in insights.watched_resources)


def _as_kopf_knows_it(kind: str, resource: Resource) -> Watched:
    return Watched(
        group=GROUP,
        version=VERSION,
        plural=resource.plural,
        kind=kind,
        singular=kind.lower(),
        namespaced=resource.namespaced,
        preferred=True,
        verbs=frozenset({"list", "watch"}),
    )
