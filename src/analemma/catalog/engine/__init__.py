"""The databases: statements and procedures, and who runs them."""
