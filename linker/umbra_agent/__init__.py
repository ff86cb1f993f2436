"""The agent: main process of the engine and store containers, and the kit and preflight modes beside them.

Standard library only: it runs in images that we do not build, with whatever Python their engine uses.
"""
