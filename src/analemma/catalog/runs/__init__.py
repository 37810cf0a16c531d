"""Rows of runs, effects, queues and schedules."""
