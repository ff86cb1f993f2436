"""Settings of the operator's process, from its environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """All settings, with defaults that work in a cluster."""

    namespaces: tuple[str, ...] = ()
    """Namespaces to serve; empty means all."""
    operator_namespace: str | None = None
    """Namespace of the operator's pod: of its Lease, and from which NetworkPolicies let agents be asked.

    None outside a cluster; this process then takes itself for the only one.
    """
    lease_name: str = "umbra-operator"
    """Lease that decides which of several operators leads."""
    workers: int = 4
    """Reconciles at once."""
    resync_seconds: float = 300.0
    """Between two repairs of the memory by full lists."""
    metrics_port: int = 8080
    """Port of ``/metrics`` and ``/healthz``; 0 means none."""
    bind: str = "0.0.0.0"  # noqa: S104 - inside a pod; NetworkPolicies decide who reaches it
    """Address of that port."""
    log_level: str = "INFO"
    """Level of the log."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> "Settings":
        """Reads ``UMBRA_*`` variables. Raises ValueError naming the variable that cannot be read."""
        return cls(
            namespaces=tuple(name.strip() for name in env.get("UMBRA_NAMESPACES", "").split(",") if name.strip()),
            operator_namespace=env.get("UMBRA_OPERATOR_NAMESPACE") or None,
            lease_name=env.get("UMBRA_LEASE_NAME") or cls.lease_name,
            workers=_number(env, "UMBRA_WORKERS", cls.workers, 1, 64),
            resync_seconds=float(_number(env, "UMBRA_RESYNC_SECONDS", int(cls.resync_seconds), 10, 3600)),
            metrics_port=_number(env, "UMBRA_METRICS_PORT", cls.metrics_port, 0, 65535),
            bind=env.get("UMBRA_BIND", cls.bind),
            log_level=env.get("UMBRA_LOG_LEVEL", cls.log_level).upper(),
        )


def _number(env: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    raw = env.get(name)
    if raw is None or raw == "":
        return default
    try:
        value = int(raw)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise ValueError(f"{name}={raw!r} is not a whole number from {low} to {high}; correct or unset it")
    return value
