"""The operator's own metrics: controller-runtime's names where it has one, ``umbra_`` for the rest."""

from contextlib import suppress

from prometheus_client import Counter, Gauge, Histogram

CONTROLLER = "k3deployment"

RECONCILES = Counter(
    "controller_runtime_reconcile_total", "Reconciles, by result: success, error or requeue.", ["controller", "result"]
)
# A series that begins with its first error has no rate of it.
for _result in ("success", "error", "requeue"):
    RECONCILES.labels(CONTROLLER, _result)
RECONCILE_SECONDS = Histogram(
    "controller_runtime_reconcile_time_seconds", "Time that a reconcile took, in seconds.", ["controller"]
)
QUEUE_DEPTH = Gauge("workqueue_depth", "Keys that wait for a worker.", ["name"])
REQUESTS = Counter(
    "rest_client_requests_total",
    "Requests to the API server, by status code, method and resource.",
    ["code", "method", "resource"],
)
WRITES = Counter(
    "umbra_deployment_writes_total",
    "Requests to the API server that are to change a K3Deployment's status or objects, whatever came of them; a series "
    "begins with the first and ends with its K3Deployment.",
    ["namespace", "name"],
)
REQUEST_SECONDS = Histogram("rest_client_request_duration_seconds", "Time that a request took, in seconds.", ["verb"])
LEADER = Gauge("leader_election_master_status", "1 while this process leads by the Lease of that name.", ["name"])
LAST_RESYNC = Gauge(
    "umbra_operator_last_resync_timestamp_seconds", "When the memory was last repaired by full lists, in Unix seconds."
)
CRD_LACKS = Gauge(
    "umbra_operator_crd_lacking_fields", "Fields of this operator that the cluster's CRDs do not have; 0 is good."
)
REPAIRED = Counter("umbra_operator_resync_repaired_total", "Objects whose lost events a full list made up for.")
# Not "container": Prometheus gives the targets of a PodMonitor a label of that name.
POLLS = Counter(
    "umbra_operator_agent_polls_total", "Answers of agents, by agent (engine or store) and result.", ["agent", "result"]
)


def forget(namespace: str, name: str) -> None:
    """Ends the series of a K3Deployment that is gone."""
    with suppress(KeyError):
        WRITES.remove(namespace, name)
