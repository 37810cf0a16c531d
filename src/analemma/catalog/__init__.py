"""All SQL and transactions."""
