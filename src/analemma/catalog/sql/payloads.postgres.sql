-- leases --
-- Those of the ids that exist.
SELECT id, owner, workflow, execution, root, size, field, created_at, released_at, renewed_at,
       released_at IS NULL AND renewed_at < analemma_now() - :unused::bigint
FROM payload WHERE tenant = :tenant AND id = ANY (:ids::bytea[])

-- hold_leases --
-- Those of the leases that are live, and stay so until the transaction ends: releasing waits for this lock. And whether each was not used
-- for a while.
SELECT id, renewed_at < analemma_now() - :unused::bigint FROM payload
WHERE tenant = :tenant AND id = ANY (:ids::bytea[]) AND released_at IS NULL  -- guard: lease.held.postgres
ORDER BY id
FOR SHARE  -- guard: lease.held.lock.postgres

-- share_execution --
-- Leases of an execution are written by any number at once, but not while it is ended: whoever ends it waits for them, and sees them.
SELECT pg_advisory_xact_lock_shared(  -- guard: execution.shared.postgres
    hashtextextended(:owner::text || '/' || :workflow::text || '/' || :execution::text || '/lease', :tenant::integer)
)

-- hold_execution --
-- The other side of it.
SELECT pg_advisory_xact_lock(  -- guard: execution.held.postgres
    hashtextextended(:owner::text || '/' || :workflow::text || '/' || :execution::text || '/lease', :tenant::integer)
)

-- hold_leases_of_execution --
-- The live leases of an execution, in the order in which everybody locks leases: from now on nobody renews or passes them on.
SELECT id FROM payload
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND execution = :execution AND released_at IS NULL
ORDER BY id
FOR UPDATE  -- guard: lease.ended.postgres

-- renew_leases --
-- Somebody uses them. Locked in the order in which everybody locks leases.
WITH held AS MATERIALIZED (
    SELECT id FROM payload WHERE tenant = :tenant AND id = ANY (:ids::bytea[]) AND released_at IS NULL ORDER BY id FOR UPDATE
)
UPDATE payload SET renewed_at = analemma_now()
FROM held WHERE payload.tenant = :tenant AND payload.id = held.id

-- add_lease --
-- A pointer's right to its tree. Its id is random, so one that is there was written by the same request.
INSERT INTO payload (tenant, id, owner, workflow, execution, root, size, field, created_at, renewed_at)
VALUES (:tenant, :id, :owner, :workflow, :execution, :root, :size, :field, :created_at, analemma_now())
ON CONFLICT (tenant, id) DO NOTHING
