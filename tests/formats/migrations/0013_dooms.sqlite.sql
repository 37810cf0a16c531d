-- Dooms leave the rows of blocks: to doom one wrote all of its bytes again, and to delete it once more. There is one writer here, so a
-- row beside the block's does as well as a column of it. Every doom is of a block that is there: what deletes one deletes both.

CREATE TABLE doom (
    tenant integer NOT NULL,
    id     blob NOT NULL,
    pass   integer NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;

INSERT INTO doom (tenant, id, pass) SELECT tenant, id, doomed FROM block WHERE doomed IS NOT NULL ORDER BY tenant, id;

-- The column stays, since dropping it would write every block anew; by another name, so that a program of an earlier release that still
-- runs fails where it would spare a block, instead of sparing it where nobody looks. Its pass is over.
DROP INDEX block_doomed;
ALTER TABLE block RENAME COLUMN doomed TO was_doomed;
UPDATE gc SET pass = pass + 1;
