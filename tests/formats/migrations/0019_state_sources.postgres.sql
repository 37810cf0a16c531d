-- State sources: how far each has followed each branch, and what became of its newest state.

CREATE TABLE state_source (
    tenant         integer NOT NULL REFERENCES tenant,
    owner          text COLLATE "C" NOT NULL,
    workflow       text COLLATE "C" NOT NULL,
    branch         text COLLATE "C" NOT NULL,
    -- The id of the contract.
    source         text COLLATE "C" NOT NULL,
    -- The branch's first version: a branch may be removed, and another of its name begun.
    first_manifest bytea NOT NULL,
    version        bigint NOT NULL,
    -- The entity that the branch became last, if it ever did.
    entity_type    text COLLATE "C",
    entity_id      text COLLATE "C",
    -- SHA-256 of what was taken of the state last.
    taken          bytea,
    -- Why the state at this version became no entity.
    problem        text,
    updated_at     bigint NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, branch, source)
);
CREATE INDEX state_source_problem ON state_source (tenant, source, owner, workflow, branch) WHERE problem IS NOT NULL;
