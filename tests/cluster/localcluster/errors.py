"""The one exception that a user of the local cluster sees."""


class ClusterError(Exception):
    """What is wrong and what to do about it, in one sentence or two."""
