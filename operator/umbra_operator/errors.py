"""Kinds of failure: the user must act, the operator tries again, or this process must end."""


class UmbraError(Exception):
    """Base of the operator's own errors."""


class SpecInvalid(UmbraError):
    """The user must act: names the field and the remedy.

    ``reason`` is the condition reason, ``str(error)`` its message.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ClusterUnavailable(UmbraError):
    """The API server did not answer, or asked to come back later: try again, in ``seconds`` at the earliest."""

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


class Conflict(UmbraError):
    """The object changed or was replaced since it was read: observe again."""


class Missing(UmbraError):
    """The object is not there."""


class Refused(UmbraError):
    """The API server refused the request for what it says; the same one would be refused until somebody acts."""


class LeaseLost(UmbraError):
    """Another process may lead by now: send nothing more and end."""
