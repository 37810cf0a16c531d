-- compile_starts --
-- What compiling a version of each of some entities begins with: as compile_start, for many. `wanted` is a JSON list of [entity, version];
-- the cross join keeps SQLite from going through all entities of the tenant for each.
SELECT entity.id, entity.newest_raw, entity.newest_compiled, entity.compile_seq,
       chosen.version, chosen.hash, chosen.schema_id, chosen.schema_version, chosen.root,
       base.version, base.revision, base.ruleset_id, base.ruleset_version, base.fingerprint, base.dependencies,
       before.hash, before.schema_id, before.schema_version, before.root,
       entity.serving_version, entity.ship_seq
FROM json_each(:wanted) AS wanted
    CROSS JOIN entity ON entity.id = json_extract(wanted.value, '$[0]') AND +entity.tenant = :tenant
    LEFT JOIN raw AS chosen ON chosen.entity = entity.id AND chosen.version = json_extract(wanted.value, '$[1]')
    LEFT JOIN compile AS base
        ON base.entity = entity.id AND (base.version, base.revision) = (
            SELECT latest.version, latest.revision FROM compile AS latest
            WHERE latest.entity = entity.id AND latest.version <= chosen.version
            ORDER BY latest.version DESC, latest.revision DESC LIMIT 1
        )
    LEFT JOIN raw AS before ON before.entity = entity.id AND before.version = base.version

-- hold_joined --
-- Entities that are joined, as they are now. `entities` is a JSON list of numbers.
SELECT id, compile_seq, ship_seq FROM entity WHERE id IN (SELECT value FROM json_each(:entities))

-- hold_compiled --
-- Entities that are about to be compiled, as they are now. `entities` is a JSON list of numbers.
SELECT id, compile_seq, ship_seq FROM entity WHERE id IN (SELECT value FROM json_each(:entities))
