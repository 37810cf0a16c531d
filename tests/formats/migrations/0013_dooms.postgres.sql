-- In SQLite, dooms leave the rows of blocks for a table of their own. Here they stay: whoever waits for a row tests that row's own
-- columns again when it is free, but what it sees of another table is from before it waited.

SELECT 1;
