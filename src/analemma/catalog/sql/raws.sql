-- raw_version --
-- One version of an entity, as it came.
SELECT version, hash, schema_id, schema_version, root, size, created_at
FROM raw WHERE entity = :entity AND version = :version

-- add_raw --
-- A version of an entity.
INSERT INTO raw (entity, version, hash, schema_id, schema_version, root, size, created_at)
VALUES (:entity, :version, :hash, :schema_id, :schema_version, :root, :size, :created_at)

-- move_newest_raw --
-- The entity has a newer version.
UPDATE entity SET newest_raw = :version, newest_hash = :hash WHERE id = :id
