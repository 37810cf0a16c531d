-- workspace_rows [text] --
-- Workspaces as values.
SELECT id, owner, volume, status, operation, intent, op_id, archive_op, archive_key, fence, holder, lease_until, error,
       created_at, updated_at, deleted_at
FROM workspace

-- workspace --
-- One workspace.
include workspace_rows
WHERE tenant = :tenant AND id = :id

-- hold_workspace --
-- One workspace, and nobody else changes it until the transaction ends.
include workspace_rows
WHERE tenant = :tenant AND id = :id
FOR UPDATE  -- guard: unit.workspace.postgres

-- present_blocks --
-- Those of the ids that are stored, and where.
SELECT id, upload, object_offset + object_length FROM block WHERE tenant = :tenant AND id = ANY (:ids::bytea[])

-- workspaces --
-- A page by id; of one owner, of one status, with the deleted, where these are asked for.
include workspace_rows
WHERE tenant = :tenant AND id > :after AND (:owner = '' OR owner = :owner) AND (:status = '' OR status = :status)
  AND (:deleted = 1 OR deleted_at IS NULL)
ORDER BY id LIMIT :limit

-- workspaces_at_work --
-- A page, by id, of those that are in the middle of an operation.
include workspace_rows
WHERE tenant = :tenant AND operation <> 'NONE' AND id > :after
ORDER BY id LIMIT :limit

-- volumes_around --
-- Whose volumes are at a path, contain it or lie in it. A deleted workspace has none.
SELECT tenant, id, volume, status, operation FROM workspace
WHERE status <> 'DELETED'
  AND (volume = CAST(:path AS text)
       OR substr(CAST(:path AS text), 1, length(volume) + 1) = volume || '/'
       OR substr(volume, 1, length(CAST(:path AS text)) + 1) = CAST(:path AS text) || '/')
ORDER BY tenant, id

-- add_workspace --
-- A new one; no row touched means that the id is taken.
INSERT INTO workspace (tenant, id, owner, volume, status, operation, intent, op_id, archive_op, archive_key, fence, holder, lease_until,
                       error, created_at, updated_at, deleted_at)
VALUES (:tenant, :id, :owner, :volume, :status, :operation, :intent, :op_id, :archive_op, :archive_key, :fence, :holder, :lease_until_us,
        :error, :created_at_us, :updated_at_us, :deleted_at_us)
ON CONFLICT (tenant, id) DO NOTHING

-- write_workspace --
-- A workspace that is held, as it is from now on.
UPDATE workspace
SET owner = :owner, volume = :volume, created_at = :created_at_us, status = :status, operation = :operation, intent = :intent, op_id = :op_id, archive_op = :archive_op, archive_key = :archive_key,
    fence = :fence, holder = :holder, lease_until = :lease_until_us, error = :error, updated_at = :updated_at_us, deleted_at = :deleted_at_us
WHERE tenant = :tenant AND id = :id

-- drop_workspace --
-- It was purged.
DELETE FROM workspace WHERE tenant = :tenant AND id = :id

-- claim_units --
-- Its archives were purged with it. Their rows tell late writers so, and a collector where blocks without roots come from.
UPDATE archive_unit SET state = 'claimed', claimed_at = :now
WHERE tenant = :tenant AND workspace = :workspace AND state <> 'claimed'

-- archive_unit --
-- One archive.
SELECT workspace, op_id, state, format, sha256, size, files, bytes, root
FROM archive_unit WHERE tenant = :tenant AND workspace = :workspace AND op_id = :op_id

-- add_unit --
-- An archive that is about to be written; no row touched means that this op_id was used before.
INSERT INTO archive_unit (tenant, workspace, op_id, state, created_at) VALUES (:tenant, :workspace, :op_id, 'writing', :now)
ON CONFLICT (tenant, workspace, op_id) DO NOTHING

-- keep_unit --
-- Compare-and-set; no row touched means that the collector was faster.
UPDATE archive_unit
SET state = 'kept', format = :format, sha256 = :sha256, size = :size, files = :files, bytes = :bytes, root = :root, kept_at = :now
WHERE tenant = :tenant AND workspace = :workspace AND op_id = :op_id AND state = 'writing'  -- guard: unit.kept

-- claim_unit --
-- From now on it is the collector's, also if it was never heard of.
INSERT INTO archive_unit (tenant, workspace, op_id, state, created_at, claimed_at)
VALUES (:tenant, :workspace, :op_id, 'claimed', :now, :now)
ON CONFLICT (tenant, workspace, op_id) DO UPDATE SET state = 'claimed', claimed_at = :now WHERE archive_unit.state <> 'claimed'

-- unit_roots --
-- What a collector must mark: the indexes of every archive that is whole and not claimed.
SELECT number, root FROM archive_unit
WHERE tenant = :tenant AND state = 'kept' AND number > :after
ORDER BY number LIMIT :limit

-- archive_gc --
-- Who collects a tenant's archives, since when, and what the last pass that went through found.
SELECT pass, holder, lease_until, started_at, needed FROM archive_gc WHERE tenant = :tenant

-- archive_gc_take --
-- A new pass, unless somebody is at one. A lease that ends later than any lease could is from a clock that was wrong.
INSERT INTO archive_gc (tenant, pass, holder, lease_until, started_at) VALUES (:tenant, 1, :holder, :until, :now)
ON CONFLICT (tenant) DO UPDATE
SET pass = archive_gc.pass + 1, holder = excluded.holder, lease_until = excluded.lease_until, started_at = excluded.started_at
WHERE archive_gc.holder IS NULL OR archive_gc.lease_until < :now OR archive_gc.lease_until > :longest  -- guard: unit.lease
RETURNING pass

-- archive_gc_renew --
-- No row touched means that another pass has begun.
UPDATE archive_gc SET lease_until = :until WHERE tenant = :tenant AND pass = :number AND holder IS NOT NULL  -- guard: unit.renewed

-- archive_gc_finish --
-- The pass is over; the number stays. One that did not go through leaves what was found before.
UPDATE archive_gc SET holder = NULL, lease_until = 0, needed = coalesce(:needed, needed) WHERE tenant = :tenant AND pass = :number  -- guard: unit.finished

-- protected_units --
-- A page of the workspaces that need archives, of those that were changed since a time, in the order in which object stores list their folders.
SELECT id || '/', op_id, archive_op, updated_at FROM workspace
WHERE tenant = :tenant AND id || '/' > :after AND updated_at >= :since AND deleted_at IS NULL AND (op_id IS NOT NULL OR archive_op IS NOT NULL)
ORDER BY id || '/' LIMIT :limit

-- protected_count --
-- How many there are.
SELECT count(*) FROM workspace WHERE tenant = :tenant AND deleted_at IS NULL AND (op_id IS NOT NULL OR archive_op IS NOT NULL)

-- archive_marks --
-- A page of the units that an earlier pass found to be nobody's.
SELECT unit, first_orphan_detected, pass FROM archive_mark WHERE tenant = :tenant AND unit > :after ORDER BY unit LIMIT :limit

-- for_nobody [text] --
-- An archive that is kept, and that no workspace needs.
archive_unit.state = 'kept'
  AND NOT EXISTS (
      SELECT 1 FROM workspace
      WHERE workspace.tenant = archive_unit.tenant AND workspace.id = archive_unit.workspace
        AND workspace.deleted_at IS NULL AND archive_unit.op_id IN (workspace.op_id, workspace.archive_op)
  )

-- add_unlisted_marks --
-- Archives that superseded ones are, or that workspaces had which are deleted, and that have no mark.
INSERT INTO archive_mark (tenant, unit, first_orphan_detected, pass)
SELECT archive_unit.tenant, archive_unit.workspace || '/' || archive_unit.op_id || '/', :now, :number
FROM archive_unit
WHERE archive_unit.tenant = :tenant AND
include for_nobody
  AND NOT EXISTS (
      SELECT 1 FROM archive_mark
      WHERE archive_mark.tenant = archive_unit.tenant
        AND archive_mark.unit = archive_unit.workspace || '/' || archive_unit.op_id || '/'
  )
LIMIT :limit

-- archive_gc_hold --
-- Nobody takes the lease before this transaction ends.
SELECT pass FROM archive_gc WHERE tenant = :tenant AND holder IS NOT NULL FOR SHARE  -- guard: unit.held.lock.postgres

-- add_archive_marks --
-- A mark stays what it was, unless it is from a time that has not come: then a clock was wrong.
INSERT INTO archive_mark (tenant, unit, first_orphan_detected, pass)
SELECT :tenant, wanted.unit, :now, :number FROM rows(:units) AS wanted (unit text) WHERE true
ON CONFLICT (tenant, unit) DO UPDATE SET first_orphan_detected = excluded.first_orphan_detected, pass = excluded.pass
WHERE archive_mark.first_orphan_detected > excluded.first_orphan_detected

-- drop_archive_marks --
-- Of units that are somebody's again, or gone.
DELETE FROM archive_mark WHERE tenant = :tenant AND unit = ANY (:units::text[])

-- due_archive_marks --
-- Those of the units whose mark is old enough, and an earlier pass's.
SELECT unit FROM archive_mark
WHERE tenant = :tenant AND unit = ANY (:units::text[]) AND first_orphan_detected <= :since AND pass < :number
ORDER BY unit

-- units [text] --
-- Those of these, each as (workspace, op_id), of which there is a row.
SELECT archive_unit.workspace, archive_unit.op_id
FROM rows(:units) AS wanted (workspace text, op_id text)
[sqlite] CROSS JOIN archive_unit
[sqlite]     ON archive_unit.tenant = :tenant AND archive_unit.workspace = wanted.workspace AND archive_unit.op_id = wanted.op_id
[postgres] -- OFFSET 0: each is looked up by itself, also before the database has counted the rows and would rather read them all.
[postgres] CROSS JOIN LATERAL (
[postgres]     SELECT * FROM archive_unit AS known
[postgres]     WHERE known.tenant = :tenant AND known.workspace = wanted.workspace AND known.op_id = wanted.op_id
[postgres]     OFFSET 0
[postgres] ) AS archive_unit

-- known_units --
-- Those of these, each as (workspace, op_id), that were ever begun here.
include units

-- kept_for_nobody --
-- Those of these, each as (workspace, op_id), that are kept, and that no workspace needs.
include units
WHERE
include for_nobody
