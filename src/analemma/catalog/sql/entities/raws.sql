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

-- known_raws --
-- Where entities stand, and the hash that each has at a version, if it has that; in their order. Row by row: a plan made while there are few
-- entities would otherwise read all of them.
SELECT entity.newest_raw, entity.newest_hash, raw.hash
FROM rows(:wanted) WITH ORDINALITY AS wanted (type text, key text, version bigint, place)
[sqlite]     LEFT JOIN entity ON entity.tenant = :tenant AND entity.type = wanted.type AND entity.key = wanted.key
[sqlite]     LEFT JOIN raw ON raw.entity = entity.id AND raw.version = wanted.version
[postgres]     LEFT JOIN LATERAL (
[postgres]         SELECT id, newest_raw, newest_hash FROM entity
[postgres]         WHERE entity.tenant = :tenant AND entity.type = wanted.type AND entity.key = wanted.key LIMIT 1
[postgres]     ) AS entity ON true
[postgres]     LEFT JOIN LATERAL (
[postgres]         SELECT hash FROM raw WHERE raw.entity = entity.id AND raw.version = wanted.version LIMIT 1
[postgres]     ) AS raw ON true
ORDER BY wanted.place

-- add_raws --
-- New versions of entities that stand where they were seen, with their blocks and events: nothing, if one stands elsewhere by now. Those that get
-- none are held: what is decided about them goes for as long as the transaction takes. The order of the locks: entities by key, lanes, blocks,
-- uploads.
(tenant bigint, now bigint,
 held[] (place.type text, place.id text, seen bigint, newest bigint, newest_hash bytea),
 raws[] (item.place.type text, item.place.id text, version bigint, item.hash bytea, item.schema_id text, item.schema_version text,
         item.root bytea, item.size bigint))

often one held, one raws, blocks, one lanes, one events;

each held:
INSERT INTO entity (tenant, type, key, newest_raw, newest_hash)
VALUES (:tenant, :held.place.type, :held.place.id, :held.newest, :held.newest_hash)
ON CONFLICT (tenant, type, key) DO UPDATE SET newest_raw = excluded.newest_raw, newest_hash = excluded.newest_hash
WHERE coalesce(entity.newest_raw, -1) = :held.seen  -- guard: ingest.newest
=> 1 or overtaken;

include add_events;
include add_bodies;

passes ingest.after_blocks: the blocks of a version are written inside the transaction;

-- Two who name the same version below the newest both find the entity where it was.
each raws:
INSERT INTO raw (entity, version, hash, schema_id, schema_version, root, size, created_at)
SELECT id, :raws.version, :raws.item.hash, :raws.item.schema_id, :raws.item.schema_version, :raws.item.root, :raws.item.size, :now
FROM entity WHERE tenant = :tenant AND type = :raws.item.place.type AND key = :raws.item.place.id
ON CONFLICT DO NOTHING  -- guard: ingest.named
=> 1 or overtaken;
