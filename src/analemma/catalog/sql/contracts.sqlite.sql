-- hold_contracts --
-- There is one writer, so nobody else loads contracts until the transaction ends.
SELECT 1
