-- view_by_keys --
-- Entities by their ids, each at a version (the one served, if none is asked for) with the slices that it has there, one row
-- each; entities without any have one row. One statement: slices of one entity are always of one moment.
SELECT
    entity.id,
    entity.key,
    entity.newest_raw,
    entity.newest_compiled,
    entity.serving_version,
    raw.version,
    raw.created_at,
    raw.root IS NULL,
    raw.schema_id,
    raw.schema_version,
    built.revision,
    built.ruleset_id,
    built.ruleset_version,
    built.fingerprint,
    served.type,
    served.version,
    served.revision,
    served.hash,
    served.root,
    served.tombstone,
    served.detail
FROM entity
LEFT JOIN raw ON raw.entity = entity.id AND raw.version = coalesce(:version::bigint, entity.serving_version)
LEFT JOIN LATERAL (
    SELECT revision, ruleset_id, ruleset_version, fingerprint FROM compile
    WHERE compile.entity = entity.id AND compile.version = raw.version
    ORDER BY revision DESC LIMIT 1
) AS built ON true
LEFT JOIN LATERAL (
    SELECT found.* FROM unnest(:slice_types::text[]) AS wanted (type)
    CROSS JOIN LATERAL (
        SELECT * FROM slice
        WHERE slice.entity = entity.id AND slice.type = wanted.type AND slice.version <= raw.version
        ORDER BY slice.version DESC, slice.revision DESC LIMIT 1
    ) AS found
) AS served ON built.revision IS NOT NULL
WHERE entity.tenant = :tenant AND entity.type = :entity_type AND entity.key = ANY (:keys::text[])

-- view_by_range --
-- A page of entities that are served and not deleted, in the order of their ids.
SELECT
    entity.id,
    entity.key,
    entity.newest_raw,
    entity.newest_compiled,
    entity.serving_version,
    raw.version,
    raw.created_at,
    raw.root IS NULL,
    raw.schema_id,
    raw.schema_version,
    built.revision,
    built.ruleset_id,
    built.ruleset_version,
    built.fingerprint,
    served.type,
    served.version,
    served.revision,
    served.hash,
    served.root,
    served.tombstone,
    served.detail
FROM (
    SELECT entity.*, raw.version AS page_version FROM entity
    JOIN raw ON raw.entity = entity.id AND raw.version = entity.serving_version
    WHERE entity.tenant = :tenant AND entity.type = :entity_type AND entity.key >= :low AND entity.key < :high
      AND raw.root IS NOT NULL
    ORDER BY entity.key LIMIT :limit
) AS entity
JOIN raw ON raw.entity = entity.id AND raw.version = entity.page_version
LEFT JOIN LATERAL (
    SELECT revision, ruleset_id, ruleset_version, fingerprint FROM compile
    WHERE compile.entity = entity.id AND compile.version = raw.version
    ORDER BY revision DESC LIMIT 1
) AS built ON true
LEFT JOIN LATERAL (
    SELECT found.* FROM unnest(:slice_types::text[]) AS wanted (type)
    CROSS JOIN LATERAL (
        SELECT * FROM slice
        WHERE slice.entity = entity.id AND slice.type = wanted.type AND slice.version <= raw.version
        ORDER BY slice.version DESC, slice.revision DESC LIMIT 1
    ) AS found
) AS served ON built.revision IS NOT NULL
ORDER BY entity.key

-- view_by_index --
-- A page of entities that have an index entry, in the order of their numbers. An entity may have several such entries, one
-- for each entity that the value names.
SELECT
    entity.id,
    entity.key,
    entity.newest_raw,
    entity.newest_compiled,
    entity.serving_version,
    raw.version,
    raw.created_at,
    raw.root IS NULL,
    raw.schema_id,
    raw.schema_version,
    built.revision,
    built.ruleset_id,
    built.ruleset_version,
    built.fingerprint,
    served.type,
    served.version,
    served.revision,
    served.hash,
    served.root,
    served.tombstone,
    served.detail
FROM (
    SELECT DISTINCT index_entry.entity AS number FROM index_entry
    WHERE index_entry.value = :value AND index_entry.index_type = :index_type
      AND index_entry.entity_type = :entity_type AND index_entry.tenant = :tenant AND index_entry.waiting <> 1 AND index_entry.entity > :after
    ORDER BY index_entry.entity LIMIT :limit
) AS page
JOIN entity ON entity.id = page.number
LEFT JOIN raw ON raw.entity = entity.id AND raw.version = entity.serving_version
LEFT JOIN LATERAL (
    SELECT revision, ruleset_id, ruleset_version, fingerprint FROM compile
    WHERE compile.entity = entity.id AND compile.version = raw.version
    ORDER BY revision DESC LIMIT 1
) AS built ON true
LEFT JOIN LATERAL (
    SELECT found.* FROM unnest(:slice_types::text[]) AS wanted (type)
    CROSS JOIN LATERAL (
        SELECT * FROM slice
        WHERE slice.entity = entity.id AND slice.type = wanted.type AND slice.version <= raw.version
        ORDER BY slice.version DESC, slice.revision DESC LIMIT 1
    ) AS found
) AS served ON built.revision IS NOT NULL
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
FROM found WHERE found.rules IS NOT NULL AND NOT EXISTS (SELECT FROM unnest(:skipped::text[]) AS skipped WHERE skipped = found.rules)
