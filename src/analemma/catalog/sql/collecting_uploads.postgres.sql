-- failure_counts --
-- How many wait, and how many are dead.
SELECT count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'dead') FROM gc_failure
