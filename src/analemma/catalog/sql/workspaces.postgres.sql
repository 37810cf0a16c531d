-- hold_workspace --
-- One workspace, and nobody else changes it until the transaction ends.
SELECT id, owner, volume, status, operation, intent, op_id, archive_op, archive_key, fence, holder, lease_until, error,
       created_at, updated_at, deleted_at
FROM workspace WHERE tenant = :tenant AND id = :id
FOR UPDATE  -- guard: unit.workspace.postgres

-- present_blocks --
-- Those of the ids that are stored, and where.
SELECT id, upload, object_offset + object_length FROM block WHERE tenant = :tenant AND id = ANY (:ids::bytea[])
