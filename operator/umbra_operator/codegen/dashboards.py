"""The chart's dashboards: what each panel asks Prometheus.

Series carry the labels that PodMonitors give: those of pods `namespace`, `umbra_dev_deployment` and `pod`, those about
a K3Deployment `namespace` and `name`.
"""

from umbra_operator.codegen.grafana import Dashboard, Kind, Panel, Query

_NAMESPACE = 'namespace=~"$namespace"'
_OBJECT = f'{_NAMESPACE},name=~"$deployment"'
_POD = f'{_NAMESPACE},umbra_dev_deployment=~"$deployment"'
_OPEN = (
    f"sglang:http_requests_active{{{_POD},"
    'exported_endpoint=~"/generate|/v1/(chat/completions|completions|messages|responses)"}'
)
"""What the HTTP server has open; SGLang's gauge of running requests is written every 40 steps and reads 0 before."""
_RATE = "[$__rate_interval]"
_OF_OPERATORS = " and on (namespace, pod) umbra_operator_crd_lacking_fields"
"""Keeps our operators' series of a metric that every controller has."""


def _number(title: str, text: str, expr: str, unit: str = "short") -> Panel:
    return Panel(title, text, unit, (Query(expr),), Kind.NUMBER)


def _table(title: str, text: str, expr: str) -> Panel:
    return Panel(title, text, "short", (Query(expr),), Kind.TABLE)


def _curve(title: str, text: str, unit: str, expr: str, legend: str) -> Panel:
    return Panel(title, text, unit, (Query(expr, legend),))


def _per_pod(function: str, metric: str, *more: str, matchers: str = _POD, rate: bool = True) -> str:
    """An aggregate of a pod's series; ``more`` are further labels to keep."""
    series = f"{metric}{{{matchers}}}"
    inner = f"rate({series}{_RATE})" if rate else series
    return f"{function} by ({', '.join(('pod', *more))}) ({inner})"


def _quantiles(metric: str, *more: str) -> tuple[Query, ...]:
    """Median and 99th percentile of a histogram, for each pod and each value of the labels ``more``."""
    kept = " ".join(f"{{{{{label}}}}}" for label in ("pod", *more))
    summed = _per_pod("sum", f"{metric}_bucket", *more, "le")
    return tuple(
        Query(f"histogram_quantile({q}, {summed})", f"{kept} {name}") for q, name in ((0.5, "p50"), (0.99, "p99"))
    )


_FLEET = Dashboard(
    "fleet",
    "Umbra / Fleet",
    "Every K3Deployment, and the operator that looks after them.",
    (
        (
            "Deployments",
            (
                _number("Deployments", "K3Deployments.", f"count(umbra_deployment_replicas{{{_NAMESPACE}}})"),
                _number(
                    "Ready",
                    "Those whose replicas all serve at the wanted revision.",
                    f'count(umbra_deployment_condition{{{_NAMESPACE},type="Ready",status="True"}}) or vector(0)',
                ),
                _number(
                    "Waiting for someone",
                    "Those where someone must act before the operator can go on.",
                    f'count(umbra_deployment_condition{{{_NAMESPACE},type="Stalled"}}) or vector(0)',
                ),
                _number(
                    "Alerts",
                    "Alerts of Umbra that fire.",
                    'count(ALERTS{alertname=~"Umbra.+",alertstate="firing"}) or vector(0)',
                ),
                _table(
                    "Conditions that are not well",
                    "Reasons are explained in docs/reference/conditions.md.",
                    "max by (namespace, name, type, status, reason) ("
                    f'umbra_deployment_condition{{{_NAMESPACE},status!="True",type!="Degraded"}} or '
                    f'umbra_deployment_condition{{{_NAMESPACE},status!="False",type="Degraded"}})',
                ),
                Panel(
                    "Replicas",
                    "Replicas that deployments ask for, and those that serve.",
                    "short",
                    (
                        Query(
                            f"sum by (namespace) (umbra_deployment_replicas{{{_NAMESPACE}}})",
                            "{{namespace}} wanted",
                        ),
                        Query(
                            f"sum by (namespace) (umbra_deployment_ready_replicas{{{_NAMESPACE}}})",
                            "{{namespace}} ready",
                        ),
                    ),
                ),
                _curve(
                    "Tokens generated",
                    "Tokens that engines generated, each second.",
                    "short",
                    "sum by (namespace, umbra_dev_deployment) "
                    f"(rate(sglang:generation_tokens_total{{{_NAMESPACE}}}{_RATE}))",
                    "{{namespace}}/{{umbra_dev_deployment}}",
                ),
                _curve(
                    "Prompt tokens found in a cache",
                    "Part of the prompts' tokens that device or store had.",
                    "percentunit",
                    f"namespace_pod:sglang_prefix_hit:ratio_rate15m{{{_NAMESPACE}}}",
                    "{{namespace}}/{{pod}}",
                ),
            ),
        ),
        (
            "Operator",
            (
                _curve(
                    "Leader",
                    "1 for the operator that leads.",
                    "short",
                    f"max by (namespace, pod) (leader_election_master_status{_OF_OPERATORS})",
                    "{{pod}}",
                ),
                _curve(
                    "Reconciles",
                    "Reconciles each second, by result.",
                    "ops",
                    f'sum by (result) (rate(controller_runtime_reconcile_total{{controller="k3deployment"}}{_RATE}))',
                    "{{result}}",
                ),
                _curve(
                    "Time of a reconcile, p99",
                    "99 of 100 reconciles are faster.",
                    "s",
                    "histogram_quantile(0.99, sum by (le) "
                    f'(rate(controller_runtime_reconcile_time_seconds_bucket{{controller="k3deployment"}}{_RATE})))',
                    "p99",
                ),
                _curve(
                    "Keys that wait",
                    "Deployments that wait for a worker.",
                    "short",
                    'max by (namespace, pod) (workqueue_depth{name="k3deployment"})',
                    "{{pod}}",
                ),
                _curve(
                    "Requests to the API server",
                    "Each second, by status code.",
                    "reqps",
                    f"sum by (code) (rate(rest_client_requests_total{_RATE}){_OF_OPERATORS})",
                    "{{code}}",
                ),
                _curve(
                    "Answers of agents",
                    "Each second, by agent and result.",
                    "reqps",
                    f"sum by (agent, result) (rate(umbra_operator_agent_polls_total{_RATE}))",
                    "{{agent}} {{result}}",
                ),
                _curve(
                    "Age of the last full list",
                    "More than 15 minutes is an alert.",
                    "s",
                    "time() - max(umbra_operator_last_resync_timestamp_seconds)",
                    "age",
                ),
            ),
        ),
    ),
    per_deployment=False,
)

_DEPLOYMENT = Dashboard(
    "deployment",
    "Umbra / Deployment",
    "One K3Deployment: what it serves, how fast, and how its engines are.",
    (
        (
            "State",
            (
                _number("Wanted", "spec.replicas.", f"sum(umbra_deployment_replicas{{{_OBJECT}}})"),
                _number("Ready", "Replicas that serve.", f"sum(umbra_deployment_ready_replicas{{{_OBJECT}}})"),
                _number("Open requests", "Over all replicas.", f"sum({_OPEN})"),
                _table(
                    "Conditions",
                    "Reasons are explained in docs/reference/conditions.md.",
                    f"max by (type, status, reason) (umbra_deployment_condition{{{_OBJECT}}})",
                ),
            ),
        ),
        (
            "Requests",
            (
                Panel(
                    "Requests",
                    "Requests that are open at the HTTP server, and of these the ones that wait to be computed.",
                    "short",
                    (
                        Query(f"sum by (pod) ({_OPEN})", "{{pod}} open"),
                        Query(_per_pod("sum", "sglang:num_queue_reqs", rate=False), "{{pod}} waiting"),
                    ),
                ),
                Panel(
                    "Tokens",
                    "Tokens each second, of prompts and of answers.",
                    "short",
                    (
                        Query(_per_pod("sum", "sglang:prompt_tokens_total"), "{{pod}} prompt"),
                        Query(_per_pod("sum", "sglang:generation_tokens_total"), "{{pod}} generated"),
                    ),
                ),
                _curve(
                    "Where prompt tokens come from",
                    "Tokens each second: computed (input), or found on the device or in the store (host_hit).",
                    "short",
                    f"sum by (mode) (rate(sglang:prefill_effective_tokens_total{{{_POD}}}{_RATE}))",
                    "{{mode}}",
                ),
                Panel(
                    "Time to first token",
                    "Half of the requests, and 99 of 100, are faster.",
                    "s",
                    _quantiles("sglang:time_to_first_token_seconds"),
                ),
                Panel(
                    "Time per output token",
                    "Half of the requests, and 99 of 100, are faster.",
                    "s",
                    _quantiles("sglang:request_time_per_output_token_seconds"),
                ),
                Panel(
                    "Device pools in use",
                    "KV pages and checkpoint slots that running requests hold. Full checkpoint slots stop an engine.",
                    "percentunit",
                    (
                        Query(_per_pod("max", "sglang:token_usage", rate=False), "{{pod}} KV"),
                        Query(_per_pod("max", "sglang:mamba_usage", rate=False), "{{pod}} checkpoints"),
                    ),
                ),
            ),
        ),
        (
            "Engine",
            (
                _curve(
                    "State of the engine",
                    "The state that the agent sees.",
                    "short",
                    f"max by (pod, state) (umbra_agent_engine_state{{{_POD}}}) == 1",
                    "{{pod}} {{state}}",
                ),
                _curve(
                    "Starts after the first",
                    "By reason: it ended by itself, or a new launch document.",
                    "short",
                    _per_pod("max", "umbra_agent_engine_restarts_total", "reason", rate=False),
                    "{{pod}} {{reason}}",
                ),
                _curve(
                    "Time of the last start",
                    "From the start of the engine until it was ready.",
                    "s",
                    _per_pod("max", "umbra_agent_engine_start_duration_seconds", rate=False),
                    "{{pod}}",
                ),
            ),
        ),
    ),
)

_CACHE = Dashboard(
    "cache",
    "Umbra / Cache tier",
    "What the store is worth to a deployment, what it costs, and whether it keeps up.",
    (
        (
            "Hits",
            (
                _curve(
                    "Pages that the store had",
                    "Part of the pages that lookups asked for.",
                    "percentunit",
                    f"namespace_pod:umbra_linker_hit_pages:ratio_rate15m{{{_POD}}}",
                    "{{pod}}",
                ),
                _curve(
                    "Misses",
                    "Pages each second, by what ended the prefix. evicted_recently means that the store is too small.",
                    "short",
                    _per_pod("sum", "umbra_linker_missed_pages_total", "reason"),
                    "{{pod}} {{reason}}",
                ),
                _curve(
                    "Tokens restored",
                    "Tokens of restorable prefixes, each second.",
                    "short",
                    _per_pod("max", "umbra_linker_hit_tokens_total"),
                    "{{pod}}",
                ),
                Panel(
                    "Wait for a lookup",
                    "The scheduler stands still meanwhile.",
                    "s",
                    _quantiles("umbra_linker_lookup_seconds"),
                ),
                Panel(
                    "Time of a load",
                    "From the start of a batch to its last layer.",
                    "s",
                    _quantiles("umbra_linker_load_seconds"),
                ),
                _curve(
                    "Loads",
                    "Requests each second whose cache was loaded.",
                    "reqps",
                    _per_pod("max", "umbra_linker_loads_total"),
                    "{{pod}}",
                ),
            ),
        ),
        (
            "Traffic",
            (
                _curve(
                    "Written",
                    "Bytes each second, by pool, over all ranks.",
                    "Bps",
                    _per_pod("sum", "umbra_linker_stored_bytes_total", "pool"),
                    "{{pod}} {{pool}}",
                ),
                _curve(
                    "Read",
                    "Bytes each second, by pool, over all ranks.",
                    "Bps",
                    _per_pod("sum", "umbra_linker_read_bytes_total", "pool"),
                    "{{pod}} {{pool}}",
                ),
                Panel(
                    "Time of a call", "Calls to the store, by kind.", "s", _quantiles("umbra_linker_call_seconds", "op")
                ),
                _curve(
                    "Nodes being stored",
                    "Each holds a lock in the radix tree.",
                    "short",
                    _per_pod("max", "umbra_linker_offload_queue_depth", rate=False),
                    "{{pod}}",
                ),
                _curve(
                    "Nodes not stored",
                    "Nodes each second, by reason; backpressure means that the store is too slow.",
                    "short",
                    _per_pod("max", "umbra_linker_skipped_offloads_total", "reason"),
                    "{{pod}} {{reason}}",
                ),
                _curve(
                    "Touches",
                    "Prefixes each second that the device served and the store was to count as used.",
                    "short",
                    _per_pod("max", "umbra_linker_touch_hints_total", "result"),
                    "{{pod}} {{result}}",
                ),
            ),
        ),
        (
            "Store",
            (
                _curve(
                    "Size",
                    "Configured size of the tier.",
                    "bytes",
                    _per_pod("max", "umbra_agent_store_capacity_bytes", rate=False),
                    "{{pod}}",
                ),
                _curve(
                    "Evicted",
                    "Bytes each second that eviction freed.",
                    "Bps",
                    _per_pod("sum", "umbra_agent_store_evicted_bytes_total"),
                    "{{pod}}",
                ),
                _curve(
                    "Oldest call without an answer",
                    "More than 30 s is an alert: the store is frozen.",
                    "s",
                    _per_pod("max", "umbra_linker_oldest_call_seconds", rate=False),
                    "{{pod}}",
                ),
                _curve(
                    "Lookups without the store",
                    "1 while lookups are answered with a miss because the store was late.",
                    "short",
                    _per_pod("max", "umbra_linker_breaker_open", rate=False),
                    "{{pod}}",
                ),
                _curve(
                    "Connections anew",
                    "Stores that a rank met; each began empty.",
                    "short",
                    _per_pod("max", "umbra_linker_reconnects_total", rate=False),
                    "{{pod}}",
                ),
            ),
        ),
    ),
)


def _by_rank(title: str, text: str, unit: str, metric: str, *, rate: bool = True) -> Panel:
    return _curve(title, text, unit, _per_pod("sum", metric, "rank", rate=rate), "{{pod}} rank {{rank}}")


_RANKS = Dashboard(
    "ranks",
    "Umbra / Ranks",
    "The ranks of an engine beside each other: what they decide must be equal, what they move should be.",
    (
        (
            "Equal on all ranks",
            (
                _table(
                    "Tree cores",
                    "More than one core in a pod is an alert.",
                    f"max by (pod, rank, core, chosen, agreement) (umbra_tree_core_info{{{_POD}}})",
                ),
                _table(
                    "Names of objects",
                    "How each rank names what it stores.",
                    f"max by (pod, rank, version, key_layout, tag) (umbra_linker_info{{{_POD}}})",
                ),
                _curve(
                    "Difference in pages found",
                    "Between the rank that found most and the one that found least, in 30 minutes. "
                    "More than 5 % is an alert.",
                    "percentunit",
                    f"1 - min by (pod) (increase(umbra_linker_hit_pages_total{{{_POD}}}[30m])) / "
                    f"clamp_min(max by (pod) (increase(umbra_linker_hit_pages_total{{{_POD}}}[30m])), 1)",
                    "{{pod}}",
                ),
                _by_rank("Lookups", "Each second.", "ops", "umbra_linker_lookups_total"),
                _by_rank("Pages found", "Each second.", "short", "umbra_linker_hit_pages_total"),
            ),
        ),
        (
            "What the store gives back",
            (
                _curve(
                    "Samples with other bytes",
                    "Than were written, in an hour. One is an alert.",
                    "short",
                    "sum by (pod, rank, pool) "
                    f'(increase(umbra_linker_canary_objects_total{{{_POD},result="different"}}[1h]))',
                    "{{pod}} rank {{rank}} {{pool}}",
                ),
                _curve(
                    "Samples",
                    "Each second, by what was found.",
                    "ops",
                    _per_pod("sum", "umbra_linker_canary_objects_total", "result"),
                    "{{pod}} {{result}}",
                ),
            ),
        ),
        (
            "Moved by each rank",
            (
                _by_rank("Written", "Bytes each second.", "Bps", "umbra_linker_stored_bytes_total"),
                _by_rank("Read", "Bytes each second.", "Bps", "umbra_linker_read_bytes_total"),
                _by_rank(
                    "Nodes being stored", "Each holds a lock.", "short", "umbra_linker_offload_queue_depth", rate=False
                ),
                Panel("Time of a call", "By rank.", "s", _quantiles("umbra_linker_call_seconds", "rank")),
                _by_rank(
                    "Oldest call without an answer", "Age of it.", "s", "umbra_linker_oldest_call_seconds", rate=False
                ),
                _by_rank(
                    "Oldest node that is not stored",
                    "Age of it.",
                    "s",
                    "umbra_linker_offload_oldest_seconds",
                    rate=False,
                ),
            ),
        ),
    ),
)

DASHBOARDS = (_FLEET, _DEPLOYMENT, _CACHE, _RANKS)
