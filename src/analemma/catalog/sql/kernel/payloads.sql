-- leases_of_tenant --
-- The live leases of everybody.
SELECT id, owner, workflow, execution, root, size, field, created_at, released_at, renewed_at
FROM payload
WHERE tenant = :tenant AND released_at IS NULL AND id > :after
ORDER BY id LIMIT :limit

-- leases_of_owner --
-- The live leases of an owner.
SELECT id, owner, workflow, execution, root, size, field, created_at, released_at, renewed_at
FROM payload
WHERE tenant = :tenant AND owner = :owner AND released_at IS NULL AND id > :after
ORDER BY id LIMIT :limit

-- leases_of_workflow --
-- The live leases of a workflow.
SELECT id, owner, workflow, execution, root, size, field, created_at, released_at, renewed_at
FROM payload
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND released_at IS NULL AND id > :after
ORDER BY id LIMIT :limit

-- leases_of_execution --
-- The live leases of one execution.
SELECT id, owner, workflow, execution, root, size, field, created_at, released_at, renewed_at
FROM payload
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND execution = :execution AND released_at IS NULL
  AND id > :after
ORDER BY id LIMIT :limit

-- end_execution --
-- From now on; the first time that it was released counts.
INSERT INTO payload_end (tenant, owner, workflow, execution, ended_at)
VALUES (:tenant, :owner, :workflow, :execution, :now)
ON CONFLICT (tenant, owner, workflow, execution) DO NOTHING

-- execution_ended --
-- Whether an execution is over.
SELECT 1 FROM payload_end
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND execution = :execution  -- guard: execution.ended

-- release_leases --
-- The execution has ended.
UPDATE payload SET released_at = :now
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND execution = :execution AND released_at IS NULL

-- lease_roots --
-- What a collector must mark: the trees of every lease that was not released.
SELECT id, root FROM payload
WHERE tenant = :tenant AND released_at IS NULL AND id > :after
ORDER BY id LIMIT :limit

-- leased_executions --
-- A page of the executions with live leases, by name: when one of them was last used, and whether the run of that name is over.
SELECT owner, workflow, execution, max(renewed_at), EXISTS (
    SELECT 1 FROM run
    WHERE run.tenant = :tenant AND run.execution = payload.execution AND run.status IN ('COMPLETED', 'CANCELLED')
)
FROM payload
WHERE tenant = :tenant AND released_at IS NULL AND (owner, workflow, execution) > (:after_owner, :after_workflow, :after_execution)
GROUP BY owner, workflow, execution
ORDER BY owner, workflow, execution LIMIT :limit

-- is_execution_over --
-- A row if an execution that nobody released is over: it is a run that has ended, or its leases were not used since a time; and nobody needs
-- them. Pointers are worth something in their own workflow only, so that is where somebody may: a run that goes on or failed lately, a delta
-- that is not applied yet; besides, the run of the execution's name and those that wait for it, unless they are over for good; and, for
-- leases that are only old, runs of their owner that go on and were there when they were last used.
WITH RECURSIVE above (number, parent, status) AS (
    SELECT number, parent, status FROM run WHERE tenant = :tenant AND execution = :execution
    UNION ALL
    SELECT run.number, run.parent, run.status FROM above JOIN run ON run.number = above.parent
), used AS (
    SELECT max(renewed_at) AS us FROM payload
    WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND execution = :execution AND released_at IS NULL
)
SELECT 1 FROM used
WHERE NOT EXISTS (SELECT 1 FROM above WHERE status NOT IN ('COMPLETED', 'CANCELLED'))  -- guard: execution.over.above
  AND NOT EXISTS (SELECT 1 FROM ledger WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow)  -- guard: execution.over.delta
  AND NOT EXISTS (
      SELECT 1 FROM run
      WHERE tenant = :tenant AND workflow = :workflow AND owner = :owner
        AND (ended_at IS NULL OR (status = 'FAILED' AND ended_at > :before))
  )
  AND (EXISTS (SELECT 1 FROM above) OR (used.us <= :before AND NOT EXISTS (
      SELECT 1 FROM run
      WHERE tenant = :tenant AND owner = :owner AND status IN ('PENDING', 'RUNNING', 'WAITING_HUMAN') AND created_at <= used.us
  )))

-- leases --
-- Those of the ids that exist.
SELECT id, owner, workflow, execution, root, size, field, created_at, released_at, renewed_at,
       released_at IS NULL AND renewed_at < analemma_now() - :unused::bigint
FROM payload WHERE tenant = :tenant AND id = ANY (:ids::bytea[])

-- hold_leases --
-- Those of the leases that are live, and stay so until the transaction ends: releasing waits for this lock. And whether each was not used
-- for a while.
SELECT id, renewed_at < analemma_now() - :unused::bigint FROM payload
WHERE tenant = :tenant AND id = ANY (:ids::bytea[]) AND released_at IS NULL  -- guard: lease.held
ORDER BY id
FOR SHARE  -- guard: lease.held.lock.postgres

-- share_execution [lock] --
-- Leases of an execution are written by any number at once, but not while it is ended: whoever ends it waits for them, and sees them.
SELECT pg_advisory_xact_lock_shared(  -- guard: execution.shared.postgres
    hashtextextended(:owner::text || '/' || :workflow::text || '/' || :execution::text || '/lease', :tenant::integer + {number})
)

-- hold_execution [lock] --
-- The other side of it.
SELECT pg_advisory_xact_lock(  -- guard: execution.held.postgres
    hashtextextended(:owner::text || '/' || :workflow::text || '/' || :execution::text || '/lease', :tenant::integer + {number})
)

-- hold_leases_of_execution [lock] --
-- The live leases of an execution, in the order in which everybody locks leases: from now on nobody renews or passes them on.
SELECT id FROM payload
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND execution = :execution AND released_at IS NULL
ORDER BY id
FOR UPDATE  -- guard: lease.ended.postgres

-- renew_leases --
-- Somebody uses them. Locked in the order in which everybody locks leases.
UPDATE payload SET renewed_at = analemma_now()
WHERE tenant = :tenant AND id IN (
    SELECT id FROM payload WHERE tenant = :tenant AND id = ANY (:ids::bytea[]) AND released_at IS NULL ORDER BY id FOR UPDATE
)

-- add_lease --
-- A pointer's right to its tree. Its id is random, so one that is there was written by the same request.
INSERT INTO payload (tenant, id, owner, workflow, execution, root, size, field, created_at, renewed_at)
VALUES (:tenant, :id, :owner, :workflow, :execution, :root, :size, :field, :created_at, analemma_now())
ON CONFLICT (tenant, id) DO NOTHING
