-- Entities: their raw versions, what these were compiled to, and how they are found; contracts; who makes versions.

-- Every version of every contract, as canonical JSON.
CREATE TABLE contract (
    id        text NOT NULL,
    version   text NOT NULL,
    kind      text NOT NULL,
    status    text NOT NULL,
    body      blob NOT NULL,
    checksum  text NOT NULL,
    loaded_at integer NOT NULL,
    PRIMARY KEY (id, version)
);

-- Who makes versions under which node number. Times are the database's.
CREATE TABLE node_lease (
    node        integer PRIMARY KEY CHECK (node BETWEEN 0 AND 1023),
    holder      text NOT NULL,
    lease_until integer NOT NULL,
    -- The newest version that was made under this number, as far as is known.
    newest      integer NOT NULL
);

-- An entity by a number that other tables use. One without newest_raw is a placeholder: something refers to it, and it does not exist.
-- Whoever writes a version, or compiles one, holds this row.
CREATE TABLE entity (
    id              integer PRIMARY KEY AUTOINCREMENT,
    tenant          integer NOT NULL REFERENCES tenant,
    type            text NOT NULL,
    key             text NOT NULL,
    newest_raw      integer,
    -- Repeats the newest raw version's hash, so that ingest needs this row only.
    newest_hash     blob,
    newest_compiled integer,
    serving_version integer,
    ship_seq        integer NOT NULL DEFAULT 0,
    -- Counts compiles that wrote something: whoever read slices finds out by it whether they are still these.
    compile_seq     integer NOT NULL DEFAULT 0,
    UNIQUE (tenant, type, key)
);
-- What the collector reads, a page at a time.
CREATE INDEX entity_number ON entity (tenant, id);

-- A version of an entity as it came. A deleted one has no root and no schema.
CREATE TABLE raw (
    entity         integer NOT NULL,
    version        integer NOT NULL,
    hash           blob NOT NULL,
    schema_id      text,
    schema_version text,
    root           blob,
    size           integer NOT NULL,
    created_at     integer NOT NULL,
    PRIMARY KEY (entity, version)
);

-- One compile of a version; the same version compiled again, to something else, is another revision.
CREATE TABLE compile (
    entity          integer NOT NULL,
    version         integer NOT NULL,
    revision        integer NOT NULL,
    ruleset_id      text NOT NULL,
    ruleset_version text NOT NULL,
    fingerprint     text NOT NULL,
    mode            text NOT NULL,
    -- JSON: each slice type that the version has, with what the slice was made of: [entity type, id, slice type, hash] each.
    dependencies    text NOT NULL,
    created_at      integer NOT NULL,
    PRIMARY KEY (entity, version, revision)
);

-- What a slice became. A row is valid from its own (version, revision) up to the next of the same type.
CREATE TABLE slice (
    entity     integer NOT NULL,
    type       text NOT NULL,
    version    integer NOT NULL,
    revision   integer NOT NULL,
    hash       blob,
    root       blob,
    -- Why there is no slice, instead of hash and root.
    tombstone  text,
    detail     text,
    PRIMARY KEY (entity, type, version, revision),
    CHECK ((root IS NULL) = (hash IS NULL) AND (root IS NULL) = (tombstone IS NOT NULL))
);

-- What the newest compiled version of an entity can be found by, and which entity it names.
CREATE TABLE index_entry (
    tenant      integer NOT NULL,
    entity_type text NOT NULL,
    index_type  text NOT NULL,
    value       text NOT NULL,
    entity      integer NOT NULL,
    target      integer
);
CREATE UNIQUE INDEX index_entry_of_entity ON index_entry (entity, index_type, value, coalesce(target, 0));
CREATE INDEX index_entry_value ON index_entry (value, index_type, entity_type, tenant, entity);
CREATE INDEX index_entry_target ON index_entry (target, entity) WHERE target IS NOT NULL;

-- Tables of roots were added: no collector that does not know them may go on, if there has been one.
UPDATE gc SET pass = pass + 1 WHERE pass > 0;
