-- hold_entity --
-- There is one writer, so nobody else changes this entity until the transaction ends.
SELECT id, newest_raw, newest_hash FROM entity WHERE tenant = :tenant AND type = :type AND key = :key
