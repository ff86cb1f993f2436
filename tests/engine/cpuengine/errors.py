"""The one error that building or running the environment raises."""


class EngineEnvironmentError(RuntimeError):
    """The CPU engine environment cannot be built or used; the message says why and what to do."""
