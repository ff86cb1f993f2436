"""Import all that an engine process imports, once: for bytecode at build time and for the fork server."""

import sglang.srt.entrypoints.http_server
import sglang.srt.layers.attention.triton_backend
import sglang.srt.managers.detokenizer_manager
import sglang.srt.managers.scheduler
import sglang.srt.mem_cache.storage.umbp.umbp_direct_linker
import sglang.srt.mem_cache.storage.umbp.umbp_store
import sglang.srt.models.kimi_linear  # noqa: F401
from sglang.srt.mem_cache.cpp_utils import native_hash

native_hash._load_native_hash_module()
