-- next_compile --
-- The first compile of the version that follows, among those compiled.
SELECT version, revision, dependencies FROM compile
WHERE entity = :entity AND version > :version
ORDER BY version, revision LIMIT 1

-- own_slices --
-- Which slices were written by exactly this compile.
SELECT type FROM slice WHERE entity = :entity AND version = :version AND revision = :revision

-- newest_slice_revision --
-- The newest revision of a version of which there are slices, whatever compiles there are.
SELECT max(revision) FROM slice WHERE entity = :entity AND version = :version

-- index_entries_of --
-- Everything that an entity can be found by.
SELECT entry.index_type, entry.value, target.type, target.key
FROM index_entry AS entry LEFT JOIN entity AS target ON target.id = entry.target
WHERE entry.entity = :entity AND entry.waiting <> 1
ORDER BY entry.index_type, entry.value, target.type, target.key

-- wanted_slices --
-- The slices of these types as they are served, or (with a version) as they were then.
[sqlite] SELECT wanted.place - 1, entity.id, entity.compile_seq, slice.version, slice.revision, slice.hash, slice.root, slice.tombstone,
[sqlite]        slice.detail
[postgres] SELECT wanted.place - 1, entity.id, entity.compile_seq, found.version, found.revision, found.hash, found.root, found.tombstone,
[postgres]        found.detail
FROM rows(:wanted) WITH ORDINALITY AS wanted (type text, key text, slice_type text, version bigint, place)
[sqlite]     LEFT JOIN entity ON entity.tenant = :tenant AND entity.type = wanted.type AND entity.key = wanted.key
[sqlite]     LEFT JOIN slice ON slice.entity = entity.id AND slice.type = wanted.slice_type AND (slice.version, slice.revision) = (
[sqlite]         SELECT latest.version, latest.revision FROM slice AS latest
[sqlite]         WHERE latest.entity = entity.id AND latest.type = wanted.slice_type
[sqlite]           AND latest.version <= coalesce(wanted.version, entity.serving_version)
[sqlite]         ORDER BY latest.version DESC, latest.revision DESC LIMIT 1
[sqlite]     )
[postgres]     LEFT JOIN LATERAL (
[postgres]         SELECT id, compile_seq, serving_version FROM entity
[postgres]         WHERE entity.tenant = :tenant AND entity.type = wanted.type AND entity.key = wanted.key LIMIT 1
[postgres]     ) AS entity ON true
[postgres]     LEFT JOIN LATERAL (
[postgres]         SELECT version, revision, hash, root, tombstone, detail FROM slice
[postgres]         WHERE slice.entity = entity.id AND slice.type = wanted.slice_type
[postgres]           AND slice.version <= coalesce(wanted.version, entity.serving_version)
[postgres]         ORDER BY slice.version DESC, slice.revision DESC LIMIT 1
[postgres]     ) AS found ON true

-- compiles_since [sqlite] --
-- Those of these entities whose slices are not what they were.
SELECT 1 FROM rows(:read) AS seen (id bigint, compile_seq bigint) JOIN entity ON entity.id = seen.id
WHERE entity.compile_seq <> seen.compile_seq LIMIT 1

-- move_compiled [sqlite] --
-- Compare-and-set; no row touched means that the entity was compiled since, or that contracts were loaded since those that it goes by.
UPDATE entity
SET newest_compiled = coalesce(:newest, newest_compiled), serving_version = coalesce(:serving, serving_version),
    served_rules = CASE WHEN :version = coalesce(:serving, serving_version) THEN :rules ELSE served_rules END,
    compile_seq = compile_seq + 1, ship_seq = :ship_seq
WHERE id = :id AND compile_seq = :expected AND ship_seq = :expected_ship_seq  -- guard: compile.moved.sqlite
  AND NOT EXISTS (SELECT 1 FROM contract WHERE loaded_at > :contracts)  -- guard: compile.contracts.sqlite

-- add_compile [sqlite] --
-- One compile.
INSERT INTO compile
    (entity, version, revision, ruleset_id, ruleset_version, fingerprint, mode, dependencies, created_at)
VALUES
    (:entity, :version, :revision, :ruleset_id, :ruleset_version, :fingerprint, :mode, :dependencies, :created_at)

-- add_slice [sqlite] --
-- What a slice became.
INSERT INTO slice (entity, type, version, revision, hash, root, tombstone, detail)
VALUES (:entity, :type, :version, :revision, :hash, :root, :tombstone, :detail)

-- drop_index_entries [sqlite] --
-- Entries that an entity no longer has.
DELETE FROM index_entry
WHERE entity = :entity AND (index_type, value, coalesce(target, 0)) NOT IN (
    SELECT entry.type, entry.value, entry.target FROM rows(:entries) AS entry (type text, value text, target bigint)
)

-- add_index_entries [sqlite] --
-- Entries that an entity does not have yet.
INSERT INTO index_entry (tenant, entity_type, index_type, value, entity, target)
SELECT :tenant, :entity_type, entry.type, entry.value, :entity, nullif(entry.target, 0)
FROM rows(:entries) AS entry (type text, value text, target bigint)
WHERE true
ON CONFLICT DO NOTHING

-- compile [postgres] --
-- Everything a compile writes, in one statement: nothing, if the entity or one that it joins was compiled since it was read, or if contracts
-- were loaded since those that it goes by. The order of the locks: what is joined by number, the entity, lanes, blocks, uploads. Joins go in no circle, so whoever holds an entity and
-- waits waits for one that is joined by nobody who waits for him.
WITH joined AS MATERIALIZED (
    SELECT id, compile_seq FROM entity WHERE id = ANY (:joined_ids::bigint[]) ORDER BY id FOR SHARE  -- guard: compile.joined.lock.postgres
), moved AS (
    UPDATE entity
    SET newest_compiled = CASE WHEN :newest::boolean THEN :version ELSE newest_compiled END,
        serving_version = CASE WHEN :serves::boolean THEN :version ELSE serving_version END,
        served_rules = CASE WHEN :serves::boolean OR serving_version = :version THEN :rules::text ELSE served_rules END,
        compile_seq = compile_seq + 1,
        ship_seq = :ship_seq
    WHERE id = :entity AND compile_seq = :expected AND ship_seq = :expected_ship_seq  -- guard: compile.moved.postgres
      AND NOT EXISTS (SELECT FROM contract WHERE loaded_at > :contracts::bigint)  -- guard: compile.contracts.postgres
      AND :joined_count = (  -- guard: compile.joined.postgres
          SELECT count(*) FROM joined
          JOIN unnest(:joined_ids::bigint[], :joined_seqs::bigint[]) AS seen (id, compile_seq) USING (id, compile_seq)
      )
    RETURNING id
), lanes AS (
    INSERT INTO lane (tenant, aggregatetype, aggregateid, next_seq, due_at, priority, channel)
    SELECT :tenant, wanted.aggregatetype, wanted.aggregateid, wanted.count + 1,
           least(:now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), wanted.priority, wanted.channel
    FROM moved CROSS JOIN unnest(
        :lane_types::text[], :lane_ids::text[], :lane_counts::bigint[], :lane_priorities::bigint[], :lane_channels::text[]
    ) AS wanted (aggregatetype, aggregateid, count, priority, channel)
    ON CONFLICT (tenant, aggregatetype, aggregateid) DO UPDATE
    SET next_seq = lane.next_seq + excluded.next_seq - 1,
        due_at = greatest(least(lane.due_at, excluded.due_at), lane.retry_at),
        -- What a channel delivers, and a compile or a fanout makes, is the newest state: a new one is worth another try.
        parked = lane.parked AND lane.channel = '' AND lane.aggregatetype NOT IN ('RAW_DATA', 'CHANGESET'),
        priority = CASE WHEN lane.due_at IS NULL THEN excluded.priority ELSE least(lane.priority, excluded.priority) END
    -- One without rows is only locked: the transaction settles an event of it.
    WHERE excluded.next_seq > 1
    RETURNING aggregatetype, aggregateid, next_seq
), stored AS (
    INSERT INTO block (tenant, id, size, codec, body, upload, object_offset, object_length, links)
    SELECT :tenant, emitted.*
    FROM moved CROSS JOIN unnest(
        :block_ids::bytea[], :block_sizes::bigint[], :block_codecs::bigint[], :block_bodies::bytea[],
        :block_uploads::bytea[], :block_offsets::bigint[], :block_lengths::bigint[], :block_links::bytea[]
    ) AS emitted
    WHERE (SELECT count(*) FROM lanes) >= 0
    ON CONFLICT (tenant, id) DO UPDATE SET doomed = NULL WHERE block.doomed IS NOT NULL  -- guard: gc.spared.compile.postgres
    RETURNING 1
), placed AS MATERIALIZED (
    SELECT id FROM moved WHERE (SELECT count(*) FROM stored) >= 0
), added_compile AS (
    INSERT INTO compile
        (entity, version, revision, ruleset_id, ruleset_version, fingerprint, mode, dependencies, created_at)
    SELECT id, :version, :revision, :ruleset_id, :ruleset_version, :fingerprint, :mode, :dependencies, :now FROM placed
), added_slices AS (
    INSERT INTO slice (entity, type, version, revision, hash, root, tombstone, detail)
    SELECT placed.id, made.*
    FROM placed CROSS JOIN unnest(
        :slice_types::text[], :slice_versions::bigint[], :slice_revisions::bigint[], :slice_hashes::bytea[],
        :slice_roots::bytea[], :slice_tombstones::text[], :slice_details::text[]
    ) AS made
), dropped_entries AS (
    DELETE FROM index_entry
    WHERE :replace_entries::boolean AND entity = (SELECT id FROM placed) AND NOT EXISTS (
        SELECT FROM unnest(:entry_types::text[], :entry_values::text[], :entry_targets::bigint[]) AS stays (type, value, target)
        WHERE stays.type = index_type AND stays.value = index_entry.value
          AND stays.target IS NOT DISTINCT FROM index_entry.target
    )
), added_entries AS (
    INSERT INTO index_entry (tenant, entity_type, index_type, value, entity, target)
    SELECT :tenant, :entity_type, entry.type, entry.value, placed.id, entry.target
    FROM placed CROSS JOIN unnest(
        :entry_types::text[], :entry_values::text[], :entry_targets::bigint[]
    ) AS entry (type, value, target)
    ON CONFLICT DO NOTHING
), added_events AS (
    INSERT INTO outbox
        (id, tenant, aggregatetype, aggregateid, seq, type, payload, idempotency_key, priority, created_at, trace)
    SELECT event.id, :tenant, event.aggregatetype, event.aggregateid, lanes.next_seq - event.from_end, event.type,
           event.payload, event.idempotency_key, event.priority, :now, event.trace
    FROM placed CROSS JOIN unnest(
        :event_ids::text[], :event_lane_types::text[], :event_lane_ids::text[], :event_places::bigint[],
        :event_types::text[], :event_payloads::bytea[], :event_keys::text[], :event_priorities::bigint[],
        :event_traces::text[]
    ) AS event (id, aggregatetype, aggregateid, from_end, type, payload, idempotency_key, priority, trace)
    JOIN lanes USING (aggregatetype, aggregateid)
), finished AS (
    UPDATE upload SET state = 'ready'
    WHERE tenant = :tenant AND id = ANY (:uploads::bytea[]) AND state = 'temp' AND EXISTS (SELECT FROM placed)
    RETURNING 1
)
SELECT CASE WHEN NOT EXISTS (SELECT FROM moved) THEN false
            WHEN (SELECT count(*) FROM finished) = :upload_count THEN true
            ELSE analemma_abort('AN002', 'an upload is gone') END

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
        ON chosen.entity = entity.id AND chosen.version = coalesce(:version::bigint, entity.newest_raw)
[sqlite]     LEFT JOIN compile AS base
[sqlite]         ON base.entity = entity.id AND (base.version, base.revision) = (
[sqlite]             SELECT latest.version, latest.revision FROM compile AS latest
[sqlite]             WHERE latest.entity = entity.id AND latest.version <= chosen.version
[sqlite]             ORDER BY latest.version DESC, latest.revision DESC LIMIT 1
[sqlite]         )
[postgres]     LEFT JOIN LATERAL (
[postgres]         SELECT version, revision, ruleset_id, ruleset_version, fingerprint, dependencies FROM compile
[postgres]         WHERE compile.entity = entity.id AND compile.version <= chosen.version
[postgres]         ORDER BY compile.version DESC, compile.revision DESC LIMIT 1
[postgres]     ) AS base ON true
    LEFT JOIN raw AS before ON before.entity = entity.id AND before.version = base.version
WHERE entity.tenant = :tenant AND entity.type = :type AND entity.key = :key

-- slices_start [sqlite] --
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

-- slices_start [postgres] --
-- What reading slices begins with: the entity, and the newest compile of the version that is served, or of the one that is named.
SELECT entity.id, entity.newest_raw, found.version, found.revision, found.ruleset_id, found.ruleset_version,
       found.fingerprint, found.dependencies
FROM entity
    LEFT JOIN LATERAL (
        SELECT version, revision, ruleset_id, ruleset_version, fingerprint, dependencies FROM compile
        WHERE compile.entity = entity.id AND compile.version = coalesce(:version::bigint, entity.serving_version)
        ORDER BY compile.revision DESC LIMIT 1
    ) AS found ON true
WHERE entity.tenant = :tenant AND entity.type = :type AND entity.key = :key

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
