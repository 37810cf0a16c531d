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
SELECT workspace, op_id, state, format, sha256, size, files, bytes, root, created_at, kept_at, claimed_at
FROM archive_unit WHERE tenant = :tenant AND workspace = :workspace AND op_id = :op_id

-- archive_units --
-- The archives of a workspace, oldest first.
SELECT workspace, op_id, state, format, sha256, size, files, bytes, root, created_at, kept_at, claimed_at
FROM archive_unit WHERE tenant = :tenant AND workspace = :workspace ORDER BY number

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
