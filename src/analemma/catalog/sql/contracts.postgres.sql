-- hold_contracts --
-- One at a time loads contracts, until the end of the transaction. Readers do not wait.
SELECT pg_advisory_xact_lock(7022364301936815)
