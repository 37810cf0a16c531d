-- due_lanes --
-- Every queue and priority with when its first run became due that goes on, and its first that begins: one look into an index each, however many
-- wait; and the limits of the queue.
SELECT lane.tenant, lane.queue, lane.priority,
       (SELECT run.due_at FROM run
        WHERE run.tenant = lane.tenant AND run.queue = lane.queue AND run.queue <> '' AND run.priority = lane.priority
          AND (run.status <> 'PENDING' OR run.parent IS NOT NULL) AND run.due_at <= (SELECT us FROM moment)
        ORDER BY run.due_at LIMIT 1),
       (SELECT run.due_at FROM run
        WHERE run.tenant = lane.tenant AND run.queue = lane.queue AND run.queue <> '' AND run.priority = lane.priority
          AND run.status = 'PENDING' AND run.parent IS NULL AND run.due_at <= (SELECT us FROM moment)
        ORDER BY run.due_at LIMIT 1),
       limits.concurrency, limits.rate
FROM run_lane AS lane LEFT JOIN run_queue AS limits ON limits.tenant = lane.tenant AND limits.name = lane.queue
WHERE lane.tenant = coalesce(:tenant, lane.tenant)

-- first_due --
-- When the first run of no queue became due.
SELECT min(due_at) FROM run WHERE queue = '' AND due_at <= (SELECT us FROM moment) AND tenant = coalesce(:tenant, tenant)

-- claim_begun --
-- Take the run of a lane that is due the longest of those that have begun, or that one which has begun waits for.
UPDATE run
SET fence = fence + 1, holder = :holder, due_at = (SELECT us FROM moment) + :lease,
    status = CASE WHEN status = 'PENDING' THEN 'RUNNING' ELSE status END, begun_at = coalesce(begun_at, (SELECT us FROM moment)),
    deadline = coalesce(deadline, (SELECT us FROM moment) + time_limit), updated_at = (SELECT us FROM moment)
WHERE number IN (
    SELECT number FROM run
    WHERE tenant = :tenant AND queue = :queue AND queue <> '' AND priority = :priority
      AND (status <> 'PENDING' OR parent IS NOT NULL)
      AND due_at <= (SELECT us FROM moment)
    ORDER BY due_at, number LIMIT 1
)
RETURNING number, execution, owner, workflow, branch, name, document, born, head, status, position, waiting, error, options, incarnation,
          fence, holder, due_at, deadline, idempotency_key, fingerprint, queue, priority, created_at, updated_at, ended_at, parent, begun_at

-- claim_queued --
-- Take the run of a lane that has not begun and is due the longest.
UPDATE run
SET fence = fence + 1, holder = :holder, due_at = (SELECT us FROM moment) + :lease,
    status = CASE WHEN status = 'PENDING' THEN 'RUNNING' ELSE status END, begun_at = coalesce(begun_at, (SELECT us FROM moment)),
    deadline = coalesce(deadline, (SELECT us FROM moment) + time_limit), updated_at = (SELECT us FROM moment)
WHERE number IN (
    SELECT number FROM run
    WHERE tenant = :tenant AND queue = :queue AND queue <> '' AND priority = :priority
      AND status = 'PENDING' AND parent IS NULL
      AND due_at <= (SELECT us FROM moment)
    ORDER BY due_at, number LIMIT 1
)
RETURNING number, execution, owner, workflow, branch, name, document, born, head, status, position, waiting, error, options, incarnation,
          fence, holder, due_at, deadline, idempotency_key, fingerprint, queue, priority, created_at, updated_at, ended_at, parent, begun_at

-- hold_queue --
-- The limits of a queue, for one claim at a time; and what time it is.
SELECT concurrency, rate, period, started, (SELECT us FROM moment) FROM run_queue WHERE tenant = :tenant AND name = :queue

-- queue_held --
-- How many runs of a queue somebody works on. One whose lease is over has no place any more.
-- guard: queue.held.sqlite
SELECT count(*) FROM run WHERE tenant = :tenant AND queue = :queue AND queue <> '' AND holder IS NOT NULL AND due_at > (SELECT us FROM moment)

-- put_start --
-- When a run of a queue began.
INSERT INTO run_start (tenant, queue, seq, at) VALUES (:tenant, :queue, :seq, :at)

-- put_queue --
-- The limits of a queue, in the place of those that it had.
INSERT INTO run_queue (tenant, name, concurrency, rate, period, started, updated_at)
VALUES (:tenant, :queue, :concurrency, :rate, :period, 0, (SELECT us FROM moment))
ON CONFLICT (tenant, name) DO UPDATE
SET concurrency = excluded.concurrency, rate = excluded.rate, period = excluded.period, updated_at = excluded.updated_at

-- queues --
-- Every queue that has limits, or runs, with what waits in it and what is worked on.
SELECT names.name, limits.concurrency, limits.rate, limits.period,
       (SELECT count(*) FROM run WHERE run.tenant = :tenant AND run.queue = names.name AND run.queue <> '' AND run.status = 'PENDING'
          AND run.due_at IS NOT NULL),
       (SELECT count(*) FROM run WHERE run.tenant = :tenant AND run.queue = names.name AND run.queue <> '' AND run.holder IS NOT NULL
          AND run.due_at > (SELECT us FROM moment))
FROM (SELECT name FROM run_queue WHERE tenant = :tenant UNION SELECT queue FROM run_lane WHERE tenant = :tenant) AS names
    LEFT JOIN run_queue AS limits ON limits.tenant = :tenant AND limits.name = names.name
ORDER BY names.name

-- hold_lanes --
-- There is one writer at a time.
SELECT 1
