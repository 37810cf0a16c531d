-- run --
-- One run by its execution.
SELECT number, execution, owner, workflow, branch, name, document, born, head, status, position, waiting, error, options, incarnation, fence,
       holder, due_at, deadline, idempotency_key, fingerprint, queue, priority, created_at, updated_at, ended_at, parent, begun_at
FROM run WHERE tenant = :tenant AND execution = :execution

-- run_of_number --
-- One run by its number.
SELECT number, execution, owner, workflow, branch, name, document, born, head, status, position, waiting, error, options, incarnation, fence,
       holder, due_at, deadline, idempotency_key, fingerprint, queue, priority, created_at, updated_at, ended_at, parent, begun_at
FROM run WHERE number = :number

-- runs --
-- A page of runs, newest first. What is empty is not asked for.
SELECT number, execution, owner, workflow, branch, name, document, born, head, status, position, waiting, error, options, incarnation, fence,
       holder, due_at, deadline, idempotency_key, fingerprint, queue, priority, created_at, updated_at, ended_at, parent, begun_at
FROM run
WHERE tenant = :tenant AND number < :before AND (:status = '' OR status = :status) AND (:workflow = '' OR workflow = :workflow)
  AND (:owner = '' OR owner = :owner) AND (:name = '' OR name = :name)
ORDER BY number DESC LIMIT :limit

-- newest_run_on --
-- The run that was last begun on a branch with a document.
SELECT number, execution, owner, workflow, branch, name, document, born, head, status, position, waiting, error, options, incarnation, fence,
       holder, due_at, deadline, idempotency_key, fingerprint, queue, priority, created_at, updated_at, ended_at, parent, begun_at
FROM run
WHERE tenant = :tenant AND workflow = :workflow AND owner = :owner AND branch = :branch AND document = :document
ORDER BY number DESC LIMIT 1

-- hold_place --
-- A run stays where it stands until what is injected before it is there. No row touched means that it has moved.
UPDATE run SET updated_at = updated_at WHERE number = :run AND fence = :fence AND status = :status AND position = :position  -- guard: run.place

-- run_standing --
-- Whether whoever has this fence may go on.
SELECT status, fence FROM run WHERE number = :number

-- run_segments --
-- What was executed in one incarnation, in order, from a place on.
SELECT incarnation, seq, segment, place, iteration, position, status, input, output, attempts, error, started_at, ended_at
FROM run_segment WHERE run = :run AND incarnation = :incarnation AND seq > :after
ORDER BY seq LIMIT :limit

-- take_over_segments --
-- What one incarnation executed before a place, for the next.
INSERT INTO run_segment
    (run, incarnation, seq, segment, place, iteration, position, status, input, output, attempts, error, started_at, ended_at)
SELECT run, :next, seq, segment, place, iteration, position, status, input, output, attempts, error, started_at, ended_at
FROM run_segment WHERE run = :run AND incarnation = :incarnation AND seq < :below

-- incarnations --
-- Every incarnation that has executed anything.
SELECT DISTINCT incarnation FROM run_segment WHERE run = :run ORDER BY incarnation

-- effects --
-- The effects of one execution of a segment, by the beginning of their keys.
SELECT key, state, result, body, attempts FROM effect
WHERE run = :run AND incarnation = :incarnation AND key >= :low AND key < :high

-- running_executions --
-- Executions on a workflow whose runs are not over: their versions are kept.
SELECT execution FROM run WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND ended_at IS NULL

-- resumable_heads --
-- What runs on a workflow that failed stand on, and go on from when they are resumed.
SELECT head FROM run WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND status = 'FAILED'

-- effect_roots --
-- What a collector must mark: the results of the effects of some runs.
SELECT page.number, effect.result
FROM (SELECT number FROM run WHERE tenant = :tenant AND number > :after ORDER BY number LIMIT :limit) AS page
    LEFT JOIN effect ON effect.run = page.number AND effect.result IS NOT NULL
ORDER BY page.number

-- task_roots --
-- What a collector must mark: the results of the tasks of some runs.
SELECT page.number, run_task.root
FROM (SELECT number FROM run WHERE tenant = :tenant AND number > :after ORDER BY number LIMIT :limit) AS page
    LEFT JOIN run_task ON run_task.run = page.number AND run_task.root IS NOT NULL
ORDER BY page.number

-- ended_runs --
-- Runs that ended before a time, without those that another run still needs to go on.
SELECT number FROM run
WHERE tenant = :tenant AND ended_at < :before
  AND NOT EXISTS (SELECT 1 FROM run AS above WHERE above.number = run.parent AND above.status NOT IN ('COMPLETED', 'CANCELLED'))
ORDER BY ended_at LIMIT :limit

-- forget_run --
-- One that ended before a time, unless it was resumed meanwhile.
DELETE FROM run WHERE number = :number AND ended_at < :before  -- guard: run.forgotten

-- forget_run_segments --
-- With their run.
DELETE FROM run_segment WHERE run = :number

-- forget_run_tasks --
-- With their run.
DELETE FROM run_task WHERE run = :number

-- forget_effects --
-- With their run.
DELETE FROM effect WHERE run = :number

-- run_tasks --
-- What is known of the tasks of one execution of a segment, from an item on.
SELECT item, status, root, error, attempts FROM run_task
WHERE run = :run AND incarnation = :incarnation AND seq = :seq AND item > :after
ORDER BY item LIMIT :limit

-- put_run_task --
-- What a task came to. The first time that it was done counts.
INSERT INTO run_task (run, incarnation, seq, item, status, root, error, attempts)
VALUES (:run, :incarnation, :seq, :item, :status, :root, :error, :attempts)
ON CONFLICT (run, incarnation, seq, item) DO UPDATE
SET status = excluded.status, root = excluded.root, error = excluded.error, attempts = run_task.attempts + excluded.attempts
WHERE run_task.status <> 'DONE'

-- last_run_segment --
-- Where a segment was last executed before a place.
SELECT max(seq) FROM run_segment WHERE run = :run AND incarnation = :incarnation AND segment = :segment AND seq < :before

-- run_children --
-- The runs that one has begun and that go on, with the keys that say which of its incarnations did.
SELECT number, idempotency_key FROM run WHERE parent = :run AND ended_at IS NULL ORDER BY number
