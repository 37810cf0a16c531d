-- store_id --
-- What tells this store from every other.
SELECT id FROM store

-- objects_place --
-- Where the objects of this store are.
SELECT objects FROM store

-- move_objects --
-- Compare-and-set; no row touched means that somebody else was faster, or has put something where they were.
UPDATE store SET objects = :place
WHERE coalesce(objects, '') = :before
  AND NOT (:unless_used AND (EXISTS (SELECT 1 FROM upload) OR EXISTS (SELECT 1 FROM workspace)))

-- has_objects --
-- Whether anything was ever put there, or may have been.
SELECT EXISTS (SELECT 1 FROM upload) OR EXISTS (SELECT 1 FROM workspace)

-- has_uploads --
-- Whether rows name objects.
SELECT EXISTS (SELECT 1 FROM upload) OR EXISTS (SELECT 1 FROM archive_unit)

-- tenant_count --
-- How many tenants there are.
SELECT count(*) FROM tenant

-- find_tenant --
-- The number that stands for a tenant's name in every row.
SELECT id FROM tenant WHERE name = :name

-- add_tenant --
-- Two callers may add the same name at once; both then find it.
INSERT INTO tenant (name) VALUES (:name) ON CONFLICT DO NOTHING
