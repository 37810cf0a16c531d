"""Rows of events and their lanes."""
