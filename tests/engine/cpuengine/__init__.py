"""The real SGLang and the real UMBP store on a machine without a GPU, for tests and for the local cluster."""

from .build import environment
from .description import Environment
from .errors import EngineEnvironmentError

__all__ = ["EngineEnvironmentError", "Environment", "environment"]
