-- add_lease --
-- A pointer's right to its tree. Its id is random, so one that is there was written by the same request.
INSERT INTO payload (tenant, id, owner, workflow, execution, root, size, field, created_at)
VALUES (:tenant, :id, :owner, :workflow, :execution, :root, :size, :field, :created_at)
ON CONFLICT (tenant, id) DO NOTHING

-- leases_of_workflow --
-- The live leases of a workflow.
SELECT id, owner, workflow, execution, root, size, field, created_at, released_at
FROM payload
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND released_at IS NULL AND id > :after
ORDER BY id LIMIT :limit

-- leases_of_execution --
-- The live leases of one execution.
SELECT id, owner, workflow, execution, root, size, field, created_at, released_at
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
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND execution = :execution

-- release_leases --
-- The execution has ended.
UPDATE payload SET released_at = :now
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND execution = :execution AND released_at IS NULL

-- lease_roots --
-- What a collector must mark: the trees of every lease that was not released.
SELECT id, root FROM payload
WHERE tenant = :tenant AND released_at IS NULL AND id > :after
ORDER BY id LIMIT :limit
