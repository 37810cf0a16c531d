"""Rows of threads and items."""
