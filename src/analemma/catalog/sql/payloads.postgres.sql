-- leases --
-- Those of the ids that exist.
SELECT id, owner, workflow, execution, root, size, field, created_at, released_at
FROM payload WHERE tenant = :tenant AND id = ANY (:ids::bytea[])

-- hold_leases --
-- Those of the leases that are live, and stay so until the transaction ends: releasing waits for this lock.
SELECT id FROM payload
WHERE tenant = :tenant AND id = ANY (:ids::bytea[]) AND released_at IS NULL
ORDER BY id
FOR SHARE

-- share_execution --
-- Leases of an execution are written by any number at once, but not while it is ended: whoever ends it waits for them, and sees them.
SELECT pg_advisory_xact_lock_shared(
    hashtextextended(:owner::text || '/' || :workflow::text || '/' || :execution::text || '/lease', :tenant::integer)
)

-- hold_execution --
-- The other side of it.
SELECT pg_advisory_xact_lock(
    hashtextextended(:owner::text || '/' || :workflow::text || '/' || :execution::text || '/lease', :tenant::integer)
)
