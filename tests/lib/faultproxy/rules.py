"""Which requests meet a fault: by what they are about, and by count."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .faults import Fault
from .request import Request


@dataclass(frozen=True)
class Match:
    """Requests whose every part matches; patterns as of the shell (`pods*` includes `pods/status`)."""

    verbs: Iterable[str] | None = None
    """Verbs as RBAC calls them; None means every one."""
    resource: str = "*"
    namespace: str = "*"
    name: str = "*"
    where: Callable[[Request], bool] | None = None
    """A further condition."""

    def __call__(self, request: Request) -> bool:
        """Whether the request is meant."""
        return (
            (self.verbs is None or request.verb in self.verbs)
            and fnmatchcase(request.resource, self.resource)
            and fnmatchcase(request.namespace, self.namespace)
            and fnmatchcase(request.name, self.name)
            and (self.where is None or self.where(request))
        )


class Rule:
    """Applies `fault` to matching requests, leaving the first `skip` of them and all after `times` alone."""

    def __init__(self, fault: Fault, match: Match, *, skip: int = 0, times: int | None = None) -> None:
        self.fault, self.match = fault, match
        self._skip, self._times = skip, times
        self.seen = 0
        """Requests that matched."""
        self.applied = 0
        """Requests that met the fault."""
        self._applied = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Waits until the fault has been applied once; False when it was not in that time."""
        return self._applied.wait(seconds)

    def takes(self, request: Request, free: bool) -> bool:
        """Counts the request, and takes it if it is this rule's turn and no earlier rule took it (`free`)."""
        if not self.match(request):
            return False
        self.seen += 1
        if not free or self.seen <= self._skip or (self._times is not None and self.applied >= self._times):
            return False
        self.applied += 1
        self._applied.set()
        return True


class RuleBook:
    """The rules of a proxy, in the order in which they were added; for use from several threads."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []
        self._lock = threading.Lock()

    def add(self, rule: Rule) -> Rule:
        """Adds a rule behind the others."""
        with self._lock:
            self._rules.append(rule)
        return rule

    def remove(self, *rules: Rule) -> None:
        """Removes these rules; one that is not there is no error."""
        with self._lock:
            self._rules = [rule for rule in self._rules if rule not in rules]

    def choose(self, request: Request) -> Fault | None:
        """The fault that the request meets: of the first rule that takes it. Every rule that matches counts it."""
        chosen: Fault | None = None
        with self._lock:
            for rule in self._rules:
                if rule.takes(request, free=chosen is None):
                    chosen = rule.fault
        return chosen
