"""Rows of what sinks took."""
