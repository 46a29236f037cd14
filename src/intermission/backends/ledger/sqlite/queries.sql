-- name: now_s
:now_s

-- name: now_ms
:now_ms

-- name: claimable
-- This and the next two are spelt as the indices spell it, or they would not be used.
(t.state = 'pending' OR t.state = 'retrying' OR t.state = 'abandoned' OR t.state = 'corrupt')

-- name: held
(t.state = 'leased' OR t.state = 'running')

-- name: stopped
(t.state = 'failed' OR t.state = 'cancelled')

-- name: any_of_step
-- The index is named where it is asked: any of its tasks is as good.
LIMIT 1

-- name: any_of_job
LIMIT 1

-- name: watch_tasks
-- No statement can forget its events, but the two that run for every task, `claim` and
-- `complete`, write them by the batch.
CREATE TEMP TRIGGER task_changes AFTER UPDATE OF state ON main.tasks
WHEN old.state <> new.state AND (new.state <> 'leased' AND new.state <> 'done' OR :illegal) BEGIN
    SELECT raise(ABORT, 'illegal task transition') WHERE :illegal;
    INSERT INTO events (at_ms, job_id, tasks, step, was, now, fence, worker, code, message)
    VALUES (new.updated_ms, new.job_id, '[' || new.id || ']', new.step, old.state, new.state,
            new.fence, coalesce(new.worker, old.worker),
            CASE WHEN new.state <> 'running' AND new.state <> 'pending' THEN new.code END,
            new.message);
END;

-- name: watch_jobs
CREATE TEMP TRIGGER job_changes AFTER UPDATE OF state ON main.jobs WHEN old.state <> new.state BEGIN
    SELECT raise(ABORT, 'illegal job transition') WHERE :illegal;
    INSERT INTO events (at_ms, job_id, was, now, message)
    VALUES (new.updated_ms, new.id, old.state, new.state, new.reason);
    DELETE FROM ready WHERE job_id = new.id AND new.state NOT IN ('pending', 'running', 'draining');
    INSERT INTO ready (job_id, step, class, priority, turn, parked, begin_ms)
    SELECT j.id, s.no, s.class, j.priority, j.turn, 2 * (j.begin_ms > new.updated_ms), j.begin_ms
    FROM jobs AS j JOIN steps AS s ON s.job_id = j.id
    WHERE j.id = new.id AND old.state NOT IN ('pending', 'running', 'draining')
      AND new.state IN ('pending', 'running', 'draining')
      AND EXISTS (SELECT 1 FROM tasks AS t WHERE t.job_id = j.id AND t.step = s.no
        AND {claimable})
    ON CONFLICT DO UPDATE SET parked = excluded.parked WHERE parked <> excluded.parked;
END;

-- name: classes
-- Those that anything is ready of: one is looked up after the other.
WITH RECURSIVE found (id) AS (
    SELECT min(class) FROM ready WHERE parked = 0
    UNION ALL
    SELECT (SELECT min(class) FROM ready WHERE parked = 0 AND class > found.id) FROM found
    WHERE found.id IS NOT NULL
)
SELECT c.id, c.code, c.pipeline, c.needs, c.prefers FROM found CROSS JOIN classes AS c USING (id);

-- name: insert_tasks
-- A task that is there under the same key stays; under another key it starts afresh.
WITH new (step, idx, key, chunk, state) AS (VALUES (?, ?, ?, ?, ?) ...)
INSERT INTO tasks AS t (job_id, step, idx, key, chunk, state, updated_ms)
SELECT :job, step, idx, key, chunk, state, :now_ms
FROM new WHERE true -- without it, ON would belong to a join
ON CONFLICT (job_id, step, idx) DO UPDATE SET {replaced};

-- name: tasks_in_span
SELECT count(*), coalesce(sum(fence), 0) FROM tasks
WHERE job_id = :job AND step = :step AND idx BETWEEN :first AND :last;

-- name: add_count
INSERT INTO counts (job_id, step, state, n) VALUES (:job, :step, :state, :n)
ON CONFLICT DO UPDATE SET n = n + excluded.n;

-- name: last_event
SELECT coalesce(max(seq), 0) FROM events;

-- name: insert_events
-- Never a number that was given out before, as in a table that numbers its rows by itself.
INSERT INTO events (seq, n, at_ms, job_id, tasks, step, was, now, fence, worker, message)
SELECT seq + :n, :n, :now_ms, :job, :tasks, :step, :was, :now, :fence, :worker, :message
FROM sqlite_sequence WHERE name = 'events';

-- name: count_changes
WITH moves (job_id, step, was, now, n) AS MATERIALIZED (
    SELECT job_id, step, was, now, sum(n) FROM events
    WHERE seq > :after AND tasks IS NOT NULL GROUP BY job_id, step, was, now
)
INSERT INTO counts (job_id, step, state, n)
SELECT job_id, step, was, -n FROM moves
UNION ALL
SELECT job_id, step, now, n FROM moves WHERE true
ON CONFLICT DO UPDATE SET n = n + excluded.n;

-- name: open_steps
-- Steps of a job that have a task to claim. Those that a claim parked are looked at again.
INSERT INTO ready (job_id, step, class, priority, turn, parked, begin_ms)
SELECT j.id, s.no, s.class, j.priority, j.turn, 2 * (j.begin_ms > :now_ms), j.begin_ms
FROM jobs AS j JOIN steps AS s ON s.job_id = j.id
WHERE j.id = :job AND j.state IN ('pending', 'running', 'draining') AND EXISTS (
    SELECT 1 FROM tasks AS t WHERE t.job_id = j.id AND t.step = s.no AND {claimable})
ON CONFLICT DO UPDATE SET parked = excluded.parked WHERE parked <> excluded.parked;

-- name: open_changed
-- Steps of which tasks became claimable.
INSERT INTO ready (job_id, step, class, priority, turn, parked, begin_ms)
SELECT j.id, s.no, s.class, j.priority, j.turn, 2 * (j.begin_ms > :now_ms), j.begin_ms
FROM (
    SELECT DISTINCT job_id, step FROM events WHERE seq > :after AND tasks IS NOT NULL
    AND now IN ('pending', 'retrying', 'abandoned', 'corrupt')
) AS c
CROSS JOIN jobs AS j ON j.id = c.job_id AND j.state IN ('pending', 'running', 'draining')
CROSS JOIN steps AS s ON s.job_id = c.job_id AND s.no = c.step
WHERE true
ON CONFLICT DO UPDATE SET parked = excluded.parked WHERE parked <> excluded.parked;

-- name: any_due
SELECT 1 FROM ready WHERE parked = 1 AND due_s <= :now_s
UNION ALL SELECT 1 FROM ready WHERE parked = 2 AND begin_ms <= :now_ms LIMIT 1;

-- name: unpark
UPDATE ready SET parked = 0 WHERE parked = 1 AND due_s <= :now_s;
UPDATE ready SET parked = 0 WHERE parked = 2 AND begin_ms <= :now_ms;

-- name: ready_of_class
SELECT -r.priority, r.turn, r.job_id, r.step, r.class, j.revision, j.state
FROM ready AS r INDEXED BY ready_in_turn CROSS JOIN jobs AS j ON j.id = r.job_id
WHERE r.parked = 0 AND r.class = :kind
  AND (-r.priority, r.turn, r.job_id) > (:priority, :turn, :job) AND r.priority <= -:priority
ORDER BY r.priority DESC, r.turn, r.job_id LIMIT :limit;

-- name: ready_of_jobs
SELECT -r.priority, r.turn, r.job_id, r.step, r.class, j.revision, j.state FROM jobs AS j
JOIN ready AS r ON r.job_id = j.id
WHERE r.parked = 0 AND j.key IN (SELECT value FROM json_each(:keys))
ORDER BY r.priority DESC, r.turn, r.job_id, r.step;

-- name: next_due
-- Whether there is anything, whether any of it is due, and when the first is.
SELECT count(*), coalesce(min(t.ready_s) <= :now_s, 0), min(t.ready_s) FROM (
    SELECT t.ready_s FROM tasks AS t WHERE t.job_id = :job AND t.step = :step AND {claimable}
) AS t;

-- name: park
UPDATE ready SET parked = 1, due_s = :due_s WHERE job_id = :job AND step = :step;

-- name: close_step
DELETE FROM ready WHERE job_id = :job AND step = :step;

-- name: lock_bounds
-- Nobody else claims.
SELECT 1 WHERE false;

-- name: paused
SELECT name FROM limits WHERE paused;

-- name: any_limits
SELECT EXISTS (SELECT 1 FROM limits);

-- name: pick
-- The fence as it will be, and which attempt it is.
SELECT id, step, fence + 1, job_id, state, NULL, message, idx, key, attempts + 1, chunk, lost
FROM tasks AS t
WHERE job_id = :job AND step = :step AND ready_s <= :now_s AND updated_ms <= :since_ms
  AND {claimable}
  AND (refusals = 0 OR NOT EXISTS (
    SELECT 1 FROM refusals AS r
    WHERE r.task_id = t.id AND r.host = :host AND r.until_s > :now_s))
ORDER BY id LIMIT :room;

-- name: claim
UPDATE tasks
SET state = 'leased', fence = fence + 1, begun = :begin, worker = :worker,
    lease_s = :lease_s, progress = 0, started_ms = :now_ms, ended_ms = NULL,
    updated_ms = :now_ms
WHERE id BETWEEN :first AND :last;

-- name: take_turn
UPDATE jobs SET state = 'running', turn = :turn,
    updated_ms = CASE state WHEN 'running' THEN updated_ms ELSE :now_ms END
WHERE id = :job;
UPDATE ready SET turn = :turn WHERE job_id = :job;

-- name: tell_progress
-- A clock that was set back keeps nobody silent.
UPDATE tasks SET told = round(progress * 100), told_ms = :now_ms
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'running'
  AND round(progress * 100) NOT IN (0, told)
  AND told_ms NOT BETWEEN :now_ms - :every_ms + 1 AND :now_ms;

-- name: can_end
SELECT id, step, fence, job_id, state, worker, NULL, idx, key FROM tasks
WHERE id BETWEEN :first AND :last
  AND state NOT IN ('blocked', 'done', 'failed', 'cancelled');

-- name: complete
WITH e (id, result, receipt, files, adopted) AS (VALUES (?, ?, ?, ?, ?) ...)
UPDATE tasks
SET result = e.result, receipt = e.receipt, files = e.files, adopted = e.adopted, {done}
FROM e WHERE tasks.id = e.id;

-- name: complete_alike
-- Tasks without receipts that ended with the same result.
UPDATE tasks SET result = :result, receipt = NULL, files = NULL, adopted = 0, {done}
WHERE id BETWEEN :first AND :last;

-- name: unblock
UPDATE tasks AS w SET state = 'pending', ready_s = 0, updated_ms = :now_ms
FROM ROWS(:places, job, no, first, last) AS p
WHERE w.job_id = p.job AND w.step = p.no AND w.idx BETWEEN p.first AND p.last
  AND w.state = 'blocked' AND NOT ({waits})
RETURNING id;

-- name: unsettled
-- Active jobs that were left behind: a task of theirs could start or be claimed, or nothing is left
-- to do. Of a step's blocked tasks the first is looked at. All wait for the same, except chunk by
-- chunk: and there, one that was missed becomes the first once those before it are done.
SELECT j.id FROM jobs AS j
WHERE j.id IN (SELECT value FROM json_each(:jobs))
  AND j.state IN ('pending', 'running', 'draining') AND (
    NOT ({unfinished})
    OR EXISTS (
        SELECT 1 FROM steps AS s
        CROSS JOIN tasks AS w ON w.job_id = s.job_id AND w.step = s.no AND w.idx = (
            SELECT min(b.idx) FROM tasks AS b
            WHERE b.job_id = s.job_id AND b.step = s.no AND b.state = 'blocked')
        WHERE s.job_id = j.id AND NOT ({waits}))
    OR EXISTS (
        SELECT 1 FROM steps AS s WHERE s.job_id = j.id
        AND NOT EXISTS (SELECT 1 FROM ready AS r WHERE r.job_id = j.id AND r.step = s.no)
        AND EXISTS (
            SELECT 1 FROM tasks AS t WHERE t.job_id = j.id AND t.step = s.no
            AND {claimable})));

-- name: events_settled
-- What is committed is in order.
SELECT coalesce(max(seq), 0) FROM events;

-- name: told
-- Events as they are read, one for each task.
SELECT e.seq - e.n + 1 + coalesce(i.key, 0), e.at_ms, coalesce(j.key, ''), i.value, {event_columns}
FROM events AS e
LEFT JOIN json_each(e.tasks) AS i
LEFT JOIN jobs AS j ON j.id = e.job_id
LEFT JOIN tasks AS t ON t.id = i.value
LEFT JOIN steps AS s ON s.job_id = t.job_id AND s.no = t.step
WHERE e.seq > :after AND e.seq - e.n + 1 + coalesce(i.key, 0) > :after

-- name: events
{told} ORDER BY e.seq, i.key LIMIT :limit;

-- name: events_of_job
{told} AND e.job_id = :job ORDER BY e.seq, i.key LIMIT :limit;

-- name: delete_job
-- With its steps, edges and counts; and at once what could still change, because whoever had a
-- lease of it might give a sign of life.
DELETE FROM jobs WHERE id = :job
AND NOT EXISTS (
    SELECT 1 FROM tasks AS t WHERE t.job_id = :job AND {held});
DELETE FROM tasks AS t WHERE t.job_id = :job AND (t.state = 'blocked' OR {claimable})
AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = :job);
INSERT INTO forgotten SELECT :job WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE id = :job)
RETURNING job_id;

-- name: deleted
SELECT job_id FROM forgotten;

-- name: delete_tasks
DELETE FROM tasks WHERE id IN (SELECT id FROM tasks WHERE job_id = :job LIMIT :most) RETURNING id;

-- name: delete_events
DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE job_id = :job LIMIT :most)
RETURNING seq;

-- name: all_deleted
DELETE FROM forgotten WHERE job_id = :job;

-- name: job_columns
j.id, j.revision, j.state, j.created_ms, j.updated_ms, j.reason, (
    SELECT json_group_array(json_array(step, state, n)) FROM (
        SELECT step, state, n FROM counts WHERE job_id = j.id AND n > 0 ORDER BY step))

-- name: jobs_of_pipeline
SELECT {job_columns} FROM jobs AS j
WHERE pipeline || '' = :pipeline AND state || '' = :state AND id < :before
ORDER BY id DESC LIMIT :limit;

-- name: jobs_in_states
SELECT {job_columns} FROM jobs AS j
WHERE state || '' = :state AND id < :before ORDER BY id DESC LIMIT :limit;

