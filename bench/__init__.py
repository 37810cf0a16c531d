"""Benchmarks: what things cost, as ratios to the floor measured in the same run. They report; they never fail."""
