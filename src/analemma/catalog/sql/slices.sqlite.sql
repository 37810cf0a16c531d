-- compile_start --
-- What compiling a version begins with: the entity, the version (the newest, unless one is named), and the newest compile of it or else of
-- the greatest version below it.
SELECT entity.id, entity.newest_raw, entity.newest_compiled, entity.compile_seq,
       chosen.version, chosen.hash, chosen.schema_id, chosen.schema_version, chosen.root,
       base.version, base.revision, base.ruleset_id, base.ruleset_version, base.fingerprint, base.dependencies,
       before.hash, before.schema_id, before.schema_version, before.root,
       entity.serving_version, entity.ship_seq
FROM entity
    LEFT JOIN raw AS chosen
        ON chosen.entity = entity.id AND chosen.version = coalesce(:version, entity.newest_raw)
    LEFT JOIN compile AS base
        ON base.entity = entity.id AND (base.version, base.revision) = (
            SELECT latest.version, latest.revision FROM compile AS latest
            WHERE latest.entity = entity.id AND latest.version <= chosen.version
            ORDER BY latest.version DESC, latest.revision DESC LIMIT 1
        )
    LEFT JOIN raw AS before ON before.entity = entity.id AND before.version = base.version
WHERE entity.tenant = :tenant AND entity.type = :type AND entity.key = :key

-- slices_start --
-- What reading slices begins with: the entity, and the newest compile of the version that is served, or of the one that is named.
SELECT entity.id, entity.newest_raw, compile.version, compile.revision, compile.ruleset_id, compile.ruleset_version,
       compile.fingerprint, compile.dependencies
FROM entity
    LEFT JOIN compile ON compile.entity = entity.id AND (compile.version, compile.revision) = (
        SELECT latest.version, latest.revision FROM compile AS latest
        WHERE latest.entity = entity.id AND latest.version = coalesce(:version, entity.serving_version)
        ORDER BY latest.revision DESC LIMIT 1
    )
WHERE entity.tenant = :tenant AND entity.type = :type AND entity.key = :key

-- wanted_slices --
-- The slices of these types as they are served, or (with a version) as they were then. `wanted` is a JSON list of [entity type, id, slice type,
-- version].
SELECT wanted.key, entity.id, entity.compile_seq, slice.version, slice.revision, slice.hash, slice.root, slice.tombstone,
       slice.detail
FROM json_each(:wanted) AS wanted
    LEFT JOIN entity ON entity.tenant = :tenant AND entity.type = json_extract(wanted.value, '$[0]') AND entity.key = json_extract(wanted.value, '$[1]')
    LEFT JOIN slice ON slice.entity = entity.id AND slice.type = json_extract(wanted.value, '$[2]')
        AND (slice.version, slice.revision) = (
            SELECT latest.version, latest.revision FROM slice AS latest
            WHERE latest.entity = entity.id AND latest.type = json_extract(wanted.value, '$[2]')
              AND latest.version <= coalesce(json_extract(wanted.value, '$[3]'), entity.serving_version)
            ORDER BY latest.version DESC, latest.revision DESC LIMIT 1
        )

-- compiles_since --
-- Those of these entities whose slices are not what they were. `read` is a JSON list of [number, compile_seq].
SELECT 1 FROM json_each(:read) AS seen JOIN entity ON entity.id = json_extract(seen.value, '$[0]')
WHERE entity.compile_seq <> json_extract(seen.value, '$[1]') LIMIT 1

-- move_compiled --
-- Compare-and-set; no row touched means that the entity was compiled since, or that contracts were loaded since those that it goes by.
UPDATE entity
SET newest_compiled = coalesce(:newest, newest_compiled), serving_version = coalesce(:serving, serving_version),
    served_rules = CASE WHEN :version = coalesce(:serving, serving_version) THEN :rules ELSE served_rules END,
    compile_seq = compile_seq + 1, ship_seq = :ship_seq
WHERE id = :id AND compile_seq = :expected AND ship_seq = :expected_ship_seq  -- guard: compile.moved.sqlite
  AND NOT EXISTS (SELECT 1 FROM contract WHERE loaded_at > :contracts)  -- guard: compile.contracts.sqlite

-- add_compile --
-- One compile.
INSERT INTO compile
    (entity, version, revision, ruleset_id, ruleset_version, fingerprint, mode, dependencies, created_at)
VALUES
    (:entity, :version, :revision, :ruleset_id, :ruleset_version, :fingerprint, :mode, :dependencies, :created_at)

-- add_slice --
-- What a slice became.
INSERT INTO slice (entity, type, version, revision, hash, root, tombstone, detail)
VALUES (:entity, :type, :version, :revision, :hash, :root, :tombstone, :detail)

-- drop_index_entries --
-- Entries that an entity no longer has. `entries` is a JSON list of [index, value, target or 0] that stay.
DELETE FROM index_entry
WHERE entity = :entity AND (index_type, value, coalesce(target, 0)) NOT IN (
    SELECT json_extract(entry.value, '$[0]'), json_extract(entry.value, '$[1]'), json_extract(entry.value, '$[2]') FROM json_each(:entries) AS entry
)

-- add_index_entries --
-- Entries that an entity does not have yet.
INSERT INTO index_entry (tenant, entity_type, index_type, value, entity, target)
SELECT :tenant, :entity_type, json_extract(entry.value, '$[0]'), json_extract(entry.value, '$[1]'), :entity, nullif(json_extract(entry.value, '$[2]'), 0)
FROM json_each(:entries) AS entry
WHERE true
ON CONFLICT DO NOTHING
