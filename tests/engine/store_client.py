"""Runs inside the engine's Python: one page through a store, as an engine rank would do it. Prints JSON.

usage: store_client.py ADDRESS
"""

import ctypes
import json
import os
import random
import sys

from store_connection import connect

SIZE = 1 << 20


def main() -> None:
    """Register a shared buffer, put a random object, get it back elsewhere in the buffer and compare."""
    client, buffer, registered = connect(sys.argv[1], 4 * SIZE)
    written = random.Random(1).randbytes(SIZE)
    ctypes.memmove(buffer.ptr, written, SIZE)
    put = client.put_from_ptr("page", buffer.ptr, SIZE)
    got = client.get_into_ptr("page", buffer.ptr + 2 * SIZE, SIZE)
    equal = ctypes.string_at(buffer.ptr + 2 * SIZE, SIZE) == written
    seen = {"tmp": sorted(os.listdir("/tmp")), "shm": sorted(os.listdir("/dev/shm"))}  # noqa: PTH208
    print(json.dumps({"registered": registered, "put": put, "got": got, "equal": equal} | seen))


main()
