"""The real SGLang and the real UMBP store on a machine without a GPU, for tests and for the local cluster."""

import sys
from pathlib import Path

# The image builder, which says where the cache is, is no part of any installed package.
sys.path.append(str(Path(__file__).resolve().parents[3] / "images"))

from .build import environment
from .description import Environment
from .errors import EngineEnvironmentError

__all__ = ["EngineEnvironmentError", "Environment", "environment"]
