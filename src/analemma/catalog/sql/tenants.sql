-- store_id --
-- What tells this store from every other.
SELECT id FROM store

-- tenant_count --
-- How many tenants there are.
SELECT count(*) FROM tenant

-- find_tenant --
-- The number that stands for a tenant's name in every row.
SELECT id FROM tenant WHERE name = :name

-- add_tenant --
-- Two callers may add the same name at once; both then find it.
INSERT INTO tenant (name) VALUES (:name) ON CONFLICT DO NOTHING
