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
VALUES (:id, :version, :kind, :status, :body, :checksum, :loaded_at_us)
ON CONFLICT (id, version) DO UPDATE SET
    kind = excluded.kind,
    status = excluded.status,
    body = excluded.body,
    checksum = excluded.checksum,
    loaded_at = excluded.loaded_at

-- hold_contracts --
-- One at a time loads contracts, until the end of the transaction. Readers do not wait.
[postgres] SELECT pg_advisory_xact_lock(7022364301936815 + {number})

-- followed_branch --
-- Where a branch stands and began, and which of its versions a manifest is, if it is still there.
SELECT head.manifest, head.version, branch.first_manifest,
       (SELECT manifest.version FROM manifest
        WHERE manifest.tenant = head.tenant AND manifest.id = :manifest AND manifest.owner = head.owner
          AND manifest.workflow = head.workflow AND manifest.branch = head.branch)
FROM head
JOIN branch ON branch.tenant = head.tenant AND branch.owner = head.owner AND branch.workflow = head.workflow
    AND branch.branch = head.branch
WHERE head.tenant = :tenant AND head.owner = :owner AND head.workflow = :workflow AND head.branch = :branch

-- source_positions --
-- How far each source has followed a branch.
SELECT source, first_manifest, version, entity_type, entity_id, taken, problem
FROM state_source
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch

-- move_source --
-- How far a source has followed a branch, unless somebody else has followed it further.
INSERT INTO state_source (tenant, owner, workflow, branch, source, first_manifest, version, entity_type, entity_id, taken,
                          problem, updated_at)
VALUES (:tenant, :owner, :workflow, :branch, :source, :first, :version, :entity_type, :entity_id, :taken,
        :problem, :now)
ON CONFLICT (tenant, owner, workflow, branch, source) DO UPDATE
SET first_manifest = excluded.first_manifest, version = excluded.version, entity_type = excluded.entity_type,
    entity_id = excluded.entity_id, taken = excluded.taken, problem = excluded.problem, updated_at = excluded.updated_at
WHERE state_source.first_manifest <> excluded.first_manifest OR state_source.version < excluded.version
   OR (:again = 1 AND state_source.version = excluded.version)

-- hold_source --
-- A compare-and-set that changes nothing: no row touched means that the source has moved on, or made another entity of the branch.
UPDATE state_source SET version = version
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND source = :source
  AND first_manifest = :first AND version = :version AND entity_type = :entity_type AND entity_id = :entity_id

-- drop_source --
-- The branch is no more, or another of its name has begun.
DELETE FROM state_source
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND source = :source
  AND first_manifest = :first AND version = :version

-- heads_after --
-- A page of a tenant's branches, whoever's they are.
SELECT owner, workflow, branch FROM head
WHERE tenant = :tenant AND (owner, workflow, branch) > (:owner, :workflow, :branch) AND substr(owner, 1, 9) <> '~deleted/'
ORDER BY owner, workflow, branch LIMIT :limit

-- source_problems --
-- States that became no entity.
SELECT owner, workflow, branch, source, version, entity_type, entity_id, problem, updated_at
FROM state_source
WHERE tenant = :tenant AND problem IS NOT NULL AND (:source::text IS NULL OR source = :source::text)
ORDER BY owner, workflow, branch, source LIMIT :limit

-- source_counts --
-- How many branches each source follows, and how many of them with a problem.
SELECT source, count(*), count(problem) FROM state_source WHERE tenant = :tenant GROUP BY source ORDER BY source
