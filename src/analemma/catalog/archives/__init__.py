"""Rows of workspaces and their archives."""
