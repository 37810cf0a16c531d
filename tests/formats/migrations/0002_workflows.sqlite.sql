-- Workflows, branches, tags, pins, retention, and what has expired.

CREATE TABLE workflow (
    tenant     integer NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    name       text NOT NULL,
    status     text NOT NULL CHECK (status IN ('RUNNING', 'COMPLETED', 'FAILED', 'IDLE')),
    created_at integer NOT NULL,
    updated_at integer NOT NULL,
    PRIMARY KEY (tenant, owner, workflow)
);

-- How a branch began. Kept apart from its head, which every commit rewrites: an index on where branches come from costs commits nothing.
-- Within a branch a version's child is the next version, so this is also all that listing children needs.
CREATE TABLE branch (
    tenant         integer NOT NULL,
    owner          text NOT NULL,
    workflow       text NOT NULL,
    branch         text NOT NULL,
    first_manifest blob NOT NULL,
    parent         blob,
    created_at     integer NOT NULL,
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
    manifest   blob NOT NULL,
    message    text,
    created_at integer NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, name),
    FOREIGN KEY (tenant, manifest) REFERENCES manifest (tenant, id)
);
CREATE INDEX tag_manifest ON tag (tenant, manifest);

CREATE TABLE pin (
    tenant     integer NOT NULL,
    manifest   blob NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    branch     text NOT NULL,
    reason     text,
    created_at integer NOT NULL,
    PRIMARY KEY (tenant, manifest),
    FOREIGN KEY (tenant, manifest) REFERENCES manifest (tenant, id)
);
CREATE INDEX pin_branch ON pin (tenant, owner, workflow, branch);

-- The journal names what expired, many versions to a record; this finds one of them without reading the journal.
CREATE TABLE expired (
    tenant     integer NOT NULL,
    manifest   blob NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    branch     text NOT NULL,
    version    integer NOT NULL,
    expired_at integer NOT NULL,
    PRIMARY KEY (tenant, manifest)
);
CREATE INDEX expired_version ON expired (owner, workflow, branch, tenant, version);

-- An empty workflow stands for all of the owner's that have no row of their own.
CREATE TABLE retention (
    tenant            integer NOT NULL,
    owner             text NOT NULL,
    workflow          text NOT NULL,
    keep_last         integer,
    keep_newer_than_s integer,
    keep_hourly       integer,
    keep_daily        integer,
    keep_weekly       integer,
    PRIMARY KEY (tenant, owner, workflow)
);

-- The decisions on one version, without reading the rest of the journal.
CREATE INDEX journal_decided ON journal (tenant, manifest, seq) WHERE kind = 'decided';

-- The head's key now goes by version. Whenever a manifest is deleted, and in SQLite whenever one is added too, the database looks for heads
-- that name it: by branch and version it finds the only one there could be; by manifest it read every head of the tenant.
CREATE TABLE new_head (
    tenant      integer NOT NULL,
    owner       text NOT NULL,
    workflow    text NOT NULL,
    branch      text NOT NULL,
    manifest    blob NOT NULL,
    version     integer NOT NULL,
    journal_seq integer NOT NULL,
    journal_tip blob NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, branch),
    FOREIGN KEY (owner, workflow, branch, tenant, version) REFERENCES manifest (owner, workflow, branch, tenant, version)
        DEFERRABLE INITIALLY DEFERRED
);
INSERT INTO new_head SELECT * FROM head;
DROP TABLE head;
ALTER TABLE new_head RENAME TO head;
