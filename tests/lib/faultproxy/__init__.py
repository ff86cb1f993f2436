"""A proxy between an operator and its API server that fails where a test says so. README.md shows how."""

from .faults import (
    Answer,
    Crash,
    CutAfter,
    CutBefore,
    Delay,
    Expire,
    Fault,
    Freeze,
    LoseEvents,
    Pass,
    ReplyLost,
    Silence,
    StaleList,
)
from .proxy import FaultProxy
from .request import WRITES, Request, parse
from .rules import Match, Rule

__all__ = [
    "WRITES",
    "Answer",
    "Crash",
    "CutAfter",
    "CutBefore",
    "Delay",
    "Expire",
    "Fault",
    "FaultProxy",
    "Freeze",
    "LoseEvents",
    "Match",
    "Pass",
    "ReplyLost",
    "Request",
    "Rule",
    "Silence",
    "StaleList",
    "parse",
]
