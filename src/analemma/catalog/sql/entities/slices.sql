-- next_compile --
-- The first compile of the version that follows, among those compiled, and which slices were written by exactly that: one row each, at least one.
SELECT next.version, next.revision, slice.type
FROM (SELECT version, revision FROM compile WHERE entity = :entity AND version > :version ORDER BY version, revision LIMIT 1) AS next
    LEFT JOIN slice ON slice.entity = :entity AND slice.version = next.version AND slice.revision = next.revision

-- newest_slice_revision --
-- The newest revision of a version of which there are slices, whatever compiles there are.
SELECT max(revision) FROM slice WHERE entity = :entity AND version = :version

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

-- slices_start --
-- What reading slices begins with: the entity, and the newest compile of the version that is served, or of the one that is named.
SELECT entity.id, entity.newest_raw, compile.version, compile.revision, compile.ruleset_id, compile.ruleset_version,
       compile.fingerprint, compile.dependencies
FROM entity
    LEFT JOIN compile ON compile.entity = entity.id AND compile.version = coalesce(:version::bigint, entity.serving_version)
        AND compile.revision = (
            SELECT max(latest.revision) FROM compile AS latest
            WHERE latest.entity = entity.id AND latest.version = coalesce(:version::bigint, entity.serving_version)
        )
WHERE entity.tenant = :tenant AND entity.type = :type AND entity.key = :key

-- compile_starts --
-- What compiling versions of entities (the newest, unless one is named) begins with: each entity, the version, and the newest compile of it or else
-- of the greatest version below it. The cross join keeps SQLite from going through all entities of the tenant for each.
SELECT wanted.place - 1, entity.id, entity.newest_raw, entity.newest_compiled, entity.compile_seq, entity.serving_version, entity.ship_seq,
       chosen.version, chosen.hash, chosen.schema_id, chosen.schema_version, chosen.root,
       base.version, base.revision, base.ruleset_id, base.ruleset_version, base.fingerprint, base.dependencies,
       before.hash, before.schema_id, before.schema_version, before.root
FROM rows(:wanted) WITH ORDINALITY AS wanted (type text, key text, version bigint, place)
[sqlite]     CROSS JOIN entity ON entity.tenant = :tenant AND entity.type = wanted.type AND entity.key = wanted.key
[sqlite]     LEFT JOIN raw AS chosen ON chosen.entity = entity.id AND chosen.version = coalesce(wanted.version, entity.newest_raw)
[sqlite]     LEFT JOIN compile AS base
[sqlite]         ON base.entity = entity.id AND (base.version, base.revision) = (
[sqlite]             SELECT latest.version, latest.revision FROM compile AS latest
[sqlite]             WHERE latest.entity = entity.id AND latest.version <= chosen.version
[sqlite]             ORDER BY latest.version DESC, latest.revision DESC LIMIT 1
[sqlite]         )
[sqlite]     LEFT JOIN raw AS before ON before.entity = entity.id AND before.version = base.version
[postgres]     JOIN LATERAL (
[postgres]         SELECT * FROM entity
[postgres]         WHERE entity.tenant = :tenant AND entity.type = wanted.type AND entity.key = wanted.key LIMIT 1
[postgres]     ) AS entity ON true
[postgres]     LEFT JOIN LATERAL (
[postgres]         SELECT version, hash, schema_id, schema_version, root FROM raw
[postgres]         WHERE raw.entity = entity.id AND raw.version = coalesce(wanted.version, entity.newest_raw) LIMIT 1
[postgres]     ) AS chosen ON true
[postgres]     LEFT JOIN LATERAL (
[postgres]         SELECT version, revision, ruleset_id, ruleset_version, fingerprint, dependencies FROM compile
[postgres]         WHERE compile.entity = entity.id AND compile.version <= chosen.version
[postgres]         ORDER BY compile.version DESC, compile.revision DESC LIMIT 1
[postgres]     ) AS base ON true
[postgres]     LEFT JOIN LATERAL (
[postgres]         SELECT hash, schema_id, schema_version, root FROM raw
[postgres]         WHERE raw.entity = entity.id AND raw.version = base.version LIMIT 1
[postgres]     ) AS before ON true

-- compile_seqs --
-- By what one can tell whether entities are as they were read.
SELECT id, compile_seq, ship_seq FROM entity WHERE id = ANY (:entities::bigint[])

-- write_compiles --
-- Everything that compiles write: nothing, if one of their entities or one that they join was compiled since it was read, or if contracts were
-- loaded since those that they go by. The order of the locks: what is joined by number, entities by number, lanes, blocks, uploads. Those compiled
-- in one go are of one type, and joins go in no circle: whoever holds an entity and waits waits for one that is joined by nobody who waits for him.
(tenant bigint, now bigint, contracts_us bigint,
 joined[] by number (number bigint, compile_seq bigint),
 compiles[] by number (number bigint, expected bigint, expected_ship_seq bigint, ship_seq bigint, newest_version bigint, served_version bigint,
                       rules text, row.version bigint, row.revision bigint, row.ruleset_id text, row.ruleset_version text, row.fingerprint text,
                       mode text, row.dependencies text),
 slices[] (entity bigint, slice.type text, slice.version bigint, slice.revision bigint, slice.hash bytea, slice.root bytea, slice.tombstone text,
           slice.detail text))

often one compiles, joined, slices, indexed, entries, lanes, events, blocks;

-- Others may look at them too, and nobody may compile them before this is over.
each joined:
SELECT 1 FROM entity WHERE id = :joined.number AND compile_seq = :joined.compile_seq  -- guard: compile.joined
FOR SHARE  -- guard: compile.joined.lock.postgres
=> 1 or overtaken;

each compiles:
UPDATE entity
SET newest_compiled = coalesce(:compiles.newest_version, newest_compiled), serving_version = coalesce(:compiles.served_version, serving_version),
    served_rules = CASE WHEN :compiles.row.version = coalesce(:compiles.served_version, serving_version) THEN :compiles.rules ELSE served_rules END,
    compile_seq = compile_seq + 1, ship_seq = :compiles.ship_seq
WHERE id = :compiles.number AND compile_seq = :compiles.expected AND ship_seq = :compiles.expected_ship_seq  -- guard: compile.moved
=> 1 or overtaken;

-- Behind the locks: whoever joined these by newer contracts and was committed before is seen by them.
SELECT 1 FROM contract WHERE loaded_at > :contracts_us LIMIT 1  -- guard: compile.contracts
=> 0 or contracts_loaded;

include add_events;
include add_bodies;

passes compile.after_blocks: the blocks of slices are written inside the transaction;

each compiles:
INSERT INTO compile (entity, version, revision, ruleset_id, ruleset_version, fingerprint, mode, dependencies, created_at)
VALUES (:compiles.number, :compiles.row.version, :compiles.row.revision, :compiles.row.ruleset_id, :compiles.row.ruleset_version,
        :compiles.row.fingerprint, :compiles.mode, :compiles.row.dependencies, :now);

each slices:
INSERT INTO slice (entity, type, version, revision, hash, root, tombstone, detail)
VALUES (:slices.entity, :slices.slice.type, :slices.slice.version, :slices.slice.revision, :slices.slice.hash, :slices.slice.root,
        :slices.slice.tombstone, :slices.slice.detail);

include replace_entries;
include settle_entries;

-- replace_entries [part] --
-- All index entries of one version of each entity, in place of those that it had; what stays is not written anew. Where the newest compiled version
-- and the served one are two, they are of one of them: those of both have 0, its own `own`, those of the other one only `other`.
(tenant bigint,
 indexed[] (number bigint, own bigint, kept text),
 parted[] (number bigint, own bigint, other bigint, kept text),
 entries[] (entity bigint, entity_type text, entry.type text, entry.value text, entry.target bigint, own bigint))

each indexed:
DELETE FROM index_entry
WHERE entity = :indexed.number AND waiting = :indexed.own AND (index_type, value, coalesce(target, 0)) NOT IN (
[sqlite]     SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]') FROM json_each(:indexed.kept)
[postgres]     SELECT entry ->> 0, entry ->> 1, (entry ->> 2)::bigint FROM json_array_elements(:indexed.kept::json) AS entry
);

each parted:
UPDATE index_entry SET waiting = :parted.other - waiting
WHERE entity = :parted.number AND waiting <> :parted.own AND (waiting = :parted.other) = ((index_type, value, coalesce(target, 0)) IN (
[sqlite]     SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]') FROM json_each(:parted.kept)
[postgres]     SELECT entry ->> 0, entry ->> 1, (entry ->> 2)::bigint FROM json_array_elements(:parted.kept::json) AS entry
));

each entries:
INSERT INTO index_entry (tenant, entity_type, index_type, value, entity, target, waiting)
VALUES (:tenant, :entries.entity_type, :entries.entry.type, :entries.entry.value, :entries.entity, :entries.entry.target, :entries.own)
ON CONFLICT DO NOTHING;

-- settle_entries [part] --
-- The newest compiled version is served from now on: its entries are the only ones.
(served[] (number bigint))

each served:
DELETE FROM index_entry WHERE entity = :served.number AND waiting = 2;

each served:
UPDATE index_entry SET waiting = 0 WHERE entity = :served.number AND waiting = 1;

-- serve_versions --
-- Other versions are served, with their entries only: whoever read slices to join them has to read again.
(served[] (number bigint, version bigint))

often one served;

each served:
UPDATE entity SET serving_version = :served.version, compile_seq = compile_seq + 1, ship_seq = ship_seq + 1, served_rules = (
    SELECT compile.fingerprint FROM compile
        JOIN raw ON raw.entity = compile.entity AND raw.version = compile.version AND raw.root IS NOT NULL
    WHERE compile.entity = :served.number AND compile.version = :served.version ORDER BY compile.revision DESC LIMIT 1
)
WHERE id = :served.number;

include settle_entries;
