"""The loopback forward passes both directions, the end of each, and a dead target on."""

import asyncio

import pytest

from localcluster import forward, probe


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer only after the question has ended: works only when the end of the stream is passed on."""
    question = await reader.read()
    writer.write(question.upper())
    writer.close()


async def test_passes_half_closed_connections_on() -> None:
    target = await asyncio.start_server(_answer, "127.0.0.1", 0)
    listener = forward.listen()
    serving = asyncio.create_task(forward.serve(listener, *target.sockets[0].getsockname()))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"hello " * 50_000)
    writer.write_eof()
    async with asyncio.timeout(5):
        assert await reader.read() == b"HELLO " * 50_000
    writer.close()
    serving.cancel()
    target.close()


async def test_a_dead_target_ends_the_connection() -> None:
    (dead,) = probe.free_ports(1)
    listener = forward.listen()
    serving = asyncio.create_task(forward.serve(listener, "127.0.0.1", dead))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()
    serving.cancel()


def test_a_used_port_is_refused_and_free_ones_differ() -> None:
    with forward.listen() as taken, pytest.raises(OSError, match="in use"):
        forward.listen(taken.getsockname()[1])
    assert len(set(probe.free_ports(20))) == 20
