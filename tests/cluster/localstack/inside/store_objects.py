"""Runs in the engine's Python: asks a store, as a client of its own, which objects it has.

usage: store_objects.py ADDRESS < a JSON list of keys > a JSON list of booleans
"""

import json
import sys

import mori.umbp as umbp
from mori.cpp import UMBPClient


def main() -> None:
    """Ask once; nothing is registered, so no memory is shared with the store."""
    process = umbp.UMBPStandaloneProcessConfig()
    process.address, process.auto_start, process.startup_timeout_ms = sys.argv[1], False, 5000
    config = umbp.UMBPConfig()
    config.standalone_process = process
    found = UMBPClient(config).batch_exists(json.load(sys.stdin))
    print(json.dumps([bool(each) for each in found]))


main()
