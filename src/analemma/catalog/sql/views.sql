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
