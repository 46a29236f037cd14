-- The ledger. Times ending in _ms are UTC wall clock, for people; times ending in _s are the
-- machine's shared monotonic clock, for leases and retry delays (see boot in `meta`).

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

-- AUTOINCREMENT: an id is never used again, so a late lease cannot match another task.
CREATE TABLE jobs (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    key        TEXT NOT NULL UNIQUE CHECK (key <> ''),
    pipeline   TEXT NOT NULL,
    code       TEXT NOT NULL, -- what a worker must have to run it: pipeline@graph
    source     TEXT NOT NULL, -- its URI
    spec       TEXT NOT NULL,
    revision   INTEGER NOT NULL DEFAULT 0, -- of the spec: its limits may change
    state      TEXT NOT NULL,
    priority   INTEGER NOT NULL DEFAULT 0,
    begin_ms   INTEGER NOT NULL DEFAULT 0, -- nothing of it is claimable sooner
    turn       INTEGER NOT NULL DEFAULT 0, -- the event it was last given a task at
    reason     TEXT,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL
) STRICT;

CREATE INDEX jobs_active ON jobs (id) WHERE state IN ('pending', 'running', 'draining');

-- For lists in pages, newest first: an index ends with the id, so a page is a walk along one of
-- these. They have expressions that no claim has, so that none is ever planned along them, and one
-- is in the order of `id + 0`, as in PostgreSQL.
CREATE INDEX jobs_of_source ON jobs (source, id + 0);
CREATE INDEX jobs_in_state ON jobs (state || '');
CREATE INDEX jobs_of_pipeline ON jobs (pipeline || '', state || '');

-- Steps that the same workers can run: few, however many jobs there are.
CREATE TABLE classes (
    id       INTEGER PRIMARY KEY,
    code     TEXT NOT NULL, -- of the job
    pipeline TEXT NOT NULL,
    step     TEXT NOT NULL,
    needs    TEXT,
    prefers  TEXT
) STRICT;
CREATE UNIQUE INDEX classes_alike
    ON classes (code, step, coalesce(needs, ''), coalesce(prefers, ''));

-- Steps of jobs that may have a task to claim, in the order in which they are served. A row comes
-- when a task becomes claimable, and goes when a claim finds none: what a claim costs depends on
-- what there is for it. `parked`: 1 waits for the time of a retry, 2 for the time of its job.
CREATE TABLE ready (
    job_id   INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    step     INTEGER NOT NULL,
    class    INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    turn     INTEGER NOT NULL,
    parked   INTEGER NOT NULL,
    due_s    REAL NOT NULL DEFAULT 0,
    begin_ms INTEGER NOT NULL,
    PRIMARY KEY (job_id, step)
) STRICT, WITHOUT ROWID;
CREATE INDEX ready_in_turn ON ready (class, priority DESC, turn, job_id) WHERE parked = 0;
CREATE INDEX ready_retries ON ready (due_s) WHERE parked = 1;
CREATE INDEX ready_begins ON ready (begin_ms) WHERE parked = 2;

CREATE TABLE steps (
    job_id      INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    no          INTEGER NOT NULL,
    class       INTEGER NOT NULL REFERENCES classes (id),
    name        TEXT NOT NULL CHECK (name <> ''),
    attempts    INTEGER NOT NULL,
    needs       TEXT,
    prefers     TEXT,
    concurrency INTEGER,
    gap         INTEGER NOT NULL,
    PRIMARY KEY (job_id, no)
) STRICT, WITHOUT ROWID;

CREATE TABLE limits (
    name       TEXT PRIMARY KEY, -- job:KEY, pipeline:NAME or label:NAME
    running    INTEGER,
    per_minute REAL,
    paused     INTEGER NOT NULL,
    tokens     REAL NOT NULL, -- how many may start now, by the rate
    filled_ms  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE edges (
    job_id   INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    step     INTEGER NOT NULL,
    upstream INTEGER NOT NULL,
    kind     TEXT NOT NULL CHECK (kind IN ('one', 'same', 'all')),
    plan     INTEGER, -- the plan behind the upstream step of an 'all' edge
    PRIMARY KEY (job_id, step, upstream)
) STRICT, WITHOUT ROWID;

-- No foreign key to the jobs: the tasks of a forgotten job go after it, a few at a time.
CREATE TABLE tasks (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id     INTEGER NOT NULL,
    step       INTEGER NOT NULL,
    idx        INTEGER NOT NULL,
    state      TEXT NOT NULL,
    attempts   INTEGER NOT NULL DEFAULT 0, -- ends that were the task's own
    fence      INTEGER NOT NULL DEFAULT 0,
    begun      INTEGER NOT NULL DEFAULT 0, -- whether whoever claimed it has started it
    lost       INTEGER NOT NULL DEFAULT 0, -- how many workers vanished while they ran it
    lost_on    TEXT,                       -- their names
    refusals   INTEGER NOT NULL DEFAULT 0, -- how many hosts said that they cannot run it
    ready_s    REAL NOT NULL DEFAULT 0,
    lease_s    REAL,
    worker     TEXT,
    token      TEXT,
    progress   REAL NOT NULL DEFAULT 0,
    adopted    INTEGER NOT NULL DEFAULT 0,
    gap        INTEGER NOT NULL DEFAULT 0, -- stopped, and fan-ins go ahead without it
    updated_ms INTEGER NOT NULL,
    started_ms INTEGER,
    ended_ms   INTEGER,
    key        TEXT NOT NULL CHECK (key <> ''),
    chunk      TEXT,
    receipt    TEXT, -- the key its receipt was written under; NULL for a step that is not durable
    files      TEXT, -- the artifacts of the receipt, as JSON
    result     TEXT,
    error      TEXT,
    code       TEXT, -- the reason of its last end
    message    TEXT,
    told       INTEGER NOT NULL DEFAULT 0, -- the progress that the last event told, in hundredths
    told_ms    INTEGER NOT NULL DEFAULT 0,
    UNIQUE (job_id, step, idx)
) STRICT;

-- The states partition the tasks: blocked, claimable, held, stopped, and done, which needs no
-- index. Written with OR, because SQLite keeps a lookup table for every IN it must evaluate.
CREATE INDEX tasks_blocked ON tasks (job_id, step, idx)
    WHERE state = 'blocked';
CREATE INDEX tasks_claimable ON tasks (job_id, step, id)
    WHERE state = 'pending' OR state = 'retrying' OR state = 'abandoned' OR state = 'corrupt';
CREATE INDEX tasks_held ON tasks (job_id, step)
    WHERE state = 'leased' OR state = 'running';
CREATE INDEX tasks_stopped ON tasks (job_id, step)
    WHERE state = 'failed' OR state = 'cancelled';
CREATE INDEX tasks_of_job ON tasks (job_id, id); -- for lists in pages
CREATE INDEX tasks_with_files ON tasks (job_id, id) WHERE files IS NOT NULL;

-- The tokens that tasks were deferred under, with the fence of that attempt. They stay, so that
-- whoever comes late with a result can be told what became of the task.
CREATE TABLE deferrals (
    token   TEXT NOT NULL,
    task_id INTEGER NOT NULL,
    fence   INTEGER NOT NULL,
    PRIMARY KEY (token, task_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX deferrals_of_task ON deferrals (task_id);

CREATE TRIGGER deferrals_go AFTER DELETE ON tasks BEGIN
    DELETE FROM deferrals WHERE task_id = old.id;
END;

-- Hosts that gave a task back because they cannot run it, and until when they do not get it.
CREATE TABLE refusals (
    task_id INTEGER NOT NULL,
    host    TEXT NOT NULL,
    code    TEXT NOT NULL,
    message TEXT NOT NULL,
    until_s REAL NOT NULL,
    PRIMARY KEY (task_id, host)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER refusals_end AFTER UPDATE OF refusals ON tasks
WHEN old.refusals > 0 AND new.refusals = 0 BEGIN
    DELETE FROM refusals WHERE task_id = new.id;
END;

CREATE TRIGGER refusals_go AFTER DELETE ON tasks WHEN old.refusals > 0 BEGIN
    DELETE FROM refusals WHERE task_id = old.id;
END;

-- How many tasks of a step are in a state: for display alone, never for a decision. Every
-- transaction that changed tasks ends by adding up the events it made.
CREATE TABLE counts (
    job_id INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    step   INTEGER NOT NULL,
    state  TEXT NOT NULL,
    n      INTEGER NOT NULL,
    PRIMARY KEY (job_id, step, state)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER counts_go AFTER DELETE ON tasks BEGIN
    UPDATE counts SET n = n - 1
    WHERE job_id = old.job_id AND step = old.step AND state = old.state;
END;

-- Changes in the order they were committed. Tasks that changed alike in one transaction share a
-- row: a batch is claimed, and ends, as a few of them.
CREATE TABLE events (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT, -- of the last of its changes
    n       INTEGER NOT NULL DEFAULT 1,        -- how many it stands for
    at_ms   INTEGER NOT NULL,
    job_id  INTEGER NOT NULL,
    tasks   TEXT,    -- their ids as JSON; NULL where the job itself changed
    step    INTEGER, -- of the tasks
    was     TEXT,
    now     TEXT NOT NULL,
    fence   INTEGER,
    worker  TEXT,
    code    TEXT,    -- the reason, where an attempt ended
    message TEXT,
    progress REAL    -- where a task makes progress, and its state stays
) STRICT;
CREATE INDEX events_of_job ON events (job_id);

-- Jobs that are gone, and whose finished tasks and events are still being removed.
CREATE TABLE forgotten (
    job_id INTEGER PRIMARY KEY
) STRICT;

CREATE TRIGGER task_progress AFTER UPDATE OF told ON tasks BEGIN
    INSERT INTO events (at_ms, job_id, tasks, step, was, now, fence, worker, progress)
    VALUES (new.told_ms, new.job_id, '[' || new.id || ']', new.step, new.state, new.state,
            new.fence, new.worker, new.progress);
END;

CREATE TRIGGER job_starts AFTER INSERT ON jobs BEGIN
    INSERT INTO events (at_ms, job_id, now) VALUES (new.created_ms, new.id, new.state);
END;
