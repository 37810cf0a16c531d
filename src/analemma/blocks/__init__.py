"""All object input and output."""
