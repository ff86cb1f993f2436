"""The command ``umbra``, for people at a terminal. It is no part of the running operator."""
