"""Delivery of committed rows: who handles an event, in what order, and what happens when that fails."""
