"""For people who write backends: conformance suites, strategies, failing stores, failpoints."""
