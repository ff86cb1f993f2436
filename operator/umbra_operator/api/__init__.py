"""The API of Umbra: what a user can say, with its defaults, bounds and rules."""
