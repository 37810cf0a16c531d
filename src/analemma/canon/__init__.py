"""Pure: values to canonical bytes, bytes to hashes, hashes to trees."""
