"""Manifests, commits and heads, on the catalog and the block store."""
