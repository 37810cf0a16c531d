-- sink_states_of_entity --
-- What every sink is known to have of an entity.
SELECT sink, place, doc_id, version, ship_seq, deleted, shipped_at FROM sink_state WHERE entity = :entity AND ship_seq >= 0 ORDER BY sink, place, doc_id
