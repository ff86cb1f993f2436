"""Runs inside the engine's Python: uses groups of objects in one way each, fills the store, and prints who is left.

usage: recency_client.py ADDRESS, of a store of 64 MiB
"""

import json
import sys

from store_connection import connect

SIZE = 1 << 20
MEMBERS = 4
USES = ("read", "read of 64 bytes", "existence check", "put again", "nothing")
OTHERS_BEFORE, OTHERS_AFTER = 30, 10
"""With the groups 50 MiB, and then beyond 0.9 of 64 MiB: the store evicts down to 0.7 of it, once."""


def main() -> None:
    """Put the groups, the others, use the groups, put more others."""
    client, buffer, _ = connect(sys.argv[1], 2 * SIZE)
    groups = {use: [f"{use} {number}" for number in range(MEMBERS)] for use in USES}
    keys = [key for group in groups.values() for key in group]
    for key in [*keys, *(f"before {number}" for number in range(OTHERS_BEFORE))]:
        assert client.put_from_ptr(key, buffer.ptr, SIZE)
    for key in groups["read"]:
        assert client.get_into_ptr(key, buffer.ptr + SIZE, SIZE)
    short = groups["read of 64 bytes"]
    assert all(
        client.batch_get_ranges_into_ptr(
            short, [[buffer.ptr + SIZE]] * MEMBERS, [[64]] * MEMBERS, [[0]] * MEMBERS
        )
    )  # fmt: skip
    assert all(client.batch_exists(groups["existence check"]))
    for key in groups["put again"]:
        assert client.put_from_ptr(key, buffer.ptr, SIZE)
    for number in range(OTHERS_AFTER):
        assert client.put_from_ptr(f"after {number}", buffer.ptr, SIZE)
    left = {use: sum(map(bool, client.batch_exists(group))) for use, group in groups.items()}
    print(json.dumps({"left": left, "has a call for it": hasattr(client, "batch_touch")}))


main()
