"""Generated files: CRDs and reference pages, from the API models."""
