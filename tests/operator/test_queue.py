"""The work queue: no key is lost, run twice at once, or forgotten."""

import asyncio
import time

import pytest

from umbra_operator.queue import LAST_RETRY_SECONDS, WorkQueue


async def test_a_key_added_many_times_runs_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(3):
        queue.add("a")
    queue.add("b")
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert len(queue) == 0


async def test_a_key_added_while_it_runs_runs_again_once_and_never_twice_at_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await queue.get()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0, "no other worker may get it now"
    queue.done("a")
    assert await asyncio.wait_for(queue.get(), 5) == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_delayed_keys_come_in_the_order_of_their_time_and_not_before() -> None:
    queue: WorkQueue[str] = WorkQueue()
    began = time.monotonic()
    queue.add_after("late", 0.10)
    queue.add_after("soon", 0.05)
    assert await queue.get() == "soon"
    assert await queue.get() == "late"
    assert time.monotonic() - began >= 0.10


async def test_the_earlier_of_two_delays_counts_and_the_key_runs_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 0.2)
    queue.add_after("a", 0.02)
    queue.add_after("a", 60)
    assert await asyncio.wait_for(queue.get(), 5) == "a"
    queue.done("a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.4)


async def test_a_delayed_key_that_is_running_when_due_runs_afterwards() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await queue.get()
    queue.add_after("a", 0)
    queue.add("b")
    assert await queue.get() == "b"
    queue.done("a")
    assert await asyncio.wait_for(queue.get(), 5) == "a"


async def test_retries_double_up_to_their_limit_until_the_key_is_forgotten() -> None:
    queue: WorkQueue[str] = WorkQueue()
    delays = [queue.retry("a") for _ in range(12)]
    assert delays[:4] == [0.1, 0.2, 0.4, 0.8]
    assert delays[-1] == LAST_RETRY_SECONDS
    queue.forget("a")
    assert queue.retry("a") == 0.1


async def test_every_waiting_worker_gets_a_key() -> None:
    queue: WorkQueue[int] = WorkQueue()
    workers = [asyncio.create_task(queue.get()) for _ in range(4)]
    await asyncio.sleep(0)
    for key in range(4):
        queue.add(key)
    assert sorted(await asyncio.wait_for(asyncio.gather(*workers), 5)) == [0, 1, 2, 3]


def test_a_retry_waits_at_least_as_long_as_it_was_asked_to() -> None:
    queue: WorkQueue[str] = WorkQueue()
    assert queue.retry("a", at_least=7.0) == 7.0
    assert queue.retry("b", at_least=0.01) == 0.1
