"""Runs inside the engine's Python: asks for as many bytes of names as a call of the linker may carry. Prints JSON.

usage: names_client.py ADDRESS BYTES
"""

import json
import sys

from store_connection import connect

LENGTH = 256
"""Of a name; longer than those of an engine whose model has a long path."""


def main() -> None:
    """Put one object; ask for it last, after others that nobody has put."""
    client, buffer, _ = connect(sys.argv[1], 1 << 20)
    names = [f"{number}".ljust(LENGTH, "-") for number in range(int(sys.argv[2]) // LENGTH)]
    assert client.put_from_ptr(names[-1], buffer.ptr, 4096)
    answers = client.batch_exists(names)
    print(json.dumps({"asked": len(names), "answers": len(answers), "there": [i for i, a in enumerate(answers) if a]}))


main()
