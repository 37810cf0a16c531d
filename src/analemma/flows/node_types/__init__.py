"""What nodes do that call no function of the program: ask models, send requests, run code, ingest, view and archive."""
