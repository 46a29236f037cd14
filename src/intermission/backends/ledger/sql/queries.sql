-- The statements that all databases share; `statements.py` says how each database reads them. What
-- claims, what runs for every task, and what locks in a way of its own, each database has itself.

-- name: job_id
SELECT id FROM intermission.jobs WHERE key = :key;

-- name: job_specs
SELECT id, revision, spec FROM intermission.jobs WHERE id = ANY(:jobs::bigint[]);

-- name: lock_jobs
-- Always in this order, and before any of their tasks: two changes never wait for each other.
SELECT id, revision FROM intermission.jobs WHERE id = ANY(:jobs::bigint[])
ORDER BY id FOR NO KEY UPDATE;

-- name: insert_job
INSERT INTO intermission.jobs
    (key, pipeline, code, source, spec, state, priority, begin_ms, created_ms, updated_ms)
VALUES (:key, :pipeline, :code, :source, :spec, 'pending', :priority, :begin_ms, :now_ms, :now_ms)
ON CONFLICT (key) DO NOTHING
RETURNING id;

-- name: classes_of
SELECT id, step, needs, prefers FROM intermission.classes WHERE code = :code;

-- name: add_classes
INSERT INTO intermission.classes (pipeline, code, step, needs, prefers)
SELECT * FROM ROWS(:classes, pipeline text, code text, step text, needs text, prefers text) AS c
WHERE true -- for SQLite: without it, ON would belong to a join
ON CONFLICT DO NOTHING;

-- name: update_spec
UPDATE intermission.jobs SET spec = :spec, revision = revision + 1 WHERE id = :job;

-- name: step_rows
ROWS(:steps, no integer, class integer, name text, attempts integer, needs text, prefers text,
    concurrency integer, gap boolean) AS n

-- name: insert_steps
INSERT INTO intermission.steps
    (job_id, no, class, name, attempts, needs, prefers, concurrency, gap)
SELECT :job, * FROM {step_rows};

-- name: insert_edges
INSERT INTO intermission.edges (job_id, step, upstream, kind, plan)
SELECT :job, * FROM ROWS(:edges, step integer, upstream integer, kind text, plan integer) AS e
WHERE true
ON CONFLICT DO NOTHING;

-- name: update_steps
UPDATE intermission.steps AS s
SET class = n.class, attempts = n.attempts, needs = n.needs, prefers = n.prefers,
    concurrency = n.concurrency, gap = n.gap
FROM {step_rows}
WHERE s.job_id = :job AND s.no = n.no;

-- name: update_ready
UPDATE intermission.ready AS r SET class = s.class FROM intermission.steps AS s
WHERE r.job_id = :job AND s.job_id = r.job_id AND s.no = r.step;

-- name: can_expand
-- Locked, so that nobody claims it before its page is there.
SELECT job_id FROM intermission.tasks
WHERE id = :task AND fence = :fence AND key = :key
  AND state NOT IN ('blocked', 'done', 'failed', 'cancelled')
FOR NO KEY UPDATE;

-- name: delete_surplus
DELETE FROM intermission.tasks WHERE job_id = :job AND step = :step AND idx >= :count
RETURNING id;

-- name: lock_limits
SELECT name, running, per_minute, paused, tokens, filled_ms FROM intermission.limits
WHERE name = ANY(:names::text[]) ORDER BY name FOR UPDATE;

-- name: limits
SELECT name, running, per_minute, paused FROM intermission.limits ORDER BY name;

-- name: set_limit
INSERT INTO intermission.limits AS l (name, running, per_minute, paused, tokens, filled_ms)
VALUES (:name, :running, :per_minute, :paused, :tokens, :now_ms)
ON CONFLICT (name) DO UPDATE
SET running = excluded.running, per_minute = excluded.per_minute, paused = excluded.paused,
    tokens = CASE WHEN l.tokens < excluded.tokens THEN l.tokens ELSE excluded.tokens END;

-- name: drop_limit
DELETE FROM intermission.limits WHERE name = :name;

-- name: use_rate
UPDATE intermission.limits SET tokens = :tokens, filled_ms = :now_ms WHERE name = :name;

-- name: held_under_step
-- Over every job of the same pipeline, because a limit protects something they share.
SELECT count(*) FROM intermission.tasks AS t INDEXED BY tasks_held
CROSS JOIN intermission.jobs AS j CROSS JOIN intermission.steps AS s
WHERE {held} AND j.id = t.job_id AND j.pipeline = :pipeline
  AND s.job_id = t.job_id AND s.no = t.step AND s.name = :what;

-- name: held_under_job
SELECT count(*) FROM intermission.jobs AS j JOIN intermission.tasks AS t ON t.job_id = j.id
WHERE j.key = :what AND {held};

-- name: held_under_pipeline
SELECT count(*) FROM intermission.tasks AS t INDEXED BY tasks_held
CROSS JOIN intermission.jobs AS j
WHERE {held} AND j.id = t.job_id AND j.pipeline = :what;

-- name: held_under_label
SELECT count(*) FROM intermission.tasks AS t INDEXED BY tasks_held
CROSS JOIN intermission.steps AS s
WHERE {held} AND s.job_id = t.job_id AND s.no = t.step AND :what IN (s.needs, s.prefers);

-- name: locked
-- All that change tasks lock them in this order, so that two never wait for each other.
SELECT id FROM intermission.tasks WHERE id = ANY(:ids::bigint[]) ORDER BY id FOR NO KEY UPDATE

-- name: renew
WITH beat AS MATERIALIZED (
    SELECT * FROM ROWS(:beats, id bigint, fence bigint, progress float8, begun boolean) AS b
), locked AS MATERIALIZED ({locked})
UPDATE intermission.tasks
SET state = CASE WHEN state = 'leased' AND NOT beat.begun THEN state ELSE 'running' END,
    begun = tasks.begun OR beat.begun, updated_ms = :now_ms,
    progress = CASE WHEN tasks.progress > beat.progress THEN tasks.progress ELSE beat.progress END,
    -- A beat that crosses a deferral on its way must not shorten it.
    lease_s = CASE WHEN token IS NULL THEN :lease_s ELSE lease_s END,
    worker = CASE WHEN token IS NULL THEN :worker END
FROM beat
WHERE tasks.id = beat.id AND tasks.id = ANY(ARRAY(SELECT id FROM locked))
  AND tasks.fence = beat.fence AND state IN ('leased', 'running', 'abandoned')
RETURNING tasks.id;

-- name: fates
SELECT t.id, t.state, t.fence, j.state, t.key
FROM intermission.tasks AS t JOIN intermission.jobs AS j ON j.id = t.job_id
WHERE t.id = ANY(:ids::bigint[]);

-- name: done
state = 'done', progress = 1, worker = NULL, lease_s = NULL, token = NULL, refusals = 0,
    error = NULL, code = NULL, message = NULL, ended_ms = :now_ms, updated_ms = :now_ms

-- name: fail
WITH failure AS MATERIALIZED (
    SELECT * FROM ROWS(:failures, id bigint, fence bigint, key text, permanent boolean,
        ready_s float8, error text, code text, message text) AS f
), locked AS MATERIALIZED ({locked})
UPDATE intermission.tasks
SET state = CASE WHEN f.permanent OR tasks.attempts + 1 >= s.attempts
        THEN 'failed' ELSE 'retrying' END,
    gap = (f.permanent OR tasks.attempts + 1 >= s.attempts) AND s.gap,
    refusals = CASE WHEN f.permanent OR tasks.attempts + 1 >= s.attempts THEN 0 ELSE refusals END,
    attempts = tasks.attempts + 1, ready_s = f.ready_s, error = f.error, code = f.code,
    message = f.message, worker = NULL, lease_s = NULL, token = NULL, ended_ms = :now_ms,
    updated_ms = :now_ms
FROM failure AS f, intermission.steps AS s
WHERE tasks.id = f.id AND tasks.id = ANY(ARRAY(SELECT id FROM locked)) AND tasks.fence = f.fence
  AND tasks.key = coalesce(f.key, tasks.key) AND s.job_id = tasks.job_id AND s.no = tasks.step
  AND state IN ('leased', 'running', 'abandoned')
RETURNING tasks.id, tasks.fence, tasks.job_id, tasks.step, tasks.idx, tasks.state;

-- name: release
WITH lease AS MATERIALIZED (
    SELECT * FROM ROWS(:leases, id bigint, fence bigint) AS l
), locked AS MATERIALIZED ({locked})
UPDATE intermission.tasks
SET state = 'abandoned', code = :reason, message = :message, ready_s = 0,
    worker = NULL, lease_s = NULL, token = NULL, updated_ms = :now_ms
FROM lease
WHERE tasks.id = lease.id AND tasks.id = ANY(ARRAY(SELECT id FROM locked))
  AND tasks.fence = lease.fence AND state IN ('leased', 'running')
RETURNING tasks.id;

-- name: refuse
INSERT INTO intermission.refusals (task_id, host, code, message, until_s)
SELECT id, :host, :reason, :message, :until_s FROM ROWS(:tasks, id bigint) AS t
WHERE true
ON CONFLICT (task_id, host) DO UPDATE
SET code = excluded.code, message = excluded.message, until_s = excluded.until_s;

-- name: count_refusals
UPDATE intermission.tasks AS t
SET refusals = (SELECT count(*) FROM intermission.refusals AS r WHERE r.task_id = t.id)
WHERE t.id = ANY(:ids::bigint[]);

-- name: refusals
SELECT host, code, min(message), count(*),
    {now_ms} + CAST((max(until_s) - {now_s}) * 1000 AS bigint)
FROM intermission.refusals WHERE until_s > {now_s} GROUP BY host, code ORDER BY host, code;

-- name: defer
UPDATE intermission.tasks
SET state = 'running', worker = NULL, token = :token, lease_s = :lease_s, updated_ms = :now_ms
WHERE id = :task AND fence = :fence AND state IN ('leased', 'running')
RETURNING id;

-- name: remember_deferral
INSERT INTO intermission.deferrals (token, task_id, fence) VALUES (:token, :task, :fence)
ON CONFLICT (token, task_id) DO UPDATE SET fence = excluded.fence;

-- name: jobs_to_rescue
SELECT DISTINCT t.job_id FROM intermission.tasks AS t INDEXED BY tasks_held
WHERE {held} AND (t.lease_s <= {now_s} OR t.worker = ANY(:dead::text[]));

-- name: rescue
-- What a deferral costs, and a worker that vanished while it ran the task: see `fail`.
WITH locked AS MATERIALIZED (
    SELECT t.id FROM intermission.tasks AS t INDEXED BY tasks_held
    WHERE t.job_id = ANY(:jobs::bigint[]) AND {held}
      AND (t.lease_s <= :now_s OR t.worker = ANY(:dead::text[]))
    ORDER BY t.id + 0 FOR NO KEY UPDATE
), gone AS MATERIALIZED (
    SELECT t.id, s.gap, t.token IS NOT NULL AS deferred,
        CASE WHEN t.token IS NULL THEN t.lost + t.begun::integer >= :lost_max
        ELSE t.attempts + 1 >= s.attempts END AS is_last,
        CASE WHEN t.token IS NULL AND t.begun THEN concat_ws(', ', t.lost_on, t.worker)
        ELSE t.lost_on END AS lost_on
    FROM intermission.tasks AS t
    JOIN intermission.steps AS s ON s.job_id = t.job_id AND s.no = t.step
    WHERE t.id = ANY(ARRAY(SELECT id FROM locked))
)
UPDATE intermission.tasks
SET state = CASE WHEN g.is_last THEN 'failed' ELSE 'abandoned' END,
    gap = g.is_last AND g.gap,
    refusals = CASE WHEN g.is_last THEN 0 ELSE refusals END,
    attempts = attempts + g.deferred::integer,
    lost = lost + (begun AND NOT g.deferred)::integer, lost_on = g.lost_on,
    error = CASE WHEN g.deferred THEN 'DeferralTimedOut' ELSE 'WorkerLost' END,
    code = CASE WHEN g.deferred THEN 'deferral-timed-out' ELSE 'lost' END,
    message = CASE
        WHEN g.deferred THEN 'it was deferred, and no result came in time'
        WHEN g.is_last THEN (lost + begun::integer) || ' workers vanished while they ran it: '
            || g.lost_on
        ELSE 'the worker ' || worker || ' vanished' END,
    worker = NULL, lease_s = NULL, token = NULL, ready_s = 0, ended_ms = :now_ms,
    updated_ms = :now_ms
FROM gone AS g WHERE tasks.id = g.id
RETURNING job_id, step, idx, state;

-- name: waits
-- The one rule for when a task may not start yet; every path that ends a task asks it again. Each
-- question is about a few rows of one job: asked with LIMIT 1, PostgreSQL cannot make it a join
-- with all.
(SELECT 1 FROM intermission.edges AS e WHERE e.job_id = w.job_id AND e.step = w.step
    AND CASE e.kind
    WHEN 'one' THEN (
        SELECT 1 FROM intermission.tasks AS t WHERE t.job_id = w.job_id AND t.step = e.upstream
        AND t.idx = 0 AND t.state = 'done' LIMIT 1) IS NULL
    WHEN 'same' THEN (
        SELECT 1 FROM intermission.tasks AS t WHERE t.job_id = w.job_id AND t.step = e.upstream
        AND t.idx = w.idx AND t.state = 'done' LIMIT 1) IS NULL
    ELSE coalesce((
        SELECT 1 FROM intermission.tasks AS t INDEXED BY tasks_blocked
        WHERE t.job_id = w.job_id AND t.step = e.upstream AND t.state = 'blocked'
        ORDER BY t.idx LIMIT 1
      ), (
        SELECT 1 FROM intermission.tasks AS t INDEXED BY tasks_claimable
        WHERE t.job_id = w.job_id AND t.step = e.upstream AND {claimable} {any_of_step}
      ), (
        SELECT 1 FROM intermission.tasks AS t INDEXED BY tasks_held
        WHERE t.job_id = w.job_id AND t.step = e.upstream AND {held} {any_of_step}
      ), (
        SELECT 1 FROM intermission.tasks AS t INDEXED BY tasks_stopped
        WHERE t.job_id = w.job_id AND t.step = e.upstream AND {stopped} AND NOT t.gap {any_of_step}
      )) IS NOT NULL
      OR (
        SELECT 1 FROM intermission.tasks AS t WHERE t.job_id = w.job_id AND t.step = e.plan
        AND t.idx = 0 AND t.state = 'done' LIMIT 1) IS NULL
    END
    LIMIT 1) IS NOT NULL

-- name: unfinished
-- Whether anything of a job is left to do.
coalesce((
    SELECT 1 FROM intermission.tasks AS t INDEXED BY tasks_blocked
    WHERE t.job_id = j.id AND t.state = 'blocked' ORDER BY t.step, t.idx LIMIT 1
  ), (
    SELECT 1 FROM intermission.tasks AS t INDEXED BY tasks_claimable
    WHERE t.job_id = j.id AND {claimable} {any_of_job}
  ), (
    SELECT 1 FROM intermission.tasks AS t INDEXED BY tasks_held
    WHERE t.job_id = j.id AND {held} {any_of_job}
  )) IS NOT NULL

-- name: any_stopped
SELECT (
    SELECT 1 FROM intermission.tasks AS t INDEXED BY tasks_stopped
    WHERE t.job_id = :job AND {stopped} {any_of_job}
) IS NOT NULL;

-- name: satisfied
-- Whether a step without 'same' edges could start now.
SELECT NOT ({waits})
FROM (SELECT :job::bigint AS job_id, :step::integer AS step, 0 AS idx) AS w;

-- name: to_sweep
-- A few active jobs, each time the next ones.
SELECT id FROM intermission.jobs INDEXED BY jobs_active
WHERE state IN ('pending', 'running', 'draining') AND id > :after ORDER BY id LIMIT :limit;

-- name: settle
UPDATE intermission.jobs AS j SET updated_ms = :now_ms, reason = NULL, state = CASE
    WHEN EXISTS (SELECT 1 FROM intermission.tasks AS t WHERE t.job_id = j.id
                 AND {stopped} AND t.state = 'failed' AND NOT t.gap) THEN 'failed'
    WHEN EXISTS (SELECT 1 FROM intermission.tasks AS t WHERE t.job_id = j.id
                 AND {stopped} AND NOT t.gap) THEN 'cancelled'
    ELSE 'done' END
WHERE j.id = ANY(:jobs::bigint[]) AND j.state IN ('pending', 'running', 'draining')
  AND NOT ({unfinished})
RETURNING id;

-- name: cancel_hopeless
-- A task whose input has stopped will never end well, whatever it does now. If the input is a gap,
-- so is this; a gap that also lacks another input is one no longer. `at` is the one chunk that is
-- concerned, NULL for every task of the step. A fan-in goes ahead without its gaps.
WITH stopped_inputs (job_id, step, at, gap, message) AS NOT MATERIALIZED (
    SELECT e.job_id, e.step, CASE e.kind WHEN 'same' THEN t.idx END, t.gap,
        CASE t.state WHEN 'failed'
        THEN s.name || CASE WHEN t.chunk IS NULL THEN '' ELSE '[' || t.idx || ']' END || ' failed'
        ELSE t.message END
    FROM intermission.edges AS e
    JOIN intermission.tasks AS t ON t.job_id = e.job_id AND {stopped}
        AND (t.step = e.upstream AND NOT (e.kind = 'all' AND t.gap) OR t.step = e.plan)
    JOIN intermission.steps AS s ON s.job_id = t.job_id AND s.no = t.step
)
UPDATE intermission.tasks AS t SET state = 'cancelled', code = 'input-stopped', refusals = 0,
    worker = NULL, lease_s = NULL, token = NULL, updated_ms = :now_ms,
    gap = NOT EXISTS (
        SELECT 1 FROM stopped_inputs AS i WHERE i.job_id = t.job_id
        AND i.step = t.step AND NOT i.gap AND (i.at IS NULL OR i.at = t.idx)),
    message = (
        SELECT i.message FROM stopped_inputs AS i
        WHERE i.job_id = t.job_id AND i.step = t.step AND (i.at IS NULL OR i.at = t.idx)
        ORDER BY i.gap LIMIT 1)
WHERE t.job_id = :job AND t.step = :step AND t.idx BETWEEN :first AND :last
  AND (t.state NOT IN ('done', 'failed', 'cancelled') OR t.state = 'cancelled' AND t.gap)
  AND EXISTS (
    SELECT 1 FROM stopped_inputs AS i
    WHERE i.job_id = t.job_id AND i.step = t.step AND (i.at IS NULL OR i.at = t.idx));

-- name: cancel_all
WITH locked AS MATERIALIZED (
    SELECT id FROM intermission.tasks
    WHERE job_id = :job AND state NOT IN ('done', 'failed', 'cancelled')
    ORDER BY id + 0 FOR NO KEY UPDATE
)
UPDATE intermission.tasks
SET state = 'cancelled', code = 'cancelled', message = :message, refusals = 0, worker = NULL,
    lease_s = NULL, token = NULL, updated_ms = :now_ms
WHERE job_id = :job AND id IN (SELECT id FROM locked);

-- name: afresh
-- A fresh set of attempts, a new fence.
fence = t.fence + 1, attempts = 0, begun = false, lost = 0, lost_on = NULL, refusals = 0,
    ready_s = 0, lease_s = NULL, worker = NULL, token = NULL, progress = 0, adopted = false,
    gap = false, receipt = NULL, files = NULL, result = NULL, error = NULL, started_ms = NULL,
    ended_ms = NULL, updated_ms = :now_ms

-- name: replaced
-- What a page brings in place of a task of another key.
key = excluded.key, chunk = excluded.chunk, state = 'blocked', code = NULL, message = NULL, {afresh}
WHERE t.key <> excluded.key

-- name: put_back
-- Tasks that must run again, or wait again.
WITH locked AS MATERIALIZED (
    SELECT id FROM intermission.tasks
    WHERE job_id = :job AND step = :step AND idx BETWEEN :first AND :last
      AND state = ANY(:states::text[])
    ORDER BY id + 0 FOR NO KEY UPDATE
)
UPDATE intermission.tasks AS t SET state = :state, code = :code, message = :message, {afresh}
WHERE job_id = :job AND step = :step AND idx BETWEEN :first AND :last
  AND id IN (SELECT id FROM locked)
RETURNING id;

-- name: send_back
-- Tasks that wait again, because an input is not done any more.
WITH locked AS MATERIALIZED (
    SELECT w.id FROM intermission.tasks AS w
    WHERE w.job_id = :job AND w.step = :step AND w.idx BETWEEN :first AND :last
      AND w.state <> 'blocked' AND ({waits})
    ORDER BY w.id + 0 FOR NO KEY UPDATE
)
UPDATE intermission.tasks AS t SET state = 'blocked', code = NULL, message = NULL, {afresh}
WHERE id = ANY(ARRAY(SELECT id FROM locked))
RETURNING id;

-- name: job_restarts
UPDATE intermission.jobs SET state = 'running', reason = NULL, updated_ms = :now_ms
WHERE id = :job AND state IN ('done', 'failed', 'cancelled');

-- name: job_ends
UPDATE intermission.jobs SET state = 'cancelled', reason = :message, updated_ms = :now_ms
WHERE id = :job AND state IN ('pending', 'running', 'draining') RETURNING id;

-- name: mark
UPDATE intermission.jobs SET state = :state, reason = :reason, updated_ms = :now_ms
WHERE key = :key AND state = ANY(:before::text[]) RETURNING id;

-- name: stopped_tasks
SELECT t.step, t.idx FROM intermission.tasks AS t
WHERE t.job_id = :job AND {stopped}
  AND (:ids::bigint[] IS NULL OR t.id = ANY(:ids::bigint[]))
ORDER BY t.id + 0;

-- name: done_among
-- Not of a job that is being deleted.
SELECT t.id, t.job_id, t.step, t.idx FROM intermission.tasks AS t
WHERE t.state = 'done' AND t.id = ANY(:ids::bigint[])
  AND (SELECT j.id FROM intermission.jobs AS j WHERE j.id = t.job_id) IS NOT NULL
ORDER BY t.id;

-- name: done_plans
SELECT step FROM intermission.tasks
WHERE job_id = :job AND step = ANY(:plans::integer[]) AND state = 'done';

-- name: outputs
SELECT t.idx, t.state, coalesce(t.receipt, t.key), t.result, t.files
FROM intermission.tasks AS t
WHERE (t.job_id, t.step) = (
    SELECT s.job_id, s.no FROM intermission.jobs AS j
    JOIN intermission.steps AS s ON s.job_id = j.id AND s.name = :step WHERE j.key = :job)
  AND t.idx > :after
ORDER BY t.idx LIMIT :limit;

-- name: task_columns
-- The fields of a `TaskRow`.
t.id, t.step, t.idx, t.key, t.chunk, t.state, t.attempts, t.fence, t.worker, t.progress, t.error,
    t.message, t.adopted, t.started_ms, t.ended_ms,
    CASE WHEN t.state = 'retrying' AND t.ready_s > {now_s}
    THEN {now_ms} + CAST((t.ready_s - {now_s}) * 1000 AS bigint) END,
    t.code, t.lost, t.refusals

-- name: receipts
SELECT {task_columns}, coalesce(t.receipt, t.key), t.result, t.files
FROM intermission.tasks AS t INDEXED BY tasks_with_files
WHERE t.job_id = :job AND t.id > :after AND t.files IS NOT NULL AND t.state = 'done'
ORDER BY t.id LIMIT :limit;

-- name: deferred
SELECT {task_columns}, t.job_id, d.fence
FROM intermission.deferrals AS d JOIN intermission.tasks AS t ON t.id = d.task_id
WHERE d.token = :token
ORDER BY (t.state = 'running' AND t.fence = d.fence) DESC, t.id DESC LIMIT 1;

-- name: event_columns
s.name || CASE WHEN t.chunk IS NULL THEN '' ELSE '[' || t.idx || ']' END, e.was, e.now, e.fence,
    e.worker, e.message, e.progress, e.code, s.name, t.idx

-- name: workers
SELECT DISTINCT t.worker FROM intermission.tasks AS t
WHERE t.worker IS NOT NULL AND {held} ORDER BY t.worker;

-- name: fitting_jobs
-- Sorted before they are counted, so that only the rows of a page are.
j.id + 0 < :before AND (:states::text[] IS NULL OR j.state = ANY(:states::text[]))
  AND (:pipeline::text IS NULL OR j.pipeline = :pipeline)
ORDER BY j.id + 0 DESC LIMIT :limit

-- name: jobs_by_key
SELECT {job_columns} FROM intermission.jobs AS j
WHERE j.key >= :first AND j.key < :last
  AND (:source::text IS NULL OR j.source = :source) AND {fitting_jobs};

-- name: jobs_of_source
SELECT {job_columns} FROM intermission.jobs AS j WHERE j.source = :source AND {fitting_jobs};

-- name: newest_jobs
SELECT {job_columns} FROM intermission.jobs AS j
WHERE j.id < :before ORDER BY j.id DESC LIMIT :limit;
