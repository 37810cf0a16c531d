"""States that travel between functions as small JSON: what stays, what becomes a pointer, what a segment may see."""
