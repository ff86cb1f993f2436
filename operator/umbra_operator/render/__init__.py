"""Kubernetes objects from a spec and its profile: pure functions, one module per kind."""
