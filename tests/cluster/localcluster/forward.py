"""A loopback port of this machine that leads to an address inside the cluster's network namespace.

Run as `python3 -m localcluster.forward <fd> <namespace file> <address>:<port>`: the listening socket is handed
over as a file descriptor, made in the machine's own namespace; the process then enters the cluster's, so every
connection that it opens starts there.
"""

import asyncio
import ctypes
import os
import socket
import sys
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_CHUNK_BYTES = 64 * 1024


def listen(port: int = 0) -> socket.socket:
    """A socket that listens on 127.0.0.1:`port`; a free one is taken for 0. Raises OSError when it is in use."""
    listener = socket.create_server(("127.0.0.1", port))
    listener.set_inheritable(True)
    return listener


def enter(namespace: Path) -> None:
    """Move this thread into the network namespace (Python 3.11 has no os.setns)."""
    handle = os.open(namespace, os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(handle, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    finally:
        os.close(handle)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of the stream and pass the end on: half-closed connections stay half-closed."""
    try:
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


async def serve(listener: socket.socket, host: str, port: int) -> None:
    """Accept and forward until cancelled."""

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, port)
        except OSError:
            # The one who connected sees the end of the connection, as with a dead server.
            writer.close()
            return
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            writer.close()
            far_writer.close()

    server = await asyncio.start_server(accepted, sock=listener)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Serve until killed."""
    descriptor, namespace, target = sys.argv[1:]
    listener = socket.socket(fileno=int(descriptor))
    enter(Path(namespace))
    host, _, port = target.rpartition(":")
    asyncio.run(serve(listener, host, int(port)))


if __name__ == "__main__":
    main()
