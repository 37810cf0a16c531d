"""Workspaces in and out of object storage. Start reading at `archives/archives.py`."""
