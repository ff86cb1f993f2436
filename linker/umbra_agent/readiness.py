"""What the supervisor asks beside its steps: does the engine answer and what does it say, is the store ready."""

from collections.abc import Callable

from umbra_agent.probe import Poll, http_ready
from umbra_agent.scrape import Reading, Scraper
from umbra_agent.session import Session

PROBE_TIMEOUT_SECONDS = 2.0


class Probes:
    """Each in its own thread. `session` and `serving` are looked up before each probe."""

    def __init__(
        self, store_port: int | None, session: Callable[[], Session | None], serving: Callable[[], bool]
    ) -> None:
        """`store_port`: of the store agent on loopback; None probes no store."""
        self._store_port = store_port
        self._session = session
        self._serving = serving
        self.engine = Poll(self._probe_engine, self._token, self._period)
        """Its token is the engine's pid."""
        self._scraper = Scraper(session, serving)
        self._store = Poll(self._probe_store, lambda: True, lambda: 0.25 if self.store_problem else 1.0)

    def start(self) -> None:
        """Begin to probe."""
        self.engine.start()
        self._scraper.start()
        if self._store_port is not None:
            self._store.start()

    @property
    def store_asked(self) -> bool:
        """Whether the store was asked at all yet."""
        return self._store.latest[0] is not None

    @property
    def store_problem(self) -> str | None:
        """Why the store was not ready when last asked, or None when it was."""
        return self._store.latest[1]

    def reading(self, pid: int) -> Reading | None:
        """What the engine with this pid last said under /metrics; None before it was asked."""
        return self._scraper.latest(pid)

    def _token(self) -> int | None:
        session = self._session()
        return None if session is None or session.child.exit is not None else session.child.pid

    def _probe_engine(self) -> str | None:
        session = self._session()
        return "not running" if session is None else http_ready(session.launch.port, PROBE_TIMEOUT_SECONDS)

    def _probe_store(self) -> str | None:
        return http_ready(self._store_port or 0, PROBE_TIMEOUT_SECONDS)

    def _period(self) -> float:
        """Seconds: dense while starting, sparse later, since each probe is a line in the engine's access log."""
        return 2.0 if self._serving() else 0.2
