-- backfill_counts --
-- What a type has within a scope: entities, those never compiled, those whose newest version is not compiled, those compiled by other rules
-- than `fingerprint`, the bytes of their newest versions, and how many have been compiled. `ids` is a JSON list, or NULL.
SELECT count(*), coalesce(sum(found.newest_compiled IS NULL), 0), coalesce(sum(found.newest_compiled < found.newest_raw), 0),
       coalesce(sum(found.fingerprint <> :fingerprint), 0), coalesce(sum(found.size), 0), coalesce(sum(found.newest_compiled IS NOT NULL), 0)
FROM (
    SELECT entity.newest_raw, entity.newest_compiled, raw.size, (
        SELECT compile.fingerprint FROM compile
        WHERE compile.entity = entity.id AND compile.version = entity.newest_compiled ORDER BY compile.revision DESC LIMIT 1
    ) AS fingerprint
    FROM entity JOIN raw ON raw.entity = entity.id AND raw.version = entity.newest_raw
    WHERE entity.tenant = :tenant AND entity.type = :type AND entity.key >= :low AND entity.key < :high
      AND (:ids IS NULL OR entity.key IN (SELECT value FROM json_each(:ids)))
) AS found

-- backfill_ranges --
-- The entities of a scope in ranges of about the same count: first and last number, and how many. With `stale`, only those that were not
-- compiled by the rules of this fingerprint from their newest version; with `compiled`, only those that were compiled at all.
SELECT min(placed.id), max(placed.id), count(*)
FROM (
    SELECT entity.id, ntile(:ranges) OVER (ORDER BY entity.id) AS range
    FROM entity
    WHERE entity.tenant = :tenant AND entity.type = :type AND entity.key >= :low AND entity.key < :high AND entity.newest_raw IS NOT NULL
      AND (:ids IS NULL OR entity.key IN (SELECT value FROM json_each(:ids)))
      AND (NOT :compiled OR entity.newest_compiled IS NOT NULL)
      AND (NOT :stale OR entity.newest_compiled IS NULL OR entity.newest_compiled <> entity.newest_raw OR :fingerprint <> (
          SELECT compile.fingerprint FROM compile
          WHERE compile.entity = entity.id AND compile.version = entity.newest_compiled ORDER BY compile.revision DESC LIMIT 1
      ) OR (entity.serving_version <> entity.newest_compiled AND :fingerprint <> (
          SELECT compile.fingerprint FROM compile
          WHERE compile.entity = entity.id AND compile.version = entity.serving_version ORDER BY compile.revision DESC LIMIT 1
      )))
) AS placed
GROUP BY placed.range ORDER BY placed.range

-- backfill_page --
-- A page of the entities of a scope, by number, from one number to another. The conditions are those of `backfill_ranges`; the signs keep
-- SQLite from the index of keys, by which it would have to sort all that there are.
SELECT entity.id, entity.key, entity.newest_raw, entity.newest_compiled, entity.serving_version, entity.ship_seq, entity.compile_seq
FROM entity
WHERE entity.tenant = :tenant AND entity.id >= :first AND entity.id <= :last AND +entity.type = :type
  AND +entity.key >= :low AND +entity.key < :high AND entity.newest_raw IS NOT NULL
  AND (:ids IS NULL OR entity.key IN (SELECT value FROM json_each(:ids)))
  AND (NOT :compiled OR entity.newest_compiled IS NOT NULL)
  AND (NOT :stale OR entity.newest_compiled IS NULL OR entity.newest_compiled <> entity.newest_raw OR :fingerprint <> (
      SELECT compile.fingerprint FROM compile
      WHERE compile.entity = entity.id AND compile.version = entity.newest_compiled ORDER BY compile.revision DESC LIMIT 1
  ) OR (entity.serving_version <> entity.newest_compiled AND :fingerprint <> (
      SELECT compile.fingerprint FROM compile
      WHERE compile.entity = entity.id AND compile.version = entity.serving_version ORDER BY compile.revision DESC LIMIT 1
  )))
ORDER BY entity.id LIMIT :limit

-- stored_entries --
-- All index entries of entities, with what must agree with the entity's own row. `entities` is a JSON list of numbers.
SELECT entry.entity, entry.index_type, entry.value, target.type, target.key, entry.tenant, entry.entity_type, entry.waiting
FROM index_entry AS entry LEFT JOIN entity AS target ON target.id = entry.target
WHERE entry.entity IN (SELECT value FROM json_each(:entities))
