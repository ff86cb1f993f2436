"""The operator ends when it is told to, whatever its parts were doing at that moment."""

import asyncio

import pytest

from umbra_operator import __main__ as process
from umbra_operator.queue import WorkQueue


@pytest.mark.parametrize("turns", range(4))
async def test_no_cancellation_of_a_waiting_worker_is_lost(turns: int) -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("later", 60)
    got: list[str] = []

    async def work() -> None:
        while True:
            got.append(await queue.get())

    worker = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    queue.add("now")
    for _ in range(turns):
        await asyncio.sleep(0)
    worker.cancel()
    done, _ = await asyncio.wait([worker], timeout=2)
    assert done, f"it works on after it was ended {turns} turns after a key came"


async def test_a_part_that_loses_a_cancellation_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CANCEL_AGAIN_SECONDS", 0.05)
    stop = asyncio.Event()
    lost = 0

    async def careless() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if lost == 2:
                    raise
                lost += 1

    ends = asyncio.create_task(process._until(stop, careless()))
    await asyncio.sleep(0.01)
    stop.set()
    done, _ = await asyncio.wait([ends], timeout=5)
    assert done
    assert ends.result() is False
    assert lost == 2
