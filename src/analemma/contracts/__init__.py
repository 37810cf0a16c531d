"""Contracts: what entities look like, how they are sliced, viewed and shipped. Reads, checks and compares them."""
