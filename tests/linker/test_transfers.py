"""Order, bounds and results of the linker's threads, also when the store never answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from umbra_linker.transfers import DeadlineCalls, Heartbeat, LateError, ParallelCalls, TaskQueue, run_bounded


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """A store that does not answer until the event is set."""
    event = threading.Event()
    yield event
    event.set()


def test_results_keep_the_order_of_the_arguments() -> None:
    def slow_first(number: int) -> int:
        time.sleep(0.02 if number == 0 else 0)
        return number * 2

    assert ParallelCalls(4, "order").map(slow_first, list(range(20))) == [number * 2 for number in range(20)]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_no_more_calls_at_once_than_allowed(limit: int) -> None:
    lock, running, most = threading.Lock(), 0, 0

    def call(number: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1

    ParallelCalls(limit, "limit").map(call, list(range(20)))
    assert most == limit


def test_every_call_ends_before_an_error_is_raised() -> None:
    ended = []

    def call(number: int) -> None:
        if number == 1:
            raise ValueError("one")
        time.sleep(0.01)
        ended.append(number)

    with pytest.raises(ValueError, match="one"):
        ParallelCalls(3, "errors").map(call, [0, 1, 2, 3])
    assert sorted(ended) == [0, 2, 3]


def test_tasks_that_wait_share_a_batch_and_none_waits_for_a_later_one(gate: threading.Event) -> None:
    batches: list[list[int]] = []

    def run(tasks: list[int]) -> list[bool]:
        batches.append(tasks)
        gate.wait(10.0)
        return [task != 3 for task in tasks]

    tasks: TaskQueue[int] = TaskQueue(run, "batches", most=3)
    tasks.submit(0)
    while not batches:
        time.sleep(0.001)
    for task in range(1, 6):
        tasks.submit(task)
    assert (tasks.unfinished(), tasks.results()) == (6, 0)
    gate.set()
    assert tasks.wait_until_idle(5.0)
    assert batches == [[0], [1, 2, 3], [4, 5]]
    assert [tasks.take_result() for _ in range(6)] == [True, True, True, False, True, True]


def test_a_batch_that_raises_fails_its_own_tasks() -> None:
    def run(tasks: list[int]) -> list[bool]:
        if tasks == [1]:
            raise RuntimeError("lost")
        return [True] * len(tasks)

    tasks: TaskQueue[int] = TaskQueue(run, "raising")
    for task in range(3):
        tasks.submit(task)
    assert tasks.wait_until_idle(5.0)
    assert [tasks.take_result() for _ in range(3)] == [True, False, True]


def test_with_a_store_that_does_not_answer_waiting_tasks_fail_in_their_place(gate: threading.Event) -> None:
    started = threading.Event()

    def run(tasks: list[int]) -> list[bool]:
        started.set()
        gate.wait(10.0)
        return [True] * len(tasks)

    tasks: TaskQueue[int] = TaskQueue(run, "frozen")
    tasks.submit(0)
    assert started.wait(5.0)
    tasks.submit(1)
    tasks.submit(2)
    assert tasks.cancel_waiting() == 2
    tasks.submit(3)
    begin = time.monotonic()
    assert not tasks.wait_until_idle(0.05)
    assert not tasks.stop(0.05)
    assert time.monotonic() - begin < 2.0
    assert tasks.oldest_seconds() > 0.05
    gate.set()
    assert tasks.wait_until_idle(5.0)
    assert [tasks.take_result() for _ in range(4)] == [True, False, False, True]
    assert tasks.oldest_seconds() == 0


def test_a_queue_without_takers_keeps_no_results() -> None:
    tasks: TaskQueue[int] = TaskQueue(lambda batch: [True] * len(batch), "loads", keep_results=False)
    for task in range(10):
        tasks.submit(task)
    assert tasks.wait_until_idle(5.0)
    assert tasks.results() == 0


def test_the_heartbeat_goes_on_while_another_thread_is_stuck(gate: threading.Event) -> None:
    beats = threading.Semaphore(0)
    heartbeat = Heartbeat(beats.release, 0.01, "beat")
    threading.Thread(target=gate.wait, args=(10.0,), daemon=True).start()
    assert all(beats.acquire(timeout=5.0) for _ in range(3))
    heartbeat.stop()


def test_a_heartbeat_goes_on_after_a_beat_that_failed_and_tells_it_once(caplog: pytest.LogCaptureFixture) -> None:
    beats = threading.Semaphore(0)

    def beat() -> None:
        beats.release()
        raise OSError("the store's folder is gone")

    heartbeat = Heartbeat(beat, 0.001, "beat")
    assert all(beats.acquire(timeout=5.0) for _ in range(5))
    heartbeat.stop()
    assert caplog.text.count("beat: a beat failed") == caplog.text.count("Traceback") == 1


def test_a_heartbeat_that_waits_for_something_beats_when_it_comes(gate: threading.Event) -> None:
    beats, waited = threading.Semaphore(0), []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        gate.wait(10.0)

    heartbeat = Heartbeat(beats.release, 30.0, "beat", wait)
    assert not beats.acquire(timeout=0.05)
    gate.set()
    assert beats.acquire(timeout=5.0)
    heartbeat.stop()
    assert waited[0] == 30.0


def test_a_bounded_call_is_left_alone_after_its_time(gate: threading.Event) -> None:
    assert run_bounded(lambda: None, 5.0, "quick")
    assert not run_bounded(lambda: gate.wait(10.0) and None, 0.05, "frozen")
    assert run_bounded(lambda: 1 / 0 and None, 5.0, "failing")


def test_a_call_in_time_gives_its_result_or_its_error() -> None:
    calls: DeadlineCalls[int] = DeadlineCalls("deadline")
    assert not calls.busy
    assert [calls.call(lambda number=number: number, 5) for number in range(3)] == [0, 1, 2]  # type: ignore[misc]
    with pytest.raises(ZeroDivisionError):
        calls.call(lambda: 1 // 0, 5)
    assert calls.call(lambda: 4, 5) == 4, "an error ends no thread"


def test_a_late_call_is_given_up_and_none_is_made_until_it_has_ended(gate: threading.Event) -> None:
    calls: DeadlineCalls[str] = DeadlineCalls("deadline")
    with pytest.raises(LateError, match="no answer within 50 ms"):
        calls.call(lambda: str(gate.wait(30)), 0.05)
    begin = time.monotonic()
    with pytest.raises(LateError, match="an earlier call has not ended"):
        calls.call(lambda: "second", 30)
    assert time.monotonic() - begin < 5, "it does not wait for the thread"
    assert calls.busy
    gate.set()
    end = time.monotonic() + 10
    while calls.busy and time.monotonic() < end:
        time.sleep(0.01)
    assert calls.call(lambda: "third", 5) == "third", "not the late call's result"
