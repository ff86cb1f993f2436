"""Queues and threads that move data beside the scheduler. They know neither SGLang nor tensors.

All threads are daemons: a call into a store that never answers must not keep a dying engine alive.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

Task = TypeVar("Task")
Argument = TypeVar("Argument")
Result = TypeVar("Result")


class ParallelCalls:
    """A bounded number of calls at the same time, with results in the order of the arguments."""

    def __init__(self, limit: int, name: str) -> None:
        """At most ``limit`` calls at once; threads start when a second call has something to do."""
        self.limit = limit
        """May be changed between calls; threads that exist stay."""
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def map(self, call: Callable[[Argument], Result], arguments: Sequence[Argument]) -> list[Result]:
        """Call with each argument and return all results in order.

        Raises:
            Exception: the first one in order, after every call has ended.
        """
        limit = self.limit
        if len(arguments) <= 1 or limit <= 1:
            return [call(argument) for argument in arguments]
        outcomes: list[Result | BaseException | None] = [None] * len(arguments)
        pending = iter(range(len(arguments)))
        helpers = min(limit, len(arguments)) - 1
        done = threading.Semaphore(0)

        def run() -> None:
            # One shared iterator: next() on it is atomic, and a slow call holds up no other.
            for index in pending:
                try:
                    outcomes[index] = call(arguments[index])
                except BaseException as error:
                    outcomes[index] = error

        def help_out() -> None:
            run()
            done.release()

        self._start(helpers)
        for _ in range(helpers):
            self._work.put(help_out)
        run()
        for _ in range(helpers):
            done.acquire()
        results: list[Result] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            results.append(outcome)  # type: ignore[arg-type]  # every index was taken
        return results

    def _start(self, count: int) -> None:
        while len(self._threads) < count:
            thread = threading.Thread(target=self._serve, daemon=True, name=f"{self._name}-{len(self._threads)}")
            self._threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        while True:
            self._work.get()()


class LateError(TimeoutError):
    """A call that was not waited for any longer; it goes on, and its result is dropped."""


class DeadlineCalls(Generic[Result]):
    """One call at a time on a thread of its own, waited for no longer than a deadline."""

    def __init__(self, name: str) -> None:
        """``name`` is the thread's; it starts with the first call."""
        self._name = name
        self._work: queue.SimpleQueue[_Call[Result]] = queue.SimpleQueue()
        self._last: _Call[Result] | None = None

    @property
    def busy(self) -> bool:
        """Whether a call runs, such as one that was given up; none may be made meanwhile."""
        return self._last is not None and not self._last.ended.is_set()

    def call(self, function: Callable[[], Result], seconds: float) -> Result:
        """Return the function's result or raise its exception. For one caller at a time.

        Raises:
            LateError: after ``seconds`` without a result, and at once while an earlier call runs.
        """
        if self.busy:
            raise LateError("an earlier call has not ended")
        if self._last is None:
            threading.Thread(target=self._serve, daemon=True, name=self._name).start()
        call = self._last = _Call(function)
        self._work.put(call)
        if not call.ended.wait(seconds):
            raise LateError(f"no answer within {seconds * 1000:.0f} ms")
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]  # it ended without an error

    def _serve(self) -> None:
        while True:
            self._work.get().run()


class _Call(Generic[Result]):
    def __init__(self, function: Callable[[], Result]) -> None:
        self._function = function
        self.ended = threading.Event()
        self.result: Result | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:
            self.error = error
        self.ended.set()


class TaskQueue(Generic[Task]):
    """Tasks run in batches by one thread; one result each, in the order of submission."""

    def __init__(
        self,
        run: Callable[[list[Task]], list[bool]],
        name: str,
        *,
        weigh: Callable[[Task], int] = lambda task: 1,
        most: int = 1,
        keep_results: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the thread.

        Args:
            run: does a batch and returns one result a task. If it raises, all of its tasks failed.
            name: of the thread.
            weigh: weight of a task.
            most: tasks are added to a batch until its weight reaches this. Only what already waits is taken: no
                task waits for a later one.
            keep_results: whether somebody takes the results.
            clock: monotonic seconds.
        """
        self._run = run
        self._weigh = weigh
        self._most = most
        self._keep_results = keep_results
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[tuple[float, Task]] = deque()
        self._running: list[tuple[float, Task]] = []
        self._cancelled = 0  # of the first waiting tasks
        self._results: deque[bool] = deque()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, daemon=True, name=name)
        self._thread.start()

    def submit(self, task: Task) -> None:
        """Queue a task."""
        with self._changed:
            self._waiting.append((self._clock(), task))
            self._changed.notify_all()

    def results(self) -> int:
        """Return how many results can be taken."""
        return len(self._results)

    def take_result(self) -> bool:
        """Return the result of the oldest task that has ended.

        Raises:
            IndexError: without a result.
        """
        return self._results.popleft()

    def unfinished(self) -> int:
        """Return how many tasks wait or run."""
        return len(self._waiting) + len(self._running)

    def oldest_seconds(self) -> float:
        """Return for how long the oldest unfinished task has been here; 0 without any."""
        with self._changed:
            first = self._running or self._waiting
            return max(0.0, self._clock() - first[0][0]) if first else 0.0

    def cancel_waiting(self) -> int:
        """Let every task that has not started fail, in its place in the order; return how many."""
        with self._changed:
            self._cancelled = len(self._waiting)
            return self._cancelled

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until no task waits or runs; False when that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._running, seconds)

    def forget_results(self) -> None:
        """Drop the results that nobody took."""
        self._results.clear()

    def stop(self, seconds: float) -> bool:
        """End the thread after the waiting tasks; False when it still runs after ``seconds``."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while batch := self._next_batch():
            tasks, cancelled = batch
            results = [False] * len(tasks)
            if not cancelled:
                results = self._outcome(tasks)
            with self._changed:
                self._running = []
                if self._keep_results:
                    self._results.extend(results)
                self._changed.notify_all()

    def _next_batch(self) -> tuple[list[Task], bool] | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._stopping)
            if not self._waiting:
                return None
            cancelled = self._cancelled > 0
            weight = 0
            while self._waiting and (not self._running or (weight < self._most and not cancelled)):
                begun, task = self._waiting.popleft()
                self._running.append((begun, task))
                weight += self._weigh(task)
            self._cancelled = max(0, self._cancelled - len(self._running))
            return [task for _, task in self._running], cancelled

    def _outcome(self, tasks: list[Task]) -> list[bool]:
        try:
            results = self._run(tasks)
            if len(results) != len(tasks):
                raise RuntimeError(f"{len(results)} results for {len(tasks)} tasks")
        except BaseException:
            logger.exception("%s: a batch of %d tasks failed", self._thread.name, len(tasks))
            return [False] * len(tasks)
        return results


class Heartbeat:
    """Calls something at an interval from a thread of its own, so that a stuck scheduler can still be seen."""

    def __init__(
        self, beat: Callable[[], None], seconds: float, name: str, wait: Callable[[float], object] | None = None
    ) -> None:
        """Start the thread; ``wait`` takes the seconds between two beats and may return sooner to have one at once."""
        self._beat = beat
        self._seconds = seconds
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._failing = False
        threading.Thread(target=self._serve, daemon=True, name=name).start()

    def stop(self) -> None:
        """Beat no more."""
        self._stopped.set()

    def _serve(self) -> None:
        while True:
            self._wait(self._seconds)
            if self._stopped.is_set():
                return
            try:
                self._beat()
            except Exception:
                # What it watches would be watched no more. Told once: the next beat mostly fails likewise.
                if not self._failing:
                    logger.exception("%s: a beat failed; the next one is tried", threading.current_thread().name)
                self._failing = True
            else:
                self._failing = False


def run_bounded(call: Callable[[], None], seconds: float, name: str) -> bool:
    """Run ``call`` on a thread and wait for it; False when it has not ended after ``seconds``.

    It then goes on in the background. An error of the call is logged and counts as an end.
    """

    def run() -> None:
        try:
            call()
        except Exception:
            logger.exception("%s failed", name)

    thread = threading.Thread(target=run, daemon=True, name=name)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()
