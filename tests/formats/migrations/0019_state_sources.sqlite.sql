-- State sources: how far each has followed each branch, and what became of its newest state.

CREATE TABLE state_source (
    tenant         integer NOT NULL REFERENCES tenant,
    owner          text NOT NULL,
    workflow       text NOT NULL,
    branch         text NOT NULL,
    -- The id of the contract.
    source         text NOT NULL,
    -- The branch's first version: a branch may be removed, and another of its name begun.
    first_manifest blob NOT NULL,
    version        integer NOT NULL,
    -- The entity that the branch became last, if it ever did.
    entity_type    text,
    entity_id      text,
    -- SHA-256 of what was taken of the state last.
    taken          blob,
    -- Why the state at this version became no entity.
    problem        text,
    updated_at     integer NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, branch, source)
) WITHOUT ROWID;
CREATE INDEX state_source_problem ON state_source (tenant, source, owner, workflow, branch) WHERE problem IS NOT NULL;
