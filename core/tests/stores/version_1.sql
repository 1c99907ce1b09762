PRAGMA application_id = 2003266643; -- 'wglS'
PRAGMA user_version = 1;
CREATE TABLE committed (  -- one row at most: every start in the last lane is in 'executions'
  lane           TEXT NOT NULL,         -- as in 'store'; another lane's row means nothing
  started_at     INTEGER NOT NULL,      -- starts up to this time may be missing, from the lanes before
  synced         INTEGER NOT NULL,      -- this and the next as in 'executions'
  uptime         INTEGER NOT NULL
) STRICT;
CREATE TABLE executions (               -- starts that may still count; the view 'starts' shows readable times
  name           TEXT NOT NULL,
  key            TEXT NOT NULL,         -- readable, possibly truncated
  key_hash       TEXT NOT NULL,         -- identifies the key
  started_at     INTEGER NOT NULL,      -- microseconds since 1970, like all times here except uptimes
  units          INTEGER NOT NULL,
  expires_at     INTEGER NOT NULL,      -- until when it counts
  synced         INTEGER NOT NULL,      -- 1: the clock that wrote these times was synchronised
  uptime         INTEGER NOT NULL,      -- the start, in microseconds since the boot in 'store'; negative: before that boot
  counts_until   INTEGER AS (uptime + (expires_at - started_at))
) STRICT;
INSERT INTO executions VALUES ('api/rate','acme','577ebb44ec0a529cb4f8d400277bda13',1795903936510797,1,1795907536510797,0,12818981193);
INSERT INTO executions VALUES ('api','acme','577ebb44ec0a529cb4f8d400277bda13',1795903936522267,1,1795907536522267,0,12818992663);
INSERT INTO executions VALUES ('api','acme','577ebb44ec0a529cb4f8d400277bda13',1795903936523444,1,1795907536523444,0,12818993839);
INSERT INTO executions VALUES ('api','','9468542549fc32f7946cef04cb59c5bf',1795903936527476,1,1795907536527476,0,12818997872);
INSERT INTO executions VALUES ('api','','9468542549fc32f7946cef04cb59c5bf',1795903936538702,1,1795907536538702,0,12819009098);
INSERT INTO executions VALUES ('mail','','9468542549fc32f7946cef04cb59c5bf',1795903936545227,1,1795990336545227,0,12819015623);
INSERT INTO executions VALUES ('mail','','9468542549fc32f7946cef04cb59c5bf',1795903936549962,1,1795990336549962,0,12819020357);
INSERT INTO executions VALUES ('mail','','9468542549fc32f7946cef04cb59c5bf',1795903936557762,1,1795990336557762,0,12819028158);
INSERT INTO executions VALUES ('mail','','9468542549fc32f7946cef04cb59c5bf',1795903936559088,1,1795990336559088,0,12819029483);
INSERT INTO executions VALUES ('tenants','gold','146d7aec3451b3cee2d617f64f00008e',1795903936571556,1,1795907536571556,0,12819041951);
INSERT INTO executions VALUES ('tenants','gold','146d7aec3451b3cee2d617f64f00008e',1795903936572956,1,1795907536572956,0,12819043352);
INSERT INTO executions VALUES ('tenants','gold','146d7aec3451b3cee2d617f64f00008e',1795903936574310,1,1795907536574310,0,12819044706);
INSERT INTO executions VALUES ('tenants','gold','146d7aec3451b3cee2d617f64f00008e',1795903936575561,1,1795907536575561,0,12819045957);
INSERT INTO executions VALUES ('tenants','gold','146d7aec3451b3cee2d617f64f00008e',1795903936582588,1,1795907536582588,0,12819052984);
INSERT INTO executions VALUES ('tenants','tin','bcb4dcc58bee2e73e0c055bc7f1057c6',1795903936589141,1,1795907536589141,0,12819059537);
INSERT INTO executions VALUES ('both/rate','','9468542549fc32f7946cef04cb59c5bf',1795903936594461,1,1795907536594461,0,12819064856);
INSERT INTO executions VALUES ('both/rate','','9468542549fc32f7946cef04cb59c5bf',1795903936602943,1,1795907536602943,0,12819073338);
INSERT INTO executions VALUES ('short','','9468542549fc32f7946cef04cb59c5bf',1795903936614294,1,1795903996614294,0,12819084689);
INSERT INTO executions VALUES ('gone','','9468542549fc32f7946cef04cb59c5bf',1795903936616482,1,1795907536616482,0,12819086877);
INSERT INTO executions VALUES ('gone','','9468542549fc32f7946cef04cb59c5bf',1795903936617788,1,1795907536617788,0,12819088184);
INSERT INTO executions VALUES ('kind','','9468542549fc32f7946cef04cb59c5bf',1795903936633460,1,1795907536633460,0,12819103856);
INSERT INTO executions VALUES ('kind','','9468542549fc32f7946cef04cb59c5bf',1795903936641662,1,1795907536641662,0,12819112058);
CREATE TABLE keys (                     -- operators' policies of single keys
  name           TEXT NOT NULL,         -- of the limit
  key            TEXT NOT NULL,
  policy         TEXT,                  -- the policy above the limit's; NULL: lifted, and the row is about to be deleted
  overridden_at  TEXT NOT NULL,
  overridden_by  TEXT NOT NULL,
  generation     INTEGER NOT NULL,      -- as in 'limits'
  missing        INTEGER,
  PRIMARY KEY (name, key)
) STRICT, WITHOUT ROWID;
INSERT INTO keys VALUES ('tenants','gold','50/1h','2026-11-28T22:12:16.654Z','earlier (process 7)',9,NULL);
INSERT INTO keys VALUES ('tenants','tin',NULL,'2026-11-28T22:12:16.683Z','earlier (process 7)',13,1);
CREATE TABLE limits (
  name           TEXT PRIMARY KEY,
  kind           TEXT NOT NULL,         -- 'rate', 'concurrency', …; 'composite': of the limits NAME/KIND
  policy         TEXT NOT NULL,         -- the declared policy as text: '100/1m'
  declared_at    TEXT NOT NULL,
  declared_by    TEXT NOT NULL,         -- the program and process of the last declaration
  override       TEXT,                  -- the operator's policy above the declared one; NULL: none
  overridden_at  TEXT,
  overridden_by  TEXT,
  generation     INTEGER NOT NULL,      -- the number of the last change
  missing        INTEGER                -- units of a key that the ledger may lack until it has the starts before that change
) STRICT;
INSERT INTO limits VALUES ('api/rate','rate','60/1h','2026-11-28T22:12:16.510Z','earlier (process 7)',NULL,NULL,NULL,15,NULL);
INSERT INTO limits VALUES ('mail','rate','100/1h + 2000/1d','2026-11-28T22:12:16.540Z','earlier (process 7)',NULL,NULL,NULL,2,NULL);
INSERT INTO limits VALUES ('tenants','rate','40/1h','2026-11-28T22:12:16.571Z','earlier (process 7)','20/1h','2026-11-28T22:12:16.643Z','earlier (process 7)',8,NULL);
INSERT INTO limits VALUES ('both/rate','rate','80/1h','2026-11-28T22:12:16.591Z','earlier (process 7)',NULL,NULL,NULL,4,NULL);
INSERT INTO limits VALUES ('both/concurrency','concurrency','2 concurrent','2026-11-28T22:12:16.591Z','earlier (process 7)',NULL,NULL,NULL,4,NULL);
INSERT INTO limits VALUES ('both','composite','80/1h + 2 concurrent','2026-11-28T22:12:16.591Z','earlier (process 7)',NULL,NULL,NULL,4,NULL);
INSERT INTO limits VALUES ('short','rate','100/1m','2026-11-28T22:12:16.613Z','earlier (process 7)',NULL,NULL,NULL,5,NULL);
INSERT INTO limits VALUES ('kind','concurrency','5 concurrent','2026-11-28T22:12:16.692Z','earlier (process 7)',NULL,NULL,NULL,14,NULL);
INSERT INTO limits VALUES ('api/concurrency','concurrency','5 concurrent','2026-11-28T22:12:16.696Z','earlier (process 7)',NULL,NULL,NULL,15,NULL);
INSERT INTO limits VALUES ('api','composite','60/1h + 5 concurrent','2026-11-28T22:12:16.696Z','earlier (process 7)',NULL,NULL,NULL,15,NULL);
CREATE TABLE moves (
  number   INTEGER PRIMARY KEY,
  name     TEXT NOT NULL,      -- the limit's name in the rows
  becomes  TEXT,               -- the new name; NULL: the rows are deleted
  until    INTEGER NOT NULL    -- applies to starts up to this uptime
) STRICT;
INSERT INTO moves VALUES (1,'kind',NULL,12819163427);
INSERT INTO moves VALUES (2,'api','api/rate',9223372036854775807);
CREATE TABLE store (
  id             TEXT NOT NULL,         -- identifies the lane of this database
  created_at     TEXT NOT NULL,
  secret         TEXT NOT NULL,         -- the secret for hashing names and keys
  boot           TEXT NOT NULL,         -- the boot in which the last lane was created; '' before the first
  lane           TEXT NOT NULL,         -- the number of that creation; '' before the first
  sequence       INTEGER NOT NULL,      -- counts the commits to the ledger; a lane with a smaller count is an old copy
  pruned_at      INTEGER NOT NULL,      -- the uptime when the ledger was last pruned, in microseconds
  generation     INTEGER NOT NULL       -- counts the changes of policies; a lane with another count must follow
) STRICT;
INSERT INTO store VALUES ('286d3a0fe228b24dd0bc4afd8f929f40','2026-11-28T22:12:16.498Z','38432909112606f89d6e015058280e63','eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee','fa627df472b9e9e2',46,12818981590,15);
CREATE TABLE usage (                    -- the counts of each limit in each minute of the last 31 days
  minute         TEXT NOT NULL,         -- 'YYYY-MM-DD HH:MM', in UTC
  name           TEXT NOT NULL,
  units          INTEGER NOT NULL,      -- units admitted
  denied         INTEGER NOT NULL DEFAULT 0, -- attempts that were denied
  waited         INTEGER NOT NULL DEFAULT 0, -- starts that had to wait
  peak           INTEGER NOT NULL DEFAULT 0, -- the most units in use at a time, of one key, as seen once a second
  PRIMARY KEY (minute, name)
) STRICT, WITHOUT ROWID;
INSERT INTO usage VALUES ('2026-11-28 22:12','api',5,0,0,3);
INSERT INTO usage VALUES ('2026-11-28 22:12','both/concurrency',2,0,0,2);
INSERT INTO usage VALUES ('2026-11-28 22:12','both/rate',2,0,0,2);
INSERT INTO usage VALUES ('2026-11-28 22:12','gone',2,0,0,2);
INSERT INTO usage VALUES ('2026-11-28 22:12','kind',2,0,0,2);
INSERT INTO usage VALUES ('2026-11-28 22:12','mail',4,0,0,4);
INSERT INTO usage VALUES ('2026-11-28 22:12','short',1,0,0,1);
INSERT INTO usage VALUES ('2026-11-28 22:12','tenants',6,0,0,5);
CREATE INDEX limits_by_generation ON limits (generation);
CREATE INDEX keys_by_generation ON keys (generation);
CREATE INDEX executions_by_end ON executions (counts_until);
CREATE VIEW starts AS
  SELECT name, key, strftime('%Y-%m-%d %H:%M:%f', started_at / 1e6, 'unixepoch') AS started_at, units,
    strftime('%Y-%m-%d %H:%M:%f', expires_at / 1e6, 'unixepoch') AS expires_at
  FROM executions ORDER BY executions.started_at;
