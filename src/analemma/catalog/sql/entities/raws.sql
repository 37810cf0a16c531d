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

-- raw_version --
-- One version of an entity, as it came.
SELECT version, hash, schema_id, schema_version, root, size, created_at
FROM raw WHERE entity = :entity AND version = :version

-- add_raw --
-- A version of an entity.
INSERT INTO raw (entity, version, hash, schema_id, schema_version, root, size, created_at)
VALUES (:entity, :version, :hash, :schema_id, :schema_version, :root, :size, :created_at)

-- move_newest_raw --
-- The entity has a newer version.
UPDATE entity SET newest_raw = :version, newest_hash = :hash WHERE id = :id

-- hold_entity --
-- Nobody else changes this entity until the transaction ends.
SELECT id, newest_raw, newest_hash FROM entity
WHERE tenant = :tenant AND type = :type AND key = :key
FOR NO KEY UPDATE

-- ingest [postgres] --
-- New versions of entities, each newer than what there is and other than that, with their blocks and events. Each step reads from the one
-- before it, which fixes the order of the locks: entities, lanes, blocks, uploads. Answers what was written (`id`), and what there was when
-- the statement began; where neither explains the other, whoever asked has to hold the entity and look.
WITH wanted AS MATERIALIZED (
    SELECT * FROM unnest(
        :types::text[], :keys::text[], :versions::bigint[], :hashes::bytea[], :schema_ids::text[], :schema_versions::text[],
        :roots::bytea[], :sizes::bigint[], :lane_ids::text[], :event_ids::text[], :payloads::bytea[]
    ) WITH ORDINALITY AS item
        (type, key, version, hash, schema_id, schema_version, root, size, lane_id, event_id, payload, place)
), held AS (
    INSERT INTO entity (tenant, type, key, newest_raw, newest_hash)
    SELECT :tenant, type, key, version, hash FROM wanted
    -- Nothing is deleted that does not exist.
    WHERE root IS NOT NULL OR (
        SELECT known.newest_raw FROM entity AS known
        WHERE known.tenant = :tenant AND known.type = wanted.type AND known.key = wanted.key
    ) IS NOT NULL
    ORDER BY place
    ON CONFLICT (tenant, type, key) DO UPDATE
    SET newest_raw = excluded.newest_raw, newest_hash = excluded.newest_hash
    WHERE entity.newest_raw IS NULL
       OR (entity.newest_raw < excluded.newest_raw AND entity.newest_hash <> excluded.newest_hash)
    RETURNING id, type, key
), added AS MATERIALIZED (
    SELECT held.id, wanted.* FROM held JOIN wanted USING (type, key)
), lanes AS (
    INSERT INTO lane (tenant, aggregatetype, aggregateid, next_seq, due_at, priority)
    SELECT :tenant, wanted.type, wanted.id, wanted.next_seq,
           least(:now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), 0
    FROM (
        SELECT 'RAW_DATA' AS type, lane_id AS id, 2 AS next_seq FROM added
        UNION
        -- Without rows, it is only locked: the transaction settles an event of it.
        SELECT :settling_type::text, :settling_id::text, 1
        WHERE :settling_type::text IS NOT NULL AND EXISTS (SELECT FROM added)
          AND NOT EXISTS (SELECT FROM added WHERE :settling_type::text = 'RAW_DATA' AND lane_id = :settling_id::text)
    ) AS wanted
    ORDER BY wanted.type COLLATE "C", wanted.id COLLATE "C"
    ON CONFLICT (tenant, aggregatetype, aggregateid) DO UPDATE
    SET next_seq = lane.next_seq + excluded.next_seq - 1,
        due_at = greatest(least(lane.due_at, excluded.due_at), lane.retry_at),
        -- A newer version is worth another try.
        parked = false,
        priority = CASE WHEN lane.due_at IS NULL THEN excluded.priority ELSE least(lane.priority, excluded.priority) END
    WHERE excluded.next_seq > 1
    RETURNING aggregateid, next_seq
), stored AS (
    INSERT INTO block (tenant, id, size, codec, body, upload, object_offset, object_length, links)
    SELECT :tenant, emitted.*
    FROM unnest(
        :block_ids::bytea[], :block_sizes::bigint[], :block_codecs::bigint[], :block_bodies::bytea[],
        :block_uploads::bytea[], :block_offsets::bigint[], :block_lengths::bigint[], :block_links::bytea[]
    ) AS emitted
    WHERE (SELECT count(*) FROM lanes) > 0
    ON CONFLICT (tenant, id) DO UPDATE SET doomed = NULL WHERE block.doomed IS NOT NULL  -- guard: gc.spared.ingest.postgres
    RETURNING 1
), placed AS MATERIALIZED (
    SELECT added.* FROM added WHERE (SELECT count(*) FROM stored) >= 0
), added_raws AS (
    INSERT INTO raw (entity, version, hash, schema_id, schema_version, root, size, created_at)
    SELECT id, version, hash, schema_id, schema_version, root, size, :now FROM placed
), added_events AS (
    INSERT INTO outbox (id, tenant, aggregatetype, aggregateid, seq, type, payload, created_at, trace)
    SELECT event_id, :tenant, 'RAW_DATA', lane_id, lanes.next_seq - 1, 'RawDataIngested', payload, :now, :trace::text
    FROM placed JOIN lanes ON lanes.aggregateid = placed.lane_id
), finished AS (
    UPDATE upload SET state = 'ready'
    WHERE tenant = :tenant AND id = ANY (:uploads::bytea[]) AND state = 'temp' AND EXISTS (SELECT FROM placed)
    RETURNING 1
)
SELECT wanted.place, added.id, known.newest_raw, known.newest_hash,
       CASE WHEN NOT EXISTS (SELECT FROM added) OR (SELECT count(*) FROM finished) = :upload_count THEN true
            ELSE analemma_abort('AN002', 'an upload is gone') END,
       known.id
FROM wanted
    LEFT JOIN added USING (place)
    -- Row by row: a plan made while there are few entities would otherwise read all of them.
    LEFT JOIN LATERAL (
        SELECT id, newest_raw, newest_hash FROM entity
        WHERE entity.tenant = :tenant AND entity.type = wanted.type AND entity.key = wanted.key LIMIT 1
    ) AS known ON true
ORDER BY wanted.place
