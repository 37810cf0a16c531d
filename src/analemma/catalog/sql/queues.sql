-- add_lane --
-- That a queue is used with a priority.
INSERT INTO run_lane (tenant, queue, priority) VALUES (:tenant, :queue, :priority) ON CONFLICT DO NOTHING

-- queue_starts --
-- When the run began that this many others began after.
SELECT at FROM run_start WHERE tenant = :tenant AND queue = :queue AND seq = :seq

-- count_start --
-- One more run of a queue has begun.
UPDATE run_queue SET started = started + 1 WHERE tenant = :tenant AND name = :queue

-- drop_starts --
-- Those that the rate does not reach back to.
DELETE FROM run_start WHERE tenant = :tenant AND queue = :queue AND seq <= :seq

-- drop_queue --
-- Its limits. Runs of it go on without any.
DELETE FROM run_queue WHERE tenant = :tenant AND name = :queue

-- drop_lanes --
-- Priorities of queues that no run has: not even one that has failed and may be resumed. Each is a look into an index, however many runs there are.
DELETE FROM run_lane
WHERE tenant = :tenant
  AND (SELECT run.number FROM run WHERE run.tenant = run_lane.tenant AND run.queue = run_lane.queue AND run.queue <> ''
         AND run.priority = run_lane.priority AND run.status = 'PENDING' AND run.parent IS NULL
       ORDER BY run.due_at LIMIT 1) IS NULL
  AND (SELECT run.number FROM run WHERE run.tenant = run_lane.tenant AND run.queue = run_lane.queue AND run.queue <> ''
         AND run.priority = run_lane.priority AND (run.status <> 'PENDING' OR run.parent IS NOT NULL)
       ORDER BY run.due_at LIMIT 1) IS NULL
