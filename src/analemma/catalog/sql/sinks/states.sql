-- sink_states_of_entity --
-- What every sink is known to have of an entity.
SELECT sink, version, ship_seq FROM sink_state WHERE entity = :entity AND ship_seq >= 0 ORDER BY sink, place, doc_id

-- ship_states --
-- Where entities stand and a sink with them: the newest compiled version, what the sink has of the document, and the version's slices of these
-- types (or all), in the order of its ruleset.
SELECT wanted.at - 1, entity.id, entity.newest_compiled, entity.ship_seq,
       held.entity, held.ship_seq,
       found.type, found.version, found.revision, found.hash, found.root, found.tombstone, found.detail
FROM rows(:wanted) WITH ORDINALITY AS wanted (tenant bigint, type text, key text, place text, doc_id text, at)
[sqlite]     LEFT JOIN entity ON entity.tenant = wanted.tenant AND entity.type = wanted.type
[sqlite]         AND entity.key = wanted.key
[sqlite]     LEFT JOIN sink_state AS held ON held.sink = :sink AND held.place = wanted.place
[sqlite]         AND held.doc_id = wanted.doc_id
[sqlite]     LEFT JOIN compile ON compile.entity = entity.id AND compile.version = entity.newest_compiled AND compile.revision = (
[sqlite]         SELECT max(latest.revision) FROM compile AS latest
[sqlite]         WHERE latest.entity = entity.id AND latest.version = entity.newest_compiled
[sqlite]     )
[sqlite]     LEFT JOIN json_each(compile.dependencies) AS kind
[sqlite]         ON :slice_types IS NULL OR kind.key = ANY (:slice_types::text[])
[sqlite]     LEFT JOIN slice AS found ON found.entity = entity.id AND found.type = kind.key AND (found.version, found.revision) = (
[sqlite]         SELECT latest.version, latest.revision FROM slice AS latest
[sqlite]         WHERE latest.entity = entity.id AND latest.type = kind.key AND latest.version <= entity.newest_compiled
[sqlite]         ORDER BY latest.version DESC, latest.revision DESC LIMIT 1
[sqlite]     )
[sqlite] ORDER BY wanted.at, kind.id
[postgres]     LEFT JOIN LATERAL (
[postgres]         SELECT id, newest_compiled, ship_seq FROM entity
[postgres]         WHERE entity.tenant = wanted.tenant AND entity.type = wanted.type AND entity.key = wanted.key LIMIT 1
[postgres]     ) AS entity ON true
[postgres]     LEFT JOIN LATERAL (
[postgres]         SELECT sink_state.entity, sink_state.ship_seq FROM sink_state
[postgres]         WHERE sink_state.sink = :sink AND sink_state.place = wanted.place AND sink_state.doc_id = wanted.doc_id LIMIT 1
[postgres]     ) AS held ON true
[postgres]     LEFT JOIN LATERAL (
[postgres]         SELECT dependencies FROM compile
[postgres]         WHERE compile.entity = entity.id AND compile.version = entity.newest_compiled
[postgres]         ORDER BY compile.revision DESC LIMIT 1
[postgres]     ) AS made ON true
[postgres]     LEFT JOIN LATERAL json_object_keys(made.dependencies::json) WITH ORDINALITY AS kind (type, number)
[postgres]         ON :slice_types::text[] IS NULL OR kind.type = ANY (:slice_types::text[])
[postgres]     LEFT JOIN LATERAL (
[postgres]         SELECT type, version, revision, hash, root, tombstone, detail FROM slice
[postgres]         WHERE slice.entity = entity.id AND slice.type = kind.type AND slice.version <= entity.newest_compiled
[postgres]         ORDER BY slice.version DESC, slice.revision DESC LIMIT 1
[postgres]     ) AS found ON true
[postgres] ORDER BY wanted.at, kind.number

-- take_documents --
-- Gives documents that nobody has to these entities, before they are shipped for the first time; answers whose each of them is. Nothing is shipped of
-- a document with the ship_seq -1.
INSERT INTO sink_state (sink, place, doc_id, tenant, entity, version, ship_seq, deleted, shipped_at)
SELECT :sink, given.place, given.doc_id, given.tenant, given.entity, given.version, -1, false, :now
FROM rows(:documents) AS given (place text, doc_id text, tenant bigint, entity bigint, version bigint)
WHERE true
ON CONFLICT (sink, place, doc_id) DO UPDATE SET entity = sink_state.entity
RETURNING place, doc_id, entity

-- record_shipped --
-- What sinks have now. An older state does not replace a newer one, nor one entity's document another's.
INSERT INTO sink_state (sink, place, doc_id, tenant, entity, version, ship_seq, deleted, shipped_at)
SELECT given.sink, given.place, given.doc_id, given.tenant, given.entity, given.version, given.ship_seq, given.deleted = 1, :now
FROM rows(:documents) AS given
    (tenant bigint, entity bigint, sink text, place text, doc_id text, version bigint, ship_seq bigint, deleted bigint)
WHERE true
ON CONFLICT (sink, place, doc_id) DO UPDATE
SET version = excluded.version, ship_seq = excluded.ship_seq, deleted = excluded.deleted, shipped_at = excluded.shipped_at
WHERE sink_state.entity = excluded.entity AND sink_state.ship_seq <= excluded.ship_seq  -- guard: shipped
