"""Merging: one line of history into another, and the values that both changed."""
