"""Umbra's linker: the layer inside every engine rank between SGLang's radix tree and the UMBP store."""

__version__ = "0.1.0"
