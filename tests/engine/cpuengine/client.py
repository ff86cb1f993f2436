"""What the tests ask an engine over HTTP."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """One generation: the log-probability of each output token, and where the prompt's cache came from."""

    logprobs: tuple[tuple[float, int], ...]
    cached: int
    device: int
    host: int


@dataclass(frozen=True, slots=True)
class EngineClient:
    """An engine on loopback."""

    base: str

    def request(self, path: str, body: Any = None, *, timeout: float = 120.0) -> str:
        """POST ``body`` as JSON (GET without one) and return the text."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return str(response.read().decode())

    def ready(self) -> bool:
        """Whether ``/ready`` says 200."""
        try:
            self.request("/ready", timeout=5.0)
        except (OSError, urllib.error.URLError):
            return False
        return True

    def generate(self, prompt: list[int], tokens: int = 4) -> Answer:
        """Generate ``tokens`` greedily after a prompt of token ids."""
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body = {"input_ids": prompt, "return_logprob": True, "sampling_params": sampling}
        meta = json.loads(self.request("/generate", body))["meta_info"]
        details = meta.get("cached_tokens_details") or {}
        return Answer(
            logprobs=tuple((entry[0], entry[1]) for entry in meta["output_token_logprobs"]),
            cached=meta["cached_tokens"],
            device=details.get("device", 0),
            host=details.get("host", 0),
        )

    def flush(self) -> None:
        """Empty the device cache; what the store holds stays."""
        self.request("/flush_cache", {})

    def samples(self, prefix: str) -> dict[str, float]:
        """Return the samples of ``/metrics`` whose name starts with ``prefix``, by ``name{labels}``."""
        lines = self.request("/metrics").splitlines()
        found = (re.fullmatch(r"(\S+?(?:\{.*\})?) (\S+)", line) for line in lines if line.startswith(prefix))
        return {match[1]: float(match[2]) for match in found if match}
