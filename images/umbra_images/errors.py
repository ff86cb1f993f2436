"""The one exception that a user of the image builder sees."""


class ImageError(Exception):
    """What is wrong and what to do about it."""
