"""The model classes that SGLang registers instead of its whole list (SGLANG_EXTERNAL_MODEL_PACKAGE)."""
