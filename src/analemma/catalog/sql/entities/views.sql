-- count_served --
-- How many entities with ids in a range are served and not deleted.
SELECT count(*) FROM entity JOIN raw ON raw.entity = entity.id AND raw.version = entity.serving_version
WHERE entity.tenant = :tenant AND entity.type = :entity_type AND entity.key >= :low AND entity.key < :high
  AND raw.root IS NOT NULL

-- count_indexed --
-- How many entities have an index entry.
SELECT count(DISTINCT index_entry.entity) FROM index_entry
WHERE index_entry.value = :value AND index_entry.index_type = :index_type
  AND index_entry.entity_type = :entity_type AND index_entry.tenant = :tenant AND index_entry.waiting <> 1

-- entity_keys --
-- A page of the ids of all entities of a type that were ever ingested, compiled or not, in their order.
SELECT entity.key FROM entity
WHERE entity.tenant = :tenant AND entity.type = :entity_type AND entity.key >= :low AND entity.key < :high
  AND entity.newest_raw IS NOT NULL
ORDER BY entity.key LIMIT :limit

-- view_columns [text] --
-- An entity, a version of it, how that was compiled, and a slice that it has there.
SELECT entity.id, entity.key, entity.newest_raw, entity.newest_compiled, entity.serving_version,
       raw.version, raw.created_at, raw.root IS NULL, raw.schema_id, raw.schema_version,
       built.revision, built.ruleset_id, built.ruleset_version, built.fingerprint,
       served.type, served.version, served.revision, served.hash, served.root, served.tombstone, served.detail

-- view_joins [text] --
-- The newest compile of a version, and the slices that it has of these types, one row each.
[sqlite] LEFT JOIN compile AS built ON built.entity = entity.id AND built.version = raw.version AND built.revision = (
[sqlite]     SELECT max(compile.revision) FROM compile WHERE compile.entity = entity.id AND compile.version = raw.version
[sqlite] )
[sqlite] LEFT JOIN rows(:slice_types) AS wanted (type text) ON built.revision IS NOT NULL
[sqlite] LEFT JOIN slice AS served ON served.rowid = (
[sqlite]     SELECT slice.rowid FROM slice
[sqlite]     WHERE slice.entity = entity.id AND slice.type = wanted.type AND slice.version <= raw.version
[postgres] LEFT JOIN LATERAL (
[postgres]     SELECT revision, ruleset_id, ruleset_version, fingerprint FROM compile
[postgres]     WHERE compile.entity = entity.id AND compile.version = raw.version
[postgres]     ORDER BY revision DESC LIMIT 1
[postgres] ) AS built ON true
[postgres] LEFT JOIN LATERAL (
[postgres]     SELECT found.* FROM rows(:slice_types) AS wanted (type text)
[postgres]     CROSS JOIN LATERAL (
[postgres]         SELECT * FROM slice
[postgres]         WHERE slice.entity = entity.id AND slice.type = wanted.type AND slice.version <= raw.version
        ORDER BY slice.version DESC, slice.revision DESC LIMIT 1
[sqlite] )
[postgres]     ) AS found
[postgres] ) AS served ON built.revision IS NOT NULL

-- view_by_keys --
-- Entities by their ids, each at a version (the one served, if none is asked for) with the slices that it has there, one row
-- each; entities without any have one row. One statement: slices of one entity are always of one moment.
include view_columns
FROM entity
LEFT JOIN raw ON raw.entity = entity.id AND raw.version = coalesce(:version::bigint, entity.serving_version)
include view_joins
WHERE entity.tenant = :tenant AND entity.type = :entity_type AND entity.key = ANY (:keys::text[])

-- view_by_range --
-- A page of entities that are served and not deleted, in the order of their ids.
include view_columns
FROM (
    SELECT entity.*, raw.version AS page_version FROM entity
    JOIN raw ON raw.entity = entity.id AND raw.version = entity.serving_version
    WHERE entity.tenant = :tenant AND entity.type = :entity_type AND entity.key >= :low AND entity.key < :high
      AND raw.root IS NOT NULL
    ORDER BY entity.key LIMIT :limit
) AS entity
JOIN raw ON raw.entity = entity.id AND raw.version = entity.page_version
include view_joins
ORDER BY entity.key

-- view_by_index --
-- A page of entities that have an index entry, in the order of their numbers. An entity may have several such entries, one
-- for each entity that the value names.
include view_columns
FROM (
    SELECT DISTINCT index_entry.entity AS number FROM index_entry
    WHERE index_entry.value = :value AND index_entry.index_type = :index_type
      AND index_entry.entity_type = :entity_type AND index_entry.tenant = :tenant AND index_entry.waiting <> 1 AND index_entry.entity > :after
    ORDER BY index_entry.entity LIMIT :limit
) AS page
JOIN entity ON entity.id = page.number
LEFT JOIN raw ON raw.entity = entity.id AND raw.version = entity.serving_version
include view_joins
ORDER BY entity.id

-- served_by_rules --
-- By which rules the entities of a type are served, and how many by each, without those in `skipped`. Walks from one to the next:
-- what was compiled by rules that are skipped is not looked at, however much it is.
WITH RECURSIVE found (rules) AS (
    SELECT min(served_rules) FROM entity WHERE tenant = :tenant AND type = :entity_type AND served_rules IS NOT NULL
    UNION ALL
    SELECT (SELECT min(served_rules) FROM entity WHERE tenant = :tenant AND type = :entity_type AND served_rules > found.rules)
    FROM found WHERE found.rules IS NOT NULL
)
SELECT found.rules, (
    SELECT count(*) FROM entity WHERE tenant = :tenant AND type = :entity_type AND served_rules = found.rules
)
FROM found WHERE found.rules IS NOT NULL AND NOT found.rules = ANY (:skipped::text[])
