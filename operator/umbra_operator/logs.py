"""Log lines as JSON, each with the object and the reconcile that it belongs to.

The names of these fields are those that controller-runtime gives them.
"""

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any
from uuid import uuid4

_FIELDS: ContextVar[Mapping[str, str]] = ContextVar("fields", default=MappingProxyType({}))


@contextmanager
def reconciling(controller: str, namespace: str, name: str) -> Iterator[None]:
    """Whatever is logged in this block, by any module, carries the object and one new id."""
    fields = {"controller": controller, "namespace": namespace, "name": name, "reconcileID": str(uuid4())}
    token = _FIELDS.set(fields)
    try:
        yield
    finally:
        _FIELDS.reset(token)


def reconciled() -> tuple[str, str] | None:
    """Namespace and name of the object of the block that runs now; None outside of one."""
    fields = _FIELDS.get()
    return (fields["namespace"], fields["name"]) if fields else None


class JsonLines(logging.Formatter):
    """One JSON object a line, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; it is made where the record is logged, so the fields are those of that reconcile."""
        entry: dict[str, Any] = {
            "ts": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
            **_FIELDS.get(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)
