-- contracts_generation --
-- What changes whenever a contract does: the time of the newest change, which no two changes share, and how many there are.
SELECT coalesce(max(loaded_at), 0), count(*) FROM contract

-- active_contract --
-- Whether there is an ACTIVE contract of a kind.
SELECT 1 FROM contract WHERE kind = :kind AND status = 'ACTIVE' LIMIT 1

-- all_contracts --
-- Every contract, whatever its status.
SELECT id, version, kind, status, body, checksum, loaded_at FROM contract ORDER BY id, version

-- put_contract --
-- A new contract, or the next status of one that is there; whether its content may change was decided under the lock.
INSERT INTO contract (id, version, kind, status, body, checksum, loaded_at)
VALUES (:id, :version, :kind, :status, :body, :checksum, :loaded_at)
ON CONFLICT (id, version) DO UPDATE SET
    kind = excluded.kind,
    status = excluded.status,
    body = excluded.body,
    checksum = excluded.checksum,
    loaded_at = excluded.loaded_at

-- hold_contracts [lock] --
-- One at a time loads contracts, until the end of the transaction. Readers do not wait.
SELECT pg_advisory_xact_lock(7022364301936815)
