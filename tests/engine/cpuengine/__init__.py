"""The real SGLang and the real UMBP store on a machine without a GPU, for tests and for the local cluster."""

from .build import Environment, environment
from .errors import EngineEnvironmentError

__all__ = ["EngineEnvironmentError", "Environment", "environment"]
