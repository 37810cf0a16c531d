-- entity --
-- Where an entity stands.
SELECT id, newest_raw, newest_hash, newest_compiled, serving_version, ship_seq, compile_seq
FROM entity WHERE tenant = :tenant AND type = :type AND key = :key

-- add_entity --
-- An entity, or a placeholder for one that something refers to.
INSERT INTO entity (tenant, type, key) VALUES (:tenant, :type, :key)
ON CONFLICT (tenant, type, key) DO NOTHING

-- raw_roots --
-- The versions of some entities, as they came.
SELECT page.id, raw.root
FROM (SELECT id FROM entity WHERE tenant = :tenant AND id > :after ORDER BY id LIMIT :limit) AS page
    LEFT JOIN raw ON raw.entity = page.id
ORDER BY page.id

-- slice_roots --
-- All slices of some entities, of all versions.
SELECT page.id, slice.root
FROM (SELECT id FROM entity WHERE tenant = :tenant AND id > :after ORDER BY id LIMIT :limit) AS page
    LEFT JOIN slice ON slice.entity = page.id
ORDER BY page.id

-- free_node --
-- A number that nobody ever held, or else one whose lease is over.
WITH RECURSIVE number (node) AS (
    SELECT 0
    UNION ALL
    SELECT node + 1 FROM number WHERE node < 1023
)
SELECT number.node, coalesce(lease.newest, 0)
FROM number LEFT JOIN node_lease AS lease ON lease.node = number.node
WHERE lease.node IS NULL OR lease.lease_until < :now
ORDER BY CASE WHEN lease.node IS NULL THEN 0 ELSE 1 END, number.node LIMIT 1

-- take_node --
-- Compare-and-set: no row touched means that another took it first.
INSERT INTO node_lease (node, holder, lease_until, newest) VALUES (:node, :holder, :until, :newest)
ON CONFLICT (node) DO UPDATE
SET holder = excluded.holder,
    lease_until = excluded.lease_until,
    newest = CASE WHEN excluded.newest > node_lease.newest THEN excluded.newest ELSE node_lease.newest END
WHERE node_lease.lease_until < :now OR node_lease.holder = excluded.holder

-- renew_node --
-- Compare-and-set: no row touched means that the lease was lost.
UPDATE node_lease SET lease_until = :until, newest = CASE WHEN :newest > newest THEN :newest ELSE newest END
WHERE node = :node AND holder = :holder
