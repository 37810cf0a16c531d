-- Collecting archives: who collects a tenant's, and since when which of them have been nobody's.

-- The lease of one tenant's collector, with its fence: whoever takes it adds 1 to pass. Times are the database's.
CREATE TABLE archive_gc (
    tenant      integer PRIMARY KEY,
    pass        integer NOT NULL,
    holder      text,
    lease_until integer NOT NULL,
    started_at  integer NOT NULL,
    -- What the newest pass that went through found: the next one is compared with it.
    needed      integer
);

-- A unit, as `workspace/op_id/`, that a pass found to be nobody's; gone when it is somebody's again, or deleted.
CREATE TABLE archive_mark (
    tenant                integer NOT NULL,
    unit                  text NOT NULL,
    first_orphan_detected integer NOT NULL,
    pass                  integer NOT NULL,
    PRIMARY KEY (tenant, unit)
) WITHOUT ROWID;

-- The order in which an object store lists the folders of workspaces: `a-b/` comes before `a/`.
CREATE INDEX workspace_folder ON workspace (tenant, (id || '/'));
