"""Where documents are shipped to: the port, the sinks that come with Analemma, and the registry that opens them."""
