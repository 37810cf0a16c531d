"""The stores that benchmarks compare: ours and its peers, each used as its own documentation recommends."""
