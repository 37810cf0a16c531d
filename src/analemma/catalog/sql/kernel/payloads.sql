-- live_leases [text] --
-- Leases that were not released, behind one of them.
SELECT id, owner, workflow, execution, root, size, field, created_at, released_at, renewed_at
FROM payload
WHERE tenant = :tenant AND released_at IS NULL AND id > :after

-- leases_of_tenant --
-- The live leases of everybody.
include live_leases
ORDER BY id LIMIT :limit

-- leases_of_owner --
-- The live leases of an owner.
include live_leases
  AND owner = :owner
ORDER BY id LIMIT :limit

-- leases_of_workflow --
-- The live leases of a workflow.
include live_leases
  AND owner = :owner AND workflow = :workflow
ORDER BY id LIMIT :limit

-- leases_of_execution --
-- The live leases of one execution.
include live_leases
  AND owner = :owner AND workflow = :workflow AND execution = :execution
ORDER BY id LIMIT :limit

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
  AND NOT EXISTS (  -- guard: execution.over.delta
      SELECT 1 FROM pending WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND settled_at IS NULL
  )
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

-- renew_leases --
-- Somebody uses them. Locked in the order in which everybody locks leases.
UPDATE payload SET renewed_at = analemma_now()
WHERE tenant = :tenant AND id IN (
    SELECT id FROM payload WHERE tenant = :tenant AND id = ANY (:ids::bytea[]) AND released_at IS NULL ORDER BY id FOR UPDATE
)

-- add_leases --
-- Everything that a payload points to. The order of the steps is that of the locks of a commit: what is built upon, then blocks, then what is new.
(tenant bigint, unused_us bigint, executions[] (owner text, workflow text, execution text), kept[] bytea,
 leases[] (id bytea, owner text, workflow text, execution text, root bytea, size bigint, field text, created_at_us bigint))

-- Leases of an execution are written by any number at once, but not while it is ended: whoever ends it waits for them, and sees them.
[postgres] each executions:
[postgres] SELECT pg_advisory_xact_lock_shared(  -- guard: execution.shared.postgres
[postgres]     hashtextextended(:executions.owner || '/' || :executions.workflow || '/' || :executions.execution || '/lease', :tenant::integer + {number})
[postgres] );

each executions:
SELECT 1 FROM payload_end
WHERE tenant = :tenant AND owner = :executions.owner AND workflow = :executions.workflow  -- guard: execution.ended
  AND execution = :executions.execution
=> 0 or execution_ended;

-- Live, and so until the transaction ends: releasing waits for this lock. One that was not used for a while is to be renewed before.
each kept:
SELECT 1 FROM payload
WHERE tenant = :tenant AND id = :kept AND released_at IS NULL  -- guard: lease.held
  AND renewed_at >= coalesce(analemma_now() - :unused_us, 0)
FOR SHARE  -- guard: lease.held.lock.postgres
=> 1 or lease_gone;  -- guard: lease.counted

include add_bodies;

passes payload.after_blocks: the blocks are written inside the transaction;

-- The id is random, so one that is there was written by the same request.
each leases:
INSERT INTO payload (tenant, id, owner, workflow, execution, root, size, field, created_at, renewed_at)
VALUES (:tenant, :leases.id, :leases.owner, :leases.workflow, :leases.execution, :leases.root, :leases.size, :leases.field,
        :leases.created_at_us, analemma_now())
ON CONFLICT (tenant, id) DO NOTHING;

-- hold_execution --
-- Nobody gives the execution leases, renews those that it has or passes them on, until the transaction ends.
(tenant bigint, owner text, workflow text, execution text)

[postgres] SELECT pg_advisory_xact_lock(  -- guard: execution.held.postgres
[postgres]     hashtextextended(:owner || '/' || :workflow || '/' || :execution || '/lease', :tenant::integer + {number})
[postgres] );

-- In the order in which everybody locks leases.
[postgres] SELECT id FROM payload
[postgres] WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND execution = :execution AND released_at IS NULL
[postgres] ORDER BY id
[postgres] FOR UPDATE;  -- guard: lease.ended.postgres

-- end_execution --
-- An execution is over; the first time that it was released counts.
(now bigint)

include hold_execution;

INSERT INTO payload_end (tenant, owner, workflow, execution, ended_at)
VALUES (:tenant, :owner, :workflow, :execution, :now)
ON CONFLICT (tenant, owner, workflow, execution) DO NOTHING;
