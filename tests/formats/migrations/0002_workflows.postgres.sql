-- Workflows, branches, tags, pins, retention, and what has expired.

CREATE TABLE workflow (
    tenant     integer NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    name       text NOT NULL,
    status     text NOT NULL CHECK (status IN ('RUNNING', 'COMPLETED', 'FAILED', 'IDLE')),
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (tenant, owner, workflow)
);
-- Lists are in the order of the bytes, as in every other catalog, whatever the database's collation.
CREATE INDEX workflow_listing ON workflow (tenant, owner, workflow COLLATE "C");

-- How a branch began. Kept apart from its head, which every commit rewrites: an index on where branches come from costs commits nothing.
-- Within a branch a version's child is the next version, so this is also all that listing children needs.
CREATE TABLE branch (
    tenant         integer NOT NULL,
    owner          text NOT NULL,
    workflow       text NOT NULL,
    branch         text NOT NULL,
    first_manifest bytea NOT NULL,
    parent         bytea,
    created_at     bigint NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, branch)
);
CREATE INDEX branch_parent ON branch (tenant, parent) WHERE parent IS NOT NULL;

INSERT INTO branch (tenant, owner, workflow, branch, first_manifest, parent, created_at)
SELECT tenant, owner, workflow, branch, id, parent, created_at
FROM manifest
WHERE version = (
    SELECT min(version) FROM manifest AS first
    WHERE first.tenant = manifest.tenant AND first.owner = manifest.owner AND first.workflow = manifest.workflow
      AND first.branch = manifest.branch
);

INSERT INTO workflow (tenant, owner, workflow, name, status, created_at, updated_at)
SELECT tenant, owner, workflow, workflow, 'IDLE', min(created_at), min(created_at)
FROM branch GROUP BY tenant, owner, workflow;

CREATE TABLE tag (
    tenant     integer NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    name       text NOT NULL,
    branch     text NOT NULL,
    manifest   bytea NOT NULL,
    message    text,
    created_at bigint NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, name),
    FOREIGN KEY (tenant, manifest) REFERENCES manifest (tenant, id)
);
CREATE INDEX tag_manifest ON tag (tenant, manifest);

CREATE TABLE pin (
    tenant     integer NOT NULL,
    manifest   bytea NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    branch     text NOT NULL,
    reason     text,
    created_at bigint NOT NULL,
    PRIMARY KEY (tenant, manifest),
    FOREIGN KEY (tenant, manifest) REFERENCES manifest (tenant, id)
);
CREATE INDEX pin_branch ON pin (tenant, owner, workflow, branch);

-- The journal names what expired, many versions to a record; this finds one of them without reading the journal.
CREATE TABLE expired (
    tenant     integer NOT NULL,
    manifest   bytea NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    branch     text NOT NULL,
    version    bigint NOT NULL,
    expired_at bigint NOT NULL,
    PRIMARY KEY (tenant, manifest)
);
CREATE INDEX expired_version ON expired (owner, workflow, branch, tenant, version);

-- An empty workflow stands for all of the owner's that have no row of their own.
CREATE TABLE retention (
    tenant            integer NOT NULL,
    owner             text NOT NULL,
    workflow          text NOT NULL,
    keep_last         bigint,
    keep_newer_than_s bigint,
    keep_hourly       bigint,
    keep_daily        bigint,
    keep_weekly       bigint,
    PRIMARY KEY (tenant, owner, workflow)
);

-- The decisions on one version, without reading the rest of the journal.
CREATE INDEX journal_decided ON journal (tenant, manifest, seq) WHERE kind = 'decided';

-- The head's key now goes by version. Whenever a manifest is deleted, and in SQLite whenever one is added too, the database looks for heads
-- that name it: by branch and version it finds the only one there could be; by manifest it read every head of the tenant.
ALTER TABLE head
    DROP CONSTRAINT head_tenant_manifest_fkey,
    ADD FOREIGN KEY (owner, workflow, branch, tenant, version) REFERENCES manifest (owner, workflow, branch, tenant, version);
