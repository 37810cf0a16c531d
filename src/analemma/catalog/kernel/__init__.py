"""Rows of versions, journals, pending checkpoints and payloads."""
