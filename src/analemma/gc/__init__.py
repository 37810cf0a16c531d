"""Collecting what nothing needs: blocks that no root leads to, objects in which no block lies."""
