"""A real Kubernetes on one machine, for `make up` and for the tests: control plane, one node, images, tools.

Only the standard library is used. Everything that is built or runs lives under the cache folder
(`UMBRA_CACHE`), never in the repository.
"""
