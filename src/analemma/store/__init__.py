"""Handles on what a store has, and the revisions by which versions are named."""
