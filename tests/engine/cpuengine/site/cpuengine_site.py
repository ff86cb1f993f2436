"""Loaded by a .pth in every process of the CPU engine: lets the released SGLang serve a KDA and MLA model on a CPU.

NOT genuine, each in its own function below: sgl_kernel is absent, Triton kernels run in Triton's interpreter, KDA
kernels are plain torch, dummy weights are wider, extra_buffer is allowed, host pools live in UMBP shared memory.
Each patch is applied right after the module that it changes has been imported; nothing heavy is imported before.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


def _triton_masks(module: ModuleType) -> None:
    """The interpreter refuses integer masks, which compiled Triton takes."""
    builder = module.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def boolean(mask: Any) -> Any:
        data = getattr(mask, "data", None)
        if hasattr(data, "dtype") and data.dtype != bool:
            mask.data = data.astype(bool)
        return mask

    def masked_load(self: Any, pointers: Any, mask: Any, *args: Any, **options: Any) -> Any:
        return load(self, pointers, boolean(mask), *args, **options)

    def masked_store(self: Any, pointers: Any, value: Any, mask: Any, *args: Any, **options: Any) -> Any:
        return store(self, pointers, value, boolean(mask), *args, **options)

    builder.create_masked_load, builder.create_masked_store = masked_load, masked_store


def _triton_autotuner(module: ModuleType) -> None:
    """Without a device driver nothing can be timed: the first configuration is taken."""
    module.Autotuner._bench = lambda self, *args, config, **options: [0.0, 0.0, 0.0]


def _torch_kda(module: ModuleType) -> None:
    import cpuengine_kda

    cpuengine_kda.install(module.TritonKDAKernel)


def _torch_convolution(module: ModuleType) -> None:
    import cpuengine_kda

    module.causal_conv1d_fn = cpuengine_kda.causal_conv1d


def _torch_gated_norm(module: ModuleType) -> None:
    import cpuengine_kda

    module.FusedRMSNormGated.forward = cpuengine_kda.gated_norm


def _extra_buffer(module: ModuleType) -> None:
    """extra_buffer (checkpoints at page boundaries) is what the product uses; SGLang allows it on GPUs only."""
    module._platform_supports_mamba_cache_extra_buffer = lambda: True


def _no_pinned_memory(module: ModuleType) -> None:
    """Tracking masks of extra_buffer are staged through pinned memory, which needs a GPU."""
    module.torch.Tensor.pin_memory = lambda self, *args, **options: self


def _wide_dummy_weights(module: ModuleType) -> None:
    """The default +-0.001 makes all logits equal, and then no comparison of outputs proves anything."""
    function = module.initialize_dummy_weights
    function.__defaults__ = (-0.3, 0.3, *function.__defaults__[2:])


def _prebuilt_hash(module: ModuleType) -> None:
    """Load the page hash compiled at build time, so that a container needs no compiler."""
    library = Path(os.environ.get("TORCH_EXTENSIONS_DIR", ""), "hicache_hash_cpp", "hicache_hash_cpp.so")
    if os.environ.get("CPUENGINE_COMPILE_HASH") or not library.exists():
        return

    def load() -> ModuleType:
        import torch  # noqa: F401  (its libraries must be loaded first)

        spec = importlib.util.spec_from_file_location("hicache_hash_cpp", library)
        assert spec is not None and spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded

    from functools import lru_cache

    module._load_native_hash_module = lru_cache(maxsize=1)(load)


def _shared_pools(module: ModuleType) -> None:
    import cpuengine_shm

    cpuengine_shm.install(module)


_AFTER_IMPORT: dict[str, Callable[[ModuleType], None]] = {
    "sglang.srt.layers.attention.linear.kernels.kda_triton": _torch_kda,
    "sglang.kernels.ops.mamba.causal_conv1d_triton": _torch_convolution,
    "sglang.kernels.ops.attention.fla.fused_norm_gate": _torch_gated_norm,
    "sglang.srt.arg_groups.mamba_hook": _extra_buffer,
    "sglang.srt.managers.schedule_batch": _no_pinned_memory,
    "sglang.srt.model_loader.weight_utils": _wide_dummy_weights,
    "sglang.srt.mem_cache.cpp_utils.native_hash": _prebuilt_hash,
    "sglang.srt.mem_cache.storage.umbp.umbp_direct_linker": _shared_pools,
}
if os.environ.get("TRITON_INTERPRET") == "1":
    _AFTER_IMPORT["triton.runtime.interpreter"] = _triton_masks
    _AFTER_IMPORT["triton.runtime.autotuner"] = _triton_autotuner


class _AbsentKernels(importlib.abc.Loader):
    """sgl_kernel has no CPU wheel with KDA kernels: any attribute exists and does nothing."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        from unittest.mock import MagicMock

        def attribute(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock(name=f"{module.__name__}.{name}")

        module.__getattr__ = attribute  # type: ignore[method-assign]


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "sgl_kernel" or fullname.startswith("sgl_kernel."):
            return importlib.machinery.ModuleSpec(fullname, _AbsentKernels(), is_package=True)
        patch = _AFTER_IMPORT.pop(fullname, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
