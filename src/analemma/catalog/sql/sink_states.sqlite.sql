-- ship_states --
-- Where entities stand and a sink with them: the newest compiled version, what the sink has of the document, and the version's slices of these
-- types (or all), in the order of its ruleset. `wanted` is a JSON list of [tenant, entity type, id, place, document id], `slice_types` one of types.
SELECT wanted.key, entity.id, entity.newest_compiled, entity.ship_seq,
       held.entity, held.ship_seq, held.deleted, held.shipped_at,
       slice.type, slice.version, slice.revision, slice.hash, slice.root, slice.tombstone, slice.detail
FROM json_each(:wanted) AS wanted
    LEFT JOIN entity ON entity.tenant = json_extract(wanted.value, '$[0]') AND entity.type = json_extract(wanted.value, '$[1]')
        AND entity.key = json_extract(wanted.value, '$[2]')
    LEFT JOIN sink_state AS held ON held.sink = :sink AND held.place = json_extract(wanted.value, '$[3]')
        AND held.doc_id = json_extract(wanted.value, '$[4]')
    LEFT JOIN compile ON compile.entity = entity.id AND compile.version = entity.newest_compiled AND compile.revision = (
        SELECT max(latest.revision) FROM compile AS latest
        WHERE latest.entity = entity.id AND latest.version = entity.newest_compiled
    )
    LEFT JOIN json_each(compile.dependencies) AS kind
        ON :slice_types IS NULL OR kind.key IN (SELECT value FROM json_each(:slice_types))
    LEFT JOIN slice ON slice.entity = entity.id AND slice.type = kind.key AND (slice.version, slice.revision) = (
        SELECT latest.version, latest.revision FROM slice AS latest
        WHERE latest.entity = entity.id AND latest.type = kind.key AND latest.version <= entity.newest_compiled
        ORDER BY latest.version DESC, latest.revision DESC LIMIT 1
    )
ORDER BY wanted.key, kind.id

-- take_documents --
-- Gives documents that nobody has to these entities, before they are shipped for the first time; answers whose each of them is. Nothing is shipped of
-- a document with the ship_seq -1.
-- `documents` is a JSON list of [place, document id, tenant, entity, version].
INSERT INTO sink_state (sink, place, doc_id, tenant, entity, version, ship_seq, deleted, shipped_at)
SELECT :sink, json_extract(given.value, '$[0]'), json_extract(given.value, '$[1]'), json_extract(given.value, '$[2]'),
       json_extract(given.value, '$[3]'), json_extract(given.value, '$[4]'), -1, 0, :now
FROM json_each(:documents) AS given
WHERE true
ON CONFLICT (sink, place, doc_id) DO UPDATE SET entity = sink_state.entity
RETURNING place, doc_id, entity

-- record_shipped --
-- What sinks have now. An older state does not replace a newer one, nor one entity's document another's.
INSERT INTO sink_state (sink, place, doc_id, tenant, entity, version, ship_seq, deleted, shipped_at)
VALUES (:sink, :place, :doc_id, :tenant, :entity, :version, :ship_seq, :deleted, :now)
ON CONFLICT (sink, place, doc_id) DO UPDATE
SET version = excluded.version, ship_seq = excluded.ship_seq, deleted = excluded.deleted, shipped_at = excluded.shipped_at
WHERE sink_state.entity = excluded.entity AND sink_state.ship_seq <= excluded.ship_seq  -- guard: shipped.sqlite
