"""The one exception that users see as a sentence."""


class InputError(ValueError):
    """What the user gave cannot be used; the message says what to change."""
