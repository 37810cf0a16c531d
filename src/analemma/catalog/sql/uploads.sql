-- open_upload --
-- The intent; it exists before the object's first byte does.
INSERT INTO upload (tenant, id, state, object_key, size, created_at, owner, workflow, execution)
VALUES (:tenant, :id, :state, :object_key, :size, :created_at, :owner, :workflow, :execution)

-- upload --
-- One intent.
SELECT state, object_key, size, created_at, owner, workflow, execution
FROM upload WHERE tenant = :tenant AND id = :id
