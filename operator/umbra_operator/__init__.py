"""Umbra's operator: Kimi K3 on SGLang with its UMBP cache tier."""

__version__ = "0.1.0"
