-- compile_starts [sqlite] --
-- What compiling a version of each of some entities begins with: as compile_start, for many.
-- The cross join keeps SQLite from going through all entities of the tenant for each.
SELECT entity.id, entity.newest_raw, entity.newest_compiled, entity.compile_seq,
       chosen.version, chosen.hash, chosen.schema_id, chosen.schema_version, chosen.root,
       base.version, base.revision, base.ruleset_id, base.ruleset_version, base.fingerprint, base.dependencies,
       before.hash, before.schema_id, before.schema_version, before.root,
       entity.serving_version, entity.ship_seq
FROM rows(:wanted) AS wanted (id bigint, version bigint)
    CROSS JOIN entity ON entity.id = wanted.id AND +entity.tenant = :tenant
    LEFT JOIN raw AS chosen ON chosen.entity = entity.id AND chosen.version = wanted.version
    LEFT JOIN compile AS base
        ON base.entity = entity.id AND (base.version, base.revision) = (
            SELECT latest.version, latest.revision FROM compile AS latest
            WHERE latest.entity = entity.id AND latest.version <= chosen.version
            ORDER BY latest.version DESC, latest.revision DESC LIMIT 1
        )
    LEFT JOIN raw AS before ON before.entity = entity.id AND before.version = base.version

-- compile_starts [postgres] --
-- What compiling a version of each of some entities begins with: as compile_start, for many.
SELECT entity.id, entity.newest_raw, entity.newest_compiled, entity.compile_seq,
       chosen.version, chosen.hash, chosen.schema_id, chosen.schema_version, chosen.root,
       base.version, base.revision, base.ruleset_id, base.ruleset_version, base.fingerprint, base.dependencies,
       before.hash, before.schema_id, before.schema_version, before.root,
       entity.serving_version, entity.ship_seq
FROM rows(:wanted) AS wanted (id bigint, version bigint)
    JOIN LATERAL (SELECT * FROM entity WHERE entity.id = wanted.id AND entity.tenant = :tenant LIMIT 1) AS entity ON true
    LEFT JOIN LATERAL (
        SELECT version, hash, schema_id, schema_version, root FROM raw
        WHERE raw.entity = wanted.id AND raw.version = wanted.version LIMIT 1
    ) AS chosen ON true
    LEFT JOIN LATERAL (
        SELECT version, revision, ruleset_id, ruleset_version, fingerprint, dependencies FROM compile
        WHERE compile.entity = wanted.id AND compile.version <= chosen.version
        ORDER BY compile.version DESC, compile.revision DESC LIMIT 1
    ) AS base ON true
    LEFT JOIN LATERAL (
        SELECT hash, schema_id, schema_version, root FROM raw
        WHERE raw.entity = wanted.id AND raw.version = base.version LIMIT 1
    ) AS before ON true

-- hold_joined --
-- Entities that are joined: others may look at them too, and nobody may compile them before this transaction is over.
SELECT id, compile_seq, ship_seq FROM entity WHERE id = ANY (:entities::bigint[]) ORDER BY id FOR SHARE  -- guard: batch.joined.lock.postgres

-- hold_compiled --
-- Entities that are about to be compiled.
SELECT id, compile_seq, ship_seq FROM entity WHERE id = ANY (:entities::bigint[]) ORDER BY id FOR NO KEY UPDATE  -- guard: batch.compiled.lock.postgres

-- write_compiles [postgres] --
-- The rows of many compiles, whose entities are held.
WITH made AS MATERIALIZED (
    SELECT * FROM unnest(
        :entities::bigint[], :newest::bigint[], :serving::bigint[], :ship_seqs::bigint[], :versions::bigint[], :revisions::bigint[],
        :ruleset_ids::text[], :ruleset_versions::text[], :fingerprints::text[], :modes::text[], :dependencies::text[], :rules::text[]
    ) AS made (
        entity, newest, serving, ship_seq, version, revision, ruleset_id, ruleset_version, fingerprint, mode, dependencies, rules
    )
), moved AS (
    UPDATE entity
    SET newest_compiled = coalesce(made.newest, entity.newest_compiled),
        serving_version = coalesce(made.serving, entity.serving_version),
        served_rules = CASE WHEN made.version = coalesce(made.serving, entity.serving_version) THEN made.rules ELSE entity.served_rules END,
        compile_seq = entity.compile_seq + 1,
        ship_seq = made.ship_seq
    FROM made WHERE entity.id = made.entity
), added_compiles AS (
    INSERT INTO compile
        (entity, version, revision, ruleset_id, ruleset_version, fingerprint, mode, dependencies, created_at)
    SELECT entity, version, revision, ruleset_id, ruleset_version, fingerprint, mode, dependencies, :now FROM made
)
INSERT INTO slice (entity, type, version, revision, hash, root, tombstone, detail)
SELECT * FROM unnest(
    :slice_entities::bigint[], :slice_types::text[], :slice_versions::bigint[], :slice_revisions::bigint[],
    :slice_hashes::bytea[], :slice_roots::bytea[], :slice_tombstones::text[], :slice_details::text[]
) AS made

-- replace_index_entries [postgres] --
-- All entries of an entity, in place of those that it had.
WITH dropped AS (
    DELETE FROM index_entry
    WHERE entity = :entity AND NOT EXISTS (
        SELECT FROM unnest(:entry_types::text[], :entry_values::text[], :entry_targets::bigint[]) AS stays (type, value, target)
        WHERE stays.type = index_type AND stays.value = index_entry.value
          AND stays.target IS NOT DISTINCT FROM index_entry.target
    )
)
INSERT INTO index_entry (tenant, entity_type, index_type, value, entity, target)
SELECT :tenant, :entity_type, entry.type, entry.value, :entity, entry.target
FROM unnest(:entry_types::text[], :entry_values::text[], :entry_targets::bigint[]) AS entry (type, value, target)
ON CONFLICT DO NOTHING
