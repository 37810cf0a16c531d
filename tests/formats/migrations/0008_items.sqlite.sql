-- Items: what graphs remember across threads, by namespace and key.

-- A namespace that has items. Its labels as UTF-8, one after the other with a zero byte between them: byte order is then
-- the order of the tuples, and everything below a namespace is one range. Whoever changes items of a namespace holds its row.
-- Numbers are in the order in which namespaces came to be, and never used again.
CREATE TABLE item_space (
    id        integer PRIMARY KEY AUTOINCREMENT,
    tenant    integer NOT NULL REFERENCES tenant,
    namespace blob NOT NULL,
    -- The place of the newest item; at least as many as there are items.
    newest    integer NOT NULL,
    UNIQUE (tenant, namespace)
);

-- Times are the database's. Vectors are doubles, `dimensions` for each text that was indexed.
CREATE TABLE item (
    tenant     integer NOT NULL,
    space      integer NOT NULL REFERENCES item_space,
    key        text NOT NULL,
    place      integer NOT NULL,
    created_at integer NOT NULL,
    updated_at integer NOT NULL,
    ttl        integer,
    expires_at integer,
    dimensions integer,
    value      blob NOT NULL,
    vectors    blob,
    PRIMARY KEY (tenant, space, key),
    UNIQUE (tenant, space, place),
    CHECK ((ttl IS NULL) = (expires_at IS NULL)),
    CHECK ((dimensions IS NULL) = (vectors IS NULL))
);
CREATE INDEX item_expiry ON item (tenant, expires_at) WHERE expires_at IS NOT NULL;
