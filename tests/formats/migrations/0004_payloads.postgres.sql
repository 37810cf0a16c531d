-- Leases of payloads: what pointers name, and what keeps the trees below them until their execution ends.

CREATE TABLE payload (
    tenant      integer NOT NULL,
    id          bytea NOT NULL,
    owner       text NOT NULL,
    workflow    text NOT NULL,
    execution   text NOT NULL,
    root        bytea NOT NULL,
    size        bigint NOT NULL,
    -- NULL: the tree holds several fields.
    field       text,
    created_at  bigint NOT NULL,
    released_at bigint,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX payload_execution ON payload (tenant, owner, workflow, execution) WHERE released_at IS NULL;
CREATE INDEX payload_live ON payload (tenant, id) WHERE released_at IS NULL;
